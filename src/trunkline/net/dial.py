"""Connects to a server."""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Callable

from trunkline.errors import Refused, Unreachable
from trunkline.net.addresses import format_address
from trunkline.net.connection import Connection, Handler
from trunkline.net.limits import Limits
from trunkline.net.packets import (
    MAGIC,
    VERSION_MAX,
    VERSION_MIN,
    Hello,
    Kind,
    ProtocolViolation,
    decode_welcome,
    encode,
)

DIAL_MS = 5_000
NOBODY_LISTENS = "connection refused"
OF_OPENSSL = re.compile(r"^\[[^]]*] | \(_ssl\.c:\d+\)$")  # what stands around its words


class HandshakeRefused(Refused):
    """The server does not want this connection. The text is the server's."""


class DialFailed(Unreachable):
    """``reason``: the same without the address, for who names it anyway."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


def _cannot_reach(host: str, port: int, reason: str) -> DialFailed:
    where = format_address(host, port)
    return DialFailed(f"{where} cannot be reached ({reason}); is it running, is the address right?", reason)


class _Introduction:
    """The handshake, as who dials has it."""

    def __init__(self, hello: Hello, on_closed: Callable[[Connection], None] | None) -> None:
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.returned = False  # the caller has the connection
        self._hello = hello
        self._on_closed = on_closed

    def made(self, connection: Connection) -> None:
        connection.write(encode(Kind.HELLO, self._hello))

    def packet(self, connection: Connection, kind: int, head: bytes) -> None:
        if kind != Kind.WELCOME:
            raise ProtocolViolation("a server begins with WELCOME; check the address")
        welcome = decode_welcome(head)
        if not VERSION_MIN <= welcome.version <= VERSION_MAX:
            raise ProtocolViolation(f"the server chose version {welcome.version}; update the older of both ends")
        connection.opened(welcome.name, welcome.cluster, welcome.packet_bytes_max)
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    def lost(self, connection: Connection, reason: str) -> None:
        if not self.welcomed.done():
            told = HandshakeRefused(reason) if connection.refused_by_peer else None
            why = f"did not welcome us ({reason}); check the address, and whether it wants TLS"
            self.welcomed.set_exception(told or DialFailed(f"{connection.address} {why}", why))
        elif self.returned and self._on_closed is not None:
            self._on_closed(connection)


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

    ``cluster`` "": any; the connection's ``cluster`` then tells which it is. ``on_closed`` is called once, and only for
    a connection that was returned.
    """
    limits = limits or Limits()
    hello = Hello(MAGIC, VERSION_MIN, VERSION_MAX, cluster, token, name, limits.packet_bytes_max)
    introduction = _Introduction(hello, on_closed)
    connection = Connection(handler, introduction, limits, serving=False)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await asyncio.get_running_loop().create_connection(lambda: connection, host, port, ssl=tls)
            await introduction.welcomed
    except TimeoutError:
        connection.close()
        raise _cannot_reach(host, port, f"no answer within {timeout_ms} ms") from None
    except (OSError, ValueError) as error:  # the latter: a host that no resolver takes, such as a..b
        raise _cannot_reach(host, port, _reason(error)) from error
    except asyncio.CancelledError:
        connection.close()
        raise
    finally:
        introduction.welcomed.cancel()
    if connection.closed:
        why = f"is gone again: {connection.reason}; try again"
        raise DialFailed(f"{format_address(host, port)} {why}", why)
    introduction.returned = True
    return connection


def _reason(error: OSError | ValueError) -> str:
    """In the system's words; a host with several addresses is refused by each of them."""
    refused = str(error).count(f"[Errno {errno.ECONNREFUSED}]")
    if isinstance(error, ConnectionRefusedError) or 0 < refused == str(error).count("[Errno"):
        return NOBODY_LISTENS
    if isinstance(error, ssl.SSLError):
        return f"TLS: {OF_OPENSSL.sub('', str(error))}"
    return (isinstance(error, OSError) and error.strerror) or str(error)
