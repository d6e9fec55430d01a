"""Connections to a MariaDB server: statements, and the binlog as a replica gets it."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from msgspec import Struct
from pymysql.cursors import SSCursor

from trunkline.errors import ConfigError, ProtocolError, TrunklineError, Unreachable

PORT: Final = 3306
CONNECT_S_MAX: Final = 10
ANSWER_S_MAX: Final = 60  # of one statement
HEARTBEAT_S: Final = 2  # the server's, when it has nothing to send
SILENCE_S_MAX: Final = 30.0
RECEIVED_BYTES_MAX: Final = 1024 * 1024  # at once
PACKET_BYTES_MAX: Final = 0xFFFFFF  # a longer message goes on in the next packet
DUMP: Final = 0x12
OPTIONS: Final = {"ssl-ca": "ssl_ca", "ssl-cert": "ssl_cert", "ssl-key": "ssl_key", "socket": "unix_socket"}
SESSION: Final = "SET time_zone = '+00:00', sql_mode = '', NAMES utf8mb4, lock_wait_timeout = 5"
PASSING: Final = frozenset(
    {1040, 1053, 1077, 1158, 1159, 1160, 1161, 1180, 1184, 1213, 1226, 1317, 1927, 1969}
)  # errors that pass by themselves: too many connections, shutdown, the network, locks, a kill
BROKEN: Final = range(2000, 3000)  # errors of the client: no answer
NO_BINLOG: Final = 1236
LOCK_WAIT: Final = 1205
CUT_OFF: Final = "truncated in the middle of event"
RIGHTS: Final = (1142, 1143, 1227, 1370)  # errors for the lack of rights


class Dsn(Struct, frozen=True):
    """``mariadb://user:password@host:port?ssl-ca=FILE``; ``socket=PATH`` instead of a host."""

    settings: dict[str, Any]
    shown: str  # without the password


class NotContinued(ConfigError):
    """The binlog does not go on where the log ends: the server was reset or replaced, or has lost a part of it."""


class FileCutOff(ConfigError):
    """A binlog file ends in the middle of an event: the server crashed while it wrote it."""


