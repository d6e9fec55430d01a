"""Accepts connections, authenticates peers, and passes on their messages.

1. A peer with another version, of another cluster or without the token is refused, with the reason.
2. At most ``connections_max`` connections complete the handshake: further ones are refused.
3. Connections without a handshake do not count towards that limit: there are at most ``handshakes_max``, and when
   another one arrives, the oldest of them is refused. The same limit holds for connections that are being refused.
4. Refusals are logged at a bounded rate, and kept for the status for a while (``refusals``).
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Callable

from trunkline.core.names import NAME_BYTES_MAX, shown
from trunkline.core.status import RefusedPeer
from trunkline.net.connection import Connection, Handler
from trunkline.net.limits import Limits
from trunkline.net.packets import (
    MAGIC,
    VERSION_MAX,
    VERSION_MIN,
    Hello,
    PacketKind,
    ProtocolViolation,
    RefusalCode,
    Welcome,
    decode_hello,
    encode,
)
from trunkline.net.refusals import Refusals

BACKLOG = 512


class Server:
    """Made by ``Server.start``."""

    def __init__(
        self,
        handler: Handler,
        *,
        cluster: str,
        name: str,
        token: str,
        limits: Limits,
        on_closed: Callable[[Connection], None] | None,
    ) -> None:
        self.port = 0
        self.accepted = 0  # connections that completed the handshake
        self.refused = 0  # connections that did not
        self._handler = handler
        self._cluster = cluster
        self._name = name
        self._token = token.encode()
        self._limits = limits
        self._on_closed = on_closed
        self._connections: dict[int, Connection] = {}  # by number; every one that has a socket
        self._pending: dict[int, Connection] = {}  # no handshake yet, the oldest first
        self._leaving: dict[int, Connection] = {}  # being refused, the oldest first
        self._welcomed: set[int] = set()
        self._refusals = Refusals()
        self._violations = 0  # of closed connections
        self._listener: asyncio.Server | None = None

    @classmethod
    async def start(
        cls,
        host: str,
        port: int,
        handler: Handler,
        *,
        cluster: str,
        name: str,
        token: str = "",
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        on_closed: Callable[[Connection], None] | None = None,
    ) -> Server:
        """Listen; port 0 takes a free one (see ``port``). Raises ``OSError`` if the address is not available.

        ``cluster`` "" accepts peers of any cluster, ``token`` "" accepts peers without one. ``on_closed`` is called
        once for every connection that completed the handshake.
        """
        limits = limits or Limits()
        server = cls(handler, cluster=cluster, name=name, token=token, limits=limits, on_closed=on_closed)
        timeout_s = limits.handshake_ms / 1000 if tls is not None else None
        loop = asyncio.get_running_loop()
        server._listener = await loop.create_server(
            server._accept, host, port, ssl=tls, ssl_handshake_timeout=timeout_s, backlog=BACKLOG
        )
        server.port = server._listener.sockets[0].getsockname()[1]
        return server

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._welcomed)

    @property
    def violations(self) -> int:
        """How many invalid messages peers sent after the handshake."""
        return self._violations + sum(self._connections[number].violations for number in self._welcomed)

    def refusals(self) -> tuple[RefusedPeer, ...]:
        """Peers that were refused within the last minute."""
        return self._refusals.recent()

    async def close(self) -> None:
        """Stop listening and close every connection; what was sent may still leave for ``linger_ms``."""
        if self._listener is not None:
            self._listener.close()
        closing = list(self._connections.values())
        for connection in closing:
            connection.close()
        for connection in closing:
            await connection.wait_closed()
        if self._listener is not None:
            await self._listener.wait_closed()

    # --------------------------------------------------------------------------------- the server's side of a handshake

    def _accept(self) -> Connection:
        return Connection(self._handler, self, self._limits, serving=True)

    def made(self, connection: Connection) -> None:
        self._connections[connection.number] = connection
        self._pending[connection.number] = connection
        if len(self._pending) > self._limits.handshakes_max:  # rule 3
            oldest = next(iter(self._pending.values()))
            self._refuse(oldest, RefusalCode.BUSY, "too many handshakes at once; send HELLO sooner, or connect again")

    def _refuse(self, connection: Connection, code: RefusalCode, why: str) -> None:
        connection.refuse(code, why)
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """Give a refused connection a moment to receive the reason."""
        self._pending.pop(connection.number, None)
        self._leaving[connection.number] = connection
        if len(self._leaving) > self._limits.handshakes_max:  # rule 3
            number, oldest = next(iter(self._leaving.items()))
            del self._leaving[number]
            oldest.drop()

    def packet(self, connection: Connection, kind: int, head: bytes) -> None:
        if kind != PacketKind.HELLO:
            raise ProtocolViolation("a connection begins with HELLO; check that this is a client of Trunkline")
        hello = decode_hello(head)
        connection.peer_name = hello.name[:NAME_BYTES_MAX]
        refusal = self._objection(hello)
        if refusal is not None:
            self._refuse(connection, *refusal)
            return
        version = min(VERSION_MAX, hello.version_max)
        connection.opened(connection.peer_name, self._cluster or hello.cluster, hello.packet_bytes_max)
        del self._pending[connection.number]
        self._welcomed.add(connection.number)
        self.accepted += 1
        connection.write(
            encode(PacketKind.WELCOME, Welcome(version, self._cluster, self._name, self._limits.packet_bytes_max))
        )

    def lost(self, connection: Connection) -> None:
        del self._connections[connection.number]
        self._pending.pop(connection.number, None)
        self._leaving.pop(connection.number, None)
        if connection.number in self._welcomed:
            self._welcomed.remove(connection.number)
            self._violations += connection.violations
            if self._on_closed is not None:
                self._on_closed(connection)
        else:
            self.refused += 1
            if connection.refusal_sent is not None:  # and not one that merely connected and closed
                self._refusals.add(self._name, connection.peer_name, connection.address, connection.refusal_sent)

    def _objection(self, hello: Hello) -> tuple[RefusalCode, str] | None:
        if hello.magic != MAGIC:
            return RefusalCode.PROTOCOL, "this is a Trunkline server; use a Trunkline client"
        if hello.version_max < VERSION_MIN or hello.version_min > VERSION_MAX:
            return RefusalCode.VERSION, (
                f"{self._name} speaks versions {VERSION_MIN} to {VERSION_MAX} of the protocol, the client"
                f" {hello.version_min} to {hello.version_max}; upgrade the older of the two"
            )
        if self._token and not hmac.compare_digest(self._token, hello.token.encode()):
            return RefusalCode.TOKEN, "the token is missing or wrong; use the one that this cluster was started with"
        if hello.cluster and self._cluster and hello.cluster != self._cluster:
            return RefusalCode.CLUSTER, (
                f"{self._name} belongs to cluster {self._cluster}, {shown(hello.name)} to cluster "
                f"{shown(hello.cluster)}; check the address. If it is right, the coordinator has lost its metadata: "
                "start it with its former directory. A node joins another cluster only with an empty directory"
            )
        places = self._limits.connections_max
        if len(self._welcomed) >= places:  # rule 2
            return RefusalCode.BUSY, f"{self._name} has {places} connections, its limit; close some, or raise the limit"
        return None
