"""Every operation does what the library does."""

from __future__ import annotations

import base64

import pytest
from aiohttp import ClientSession

import trunkline
from local_cluster import RunningCluster, wait_until
from lying_writer import GARBAGE, POISONED, append_corrupt_batch, append_poison, payload_of, writing
from proxy.conftest import Library
from proxy.proxy_process import Proxy
from trunkline.proxy.limits import PAGE_BYTES_MAX
from trunkline.proxy.server import ProxyServer
from trunkline.proxy.service import ProxyConfig

OCTETS = "application/octet-stream"
NO_TEXT = b"\xff\x00\xfe"


def test_a_text_that_is_appended_is_read_as_a_text(proxy: Proxy, log: str) -> None:
    appended = proxy.post(f"/v1/logs/{log}/entries", {"text": "grüße", "headers": {"source": "shop"}})
    assert (appended.status, appended.json) == (201, {"glsn": 1})
    entry = proxy.get(f"/v1/logs/{log}/entries/1").json
    assert (entry["glsn"], entry["text"], entry["headers"]) == (1, "grüße", {"source": "shop"})
    assert "payload" not in entry
    assert entry["writer"].startswith("proxy-")
    assert entry["time_ms"] > 0


def test_bytes_that_are_no_text_are_read_as_base64(proxy: Proxy, log: str) -> None:
    encoded = base64.b64encode(NO_TEXT).decode()
    given = {"payload": encoded, "headers": {"id": {"base64": encoded}}}
    assert proxy.post(f"/v1/logs/{log}/entries", given).status == 201
    entry = proxy.get(f"/v1/logs/{log}/entries/1").json
    assert (entry["payload"], entry["headers"]) == (encoded, {"id": {"base64": encoded}})
    assert "text" not in entry


def test_who_wants_base64_gets_it_of_texts_as_well(proxy: Proxy, log: str) -> None:
    proxy.append(log, "a")
    entry = proxy.get(f"/v1/logs/{log}/entries/1?encoding=base64").json
    assert (entry["payload"], "text" in entry) == ("YQ==", False)
    assert proxy.get(f"/v1/logs/{log}/entries?encoding=base64").json["entries"] == [entry]


@pytest.mark.parametrize("payload", [NO_TEXT, b"", b"{}"])
def test_bytes_alone_are_appended_and_read_as_they_are(proxy: Proxy, log: str, payload: bytes) -> None:
    path = f"/v1/logs/{log}/entries"
    assert proxy.ask("POST", path, body=payload, headers={"Content-Type": OCTETS}).json == {"glsn": 1}
    read = proxy.get(f"{path}/1", Accept=OCTETS)
    assert (read.status, read.headers["Content-Type"], read.body) == (200, OCTETS, payload)


def test_a_batch_lies_one_behind_the_other(proxy: Proxy, log: str) -> None:
    proxy.append(log, "first")
    entries = [{"text": "a", "headers": {"n": "1"}}, {"payload": "Yg=="}, {"text": ""}]
    appended = proxy.post(f"/v1/logs/{log}/batches", {"entries": entries})
    assert (appended.status, appended.json) == (201, {"first": 2, "count": 3})
    assert proxy.texts(log) == ["first", "a", "b", ""]


def test_logs_are_listed_and_described(proxy: Proxy, log: str, library: Library[None]) -> None:
    for text in "abc":
        proxy.append(log, text)

    async def trim_and_seal(handle: trunkline.Cluster) -> None:
        handle_log = await handle.log(log)
        await handle_log.trim(1)
        await handle_log.seal()

    library(trim_and_seal)
    assert log in proxy.get("/v1/logs").json["logs"]
    facts = {"name": log, "policy": "chain", "replicas": 3, "oldest": 2, "tail": 4, "sealed": True}
    assert proxy.get(f"/v1/logs/{log}").json == facts
    assert proxy.get(f"/v1/logs/{log}/tail").json == {"tail": 4}


def test_pages_follow_each_other_to_the_end(proxy: Proxy, log: str) -> None:
    proxy.post(f"/v1/logs/{log}/batches", {"entries": [{"text": str(number)} for number in range(7)]})
    found, start = [], 1
    for _ in range(4):
        page = proxy.get(f"/v1/logs/{log}/entries?start={start}&limit=3").json
        found += [entry["text"] for entry in page["entries"]]
        start = page["next"]
    assert (found, start) == ([str(number) for number in range(7)], 8)


def test_a_page_ends_where_it_becomes_too_large(proxy: Proxy, log: str, library: Library[int]) -> None:
    async def append(handle: trunkline.Cluster) -> int:
        return await (await handle.log(log)).append([b"x" * (PAGE_BYTES_MAX - 1), b"y", b"z"])

    library(append)
    first = proxy.get(f"/v1/logs/{log}/entries").json
    assert ([entry["glsn"] for entry in first["entries"]], first["next"]) == ([1, 2], 3)
    assert [each["text"] for each in proxy.get(f"/v1/logs/{log}/entries?start=3").json["entries"]] == ["z"]