class ServerRefused(Unreachable):
    """The server's answer to a statement is an error, which may pass."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def parse_dsn(text: str) -> Dsn:
    """Raises ``ConfigError``."""
    try:
        parts = urlsplit(text)
        port = parts.port or PORT
    except ValueError as error:
        raise ConfigError(f"the address of the MariaDB server is invalid: {error}") from None
    if parts.scheme not in ("mariadb", "mysql") or not parts.username:
        raise ConfigError("the address of a MariaDB server is mariadb://USER:PASSWORD@HOST:PORT; it has another form")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise ConfigError(
            f"the address of the MariaDB server has the unknown option {unknown[0]!r}; known: {', '.join(OPTIONS)}"
        )
    for name, value in options.items():
        if name != "socket" and not Path(value).is_file():
            raise ConfigError(f"there is no file {value!r}; {name} of the MariaDB server names one")
    settings = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username),
        "password": unquote(parts.password or ""),
        **{OPTIONS[name]: value for name, value in options.items()},
    }
    if "ssl_ca" in settings:
        settings["ssl_verify_identity"] = True
    return Dsn(settings, f"mariadb://{parts.username}@{options.get('socket') or parts.hostname}:{port}")


class Session:
    """One connection for statements: times are in UTC, texts in UTF-8, and values come as the server writes them."""

    def __init__(self, dsn: Dsn) -> None:
        self._dsn = dsn
        try:
            self.connection = pymysql.connect(
                **dsn.settings,
                charset="utf8mb4",
                autocommit=True,
                conv={},
                connect_timeout=CONNECT_S_MAX,
                read_timeout=ANSWER_S_MAX,
                write_timeout=ANSWER_S_MAX,
            )
        except pymysql.err.MySQLError as error:
            raise self.explained(error) from None
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(f"{dsn.shown} does not answer: {error}") from None
        try:
            self.ask(SESSION)
        except BaseException:
            self.close()
            raise

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Raises ``ConfigError`` for missing rights, and ``Unreachable``: its ``ServerRefused`` is an answer."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        except pymysql.err.MySQLError as error:
            raise self.explained(error) from None

    def stream(self, statement: str) -> SSCursor:
        """A cursor whose rows are read as they come."""
        cursor = self.connection.cursor(SSCursor)
        try:
            cursor.execute(statement)
        except pymysql.err.MySQLError as error:
            raise self.explained(error) from None
        return cursor

    def variables(self, *names: str) -> dict[str, str]:
        """Global variables; those that this server does not have are left out."""
        chosen = ", ".join(f"'{name}'" for name in names)
        return dict(self.ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({chosen})"))

    def explained(self, error: pymysql.err.MySQLError) -> TrunklineError:
        code, text = (*error.args, "")[:2] if error.args and isinstance(error.args[0], int) else (2000, str(error))
        if code in (1044, 1045, 1698, 1130, 1820, 1862):
            return ConfigError(
                f"{self._dsn.shown} refuses this user: {text}; check the user, the password and the host"
            )
        if code in RIGHTS:
            return ConfigError(f"{text}; grant that to the user of the capture")
        if "CERTIFICATE_VERIFY_FAILED" in str(text):
            return ConfigError(f"the certificate of {self._dsn.shown} is not valid: {text}; check ssl-ca and the host")
        if code in BROKEN or code in PASSING or code == 0:
            return Unreachable(f"{self._dsn.shown} does not answer: {text or 'the connection is closed'}")
        return ServerRefused(code, text)

    def close(self) -> None:
        """Without a farewell: the server ends what this session has begun."""
        if (result := self.connection._result) is not None:
            result.unbuffered_active = False  # the rest is not read
            self.connection._result = None
        with suppress(Exception):
            self.connection._force_close()


class BinlogConnection:
    """The binlog from a place in a file on, one packet for each event. ``wake`` may be called by any thread."""

    def __init__(self, dsn: Dsn, replica: int, file: str, offset: int) -> None:
        self._session, self._replica = Session(dsn), replica
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        try:
            self._session.ask("SET @master_binlog_checksum = 'CRC32', @mariadb_slave_capability = 4")
            self._session.ask(f"SET @master_heartbeat_period = {HEARTBEAT_S * 10**9}")
            request = struct.pack("<IHI", offset, 0, replica) + file.encode()
            self._session.connection._execute_command(DUMP, request)
        except pymysql.err.MySQLError as error:
            self.close()
            raise self._session.explained(error) from None
        except BaseException:
            self.close()
            raise
        self._socket: socket.socket = self._session.connection._sock
        self._socket.setblocking(False)
        self._received = bytearray()
        self._heard = time.monotonic()
        self._closed = False  # by the server
        self._error: TrunklineError | None = None  # after the packets before

    def receive(self, wait_ms: int) -> list[bytes]:
        """Packets that arrived; waits for at most this long if there are none. Raises ``Unreachable``."""
        if not self._read_available() and not self._closed:
            self._wait(wait_ms)
            self._read_available()
        found = self._packets()
        if not found and self._error is not None:
            raise self._error
        if not found and self._closed:
            raise Unreachable(
                "the server has closed the stream; it stopped, or another replica or capture has the server id "
                f"{self._replica}"
            )
        if not found and time.monotonic() - self._heard > SILENCE_S_MAX:
            raise Unreachable(f"the server has sent nothing for {SILENCE_S_MAX:.0f} s, not even a heartbeat")
        return found

    def wake(self) -> None:
        with suppress(OSError):  # it was woken often enough, or is closed
            self._waker.send(b"w")

    def close(self) -> None:
        self._session.close()
        self._woken.close()
        self._waker.close()

    def _wait(self, wait_ms: int) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        poll.poll(wait_ms)
        with suppress(BlockingIOError):
            self._woken.recv(4096)

    def _read_available(self) -> bool:
        """Whether anything arrived."""
        before = len(self._received)
        try:
            while len(self._received) - before < RECEIVED_BYTES_MAX:
                piece = self._socket.recv(RECEIVED_BYTES_MAX)
                if not piece:
                    self._closed = True
                    break
                self._received += piece
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            raise Unreachable(f"the stream of the server ended: {error}") from None
        if len(self._received) > before:
            self._heard = time.monotonic()
        return len(self._received) > before

    def _packets(self) -> list[bytes]:
        """Whole messages, without the byte that marks them as events."""
        found: list[bytes] = []
        received, at = self._received, 0
        joined = b""
        whole = 0
        while at + 4 <= len(received):
            size = received[at] | received[at + 1] << 8 | received[at + 2] << 16
            if at + 4 + size > len(received):
                break
            content = bytes(received[at + 4 : at + 4 + size])
            at += 4 + size
            if joined or size == PACKET_BYTES_MAX:
                joined += content
                content = joined
            if size < PACKET_BYTES_MAX:
                joined, whole = b"", at
                if content[:1] != b"\0":
                    self._error = self._error or _ended(content)
                    break
                found.append(content[1:])
        del received[:whole]
        return found


def _ended(message: bytes) -> TrunklineError:
    """Why the server sends no more events."""
    if message[:1] == b"\xfe":
        return Unreachable("the server has ended the stream")
    if message[:1] != b"\xff" or len(message) < 3:
        return ProtocolError("the server sent a message that is not an event; restart the capture")
    [code] = struct.unpack_from("<H", message, 1)
    text = message[9:].decode(errors="replace")
    if code == NO_BINLOG and CUT_OFF in text:
        return FileCutOff(f"a binlog file of the server is damaged ({text}); capture every table again")
    if code == NO_BINLOG:
        return NotContinued(
            "the server cannot send its binlog from where the log ends: it was reset or replaced, or a file is damaged "
            f"({text}); capture every table again"
        )
    if code in RIGHTS:
        return ConfigError(f"{text}; grant that to the user of the capture")
    return Unreachable(f"the server has ended the stream: {text}")


def quoted(*names: str) -> str:
    """A qualified name."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def texts(values: Sequence[str]) -> str:
    """A list of text literals; backslashes are escapes, because the session's mode is empty."""
    return ", ".join("'" + value.replace("\\", "\\\\").replace("'", "''") + "'" for value in values)
