"""Where an HTTP server of ours listens: a bounded number of connections, and none that is kept for a peer that is gone.

A connection that sends no whole request in time is closed by the server's ``keepalive_timeout``; one beyond the bound
is closed at once; one whose peer is gone, or does not take what was sent, is given up by the kernel.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from aiohttp import web

BACKLOG: Final = 128
OPTIONS: Final = (  # of the listening socket; what is accepted inherits them
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),  # bytes that the peer's kernel does not take for so long
)


class BoundedSite(web.BaseSite):
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
        return server() if len(server.connections) < self._connections_max else ClosedAtOnce()


def reached_address(request: web.BaseRequest) -> str | None:
    """Of this machine: the one that the request's connection was made to; None where it is gone already."""
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return str(name[0]) if name else None


class ClosedAtOnce(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
