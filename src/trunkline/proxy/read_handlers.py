"""Bounded reads: the list of logs, a log, one entry, a page of entries."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from trunkline.client.log import Log
from trunkline.client.subscription import Subscription
from trunkline.errors import CorruptEntry, EntriesLost, Trimmed, TrunklineError
from trunkline.net.http_requests import json_response
from trunkline.proxy import parameters
from trunkline.proxy.documents import EntriesPage, EntryDocument, LogDocument, document_of
from trunkline.proxy.limits import GLSN_MAX, PAGE_BYTES_MAX, PAGE_ENTRIES, PAGE_ENTRIES_MAX, WAIT_MS_MAX
from trunkline.proxy.parameters import OCTETS
from trunkline.proxy.ranges import reached, reading_within
from trunkline.proxy.service import ProxyService

ENCODINGS = ("auto", "base64")


class PageRequest(msgspec.Struct, frozen=True):
    start: int
    limit: int
    always_base64: bool

    @property
    def until(self) -> int:
        return self.start + self.limit - 1


class ReadHandlers:
    def __init__(self, service: ProxyService) -> None:
        self._service = service

    async def logs(self, request: web.Request) -> web.StreamResponse:
        return json_response({"logs": list(await self._service.cluster.logs())})

    async def log(self, request: web.Request) -> web.StreamResponse:
        async with self._service.logs.use(parameters.log_name(request)) as opened:
            tail = await opened.log.tail()
            view = await self._service.cluster.describe(opened.log.name)
        settings = view.settings
        return json_response(
            LogDocument(
                view.log, settings.policy.value, settings.replicas, view.trim + 1, tail, sealed=not view.last.is_open
            )
        )

    async def tail(self, request: web.Request) -> web.StreamResponse:
        async with self._service.logs.use(parameters.log_name(request)) as opened:
            return json_response({"tail": await opened.log.tail()})

    async def entry(self, request: web.Request) -> web.StreamResponse:
        glsn, always_base64 = parameters.glsn(request), always_base64_of(request)
        async with self._service.logs.use(parameters.log_name(request)) as opened:
            entry = await opened.log.read(glsn)
        self._service.counters.entries_read += 1
        if parameters.wants_octets(request):
            return web.Response(body=entry.payload, content_type=OCTETS)
        return json_response(document_of(entry, always_base64=always_base64))

    async def page(self, request: web.Request) -> web.StreamResponse:
        start = parameters.query_number(request, "start", 1, GLSN_MAX)
        limit = parameters.query_number(request, "limit", 1, PAGE_ENTRIES_MAX) or PAGE_ENTRIES
        wait_ms = parameters.query_number(request, "wait_ms", 0, WAIT_MS_MAX) or 0
        always_base64 = always_base64_of(request)
        async with self._service.logs.use(parameters.log_name(request)) as opened:
            if start is None:
                start = (await self._service.cluster.describe(opened.log.name)).trim + 1
            wanted = PageRequest(start, limit, always_base64)
            page = await self._page(opened.log, wanted)
            if not page.entries and wait_ms:
                wanted = PageRequest(page.next, limit, always_base64)
                page = await self._next_page(opened.log, wanted, wait_ms / 1000)
        self._service.counters.entries_read += len(page.entries)
        return json_response(page)

    async def _page(self, log: Log, wanted: PageRequest) -> EntriesPage:
        """What exists now."""
        batches = log.batches(wanted.start, wanted.until, to_tail=True)
        try:
            async with reading_within(self._service.timeout_s, f"the read of {log.name}"):
                return await _filled(batches, wanted)
        finally:
            batches.close()

    async def _next_page(self, log: Log, wanted: PageRequest, wait_s: float) -> EntriesPage:
        """When an entry is appended; empty after the time, or when the proxy shuts down."""
        batches = log.batches(wanted.start)
        coming = asyncio.ensure_future(anext(batches))
        try:
            if not await self._service.shutdown.wait_for(coming, wait_s):
                return EntriesPage([], wanted.start)
            async with reading_within(None, f"the read of {log.name}"):
                start = (await coming).first
        finally:
            coming.cancel()
            batches.close()
        return await self._page(log, PageRequest(start, wanted.limit, wanted.always_base64))


async def _filled(batches: Subscription, wanted: PageRequest) -> EntriesPage:
    entries: list[EntryDocument] = []
    size = 0
    try:
        async for batch in batches:
            for entry in batch:
                if entries and size + len(entry.payload) > PAGE_BYTES_MAX:
                    return EntriesPage(entries, entry.glsn)
                entries.append(document_of(entry, always_base64=wanted.always_base64))
                size += len(entry.payload)
    except (Trimmed, EntriesLost, CorruptEntry) as error:
        return _before(entries, error)
    return EntriesPage(entries, reached(batches, wanted.until))


def _before(entries: list[EntryDocument], error: TrunklineError) -> EntriesPage:
    """The entries before a missing range; the next page begins there, and fails."""
    if not entries:
        raise error
    return EntriesPage(entries, entries[-1].glsn + 1)


def always_base64_of(request: web.Request) -> bool:
    return parameters.query_choice(request, "encoding", ENCODINGS) == "base64"