def test_a_page_begins_at_the_oldest_entry_and_passes_over_nothing_that_was_trimmed(
    proxy: Proxy, log: str, library: Library[int]
) -> None:
    for text in "abc":
        proxy.append(log, text)

    async def trim(handle: trunkline.Cluster) -> int:
        return await (await handle.log(log)).trim(2)

    library(trim)
    assert proxy.texts(log) == ["c"]
    wait_until(lambda: proxy.get(f"/v1/logs/{log}/entries/1").status == 410)  # the nodes trimmed it
    trimmed = proxy.get(f"/v1/logs/{log}/entries?start=1")
    assert (trimmed.status, trimmed.problem, trimmed.json["point"]) == (410, "trimmed", 2)
    trimmed = proxy.get(f"/v1/logs/{log}/entries/2")
    assert (trimmed.status, trimmed.problem, trimmed.json["point"]) == (410, "trimmed", 2)


def test_a_page_waits_for_an_entry_that_comes_meanwhile(proxy: Proxy, log: str) -> None:
    waiting = proxy.connection()
    waiting.request("GET", f"/v1/logs/{log}/entries?start=1&wait_ms=20000")
    proxy.append(log, "late")
    page = waiting.getresponse()
    assert b'"late"' in page.read()
    waiting.close()


def test_a_page_that_waited_in_vain_is_empty(proxy: Proxy, log: str) -> None:
    page = proxy.get(f"/v1/logs/{log}/entries?wait_ms=10")
    assert (page.status, page.json) == (200, {"entries": [], "next": 1})


def test_a_poisoned_log_is_readable_and_invalid_headers_are_shown(
    proxy: Proxy, log: str, cluster: RunningCluster
) -> None:
    writing(cluster.connect, log, append_poison, create=False)
    entries = proxy.get(f"/v1/logs/{log}/entries").json["entries"]
    assert [entry["text"].encode() for entry in entries] == [payload_of(each) for each in range(len(POISONED))]
    assert entries[1]["headers"] == {"source": "shöp", "n": {"base64": "/w=="}}
    unreadable = [base64.b64decode(entry.get("unreadable_headers", "")) for entry in entries]
    assert unreadable == [b"", b"", *GARBAGE, b""]
    single = proxy.get(f"/v1/logs/{log}/entries/3").json
    assert (single["headers"], single["unreadable_headers"]) == ({}, entries[2]["unreadable_headers"])
    key = {"Idempotency-Key": "once"}
    assert [proxy.post(f"/v1/logs/{log}/entries", {"text": "a"}, key).json["glsn"] for _ in range(2)] == [
        len(POISONED) + 1
    ] * 2


def test_a_corrupt_batch_is_reported_and_skipped_and_keys_work_behind_it(
    proxy: Proxy, log: str, cluster: RunningCluster
) -> None:
    proxy.append(log, "before")
    writing(cluster.connect, log, append_corrupt_batch, create=False)
    key = {"Idempotency-Key": "once"}
    assert [proxy.post(f"/v1/logs/{log}/entries", {"text": "a"}, key).json["glsn"] for _ in range(2)] == [5, 5]
    assert proxy.get(f"/v1/logs/{log}/entries").json["next"] == 2
    for path in ("entries?start=2", "entries/3"):
        found = proxy.get(f"/v1/logs/{log}/{path}")
        assert (found.status, found.problem, found.json["first"], found.json["end"]) == (410, "corrupt-entries", 2, 5)
    assert [entry["text"] for entry in proxy.get(f"/v1/logs/{log}/entries?start=5").json["entries"]] == ["a"]


def test_an_append_takes_the_position_that_it_expects_or_none(proxy: Proxy, log: str) -> None:
    path = f"/v1/logs/{log}/entries"
    assert proxy.post(path, {"text": "a", "expect": 1}).json == {"glsn": 1}
    failed = proxy.post(path, {"text": "b", "expect": 1})
    assert (failed.status, failed.problem, failed.json["tail"]) == (409, "condition-failed", 2)
    failed = proxy.post(f"/v1/logs/{log}/batches", {"entries": [{"text": "b"}], "expect": 9})
    assert (failed.status, failed.problem, failed.json["tail"]) == (409, "condition-failed", 2)
    assert proxy.texts(log) == ["a"]


def test_health_readiness_and_counters_are_shown(proxy: Proxy, log: str) -> None:
    before = proxy.count("entries_appended_total")
    proxy.append(log, "a")
    assert proxy.count("entries_appended_total") == before + 1
    process = {"process": "proxy", "name": "127.0.0.1:0"}
    assert proxy.get("/healthz").json == {"alive": True, **process}
    assert proxy.get("/readyz").json == {"ready": True, "why": [], **process}
    metrics = proxy.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'trunkline_proxy_requests_total{operation="appendEntry",status="201"} ' in metrics.body


def test_a_proxy_whose_cluster_does_not_answer_is_alive_but_not_ready(library: Library[None]) -> None:
    async def test(handle: trunkline.Cluster) -> None:
        server = ProxyServer(ProxyConfig(listen="127.0.0.1:0"), handle)
        await server.start()
        await handle.close()
        try:
            async with ClientSession(f"http://{server.address}") as client:
                async with client.get("/readyz") as answer:
                    body = await answer.json()
                    assert (answer.status, body["ready"], body["process"]) == (503, False, "proxy")
                    assert body["why"][0].startswith("the cluster does not answer: ")
                async with client.get("/healthz") as answer:
                    assert (answer.status, (await answer.json())["alive"]) == (200, True)
        finally:
            await server.stop()

    library(test)
