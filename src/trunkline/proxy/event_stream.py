"""Subscriptions as server-sent events.

    retry: 1000                     how soon a client reconnects

    id: 17                          the position; a client that reconnects sends it in Last-Event-ID
    event: entry                    left out with ``event=message``: unnamed events reach a browser's ``onmessage``
    data: {"glsn":17,"text":"...", ...}

    : quiet                         a comment, so that gateways do not close the stream

    event: problem                  the stream cannot continue, and ends
    data: {"type":"urn:trunkline:problem:trimmed", ...}

Rules
 V1  A stream that cannot start is refused with a status.
 V2  Only the read-ahead of the subscription and one chunk are buffered: a slow subscriber slows its own subscription,
     and one that reads nothing for a while is disconnected.
 V3  A stream ends between two events: when the proxy shuts down, without an entry for ``idle_ms``, or after a problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import msgspec
from aiohttp import web

from trunkline.client.cluster import Cluster
from trunkline.client.entries import Batch
from trunkline.client.subscription import Subscription
from trunkline.errors import EntriesLost, Trimmed, TrunklineError
from trunkline.net.http_requests import abort, write_within
from trunkline.proxy import parameters
from trunkline.proxy.documents import document_of
from trunkline.proxy.limits import (
    GLSN_MAX,
    IDLE_MS_MAX,
    KEEP_ALIVE_S,
    RETRY_AFTER_S,
    STALLED_S_MAX,
    STREAMS_MAX,
    WRITE_BYTES,
)
from trunkline.proxy.problems import refusal, refusal_of
from trunkline.proxy.read_handlers import always_base64_of
from trunkline.proxy.service import ProxyService

MEDIA_TYPE = "text/event-stream"
OPENING = f"retry: {RETRY_AFTER_S * 1000}\n\n".encode()
EVENTS = ("entry", "message")  # names of events with entries
QUIET = b": quiet\n\n"
STOPPING = b": the proxy shuts down; reconnect\n\n"


class SubscribeHandler:
    def __init__(self, service: ProxyService) -> None:
        self._service = service

    async def subscribe(self, request: web.Request) -> web.StreamResponse:
        start = _start(request)
        idle_ms = parameters.query_number(request, "idle_ms", 1, IDLE_MS_MAX)
        always_base64 = always_base64_of(request)
        named = parameters.query_choice(request, "event", EVENTS) == EVENTS[0]
        counters = self._service.counters
        if counters.streams >= STREAMS_MAX:
            raise refusal("busy", f"{STREAMS_MAX} streams are open; read pages instead, or try again", retry=True)
        counters.streams += 1
        try:
            async with self._service.logs.use(parameters.log_name(request)) as opened:
                await _check_start(self._service.cluster, opened.log.name, start)  # V1
                batches = opened.log.batches(start)
                try:
                    stream = EventStream(self._service, request, always_base64=always_base64, named=named)
                    return await stream.run(batches, None if idle_ms is None else idle_ms / 1000)
                finally:
                    batches.close()
        finally:
            counters.streams -= 1


class EventStream:
    """One subscriber."""

    def __init__(self, service: ProxyService, request: web.Request, *, always_base64: bool, named: bool) -> None:
        self._service = service
        self._request = request
        self._always_base64 = always_base64
        self._name = b"event: entry\n" if named else b""
        headers = {"Cache-Control": "no-store", "Content-Type": MEDIA_TYPE, "X-Accel-Buffering": "no"}
        self._response = web.StreamResponse(headers=headers)

    async def run(self, batches: Subscription, idle_s: float | None) -> web.StreamResponse:
        try:
            await self._response.prepare(self._request)
            await self._write(OPENING)
            await self._copy(batches, idle_s)
        except ConnectionError:
            pass  # the subscriber disconnected
        except TimeoutError:  # V2
            abort(self._request)
        return self._response

    async def _copy(self, batches: Subscription, idle_s: float | None) -> None:
        """Until V3."""
        loop = asyncio.get_running_loop()
        coming = asyncio.ensure_future(anext(batches))
        last = loop.time()
        try:
            while True:
                left_s = KEEP_ALIVE_S if idle_s is None else min(KEEP_ALIVE_S, last + idle_s - loop.time())
                arrived = await self._service.shutdown.wait_for(coming, max(left_s, 0.0))
                if arrived:
                    await self._write_batch(await coming)
                    coming = asyncio.ensure_future(anext(batches))
                    last = loop.time()
                if self._service.shutdown.begun:
                    return await self._write(STOPPING)
                if idle_s is not None and loop.time() - last >= idle_s:
                    return None
                if not arrived:
                    await self._write(QUIET)
        except TrunklineError as error:
            problem = msgspec.json.encode(refusal_of(error).problem)
            await self._write(b"event: problem\ndata: " + problem + b"\n\n")
        except StopAsyncIteration:
            pass  # the log closed
        finally:
            coming.cancel()

    async def _write_batch(self, batch: Batch) -> None:
        for chunk in _chunks(self._events(batch)):
            await self._write(chunk)
            if self._service.shutdown.begun:
                return
        self._service.counters.entries_read += len(batch)

    def _events(self, batch: Batch) -> Iterator[bytes]:
        for entry in batch:
            document = msgspec.json.encode(document_of(entry, always_base64=self._always_base64))
            yield b"id: %d\n%bdata: %b\n\n" % (entry.glsn, self._name, document)

    async def _write(self, chunk: bytes) -> None:
        await write_within(self._response, chunk, STALLED_S_MAX)


def _chunks(events: Iterable[bytes]) -> Iterator[bytes]:
    """Several events per write: a write costs more than an event."""
    chunk: list[bytes] = []
    size = 0
    for event in events:
        chunk.append(event)
        size += len(event)
        if size >= WRITE_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    if chunk:
        yield b"".join(chunk)


def _start(request: web.Request) -> int | None:
    """``Last-Event-ID`` of a client that reconnects outweighs ``start``."""
    start = parameters.query_number(request, "start", 1, GLSN_MAX)
    last = parameters.last_event(request)
    return start if last is None else last + 1


async def _check_start(cluster: Cluster, name: str, start: int | None) -> None:
    view = await cluster.describe(name)
    if start is None:
        return
    if start <= view.trim:
        raise Trimmed(view.trim)
    gap = view.gap_at(start)
    if gap is not None:
        raise EntriesLost(gap.first, gap.end)
