"""The server of metrics and health, the text that it tells, and what each process says of itself."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.projection import Gap, Member, Owner, Policy, Projection, Segment, Settings
from trunkline.errors import ConfigError
from trunkline.metadata.service import ServiceCounts
from trunkline.net.http_names import NOT_OUR_NAME
from trunkline.runtime import observing
from trunkline.runtime.logging_format import JsonLines
from trunkline.runtime.observing import CONNECTIONS_MAX, Observed, ObservingServer
from trunkline.runtime.observing_capture import CaptureView, capture_metrics, capture_readiness, position_number
from trunkline.runtime.observing_coordinator import (
    LOGS_NAMED_MAX,
    CoordinatorView,
    LogView,
    coordinator_metrics,
    coordinator_readiness,
)
from trunkline.runtime.observing_counts import NodeCounts
from trunkline.runtime.observing_format import Described, Distribution, Labelled, Value, page
from trunkline.runtime.observing_health import Readiness
from trunkline.runtime.observing_node import NodeView, node_metrics, node_readiness
from trunkline.runtime.observing_thread import ObservingThread
from trunkline.runtime.server_process import observe_address
from trunkline.runtime.summaries import summary_of
from trunkline.storage.engine import EngineStatus
from trunkline.storage.options import SyncPolicy
from trunkline.threads import Threads

Series = dict[tuple[str, tuple[str, ...]], float]


def series(text: str) -> Series:
    """By name and values of labels, as Prometheus's own parser reads them."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# -------------------------------------------------------------------------------------------------------------- server


async def nothing() -> str:
    return "up 1\n"


async def well() -> Readiness:
    return Readiness()


@asynccontextmanager
async def serving(
    metrics: Callable[[], Awaitable[str]] = nothing, readiness: Callable[[], Awaitable[Readiness]] = well
) -> AsyncIterator[ObservingServer]:
    server = await ObservingServer.start("0", Observed("node", "n1", metrics, readiness, ("n1.example",)))
    try:
        yield server
    finally:
        await server.close()


