"""Connections to other processes, by address: dialled on first use, kept, and dialled again after a failure.

1. One connection for each address. The first message to an address dials it; messages wait meanwhile, up to a limit.
2. After a failure nothing is dialled for a while: the pause doubles up to a limit, with jitter, and messages are
   dropped. The next message after it dials again. Roles retry, so no timer is needed here.
3. A connection that carries no message for ``idle_ms`` is closed.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from trunkline.core.effects import Message
from trunkline.errors import ConfigError
from trunkline.net.addresses import parse_address
from trunkline.net.connection import Attachment, Connection, Handler
from trunkline.net.dial import DIAL_MS, DialFailed, Fault, HandshakeRefused, PeerError, dial
from trunkline.net.limits import MIB


class PeerSettings(Struct, frozen=True):
    """Each comment: what goes wrong when the value is too small / too big."""

    dial_ms: int = DIAL_MS  # distant peers cannot be reached / messages to dead ones wait for long
    backoff_ms_first: int = 50  # a peer that restarts is dialled all the time / found again late
    backoff_ms_max: int = 2_000
    waiting_max: int = 4096  # messages: the first ones to a new peer are lost / many late ones are sent at once
    waiting_bytes_max: int = 32 * MIB
    idle_ms: int = 600_000  # quiet subscribers reconnect again and again / unused connections stay
    peers_max: int = 4096  # addresses that are remembered


class _WaitingMessage(NamedTuple):
    role: str
    token: int
    message: Message
    attachments: Sequence[Attachment]


class _Peer:
    """The state of one address."""

    def __init__(self, now: float) -> None:
        self.connection: Connection | None = None
        self.dialling: asyncio.Task[None] | None = None
        self.waiting: deque[_WaitingMessage] = deque()
        self.waiting_bytes = 0
        self.failures = 0  # in a row
        self.silent_until = 0.0  # nothing is dialled before
        self.used_at = now
        self.connected_at = now
        self.error: PeerError | None = None

    def drop_waiting(self) -> None:
        self.waiting.clear()
        self.waiting_bytes = 0


class Peers:
    """Make it inside a running loop, and ``close`` it there."""

    def __init__(
        self,
        handler: Handler,
        *,
        name: str,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        settings: PeerSettings | None = None,
    ) -> None:
        self.cluster = ""  # peers of another cluster are refused; "": accept any, until it is known
        self._handler = handler
        self._name = name
        self._token = token
        self._tls = tls
        self._settings = settings or PeerSettings()
        self._peers: dict[str, _Peer] = {}
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._sweep = self._loop.call_later(self._settings.idle_ms / 2000, self._drop_idle)

    def send(
        self, address: str, role: str, token: int, message: Message, attachments: Sequence[Attachment] = ()
    ) -> bool:
        """False: the message is lost. True: a connection has it, or it waits for one that is being dialled."""
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peer(address)
            if peer is None:
                return False
        if peer.connection is not None:
            return peer.connection.send(role, token, message, attachments)
        peer.used_at = self._loop.time()
        if self._closed or (peer.dialling is None and peer.used_at < peer.silent_until):
            return False
        size = sum(len(attachment) for attachment in attachments)
        settings = self._settings
        if len(peer.waiting) >= settings.waiting_max or peer.waiting_bytes + size > settings.waiting_bytes_max:
            return False
        peer.waiting.append(_WaitingMessage(role, token, message, attachments))
        peer.waiting_bytes += size
        if peer.dialling is None:
            peer.dialling = self._loop.create_task(self._dial(address, peer))
        return True

    def connection(self, address: str) -> Connection | None:
        """The connection to an address, if there is one."""
        peer = self._peers.get(address)
        return peer.connection if peer is not None else None

    def error(self, address: str) -> PeerError | None:
        """Why there is no connection; None while there is one, or none was needed yet."""
        peer = self._peers.get(address)
        return peer.error if peer is not None else None

    async def close(self) -> None:
        self._closed = True
        self._sweep.cancel()
        dialling = [peer.dialling for peer in self._peers.values() if peer.dialling is not None]
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        connections = [peer.connection for peer in self._peers.values() if peer.connection is not None]
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    # ---------------------------------------------------------------------------------------------------- inside

    def _peer(self, address: str) -> _Peer | None:
        if len(self._peers) >= self._settings.peers_max:
            return None
        return self._peers.setdefault(address, _Peer(self._loop.time()))

    async def _dial(self, address: str, peer: _Peer) -> None:
        try:
            host, port = parse_address(address)
            connection = await dial(
                host,
                port,
                name=self._name,
                handler=self._handler,
                cluster=self.cluster,
                token=self._token,
                tls=self._tls,
                on_closed=lambda connection: self._lost(peer, connection),
                timeout_ms=self._settings.dial_ms,
            )
        except DialFailed as failed:
            self._failed(peer, failed.error)
        except HandshakeRefused as refused:
            self._failed(peer, PeerError(Fault.REFUSED, str(refused)))
        except ConfigError as error:
            self._failed(peer, PeerError(Fault.BAD_ADDRESS, str(error)))
        else:
            self._connected(peer, connection)
        finally:
            peer.dialling = None

    def _connected(self, peer: _Peer, connection: Connection) -> None:
        waiting = list(peer.waiting)
        peer.connection, peer.connected_at, peer.error = connection, self._loop.time(), None
        peer.drop_waiting()
        for each in waiting:
            connection.send(*each)

    def _failed(self, peer: _Peer, error: PeerError) -> None:
        settings = self._settings
        peer.error = error
        peer.drop_waiting()
        wait_ms = min(settings.backoff_ms_first * 2 ** min(peer.failures, 16), settings.backoff_ms_max)
        peer.failures += 1
        peer.silent_until = self._loop.time() + wait_ms * random.uniform(0.5, 1) / 1000

    def _lost(self, peer: _Peer, connection: Connection) -> None:
        if peer.connection is connection:  # and not closed as idle
            peer.connection = None
            lived_ms = (self._loop.time() - peer.connected_at) * 1000
            if lived_ms > self._settings.backoff_ms_max:  # a peer that welcomes and closes is not dialled all the time
                peer.failures = 0
            self._failed(peer, PeerError(Fault.LOST, connection.reason))

    def _drop_idle(self) -> None:
        now, idle_s = self._loop.time(), self._settings.idle_ms / 1000
        for address, peer in list(self._peers.items()):
            if peer.connection is not None:
                if now - peer.connection.active_at > idle_s:
                    peer.connection.close()
                    peer.connection, peer.used_at = None, now
            elif peer.dialling is None and now - peer.used_at > idle_s:
                del self._peers[address]
        self._sweep = self._loop.call_later(idle_s / 2, self._drop_idle)
