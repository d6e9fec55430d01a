"""The server of metrics, health and readiness."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from trunkline.errors import ConfigError
from trunkline.net.http_names import NOT_OUR_NAME
from trunkline.observing import server as observing_server
from trunkline.observing.metrics import MetricSpec, MetricTable, Values
from trunkline.observing.pages import ObservedProcess
from trunkline.observing.readiness import Health, Readiness
from trunkline.observing.server import CONNECTIONS_MAX, ObservingServer
from trunkline.observing.targets import observe_address
from trunkline.observing.thread import ObservingThread
from trunkline.threads import Threads

TABLE = MetricTable("t_", (MetricSpec("up", "gauge", "1"),))
PAGE = b"# HELP t_up 1\n# TYPE t_up gauge\nt_up 1.0\n"


async def one() -> Values:
    return {"up": 1}


async def well() -> Readiness:
    return Readiness()


async def alive() -> Health:
    return Health()


@asynccontextmanager
async def serving(
    values: Callable[[], Awaitable[Values]] = one,
    readiness: Callable[[], Awaitable[Readiness]] = well,
    health: Callable[[], Awaitable[Health]] = alive,
) -> AsyncIterator[ObservingServer]:
    process = ObservedProcess("node", "n1", TABLE, values, readiness, health, more={"/more": lambda: [1]})
    server = await ObservingServer.start("0", process, ("n1.example",))
    try:
        yield server
    finally:
        await server.close()


async def ask(
    server: ObservingServer | ObservingThread, path: str, method: str = "GET", name: str | None = None
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


def test_each_page_has_its_answer_and_other_paths_name_them() -> None:
    async def not_ready() -> Readiness:
        return Readiness(("no coordinator",), {"state": "x"})

    async def scene() -> None:
        async with serving(readiness=not_ready) as server:
            assert server.address.startswith("127.0.0.1:")
            assert await ask(server, "/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", PAGE)
            status, kind, body = await ask(server, "/healthz")
            expected = {"alive": True, "process": "node", "name": "n1"}
            assert (status, kind, json.loads(body)) == (200, "application/json", expected)
            assert await ask(server, "/more") == (200, "application/json", b"[1]")
            status, _, body = await ask(server, "/readyz")
            expected = {"ready": False, "why": ["no coordinator"], "process": "node", "name": "n1", "state": "x"}
            assert (status, json.loads(body)) == (503, expected)
            assert (await ask(server, "/"))[::2] == (404, b"there is /metrics, /healthz, /readyz, /more\n")
            assert (await ask(server, "/metrics", "POST"))[0] == 405
            assert (await ask(server, "/metrics", "HEAD"))[::2] == (200, b"")

    run(scene)


def test_o4_pages_with_facts_are_served_under_own_names_only() -> None:
    async def scene() -> None:
        async with serving() as server:
            for path in ("/metrics", "/readyz", "/"):
                status, _, body = await ask(server, path, name="evil.example")
                assert (status, body.decode()) == (403, f"{NOT_OUR_NAME}\n")
            assert (await ask(server, "/healthz", name="evil.example"))[0] == 200
            for name in (server.address, "localhost:9", "n1.example:9100"):
                assert (await ask(server, "/metrics", name=name))[0] == 200

    run(scene)


def test_a_process_that_needs_a_restart_is_not_alive() -> None:
    async def stalled() -> Health:
        return Health(False, {"state": "running"})

    async def scene() -> None:
        async with serving(health=stalled) as server:
            status, _, body = await ask(server, "/healthz")
            expected = {"alive": False, "process": "node", "name": "n1", "state": "running"}
            assert (status, json.loads(body)) == (503, expected)

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
    monkeypatch.setattr(observing_server, "ANSWER_S", 0.05)

    async def stuck() -> Values:
        await asyncio.Event().wait()
        return {}

    async def scene() -> None:
        async with serving(values=stuck) as server:
            assert (await ask(server, "/metrics"))[0] == 503
            assert (await ask(server, "/healthz"))[0] == 200

    run(scene)


def test_o3_a_failure_is_an_error_for_who_asked_and_nothing_else() -> None:
    async def broken() -> Values:
        raise RuntimeError("a bug")

    async def scene() -> None:
        async with serving(values=broken) as server:
            assert (await ask(server, "/metrics"))[0] == 500
            assert (await ask(server, "/healthz"))[0] == 200

    run(scene)


def test_a_busy_process_is_observed_from_a_thread_and_a_taken_port_is_said() -> None:
    process = ObservedProcess("capture", "orders", TABLE, one, well)
    with ObservingThread("0", process) as first:

        async def scene() -> None:
            assert (await ask(first, "/metrics"))[2] == PAGE

        run(scene)
        with pytest.raises(
            ConfigError, match=r"^listen: cannot listen on 127\.0.*; choose another address, port 0 for any"
        ):
            ObservingThread(first.address, process, setting="listen").__enter__()
    with ObservingThread(first.address, process) as again:  # a closed server gives its port back
        assert again.address == first.address


@pytest.mark.parametrize("listen", ["203.0.113.1:0", "a..b:0"])
def test_an_address_of_another_machine_is_one_clear_message(listen: str) -> None:
    process = ObservedProcess("capture", "orders", TABLE, one, well)
    with pytest.raises(ConfigError, match=r"^--observe: cannot listen on "):
        ObservingThread(listen, process).__enter__()


def test_t2_a_thread_that_fails_is_reported() -> None:
    threads, reported = Threads(), threading.Event()
    threads.when_one_dies(lambda _: reported.set())

    def leave() -> None:
        raise SystemExit

    with ObservingThread("0", ObservedProcess("capture", "orders", TABLE, one, well), threads=threads) as observing:
        assert observing._loop is not None
        observing._loop.call_soon_threadsafe(leave)
        assert reported.wait(20)
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