async def ask(
    server: ObservingServer, path: str, method: str = "GET", name: str | None = None
) -> tuple[int, str, bytes]:
    """Status, kind and body; read until the server closes the connection."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {name or host}\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split()[1]), headers["content-type"], body


def run(scene: Callable[[], Coroutine[None, None, None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await scene()

    asyncio.run(within())


def test_each_address_has_its_answer_and_others_are_told_of_them() -> None:
    async def not_ready() -> Readiness:
        return Readiness(("no coordinator",), {"state": "x"})

    async def scene() -> None:
        async with serving(readiness=not_ready) as server:
            assert server.address.startswith("127.0.0.1:")
            assert await ask(server, "/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", b"up 1\n")
            status, kind, body = await ask(server, "/healthz")
            assert (status, kind, json.loads(body)["alive"]) == (200, "application/json", True)
            status, _, body = await ask(server, "/readyz")
            told = {"ready": False, "why": ["no coordinator"], "process": "node", "name": "n1", "state": "x"}
            assert (status, json.loads(body)) == (503, told)
            assert (await ask(server, "/"))[::2] == (404, b"there are /metrics, /healthz and /readyz\n")
            assert (await ask(server, "/metrics", "POST"))[0] == 405
            assert (await ask(server, "/metrics", "HEAD"))[::2] == (200, b"")

    run(scene)


def test_o4_what_tells_something_is_answered_under_its_own_names_only() -> None:
    async def scene() -> None:
        async with serving() as server:
            for path in ("/metrics", "/readyz", "/"):
                status, _, body = await ask(server, path, name="evil.example")
                assert (status, body.decode()) == (403, f"{NOT_OUR_NAME}\n")
            assert (await ask(server, "/healthz", name="evil.example"))[0] == 200
            for name in (server.address, "localhost:9", "n1.example:9100"):
                assert (await ask(server, "/metrics", name=name))[0] == 200

    run(scene)


def test_o2_a_connection_too_many_is_closed_and_room_comes_back() -> None:
    async def scene() -> None:
        async with serving() as server:
            host, _, port = server.address.rpartition(":")
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX)]
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() == b""
            writer.close()
            for _, each in idle:
                each.close()
                await each.wait_closed()
            while True:  # until the server has heard of it
                try:
                    assert (await ask(server, "/healthz"))[0] == 200
                    break
                except (IndexError, ConnectionError):
                    continue

    run(scene)


def test_o2_an_answer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "ANSWER_S", 0.05)

    async def stuck() -> str:
        await asyncio.Event().wait()
        return ""

    async def scene() -> None:
        async with serving(metrics=stuck) as server:
            assert (await ask(server, "/metrics"))[0] == 503
            assert (await ask(server, "/healthz"))[0] == 200

    run(scene)


def test_o3_a_failure_is_an_error_for_who_asked_and_nothing_else() -> None:
    async def broken() -> str:
        raise RuntimeError("a bug")

    async def scene() -> None:
        async with serving(metrics=broken) as server:
            assert (await ask(server, "/metrics"))[0] == 500
            assert (await ask(server, "/healthz"))[0] == 200

    run(scene)


def test_a_busy_process_is_observed_from_a_thread_and_a_taken_port_is_said() -> None:
    observed = Observed("capture", "orders", nothing, well)
    with ObservingThread("0", observed) as first:

        async def scene() -> None:
            server = ObservingServer("127.0.0.1", observed)
            server.address = first.address
            assert (await ask(server, "/metrics"))[2] == b"up 1\n"

        run(scene)
        with pytest.raises(ConfigError, match=r"--observe: cannot listen on .*; choose another, port 0 for any"):
            ObservingThread(first.address, observed).__enter__()


def test_t2_a_thread_that_no_longer_observes_is_told() -> None:
    threads, told = Threads(), threading.Event()
    threads.when_one_dies(lambda _: told.set())

    def leave() -> None:
        raise SystemExit

    with ObservingThread("0", Observed("capture", "orders", nothing, well), threads) as observing:
        assert observing._loop is not None
        observing._loop.call_soon_threadsafe(leave)
        assert told.wait(20)
    assert threads.died[0].startswith("the thread observing died")


@pytest.mark.parametrize(
    ("text", "found"),
    [("9100", ("127.0.0.1", 9100)), ("0.0.0.0:0", ("0.0.0.0", 0)), ("[::1]:7", ("::1", 7)), ("db:80", ("db", 80))],
)
def test_an_address_without_a_host_is_of_this_machine(text: str, found: tuple[str, int]) -> None:
    assert observe_address(text) == found


@pytest.mark.parametrize("text", ["host", "host:", ":1", "70000", "h:x", "a:b:c"])
def test_an_address_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--observe: "):
        observe_address(text)


# ---------------------------------------------------------------------------------------------------------------- text


def test_prometheus_reads_what_was_told() -> None:
    table = (
        Described("plain_total", "counter", "one number"),
        Described("named", "gauge", "with labels", ("a", "b")),
        Described("took_seconds", "histogram", "a few buckets"),
        Described("unknown", "gauge", "without a value"),
    )
    took = Distribution((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        took.observe(seconds)
    values: dict[str, Value] = {
        "plain_total": 3,
        "named": [Labelled(('x"\\\n', "y"), 0.25)],
        "took_seconds": took,
    }
    found = series(page("t_", table, values))
    assert found == {
        ("t_plain_total", ()): 3.0,
        ("t_named", ('x"\\\n', "y")): 0.25,
        ("t_took_seconds_bucket", ("0.1",)): 2.0,
        ("t_took_seconds_bucket", ("1.0",)): 3.0,
        ("t_took_seconds_bucket", ("+Inf",)): 4.0,
        ("t_took_seconds_sum", ()): 7.65,
        ("t_took_seconds_count", ()): 4.0,
    }


def test_a_line_of_the_log_is_one_json_object_whatever_is_in_it() -> None:
    formatter = JsonLines({"process": "node", "name": "n1"})
    try:
        raise ValueError("two\nlines")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("trunkline.node", logging.WARNING, "", 0, "peer %s", ("\udcff\n",), error)
    record.fields = {"address": "127.0.0.1:1", "level": "hidden"}
    line = formatter.format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert {key: told[key] for key in ("level", "logger", "message", "process", "name", "address")} == {
        "level": "warning",
        "logger": "trunkline.node",
        "message": "peer \udcff\n",
        "process": "node",
        "name": "n1",
        "address": "127.0.0.1:1",
    }
    assert told["ts"].endswith("Z")
    assert "ValueError: two" in told["exception"]


# ----------------------------------------------------------------------------------------------------------- processes

DISK = EngineStatus(SyncPolicy.ALWAYS, 2, 3, 4000, 0, 10**9, 64, False)
NODE = NodeView(DISK, NodeCounts(), True, False, 5, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (None, "starting"),
        (replace(NODE, registered=False), "coordinator"),
        (replace(NODE, engine=replace(DISK, full=True)), "disk is full"),
        (replace(NODE, disk_silent=True), "not answered a sync"),
    ],
)
def test_a_node_that_is_not_ready_says_why(view: NodeView | None, words: str) -> None:
    (why,) = node_readiness(view).why
    assert words in why
    assert series(node_metrics("n1", 1.5, view))["trunkline_node_ready", ()] == 0
    assert series(node_metrics("n1", 1.5, NODE))["trunkline_node_ready", ()] == 1


def log_view(name: str, members: int, *, gaps: tuple[Gap, ...] = (), blocked: bool = False) -> LogView:
    group = tuple(Member(f"n{number}", 1, f"1.0.{number}") for number in range(members))
    segment = Segment(0, 1, 1, None, False, Policy.CHAIN, 1024, (group,), Owner("n0", 1))
    projection = Projection("c", name, 1, 0, (segment,), Settings(), gaps)
    return LogView(summary_of(projection), "RepairSegment" if members < 3 else "idle", blocked, False)


COORDINATOR = CoordinatorView(True, "c1", (), "", (), ServiceCounts(), {}, 0, 0, 0)


def test_logs_in_trouble_are_counted_and_the_first_of_them_are_named() -> None:
    logs = [log_view("a", 3), log_view("b", 2), log_view("c", 1, blocked=True), log_view("d", 3, gaps=(Gap(1, 5),))]
    found = series(coordinator_metrics("c1", 1.0, replace(COORDINATOR, logs=tuple(logs))))
    sums = {labels[0]: value for (name, labels), value in found.items() if name.endswith("logs_in_trouble")}
    assert sums == {"fewer_copies": 1, "no_redundancy": 1, "blocked": 1, "lost": 1, "broken": 0}
    named = {labels for name, labels in found if name.endswith("_log_trouble")}
    assert named == {("b", "fewer_copies"), ("c", "no_redundancy"), ("c", "blocked"), ("d", "lost")}
    assert (found["trunkline_coordinator_logs", ()], found["trunkline_coordinator_repairs", ()]) == (4, 2)

    many = tuple(log_view(f"log{number:04}", 2) for number in range(LOGS_NAMED_MAX + 50))
    found = series(coordinator_metrics("c1", 1.0, replace(COORDINATOR, logs=many)))
    assert found["trunkline_coordinator_logs_in_trouble", ("fewer_copies",)] == LOGS_NAMED_MAX + 50
    assert sum(name.endswith("_log_trouble") for name, _ in found) == LOGS_NAMED_MAX


def test_a_standby_is_ready_tells_nothing_of_logs_and_is_not_ready_without_its_store() -> None:
    nodes = (NodeInfo("n1", 1, 1), NodeInfo("n2", 1, 1, NodeState.DRAINING, live=False))
    clients = (NodeInfo("w", 1, 1, NodeState.CLIENT),)
    standby = replace(COORDINATOR, active=False, nodes=nodes + clients, logs=(log_view("a", 2),))
    found = series(coordinator_metrics("c2", 1.0, standby))
    assert not [name for name, _ in found if "log" in name]
    assert found["trunkline_coordinator_live_nodes", ()] == 1
    assert found["trunkline_coordinator_nodes", ("draining",)] == 1
    assert coordinator_readiness(standby) == Readiness((), {"state": "standby", "active_coordinator": "c1"})

    cut = replace(standby, nodes=None, store_error="etcd is away")
    (why,) = coordinator_readiness(cut).why
    assert "etcd is away" in why
    found = series(coordinator_metrics("c2", 1.0, cut))
    assert (found["trunkline_coordinator_store_up", ()], found["trunkline_coordinator_ready", ()]) == (0, 0)
    assert ("trunkline_coordinator_live_nodes", ()) not in found
    assert not coordinator_readiness(None).ready


def test_a_capture_is_ready_when_it_has_the_log_and_nothing_failed_since() -> None:
    starting = CaptureView(0, 0, 0, False, "", None, None)
    running = replace(starting, transactions=2, rows=9, running=True, position='{"version":7}', wrote_s_ago=1.5)
    failed = replace(running, running=False, error="the table is away", failures=1)
    assert [capture_readiness(each).ready for each in (starting, running, failed)] == [False, True, False]
    assert "the table is away" in capture_readiness(failed).why[0]
    found = series(capture_metrics("orders", 1.0, running))
    assert found["trunkline_capture_position", ()] == 7
    assert found["trunkline_capture_last_transaction_seconds", ()] == 1.5
    assert found["trunkline_capture_last_error", ()] == 0
    assert series(capture_metrics("orders", 1.0, failed))["trunkline_capture_last_error", ()] == 1
    assert ("trunkline_capture_position", ()) not in series(capture_metrics("orders", 1.0, starting))
    assert [position_number(each) for each in (None, "x", "[1]", '{"lsn":8}')] == [None, None, None, 8]
