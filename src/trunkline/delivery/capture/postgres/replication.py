"""A connection to PostgreSQL in replication mode: slots, and the stream of one (`START_REPLICATION`, COPY BOTH).

Rules
 N1  Nothing blocks for ever: each command has a time-out, and a server that sends nothing, not even when it is asked,
     is unreachable. A connection that failed is closed; its descriptor does not leak.
 N2  Texts of values do not depend on the server's settings: the session sets those that matter.
 N3  Only ``confirm`` moves what the server may forget. A status that the server requests repeats the last one.
 N4  What passes by itself is ``Unreachable``; what an operator must change is ``ConfigError``, with the remedy.
"""

from __future__ import annotations

import select
import struct
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trunkline.config import secret
from trunkline.delivery.backends.postgres_session import CONNECT_S, KEEPALIVE, OLDEST_SERVER, PERMANENT, TRANSIENT
from trunkline.delivery.capture.postgres.snapshots import SESSION, lsn_text
from trunkline.errors import ConfigError, ProtocolError, TrunklineError, Unreachable

COMMAND_S: Final = 30.0  # a command that only reads or writes a few records
CANCEL_S: Final = 5.0
CREATE_S: Final = 300.0  # a slot waits for the transactions that are open when it is created
ACTIVE_S: Final = 5.0  # the server may not have noticed yet that the last reader of a slot died
LOOK_AGAIN_S: Final = 0.1
SILENT_S: Final = 60.0  # without a message; longer: a dead server is noticed late; shorter: a busy one seems dead
REQUEST_S: Final = 20.0  # without a message: the server is asked for one
STAY_S: Final = 1.0  # between signs of life while nothing is received; the server may have a short time-out
RECEIVE_BYTES_MAX: Final = 2 * 1024 * 1024  # of one batch; one message more may exceed it
FAILOVER_SERVER: Final = 170_000  # PostgreSQL 17: slots that standbys follow
EPOCH_S: Final = 946_684_800  # PostgreSQL counts from the year 2000
UNLIMITED: Final = (  # a snapshot that was exported must live as long as it is read
    "SET statement_timeout = 0; SET idle_session_timeout = 0; SET idle_in_transaction_session_timeout = 0; "
    "SET search_path = ''"  # names in values are complete, as in chunks
)
NO_RIGHT: Final = ("start walsender", "start WAL sender")  # parts of the server's messages
DATA, ALIVE = b"wk"  # kinds of messages
_DATA_BYTES: Final = 25  # kind, LSN, end of the WAL, time; then the payload
_ALIVE: Final = struct.Struct(">QqB")  # end of the WAL, time, whether a status is requested
_STATUS: Final = struct.Struct(">cQQQqB")


class SystemIdentity(Struct, frozen=True):
    system: str
    timeline: int
    lsn: int  # up to which the WAL is written
    database: str


class NewSlot(Struct, frozen=True):
    name: str
    lsn: int  # the stream begins here
    snapshot: str | None  # for SET TRANSACTION SNAPSHOT elsewhere, until the next command of this connection


class Received(Struct, frozen=True):
    """Messages of the stream, without their frames. All that ends by ``wal_end`` was sent in or before this batch."""

    messages: list[bytes]
    wal_end: int  # of the last keep-alive; 0: none was among them


class Status(Struct, frozen=True):
    written: int = 0
    flushed: int = 0  # the server may forget what ends by then
    applied: int = 0


