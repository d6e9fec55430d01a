"""An append with a key is in the log once, whichever proxy receives it again, and whichever process died meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import trunkline
from local_cluster import RunningCluster, wait_until
from proxy.conftest import Library
from proxy.proxy_process import Answer, Proxy, begin, running

KILLS = 5
WINDOW = 5


@pytest.fixture(scope="module")
def other(cluster: RunningCluster, directory: Path) -> Iterator[Proxy]:
    """Another proxy of the same cluster."""
    with running(cluster.connect, directory) as found:
        yield found


def keyed_batch(proxy: Proxy, log: str, texts: str, key: str) -> Answer:
    entries = [{"text": text} for text in texts]
    return proxy.post(f"/v1/logs/{log}/batches", {"entries": entries}, {"Idempotency-Key": key})


def test_an_append_that_is_sent_again_gets_the_same_position(proxy: Proxy, other: Proxy, log: str) -> None:
    proxy.append(log, "before")
    first = proxy.append(log, "a", key="k")
    proxy.append(log, "after")
    assert (first.status, first.json) == (201, {"glsn": 2})
    for each in (proxy, other):
        again = each.append(log, "a", key="k")
        assert (again.status, again.json) == (201, {"glsn": 2})
    assert proxy.texts(log) == ["before", "a", "after"]


def test_a_batch_that_is_sent_again_gets_the_same_positions(proxy: Proxy, other: Proxy, log: str) -> None:
    for each in (proxy, other, proxy):
        again = keyed_batch(each, log, "abc", "k")
        assert (again.status, again.json) == (201, {"first": 1, "count": 3})
    assert proxy.texts(log) == ["a", "b", "c"]


def test_k6_a_key_that_was_used_for_something_else_is_refused(proxy: Proxy, other: Proxy, log: str) -> None:
    proxy.append(log, "a", key="k")
    for answer in (
        proxy.append(log, "b", key="k"),
        other.append(log, "b", key="k"),
        keyed_batch(other, log, "ab", "k"),
    ):
        assert (answer.status, answer.problem, answer.json["glsn"]) == (422, "key-reused", 1)
    assert proxy.texts(log) == ["a"]


def test_a_key_and_a_condition_go_together(proxy: Proxy, other: Proxy, log: str) -> None:
    def append(to: Proxy, text: str, expect: int, key: str) -> Answer:
        path = f"/v1/logs/{log}/entries"
        return to.post(path, {"text": text, "expect": expect}, {"Idempotency-Key": key})

    for each in (proxy, other):
        assert append(each, "a", 1, "k").json == {"glsn": 1}
    failed = append(proxy, "b", 1, "l")
    assert (failed.status, failed.problem, failed.json["tail"]) == (409, "condition-failed", 2)
    assert append(other, "b", 2, "l").json == {"glsn": 2}
    assert append(proxy, "b", 3, "l").problem == "key-reused"
    assert proxy.texts(log) == ["a", "b"]


def test_k5_a_key_is_forgotten_when_its_entry_leaves_the_window(
    cluster: RunningCluster, directory: Path, log: str
) -> None:
    with running(cluster.connect, directory, "--key-window", str(WINDOW)) as narrow:
        assert narrow.append(log, "a", key="k").json == {"glsn": 1}
        keyed_batch(narrow, log, "b" * (WINDOW - 1), "l")
        assert narrow.append(log, "a", key="k").json == {"glsn": 1}
        narrow.append(log, "c")
        with running(cluster.connect, directory, "--key-window", str(WINDOW)) as fresh:
            assert fresh.append(log, "a", key="k").json == {"glsn": WINDOW + 2}
        assert narrow.append(log, "d", key="m").json == {"glsn": WINDOW + 3}  # which makes it read on
        assert narrow.append(log, "a", key="k").json == {"glsn": WINDOW + 2}


def test_k7_keys_of_entries_that_were_trimmed_are_forgotten_and_the_log_goes_on(
    proxy: Proxy, other: Proxy, log: str, library: Library[int]
) -> None:
    for text in "abc":
        proxy.append(log, text, key=text)

    async def trim(handle: trunkline.Cluster) -> int:
        return await (await handle.log(log)).trim(2)

    assert library(trim) == 2
    wait_until(lambda: proxy.get(f"/v1/logs/{log}/entries/1").status == 410)  # the nodes trimmed it
    assert other.append(log, "c", key="c").json == {"glsn": 3}
    assert other.append(log, "d", key="d").json == {"glsn": 4}


def test_k2_proxies_append_a_key_once_when_several_receive_it_at_once(proxy: Proxy, other: Proxy, log: str) -> None:
    keys = [f"k{number}" for number in range(12)]
    with ThreadPoolExecutor(8) as pool:
        sent = [(key, pool.submit(settled, each, log, key)) for key in keys for each in (proxy, other, proxy)]
        found = {(key, future.result()) for key, future in sent}
    assert len(found) == len(keys)
    assert sorted(proxy.texts(log)) == sorted(keys)


def settled(proxy: Proxy, log: str, key: str) -> int:
    """Send until there is an answer, as an application does after Retry-After."""
    for _ in range(100):
        answer = proxy.append(log, key, key=key)
        if answer.status == 201:
            return int(answer.json["glsn"])
        assert (answer.status, "Retry-After" in answer.headers) == (503, True), answer
    raise AssertionError(f"{key} was never appended")


def send(proxy: Proxy, log: str, key: str) -> None:
    """Ask, and do not wait for the answer."""
    connection = proxy.connection()
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    connection.request("POST", f"/v1/logs/{log}/entries", json.dumps({"text": key}).encode(), headers)
    assert connection.sock is not None
    connection.sock.detach()  # closed with the process that it leads to


def test_k4_a_proxy_that_is_killed_at_any_moment_appends_once_or_leaves_it_to_the_next(
    cluster: RunningCluster, directory: Path, other: Proxy, log: str
) -> None:
    """It is killed with a request unread, in the middle of it, and after it, as it happens."""
    for number in range(KILLS):
        victim = begin(cluster.connect, directory)
        try:
            settled(victim, log, f"warm{number}")  # the log is open, and the index is read
            send(victim, log, f"k{number}")
            for _ in range(number * 3):  # a little later each time
                victim.get("/healthz")
        finally:
            victim.kill()
        settled(other, log, f"k{number}")
        settled(other, log, f"k{number}")
    counts = Counter(other.texts(log))
    assert counts == {f"{kind}{number}": 1 for kind in ("k", "warm") for number in range(KILLS)}


def test_k4_a_proxy_that_is_killed_while_a_replica_hangs_leaves_its_append_to_the_next(
    cluster: RunningCluster, directory: Path, other: Proxy, log: str
) -> None:
    victim = begin(cluster.connect, directory)
    names = [process.name for process in cluster.record.processes if process.name != "coordinator"]
    try:
        settled(victim, log, "warm")
        for name in names[1:]:
            cluster.pause(name)
        send(victim, log, "k")
        wait_until(lambda: victim.count("requests_in_progress") == 2)  # the append, and this request
        victim.kill()
    finally:
        victim.kill()
        for name in names[1:]:
            cluster.resume(name)
    first = settled(other, log, "k")
    assert settled(other, log, "k") == first
    assert other.texts(log).count("k") == 1


def test_an_append_that_is_not_settled_in_time_may_be_sent_again(
    cluster: RunningCluster, directory: Path, other: Proxy, log: str
) -> None:
    nodes = [process.name for process in cluster.record.processes if process.name != "coordinator"]
    with running(cluster.connect, directory, "--timeout", "1") as hasty:
        settled(hasty, log, "warm")
        try:
            for name in nodes:
                cluster.pause(name)
            answer = hasty.append(log, "k", key="k")
            blind = hasty.append(log, "blind")
        finally:
            for name in nodes:
                cluster.resume(name)
        assert (answer.status, answer.problem) == (503, "outcome-unknown")
        assert "same key" in answer.json["detail"]
        assert "Retry-After" in answer.headers
        assert (blind.status, blind.problem, "Retry-After" in blind.headers) == (503, "outcome-unknown", False)
        first = settled(other, log, "k")
        assert settled(hasty, log, "k") == first
    assert other.texts(log).count("k") == 1
