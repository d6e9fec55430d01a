"""Dials a server and performs the client's side of the handshake."""

from __future__ import annotations

import asyncio
import enum
import errno
import re
import ssl
from collections.abc import Callable

from msgspec import Struct

from trunkline.errors import Refused, Unreachable
from trunkline.net.addresses import format_address
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
    decode_welcome,
    encode,
)

DIAL_MS = 5_000
OPENSSL_DECORATION = re.compile(r"^\[[^]]*] | \(_ssl\.c:\d+\)$")  # library and source line around the message


class Fault(enum.Enum):
    """Why there is no connection to an address."""

    NOT_LISTENING = "not listening"  # the host is up, and no process listens there
    UNREACHABLE = "unreachable"  # no route, no name, no answer, no TLS, no handshake
    REFUSED = "refused"  # by the server, in the handshake
    BAD_ADDRESS = "bad address"
    LOST = "lost"  # it was open


class PeerError(Struct, frozen=True):
    """``text`` is for people, and does not name the address."""

    fault: Fault
    text: str

    def __str__(self) -> str:
        return self.text


class HandshakeRefused(Refused):
    """The server refused this connection; the text is the server's."""

    def __init__(self, text: str, code: RefusalCode) -> None:
        super().__init__(text)
        self.code = code


class DialFailed(Unreachable):
    def __init__(self, text: str, error: PeerError) -> None:
        super().__init__(text)
        self.error = error


def _cannot_reach(host: str, port: int, error: PeerError) -> DialFailed:
    where = format_address(host, port)
    return DialFailed(f"{where} cannot be reached ({error}); is it running, is the address right?", error)


class _ClientHandshake:
    def __init__(self, hello: Hello, on_closed: Callable[[Connection], None] | None) -> None:
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.returned = False  # the caller has the connection
        self._hello = hello
        self._on_closed = on_closed

    def made(self, connection: Connection) -> None:
        connection.write(encode(PacketKind.HELLO, self._hello))

    def packet(self, connection: Connection, kind: int, head: bytes) -> None:
        if kind != PacketKind.WELCOME:
            raise ProtocolViolation("a server begins with WELCOME; check the address")
        welcome = decode_welcome(head)
        if not VERSION_MIN <= welcome.version <= VERSION_MAX:
            raise ProtocolViolation(f"the server chose version {welcome.version}; upgrade the older of the two")
        connection.opened(welcome.name, welcome.cluster, welcome.packet_bytes_max)
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    def lost(self, connection: Connection) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(_handshake_failure(connection))
        elif self.returned and self._on_closed is not None:
            self._on_closed(connection)


def _handshake_failure(connection: Connection) -> Refused:
    refusal = connection.refusal_received
    if refusal is not None:
        return HandshakeRefused(refusal.text, refusal.code)
    why = f"did not complete the handshake ({connection.reason}); check the address, and whether it needs TLS"
    return DialFailed(f"{connection.address} {why}", PeerError(Fault.UNREACHABLE, why))


async def dial(
    host: str,
    port: int,
    *,
    name: str,
    handler: Handler,
    cluster: str = "",
    token: str = "",
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    on_closed: Callable[[Connection], None] | None = None,
    timeout_ms: int = DIAL_MS,
) -> Connection:
    """An open connection. Raises ``Unreachable``, or ``HandshakeRefused`` with the server's text.

    ``cluster``: "" accepts any; the connection's ``cluster`` is the server's. ``on_closed`` is called once, and only
    for a connection that was returned.
    """
    limits = limits or Limits()
    hello = Hello(MAGIC, VERSION_MIN, VERSION_MAX, cluster, token, name, limits.packet_bytes_max)
    handshake = _ClientHandshake(hello, on_closed)
    connection = Connection(handler, handshake, limits, serving=False)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await asyncio.get_running_loop().create_connection(lambda: connection, host, port, ssl=tls)
            await handshake.welcomed
    except TimeoutError:
        connection.close()
        error = PeerError(Fault.UNREACHABLE, f"no answer within {timeout_ms} ms")
        raise _cannot_reach(host, port, error) from None
    except (OSError, ValueError) as failure:  # ValueError: a host that no resolver accepts, such as a..b
        raise _cannot_reach(host, port, _error_of(failure)) from failure
    except asyncio.CancelledError:
        connection.close()
        raise
    finally:
        handshake.welcomed.cancel()
    if connection.closed:
        why = f"closed the connection again: {connection.reason}; try again"
        raise DialFailed(f"{format_address(host, port)} {why}", PeerError(Fault.LOST, why))
    handshake.returned = True
    return connection


def _error_of(failure: OSError | ValueError) -> PeerError:
    """asyncio joins the errors of a host with several addresses into one text."""
    refused = str(failure).count(f"[Errno {errno.ECONNREFUSED}]")
    if isinstance(failure, ConnectionRefusedError) or 0 < refused == str(failure).count("[Errno"):
        return PeerError(Fault.NOT_LISTENING, "connection refused")
    if isinstance(failure, ssl.SSLError):
        return PeerError(Fault.UNREACHABLE, f"TLS: {OPENSSL_DECORATION.sub('', str(failure))}")
    return PeerError(Fault.UNREACHABLE, (isinstance(failure, OSError) and failure.strerror) or str(failure))
