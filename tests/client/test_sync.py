"""The library without ``await``, against a real cluster: the same client on a thread of its own."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import trunkline
from local_cluster import RunningCluster, local_cluster, wait_until
from trunkline import sync
from trunkline.core.projection import Settings

names = (f"log{number}" for number in itertools.count(1))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("sync") / "cluster") as cluster:
        yield cluster


@pytest.fixture
def cluster(running: RunningCluster) -> Iterator[sync.Cluster]:
    with sync.connect(running.connect) as cluster:
        yield cluster


@pytest.fixture
def log(cluster: sync.Cluster) -> sync.Log:
    return cluster.log(next(names), create=True)


def readers(log: sync.Log) -> list[str]:
    """The roles of subscriptions that have not been closed."""
    return [role for role in log._log._session.process.roles if role.startswith("reader:")]


def test_entries_go_in_and_come_out(log: sync.Log) -> None:
    assert log.append(b"one", headers={"k": b"v"}) == 1
    assert log.append([b"two", b"three"]) == 2
    entry = log.read(1)
    assert (entry.payload, entry.headers) == (b"one", {"k": b"v"})
    assert [each.payload for each in log.subscribe(start=2, until=3)] == [b"two", b"three"]
    assert [len(batch) for batch in log.batches(to_tail=True)] == [1, 2]
    assert (log.tail(), log.peek(), log.fill(1)) == (4, 4, False)


def test_a_log_is_administered(log: sync.Log) -> None:
    log.append(b"a")
    log.append(b"b")
    assert log.trim(1) == 1
    with pytest.raises(trunkline.Trimmed):
        log.read(1)
    assert log.seal().end == 3
    with pytest.raises(trunkline.LogSealed):
        log.append(b"c")
    log.reopen()
    assert log.append(b"c") == 3
    log.delete()
    log.close()


def test_the_cluster_is_asked(cluster: sync.Cluster, log: sync.Log) -> None:
    assert log.name in cluster.logs()
    assert cluster.describe(log.name).epoch == 1
    assert cluster.create_log(log.name, Settings()) == 1
    assert {node.node for node in cluster.nodes()} == {"node1", "node2", "node3"}
    assert cluster.status().cluster == cluster.id
    assert cluster.node_status("node1").node == "node1"
    cluster.set_node_state("node1", "rw")
    with pytest.raises(trunkline.NoSuchLog):
        cluster.log("no-such-log")


def test_several_threads_append_at_once(log: sync.Log) -> None:
    with ThreadPoolExecutor(8) as threads:
        positions = list(threads.map(log.append, [b"%d" % number for number in range(200)]))
    assert sorted(positions) == list(range(1, 201))
    found = {entry.glsn: entry.payload for entry in log.subscribe(to_tail=True)}
    assert [found[glsn] for glsn in positions] == [b"%d" % number for number in range(200)]


def test_a_loop_that_is_left_closes_its_subscription(log: sync.Log) -> None:
    log.append([b"a", b"b"])
    for entry in log.subscribe():
        assert entry.payload == b"a"
        break
    gc.collect()
    wait_until(lambda: readers(log) == [])
    with log.batches() as batches:
        assert next(batches).payloads() == [b"a", b"b"]
        assert batches.next_glsn == 3
    wait_until(lambda: readers(log) == [])
    log.batches()  # never begun, and dropped at once
    gc.collect()
    wait_until(lambda: readers(log) == [])


def test_an_interrupt_ends_the_waiting_and_skips_nothing(log: sync.Log) -> None:
    batches = log.batches()

    def interrupt() -> None:
        wait_until(lambda: batches._next is not None)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    interrupter.join()
    log.append(b"a")
    assert next(batches).payloads() == [b"a"]
    batches.close()


def test_closing_a_handle_ends_every_wait(running: RunningCluster, log: sync.Log) -> None:
    with sync.connect(running.connect) as other:
        batches = other.log(log.name).batches()
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(next, batches)
            other.close()
            with pytest.raises((trunkline.TrunklineError, StopIteration)):
                waiting.result(10)
    with pytest.raises(trunkline.ConfigError, match="not open"):
        other.logs()
    with pytest.raises(trunkline.ConfigError, match="not open"):
        next(batches)


def test_a_handle_opens_once_and_not_at_all_if_no_coordinator_answers(cluster: sync.Cluster) -> None:
    with pytest.raises(trunkline.ConfigError, match="already open"):
        cluster.open()
    options = trunkline.ClientOptions(connect_timeout=0.3)
    before = threading.active_count()
    with pytest.raises(trunkline.Unreachable), sync.connect("127.0.0.1:1", options=options):
        pass
    assert threading.active_count() == before


LEFT_OPEN = """
import atexit, sys, threading
from trunkline import sync
atexit.register(lambda: print([each.name for each in threading.enumerate()]))  # runs after those that come later
cluster = sync.connect(sys.argv[1])
cluster.open()
cluster.log("left-open", create=True).append(b"x")
"""


def test_a_handle_that_is_left_open_has_no_thread_when_the_interpreter_ends(running: RunningCluster) -> None:
    command = [sys.executable, "-c", LEFT_OPEN, running.connect]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['MainThread']\n", "")


def test_errors_of_arguments_come_from_the_call_itself(log: sync.Log) -> None:
    with pytest.raises(trunkline.ConfigError):
        log.batches(0)
    with pytest.raises(trunkline.ConfigError):
        log.append([])


def test_a_loop_that_raised_continues_and_no_caller_waits_forever(cluster: sync.Cluster, log: sync.Log) -> None:
    assert cluster._thread is not None
    batches = cluster.log(log.name).batches()

    def leave() -> None:
        raise SystemExit  # no error of a task gets out of a loop, but this does

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, batches)
        wait_until(lambda: batches._next is not None)
        cluster._thread.soon(leave)
        log.append(b"a")
        assert waiting.result(20).payloads() == [b"a"]
    batches.close()
    assert log.name in cluster.logs()
