"""Where an HTTP server listens: a bounded number of connections, and none kept for a peer that is unreachable.

A connection that sends no whole request in time is closed by the server's ``keepalive_timeout``; one beyond the bound
is closed at once; one whose peer is unreachable, or does not read what was sent, is closed by the kernel.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from trunkline.errors import ConfigError
from trunkline.net.addresses import format_address

BACKLOG: Final = 128
OPTIONS: Final = (  # of the listening socket; accepted ones inherit them
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),  # bytes that the peer's kernel does not take for so long
)


async def start_site(runner: web.BaseRunner, host: str, port: int, connections_max: int, setting: str) -> str:
    """Listen; returns the address with the real port. ``runner.cleanup()`` stops it.

    Raises ``ConfigError``, which names the ``setting`` that gave the address.
    """
    await runner.setup()
    try:
        await _BoundedSite(runner, host, port, connections_max).start()
    except (OSError, ValueError) as error:  # ValueError: a host that no resolver accepts, such as a..b
        await runner.cleanup()
        address, why = format_address(host, port), getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{setting}: cannot listen on {address}: {why}; choose another address, port 0 for any free port"
        ) from None
    return format_address(*runner.addresses[0][:2])


class _BoundedSite(web.BaseSite):
    def __init__(self, runner: web.BaseRunner, host: str, port: int, connections_max: int) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._host = host
        self._port = port
        self._connections_max = connections_max

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self._accept, self._host, self._port, backlog=BACKLOG)
        for each in listener.sockets:
            for level, option, value in OPTIONS:
                each.setsockopt(level, option, value)
        self._server = listener

    def _accept(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        return server() if len(server.connections) < self._connections_max else _ClosedAtOnce()


class _ClosedAtOnce(asyncio.Protocol):
    """A connection beyond the bound."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def http_logger(name: str) -> logging.Logger:
    """Logs what fails in a handler, a bug; not what a client sends that is not HTTP."""
    logger = logging.getLogger(name)
    logger.addFilter(_is_ours)
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)
