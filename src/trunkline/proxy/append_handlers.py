"""Appends: one entry, or several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from trunkline.errors import ConditionFailed, TrunklineError
from trunkline.net.http_requests import decode_body, json_response
from trunkline.proxy import parameters
from trunkline.proxy.documents import JSON, BatchToAppend, OneToAppend, position_of
from trunkline.proxy.open_logs import OpenLog
from trunkline.proxy.parameters import OCTETS
from trunkline.proxy.problems import refusal
from trunkline.proxy.service import ProxyService

CREATED = 201


class AppendHandlers:
    def __init__(self, service: ProxyService) -> None:
        self._service = service

    async def one(self, request: web.Request) -> web.StreamResponse:
        kind = parameters.media_type(request, JSON, OCTETS)
        key = parameters.key(request)
        content = await parameters.body(request)
        expect: int | None = None
        payload, headers = content, dict[str, bytes]()
        if kind == JSON:
            given = decode_body(content, OneToAppend)
            payload, headers, expect = given.payload_bytes(), given.header_bytes(), position_of(given.expect)
        glsn = await self._append(parameters.log_name(request), key, [payload], [headers], expect)
        return json_response({"glsn": glsn}, CREATED)

    async def batch(self, request: web.Request) -> web.StreamResponse:
        parameters.media_type(request, JSON)
        key = parameters.key(request)
        given = decode_body(await parameters.body(request), BatchToAppend)
        payloads = [each.payload_bytes() for each in given.entries]
        headers = [each.header_bytes() for each in given.entries]
        first = await self._append(parameters.log_name(request), key, payloads, headers, position_of(given.expect))
        return json_response({"first": first, "count": len(payloads)}, CREATED)

    async def _append(
        self,
        name: str,
        key: str | None,
        payloads: Sequence[bytes],
        headers: Sequence[Mapping[str, bytes]],
        expect: int | None,
    ) -> int:
        async with self._service.logs.use(name) as opened:
            _check_fit(opened, len(payloads), keyed=key is not None, conditional=expect is not None)
            try:
                if key is not None:
                    return await opened.keyed.append(key, payloads, headers, expect)
                plain = headers if any(headers) else None
                glsn = await opened.log.append(payloads, headers=plain, expect=expect)
            except ConditionFailed as error:
                raise await _condition_failed(opened, error) from None
        self._service.counters.entries_appended += len(payloads)
        return glsn


def _check_fit(opened: OpenLog, count: int, *, keyed: bool, conditional: bool) -> None:
    """Refuse before the append what the log can never do."""
    settings = opened.settings
    if (keyed or conditional) and not opened.is_chain:
        what = "an Idempotency-Key" if keyed else "expect"
        raise refusal("not-for-this-log", f"{what} needs a chain log, this is a broadcast log; append without it")
    if settings.groups > 1 and count > settings.stripe_unit:
        raise refusal("too-large", f"this log takes at most {settings.stripe_unit} entries at once; append in parts")
    if settings.groups > 1 and count > 1 and keyed:
        raise refusal(
            "not-for-this-log", "in a log of several groups, only single entries take a key; append one at a time"
        )


async def _condition_failed(opened: OpenLog, error: ConditionFailed) -> Exception:
    """With the tail, if it is known: the refusal itself is certain."""
    detail = f"{error}; nothing was appended: read the log, and decide again"
    if error.tail is not None:
        return refusal("condition-failed", detail, tail=error.tail)
    try:
        return refusal("condition-failed", detail, tail=await opened.log.tail())
    except TrunklineError:
        return refusal("condition-failed", detail)
