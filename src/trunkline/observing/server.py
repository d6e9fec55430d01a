"""A small HTTP server for the pages of a process, beside its own server, on the same event loop.

Rules
 O1  It only reads: no request changes what the process does.
 O2  At most ``CONNECTIONS_MAX`` connections, with one request each: further ones are closed at once. One that is idle
     or slow is closed after ``IDLE_S``, an answer that takes longer than ``ANSWER_S`` is a 503. Bodies are not read.
 O3  An answer that fails is a 500 for its client, and nothing else.
 O4  Only ``/healthz``, which reveals nothing, is answered under any name; the rest keeps rule E1 of ``net.http_names``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from trunkline.net.http_guard import is_own_name
from trunkline.net.http_names import NOT_OUR_NAME, OwnNames
from trunkline.net.http_site import http_logger, start_site
from trunkline.observing.pages import HEALTH, ObservedProcess
from trunkline.observing.targets import observe_address

CONNECTIONS_MAX: Final = 16
IDLE_S: Final = 10.0
ANSWER_S: Final = 5.0
STOP_S: Final = 1.0
LINE_BYTES_MAX: Final = 4096  # of a request's first line, and of each of its headers


class ObservingServer:
    """Made by ``ObservingServer.start``; ``address`` is where it listens, with the real port."""

    def __init__(self, process: ObservedProcess, names: OwnNames) -> None:
        self.address = ""
        self._process = process
        self._names = names
        server = web.Server(
            self._handle,
            access_log=None,
            logger=http_logger("trunkline.observing.http"),
            keepalive_timeout=IDLE_S,
            lingering_time=0,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=STOP_S)

    @classmethod
    async def start(
        cls, listen: str, process: ObservedProcess, allow_hosts: Iterable[str] = (), *, setting: str = "--observe"
    ) -> ObservingServer:
        """``allow_hosts``: names that it answers to, besides its address. ``setting``: what ``listen`` was given as.

        Raises ``ConfigError`` if it cannot listen there.
        """
        host, port = observe_address(listen, setting)
        server = cls(process, OwnNames(host, allow_hosts))
        server.address = await start_site(server._runner, host, port, CONNECTIONS_MAX, setting)  # O2
        return server

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != HEALTH and not is_own_name(request, self._names):
            response = _text(HTTPStatus.FORBIDDEN, NOT_OUR_NAME)  # O4
        elif request.method not in ("GET", "HEAD"):
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED, "use GET")
        else:
            response = await self._answer(request.path)
        response.headers["Cache-Control"] = "no-store"
        response.force_close()
        return response

    async def _answer(self, path: str) -> web.Response:
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._process.page(path)
        except TimeoutError:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"no answer within {ANSWER_S:.0f} s")
        return found or _text(HTTPStatus.NOT_FOUND, f"there is {', '.join(self._process.paths)}")


def _text(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(text=f"{text}\n", status=status)