class ReplicationConnection:
    """For one thread. ``password_env`` names the environment variable that holds the password."""

    def __init__(
        self, dsn: str, password_env: str | None = None, *, silent_s: float = SILENT_S, waker: int | None = None
    ) -> None:
        """``waker``: a descriptor; while it is readable, ``receive`` does not wait, and no slot is made."""
        password = None if password_env is None else secret(password_env, f"the password for {dsn}")
        self._waker = waker
        self._silent_s = silent_s
        self._status = Status()
        self._stayed = 0.0  # when a status was sent instead of receiving
        self._unsent = False  # a status waits in the buffer of the connection
        self._connection = _connect(dsn, password)
        self._server = self._connection.pgconn
        try:
            self._poll = select.poll()
            self._poll.register(self._server.socket, select.POLLIN)
            self._woken = select.poll()
            for each in (self._server.socket, *([] if waker is None else [waker])):
                self._woken.register(each, select.POLLIN)
            if self._server.server_version < OLDEST_SERVER:
                raise ConfigError(f"the server is older than PostgreSQL {OLDEST_SERVER // 10_000}; upgrade it")
            self._server.nonblocking = 1
            self._ask(f"{SESSION}; {UNLIMITED}")
        except BaseException:
            self.close()
            raise
        self._heard, self._asked = time.monotonic(), 0.0  # when the server last sent something; when it was asked to

    def __enter__(self) -> ReplicationConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def backend(self) -> int:
        """The process of the server."""
        return self._server.backend_pid

    # --- commands ---

    def identify(self) -> SystemIdentity:
        [(system, timeline, lsn, database)] = self._ask("IDENTIFY_SYSTEM")
        return SystemIdentity(system or "", int(timeline or 0), lsn_number(lsn or ""), database or "")

    def ends(self, identity: SystemIdentity) -> tuple[tuple[int, int], ...]:
        """Where each timeline in the history of the present one ends; the last one is how far the WAL is written."""
        found = list[tuple[int, int]]()
        if identity.timeline > 1:
            [(_, history)] = self._ask(f"TIMELINE_HISTORY {identity.timeline}")
            for line in (history or "").splitlines():
                words = line.partition("#")[0].split()
                if len(words) >= 2:
                    found.append((int(words[0]), lsn_number(words[1])))
        return (*found, (identity.timeline, identity.lsn))

    def create_slot(
        self, name: str, *, snapshot: bool = False, failover: bool = False, wait_s: float = CREATE_S
    ) -> NewSlot:
        """``failover``: standbys follow the slot; only from PostgreSQL 17 on, else it is ignored."""
        options = [f"SNAPSHOT '{'export' if snapshot else 'nothing'}'"]
        if failover and self._server.server_version >= FAILOVER_SERVER:
            options.append("FAILOVER true")
        self.check_server()
        command = f"CREATE_REPLICATION_SLOT {_quoted(name)} LOGICAL pgoutput ({', '.join(options)})"
        late = "a new slot waits for all open transactions: end those that pg_stat_activity shows"
        [(_, lsn, exported, _)] = self._ask(command, wait_s, late=late, slot=name)
        return NewSlot(name, lsn_number(lsn or ""), exported)

    def drop_slot(self, name: str) -> None:
        """A slot that does not exist is fine; one that is in use is not."""
        [(count,)] = self._ask(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = {_literal(name)}")
        if count != "0":
            self._ask(f"DROP_REPLICATION_SLOT {_quoted(name)}", slot=name)

    def start(self, slot: str, lsn: int, publications: Sequence[str], *, wait_s: float = ACTIVE_S) -> None:
        """Stream what the slot has of these publications, from this LSN on or from what was confirmed, if later."""
        self.check_server()
        self._check_slot(slot, wait_s)
        self._check_publications(publications)
        names = _literal(", ".join(_quoted(each) for each in publications))
        options = f"proto_version '1', publication_names {names}, messages 'true'"
        command = f"START_REPLICATION SLOT {_quoted(slot)} LOGICAL {lsn_text(lsn)} ({options})"
        self._ask(command, streams=True, slot=slot)
        self._status = Status()  # N3: the server ignores zeros
        self._heard, self._asked = time.monotonic(), 0.0

    def check_server(self) -> None:
        [(level,)] = self._ask("SHOW wal_level")
        if level != "logical":
            raise ConfigError(f"the server's wal_level is {level}; set wal_level = logical and restart it")

    def _check_slot(self, slot: str, wait_s: float) -> None:
        query = (
            "SELECT slot_type, plugin, database = current_database(), wal_status, active_pid "
            f"FROM pg_replication_slots WHERE slot_name = {_literal(slot)}"
        )
        deadline = time.monotonic() + wait_s
        while (found := self._ask(query)) and found[0][4] is not None and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_S)
        if not found:
            raise ConfigError(f"the slot {slot} does not exist; create it: all rows must then be captured again")
        [(kind, plugin, here, wal_status, reader)] = found
        if kind != "logical" or plugin != "pgoutput" or here != "t":
            raise ConfigError(f"the slot {slot} belongs to another database or plug-in; choose another name")
        if wal_status == "lost":
            raise _lost(slot)
        if reader is not None:
            raise _active(slot, f"process {reader} of the server")

    def _check_publications(self, names: Sequence[str]) -> None:
        found = {name for (name,) in self._ask("SELECT pubname FROM pg_publication")}
        if absent := sorted(set(names) - found):
            raise ConfigError(
                f"the publication {absent[0]} does not exist; create it: CREATE PUBLICATION {_quoted(absent[0])} ..., "
                "drop the slot, and capture all rows again, for the stream does not have earlier changes of its tables"
            )

    # --- the stream ---

    def receive(self, wait_ms: int) -> Received:
        """What has arrived, after waiting for the first message for at most this long."""
        messages = list[bytes]()
        wal_end, size, tried = 0, 0, False
        deadline = time.monotonic() + wait_ms / 1000
        try:
            while True:
                urgent = False
                while size < RECEIVE_BYTES_MAX:
                    count, frame = self._server.get_copy_data(1)
                    if count <= 0:
                        break
                    if frame[0] == DATA and count > _DATA_BYTES:
                        messages.append(bytes(frame[_DATA_BYTES:]))
                    elif frame[0] == ALIVE and count == 1 + _ALIVE.size:
                        wal_end, _, requested = _ALIVE.unpack_from(frame, 1)
                        urgent = urgent or requested == 1
                    else:
                        raise self._broken(f"a frame of an unknown kind ({bytes(frame[:20])!r})")
                    size += count
                else:
                    count = 0
                if count < 0:
                    raise self._ended()
                if urgent:
                    self._send(request=False)
                left = deadline - time.monotonic()
                waited = left < 0 and tried and not size  # a large message may arrive slowly
                if size >= RECEIVE_BYTES_MAX or waited or not self._arrives(0 if size else left):
                    break
                self._server.consume_input()
                self._heard, tried = time.monotonic(), True
            if self._unsent:
                self._flush()
        except psycopg.Error as error:
            raise self._failure(error) from error
        self._check_silence()
        return Received(messages, wal_end)

    def stay(self, wait_ms: int) -> None:
        """Instead of receiving: wait for so long, or for the waker, and keep the stream open."""
        deadline = time.monotonic() + wait_ms / 1000
        poll = select.poll()
        if self._waker is not None:
            poll.register(self._waker, select.POLLIN)
        poll.poll(max(0, deadline - time.monotonic()) * 1000)
        now = time.monotonic()
        if now - self._stayed > STAY_S:
            self._stayed = now
            self.confirm(self._status)
        self._heard = now  # it may have sent much

    def confirm(self, status: Status) -> None:
        """Send how far this reader is; positions never move back.

        The server ends a stream whose reader sends nothing (`wal_sender_timeout`, 60 s): ``receive`` replies when the
        server asks; a reader that cannot receive for a while repeats its status. A server that shuts down waits until
        its last keep-alive is confirmed.
        """
        last = self._status
        if status.flushed < last.flushed or status.written < last.written or status.applied < last.applied:
            raise ValueError(f"{status} is behind {last}")
        self._status = status
        try:
            self._send(request=False)
        except psycopg.Error as error:
            raise self._failure(error) from error

    def ask(self) -> None:
        """Let the server send a keep-alive now: without changes it sends none of its own for half a minute."""
        try:
            self._send(request=True)
        except psycopg.Error as error:
            raise self._failure(error) from error

    def _send(self, *, request: bool) -> None:
        """A status that cannot leave now is replaced by a later one: the buffer holds one at most."""
        self._flush()
        if self._unsent:
            return
        now = int((time.time() - EPOCH_S) * 10**6)
        status = self._status
        self._server.put_copy_data(_STATUS.pack(b"r", status.written, status.flushed, status.applied, now, request))
        self._flush()

    def _flush(self) -> None:
        self._unsent = self._server.flush() == 1

    def _arrives(self, wait_s: float) -> bool:
        """Whether the server sends something before the time is over, and before the waker is readable."""
        found = self._woken.poll(max(0, wait_s) * 1000)
        return any(descriptor != self._waker for descriptor, _ in found)

    def _readable(self, wait_s: float) -> bool:
        return bool(self._poll.poll(max(0, wait_s) * 1000))

    def _check_silence(self) -> None:
        """N1: the server may have nothing to say, and no time-out of its own."""
        now, patience_s = time.monotonic(), min(REQUEST_S, self._silent_s / 3)
        if self._asked < self._heard and now - self._heard > patience_s:
            self._asked = now
            try:
                self._send(request=True)
            except psycopg.Error as error:
                raise self._failure(error) from error
        elif self._asked >= self._heard and now - self._asked > self._silent_s - patience_s:
            self.close()
            raise Unreachable(f"PostgreSQL has sent nothing for {self._silent_s:g} s; the capture connects again")

    def _ended(self) -> TrunklineError:
        """Why the server ended the stream."""
        self._wait_answer(time.monotonic() + COMMAND_S, COMMAND_S, "")
        result = self._server.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return self._refusal(result, None)
        self.close()
        return Unreachable("PostgreSQL ended the stream (it shuts down); the capture connects again")

    def _broken(self, why: str) -> ProtocolError:
        self.close()
        return ProtocolError(f"PostgreSQL sent {why}; restart the capture, and check what answers at this address")

    # --- answers and failures ---

    def _ask(
        self, command: str, wait_s: float = COMMAND_S, *, streams: bool = False, slot: str = "", late: str = ""
    ) -> list[tuple[str | None, ...]]:
        """Run one command; returns the rows of its last result."""
        deadline = time.monotonic() + wait_s
        rows = list[tuple[str | None, ...]]()
        try:
            self._server.send_query(command.encode())
            while True:
                self._wait_answer(deadline, wait_s, late)
                result = self._server.get_result()
                if result is None:
                    return rows
                match result.status:
                    case pq.ExecStatus.TUPLES_OK:
                        rows = _rows(result)
                    case pq.ExecStatus.COMMAND_OK:
                        pass
                    case pq.ExecStatus.COPY_BOTH if streams:
                        return []
                    case _:
                        raise self._refusal(result, slot)
        except psycopg.Error as error:
            raise self._failure(error) from error

    def _wait_answer(self, deadline: float, wait_s: float, late: str) -> None:
        while self._server.flush() == 1 or self._server.is_busy():
            woken = bool(late) and self.woken()
            if self._readable(min(deadline - time.monotonic(), 0 if woken else 0.2)):
                self._server.consume_input()
            elif woken or time.monotonic() > deadline:
                self._cancel()
                if woken:
                    raise Unreachable(f"the capture is woken while it waits for PostgreSQL; {late}")
                raise Unreachable(f"PostgreSQL has not answered for {wait_s:g} s; {late or 'check the server'}")

    def woken(self) -> bool:
        """Whether the waker is readable."""
        poll = select.poll()
        if self._waker is not None:
            poll.register(self._waker, select.POLLIN)
        return bool(poll.poll(0))

    def _cancel(self) -> None:
        """The server would go on with a command without its client."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=CANCEL_S)
        self.close()

    def _refusal(self, result: pq.abc.PGresult, slot: str | None) -> TrunklineError:
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        self.close()
        if state == "55006":
            return _active(slot or "", text)
        if state == "55000" and (slot or slot is None):
            return _lost(slot or "", text)
        if state == "42710":
            return ConfigError(f"the slot {slot} exists already; drop it, or choose another name")
        if state == "42501":
            return ConfigError(f"the role may not replicate ({text}); run: ALTER ROLE ... REPLICATION")
        if state == "53400":
            return ConfigError(f"the server has no room for another slot ({text}); raise max_replication_slots")
        if state == "42704" and slot is None:
            return ConfigError(f"the publication was removed ({text}); create it, drop the slot, and capture again")
        if state.startswith((*TRANSIENT, "XX")):
            return Unreachable(f"PostgreSQL ended the command ({text}); the capture connects again")
        return ConfigError(f"PostgreSQL rejects the capture ({text}); change what it names, and restart the capture")

    def _failure(self, error: psycopg.Error) -> TrunklineError:
        self.close()
        return Unreachable(f"the connection with PostgreSQL was lost ({_line(error)}); the capture connects again")


def lsn_number(text: str) -> int:
    """From PostgreSQL's `16/B374D848`."""
    high, _, low = text.partition("/")
    try:
        return int(high, 16) << 32 | int(low, 16)
    except ValueError:
        raise ProtocolError(f"PostgreSQL sent {text!r:.40} instead of an LSN; restart the capture") from None


