"""A small HTTP server beside a server's own: metrics and health, on the same event loop.

    /metrics    for Prometheus, as text
    /healthz    200: the process answers
    /readyz     200: it does its work; 503: the body says why not, as JSON

Rules
 O1  It only reads. Nothing that it is asked changes what the process does.
 O2  At most ``CONNECTIONS_MAX`` connections, with one request each: further ones are closed at once. One that is idle
     or slow is closed after ``IDLE_S``, an answer that takes longer than ``ANSWER_S`` is given up. Bodies are not read.
 O3  An answer that fails is a 500 for who asked, and nothing else.
 O4  Only ``/healthz``, which tells nothing, is answered under any name; the rest keeps rule E1 of ``net.http_names``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from trunkline.errors import ConfigError
from trunkline.net.addresses import format_address
from trunkline.net.http_names import NOT_OUR_NAME, OwnNames
from trunkline.net.http_site import ClosedAtOnce, reached_address
from trunkline.runtime.observing_format import MEDIA_TYPE
from trunkline.runtime.observing_health import Readiness
from trunkline.runtime.server_process import observe_address

log = logging.getLogger("trunkline.observing")

CONNECTIONS_MAX: Final = 16
BACKLOG: Final = 32
IDLE_S: Final = 10.0
ANSWER_S: Final = 5.0
STOP_S: Final = 1.0
LINE_BYTES_MAX: Final = 4096  # of a request's first line, and of each of its headers
JSON: Final = "application/json"
PATHS: Final = "there are /metrics, /healthz and /readyz\n"


class Observed(msgspec.Struct, frozen=True):
    """A process that is looked at."""

    kind: str  # node, coordinator or capture
    name: str
    metrics: Callable[[], Awaitable[str]]
    readiness: Callable[[], Awaitable[Readiness]]
    allow_hosts: tuple[str, ...] = ()  # names by which it may be asked for, besides its address


class ObservingServer:
    """Made by ``ObservingServer.start``; ``address`` is where it listens, with the real port."""

    def __init__(self, host: str, observed: Observed) -> None:
        self.address = ""
        self._observed = observed
        self._names = OwnNames(host, observed.allow_hosts)
        self._http = web.Server(
            self._handle,
            access_log=None,
            logger=_http_logger(),
            keepalive_timeout=IDLE_S,
            lingering_time=0,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            auto_decompress=False,
        )
        self._listener: asyncio.Server | None = None

    @classmethod
    async def start(cls, listen: str, observed: Observed) -> ObservingServer:
        """Raises ``ConfigError`` if it cannot listen there."""
        host, port = observe_address(listen)
        server = cls(host, observed)
        try:
            server._listener = await asyncio.get_running_loop().create_server(
                server._accept, host, port, backlog=BACKLOG
            )
        except (OSError, ValueError) as error:  # the latter: a host that no resolver takes, such as a..b
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"--observe: cannot listen on {listen}: {why}; choose another, port 0 for any") from None
        server.address = format_address(host, server._listener.sockets[0].getsockname()[1])
        return server

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._http.pre_shutdown()
            await self._http.shutdown(STOP_S)
            await self._listener.wait_closed()
            self._listener = None

    def _accept(self) -> asyncio.Protocol:
        return self._http() if len(self._http.connections) < CONNECTIONS_MAX else ClosedAtOnce()  # O2

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/healthz" and not self._names.has(request.headers.get("Host"), reached_address(request)):
            response = _text(HTTPStatus.FORBIDDEN, f"{NOT_OUR_NAME}\n")  # O4
        elif request.method not in ("GET", "HEAD"):
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered\n")
        else:
            try:
                async with asyncio.timeout(ANSWER_S):
                    response = await self._answer(request.path)
            except TimeoutError:
                response = _text(HTTPStatus.SERVICE_UNAVAILABLE, f"there was no answer within {ANSWER_S:.0f} s\n")
        response.headers["Cache-Control"] = "no-store"
        response.force_close()
        return response

    async def _answer(self, path: str) -> web.Response:
        observed = self._observed
        match path:
            case "/metrics":
                return web.Response(body=(await observed.metrics()).encode(), headers={"Content-Type": MEDIA_TYPE})
            case "/healthz":
                body = msgspec.json.encode({"alive": True, "process": observed.kind, "name": observed.name})
                return web.Response(body=body, content_type=JSON)
            case "/readyz":
                found = await observed.readiness()
                status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
                return web.Response(body=found.body(observed.kind, observed.name), status=status, content_type=JSON)
        return _text(HTTPStatus.NOT_FOUND, PATHS)


def _text(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(text=text, status=status)


def _http_logger() -> logging.Logger:
    """For what failed here (O3), and not for what others send that is no HTTP."""
    logger = logging.getLogger("trunkline.observing.http")
    logger.addFilter(_is_ours)
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)
