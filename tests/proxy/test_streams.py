"""Subscriptions by server-sent events."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import trunkline
from local_cluster import RunningCluster, wait_until
from proxy.conftest import Library
from proxy.proxy_process import Proxy, running
from trunkline.net.addresses import parse_address
from trunkline.proxy.limits import STREAMS_MAX
from trunkline.proxy.server import ProxyServer
from trunkline.proxy.service import ProxyConfig


class Event(NamedTuple):
    kind: str
    id: str
    data: Any


class Stream:
    """What a browser's EventSource does, without coming again by itself."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.comments: list[str] = []

    def events(self) -> Iterator[Event]:
        """To the end of the stream."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if line == "\n":
                if "data" in fields:
                    yield Event(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"]))
                fields = {}
            elif name:
                fields[name] = value
            else:
                self.comments.append(value)
        assert fields == {}, "the stream was cut inside an event"


@contextmanager
def subscribed(proxy: Proxy, log: str, query: str = "", **headers: str) -> Iterator[Stream]:
    connection = proxy.connection()
    try:
        connection.request("GET", f"/v1/logs/{log}/subscribe{query}", headers=headers)
        response = connection.getresponse()
        assert (response.status, response.getheader("Content-Type")) == (200, "text/event-stream")
        yield Stream(response)
    finally:
        connection.close()


def test_entries_come_as_they_are_appended(proxy: Proxy, log: str) -> None:
    proxy.append(log, "before")
    with subscribed(proxy, log) as stream:
        events = stream.events()
        assert next(events).data["text"] == "before"
        for number, text in enumerate(["a", "two\nlines", "b"], 2):
            proxy.append(log, text)
            event = next(events)
            assert (event.kind, event.id, event.data["glsn"], event.data["text"]) == (
                "entry",
                str(number),
                number,
                text,
            )


def test_who_comes_again_goes_on_behind_the_last_event(proxy: Proxy, log: str) -> None:
    for text in "abcd":
        proxy.append(log, text)
    with subscribed(proxy, log, "?start=1", **{"Last-Event-ID": "2"}) as stream:
        events = stream.events()
        assert [next(events).data["text"], next(events).data["text"]] == ["c", "d"]
    with subscribed(proxy, log, "?start=4") as stream:
        assert next(stream.events()).data["text"] == "d"


def test_a_stream_ends_after_the_idle_time_without_an_entry(proxy: Proxy, log: str) -> None:
    proxy.append(log, "a")
    with subscribed(proxy, log, "?idle_ms=50&encoding=base64") as stream:
        assert [event.data["payload"] for event in stream.events()] == ["YQ=="]


def test_entries_without_a_name_reach_what_listens_for_messages(proxy: Proxy, log: str) -> None:
    proxy.append(log, "a")
    with subscribed(proxy, log, "?event=message&idle_ms=50") as stream:
        assert [(event.kind, event.id, event.data["text"]) for event in stream.events()] == [("message", "1", "a")]
    assert proxy.get(f"/v1/logs/{log}/subscribe?event=other").problem == "invalid-request"


def test_many_entries_come_whole_and_in_order(proxy: Proxy, log: str, library: Library[int]) -> None:
    async def append(handle: trunkline.Cluster) -> int:
        return await (await handle.log(log)).append([b"%d" % number for number in range(20_000)])

    library(append)
    with subscribed(proxy, log, "?idle_ms=200") as stream:
        assert [int(event.data["text"]) for event in stream.events()] == list(range(20_000))


@pytest.mark.parametrize("where", ["?start=1", ""])
def test_a_trimmed_start_is_refused_with_a_status(proxy: Proxy, log: str, library: Library[int], where: str) -> None:
    for text in "abc":
        proxy.append(log, text)

    async def trim(handle: trunkline.Cluster) -> int:
        return await (await handle.log(log)).trim(2)

    library(trim)
    if where:
        trimmed = proxy.get(f"/v1/logs/{log}/subscribe{where}")
        assert (trimmed.status, trimmed.problem, trimmed.json["point"]) == (410, "trimmed", 2)
    else:
        with subscribed(proxy, log, "?idle_ms=50") as stream:
            assert [event.data["text"] for event in stream.events()][-1] == "c"


def test_a_stream_of_a_log_that_is_deleted_ends_with_a_problem(proxy: Proxy, log: str, library: Library[None]) -> None:
    async def delete(handle: trunkline.Cluster) -> None:
        await (await handle.log(log)).delete()

    with subscribed(proxy, log) as stream:
        library(delete)
        (event,) = stream.events()
    assert (event.kind, event.data["type"]) == ("problem", "urn:trunkline:problem:no-such-log")


def test_streams_and_waiting_pages_end_when_the_proxy_shuts_down(
    cluster: RunningCluster, directory: Path, log: str
) -> None:
    with running(cluster.connect, directory) as stopping:
        stopping.append(log, "a")
        waiting = stopping.connection()
        waiting.request("GET", f"/v1/logs/{log}/entries?start=2&wait_ms=30000")
        with subscribed(stopping, log) as stream:
            events = stream.events()
            assert next(events).data["text"] == "a"
            wait_until(lambda: stopping.count("requests_in_progress") == 3)  # the page, the stream, this request
            stopping.process.send_signal(signal.SIGTERM)
            assert list(events) == []
            assert stream.comments == ["the proxy shuts down; reconnect"]
        page = waiting.getresponse()
        assert (page.status, json.loads(page.read())) == (200, {"entries": [], "next": 2})
        waiting.close()
        assert stopping.process.wait(20) == 0


def test_v2_a_subscriber_that_takes_nothing_is_let_go(
    log: str, library: Library[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.proxy.event_stream.STALLED_S_MAX", 0.2)

    async def test(handle: trunkline.Cluster) -> None:
        for _ in range(4):  # more than sockets hold
            await (await handle.log(log)).append([b"x" * 1_000_000] * 8)
        server = ProxyServer(ProxyConfig(listen="127.0.0.1:0"), handle)
        await server.start()
        try:
            host, port = parse_address(server.address)
            _, writer = await asyncio.open_connection(host, port, limit=1024)
            writer.write(f"GET /v1/logs/{log}/subscribe HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            await until(lambda: server.counters.streams == 1)
            await until(lambda: server.counters.streams == 0)
            assert server.counters.entries_read < 32
            writer.close()
        finally:
            await server.stop()

    library(test)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_there_is_a_limit_of_streams_and_those_that_ended_do_not_count(
    cluster: RunningCluster, directory: Path, log: str
) -> None:
    with running(cluster.connect, directory) as proxy:
        connections = []
        for _ in range(STREAMS_MAX):
            connection = proxy.connection()
            connection.request("GET", f"/v1/logs/{log}/subscribe?idle_ms=5000")  # longer than it takes to open all
            connections.append(connection)
        wait_until(lambda: proxy.count("streams") == STREAMS_MAX)
        refused = proxy.get(f"/v1/logs/{log}/subscribe")
        assert (refused.status, refused.problem, "Retry-After" in refused.headers) == (503, "busy", True)
        for connection in connections:
            connection.getresponse().read()
            connection.close()
        assert proxy.count("streams") == 0