def _connect(dsn: str, password: str | None) -> psycopg.Connection[Any]:
    try:
        given = conninfo_to_dict(dsn)
        own = {"replication": "database", "client_encoding": "UTF8"} | ({"password": password} if password else {})
        conninfo = make_conninfo("", **{"connect_timeout": CONNECT_S, **KEEPALIVE, **given, **own})
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"{_line(error)}: write the dsn like 'host=db port=5432 dbname=shop user=capture'") from None
    try:
        return psycopg.Connection.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        traceback.clear_frames(error.__traceback__)  # after a time-out they keep the socket open, in a cycle
        raise _no_connection(_line(error)) from None


def _no_connection(text: str) -> TrunklineError:
    if any(each in text for each in NO_RIGHT):
        return ConfigError(f"the role may not replicate ({text}); run: ALTER ROLE ... REPLICATION")
    if any(each in text for each in PERMANENT):
        return ConfigError(f"PostgreSQL refuses the login ({text}); correct the dsn or the password")
    return Unreachable(f"PostgreSQL is unreachable ({text}); it is retried")


def _active(slot: str, reader: str) -> ConfigError:
    return ConfigError(
        f"the slot {slot} is in use ({reader}): another capture reads it; stop that one, or choose another slot"
    )


def _lost(slot: str, text: str = "its WAL was removed") -> ConfigError:
    return ConfigError(
        f"the slot {slot} is lost ({text}): drop it and capture all rows again, and raise max_slot_wal_keep_size"
    )


def _rows(result: pq.abc.PGresult) -> list[tuple[str | None, ...]]:
    def text(row: int, column: int) -> str | None:
        value = result.get_value(row, column)
        return None if value is None else value.decode()

    return [tuple(text(row, column) for column in range(result.nfields)) for row in range(result.ntuples)]


def _line(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _literal(text: str) -> str:
    """As the grammar of replication commands has it: it does not know E'...'."""
    return "'" + text.replace("'", "''") + "'"
