"""Events of a binlog become units of a capture: groups of whole transactions, parts of large ones, schemas.

The rules are those of ``mariadb_source`` (M1 to M3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from trunkline.delivery.capture.mariadb import events as events
from trunkline.delivery.capture.mariadb.catalog import (
    FIRST_OFFSET,
    Name,
    Patterns,
    SeenTable,
    Server,
)
from trunkline.delivery.capture.mariadb.connection import NotContinued
from trunkline.delivery.capture.mariadb.ddl import Statement, parsed
from trunkline.delivery.capture.mariadb.events import Event, GtidFlag, Kind, Query
from trunkline.delivery.capture.mariadb.rows import Gathering, Limits, TableReader, truncation
from trunkline.delivery.capture.mariadb.shapes import Shapes
from trunkline.delivery.capture.mariadb.tablemap import MALFORMED, TableMap, table_map
from trunkline.delivery.capture.mariadb.tables import Tables, described, seen_in
from trunkline.delivery.capture.mariadb.types import fits
from trunkline.delivery.capture.source import OFFSET_BITS, OFFSET_MAX, SchemaUnit, Unit
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ConfigError, ProtocolError, Unreachable

RESET: Final = "the server was reset or replaced; capture every table again"
IGNORABLE: Final = 0x80  # a flag of events that older readers may skip
MAPS_MAX: Final = 10_000  # prepared at once
Look = Callable[[Name], SeenTable | None]


class OpenGroup(Struct):
    """A transaction, or a statement, in the binlog."""

    begin: int
    commit_us: int
    standalone: bool
    prepared: bool  # XA
    name: str = ""  # of an XA transaction
    undone: bool = False  # a part of it was rolled back


class Stream:
    """One reading of the binlog, from a position on."""

    def __init__(
        self,
        server: Server,
        patterns: Patterns,
        tables: Tables,
        look: Look,
        position: int,
        limits: Limits,
        undone: set[int],
    ) -> None:
        """``undone``: where transactions begin that are known to be rolled back; more are added."""
        self._server, self._patterns, self._tables, self._look = server, patterns, tables, look
        self._shapes = Shapes(tables, patterns, look)
        self._gathering = Gathering(limits)
        self._undone = undone
        self._begin = position  # M2: what is before it is skipped
        self._at = position & ~OFFSET_MAX | FIRST_OFFSET  # after the last event
        self.checked = False  # the first event lies where the log ends (M2)
        self._open: OpenGroup | None = None
        self._readers: dict[bytes, TableReader | None] = {}  # by table map
        self._maps: dict[int, TableReader | None] = {}  # by the server's number of a table
        self._prepared: dict[str, set[int]] = {}  # tables that an XA transaction changed, by its name
        self.whole = position  # everything before is in a unit, or in the open group
        self.units: deque[Unit] = deque()
        self.checksums = True

    @property
    def position(self) -> int:
        """After the last event."""
        return self._at

    @property
    def between(self) -> bool:
        """Whether no transaction is open."""
        return self._open is None

    @property
    def idle(self) -> bool:
        """Whether everything that was read has become units."""
        return self._open is None and self._gathering.empty

    def found(self, number: int) -> None:
        """The table was there when the stream began, and the log lacks it."""
        self._shapes.found.add(number)

    def feed(self, packets: deque[bytes], until: int | None) -> bool:
        """Take packets, but none after the first place between transactions from ``until`` on; whether it was reached.

        Raises ``ProtocolError``, and ``ConfigError`` for what cannot be captured.
        """
        while until is None or self._open is not None or self.whole < until:
            if not packets:
                return False
            packet = packets.popleft()
            try:
                self._on_packet(packet)
            except MALFORMED as error:
                raise events.malformed(f"kind {packet[4:5].hex()}: {error}") from error
        return True

    def close_group(self) -> None:
        """The open group leaves, without the transaction that is open."""
        if (group := self._gathering.group(self.whole)) is not None:
            self.units.append(group)

    def put(self, unit: Unit) -> None:
        """Put it after everything that was read."""
        self.close_group()
        if self._gathering.waiting:
            self._put_part()
        if isinstance(unit, SchemaUnit):
            self._readers.clear()
            self._renew_readers()
        self.units.append(unit)

    def _renew_readers(self) -> None:
        """Of the present table maps, under the present versions; without those that a new table map must describe."""
        for number, reader in list(self._maps.items()):
            schema = None if reader is None else self._tables.get(reader.schema.number)
            if reader is None or schema is reader.schema:
                continue
            del self._maps[number]
            if (
                schema is not None
                and len(schema.columns) == len(reader.wire)
                and all(map(fits, reader.wire, schema.columns))
            ):
                self._maps[number] = TableReader(schema, reader.wire, self._server.charsets)

    # ---------------------------------------------------------------------------------------------------- the events

    def _on_packet(self, packet: bytes) -> None:
        kind = packet[4]
        if kind == Kind.FORMAT:
            self.checksums = events.checksummed(packet)
            event = events.made_up(packet)
        elif kind in (Kind.ROTATE, Kind.HEARTBEAT):
            event = events.made_up(packet)
            if kind == Kind.ROTATE:
                self._on_rotation(event)
            return
        else:
            event = events.event_of(packet, checksums=self.checksums)
        before = self._at
        self._advance(event)
        if self._at <= self._begin:
            return
        if not self.checked and kind != Kind.FORMAT:
            self._check_first(before, event)
        self._on_event(event, before)
        if self._open is None:
            self.whole = max(self.whole, self._at)

    def _advance(self, event: Event) -> None:
        """Offsets of events have 32 bits; files may be longer. The server leaves statements before table maps out."""
        if event.end == 0 or event.flags & events.ARTIFICIAL:
            return
        self._at += event.size
        if event.kind == Kind.TABLE_MAP:
            self._at += event.end - self._at & 0xFFFFFFFF
        if self._at & 0xFFFFFFFF != event.end:
            raise NotContinued(
                f"an event of the binlog ends at {event.end} and not at {self._server.file(self._at)}:"
                f"{self._at & OFFSET_MAX}: {RESET}"
            )

    def _on_rotation(self, event: Event) -> None:
        offset, name = events.rotation(event)
        position = self._server.position(name, offset)
        if position == self._at:
            return
        if position < self._at and self.checked:
            raise ProtocolError("the server went back to an earlier binlog file; restart the capture")
        if self._open is not None:  # the server crashed while it wrote it, and then rolled it back
            self._end(committed=False)
        self._maps.clear()
        self._readers.clear()  # numbers of tables begin again when the server restarts
        self._at = position
        self.whole = max(self.whole, position)

    def skip_file(self) -> int:
        """The rest of this file was never written, and what is open in it was rolled back. Returns where to go on."""
        if self._open is not None:
            self._end(committed=False)
        self._maps.clear()
        self._readers.clear()
        self._at = ((self._at >> OFFSET_BITS) + 1) << OFFSET_BITS | FIRST_OFFSET
        self.whole = max(self.whole, self._at)
        return self._at

    def _check_first(self, before: int, event: Event) -> None:
        """M2."""
        self.checked = True
        if before < self._begin or event.kind not in events.BETWEEN:
            raise NotContinued(
                f"no transaction of the binlog begins at {self._server.file(self._begin)}:{self._begin & OFFSET_MAX}, "
                f"where the log ends: {RESET}"
            )

    def _on_event(self, event: Event, before: int) -> None:
        kind = event.kind
        if kind in events.ROWS:
            self._on_rows(event)
        elif kind == Kind.TABLE_MAP:
            self._on_table_map(event)
        elif kind == Kind.GTID:
            self._on_gtid(event, before)
        elif kind == Kind.XID:
            self._end()
        elif kind in (Kind.QUERY, Kind.QUERY_COMPRESSED):
            self._on_query(events.query_of(event))
        elif kind == Kind.XA_PREPARE:
            self._on_prepared(one_phase=event.body[0] != 0)
        elif kind in (Kind.BEGIN_LOAD, Kind.EXECUTE_LOAD, Kind.INCIDENT):
            self._recapture_all("the binlog has a statement or an incident instead of rows")
        elif kind not in events.IGNORED and kind != Kind.FORMAT and not event.flags & IGNORABLE:
            raise ProtocolError(f"the server sent a binlog event of the unknown kind {kind}")

    # ---------------------------------------------------------------------------------------------------- transactions

    def _on_gtid(self, event: Event, before: int) -> None:
        if self._open is not None:
            raise ProtocolError("a transaction of the binlog begins inside another; restart the capture")
        flags = events.gtid_flags(event)
        self._open = OpenGroup(
            before, event.time * 10**6, bool(flags & GtidFlag.STANDALONE), bool(flags & GtidFlag.PREPARED_XA)
        )

    def _end(self, *, committed: bool = True) -> None:
        group, gathering = self._opened(), self._gathering
        touched, undone = set(gathering.touched), group.undone
        if gathering.parts and not committed:
            self._undone.add(group.begin)
            raise Unreachable(
                "a large transaction was rolled back, and parts of it have left: it is left out from now on"
            )
        if gathering.parts:
            self.units.append(gathering.part(group.begin, group.commit_us, end=self._at, last=True))
            gathering.forget()
        elif committed:
            gathering.commit(group.begin, group.commit_us)
        else:
            gathering.forget()
        self._open = None
        self.whole = self._at
        if undone:
            self._recapture(touched, "a part of a transaction was rolled back")
        if gathering.full():
            self.close_group()

    def _on_prepared(self, *, one_phase: bool) -> None:
        group = self._opened()
        touched = set(self._gathering.touched)
        if not group.prepared:
            self._end()
            return
        self._end(committed=False)
        if one_phase:
            self._recapture(touched, "an XA transaction changed it")
        else:
            self._prepared[group.name] = touched

    def _on_query(self, query: Query) -> None:
        statement = parsed(query)
        match statement.kind:
            case "COMMIT":
                self._end()
            case "ROLLBACK":
                self._end(committed=False)
            case "ROLLBACK TO":
                self._opened().undone = True
            case "XA END":
                self._opened().name = statement.text
            case "XA COMMIT":
                self._on_xa_commit(statement.text)
            case "XA ROLLBACK":
                self._prepared.pop(statement.text, None)
            case "NOTHING":
                pass
            case _:
                self._on_statement(statement)
        if self._open is not None and self._open.standalone:
            self._end()

    def _on_xa_commit(self, name: str) -> None:
        touched = self._prepared.pop(name, None)
        why = "an XA transaction changed it"
        if touched is None:  # it was prepared before this stream began
            self._recapture_all(why)
        else:
            self._recapture(touched, why)

    def _on_statement(self, statement: Statement) -> None:
        if self._at < self._tables.applied:
            return  # B1
        if statement.kind == "TRUNCATE":
            self._truncate(statement.names[0])
            return
        for unit in self._shapes.units(statement, self._at):
            self.put(unit)

    def _truncate(self, name: Name) -> None:
        schema, group = self._tables.find(name), self._opened()
        if schema is not None:
            self.close_group()
            self.units.append(truncation(schema, group.begin, group.commit_us, self._at))

    def _opened(self) -> OpenGroup:
        if self._open is None:
            raise ProtocolError("the binlog has changes outside of a transaction; restart the capture")
        return self._open

    def _put_part(self) -> None:
        group = self._opened()
        self.units.append(self._gathering.part(group.begin, group.commit_us))

    # ------------------------------------------------------------------------------------------------------------ rows

    def _on_table_map(self, event: Event) -> None:
        if event.body not in self._readers:
            if len(self._readers) >= MAPS_MAX:
                self._readers.clear()
            seen = table_map(event.body)
            reader = self._reader(seen)
            self._readers[event.body] = reader
        self._maps[int.from_bytes(event.body[:6], "little")] = self._readers[event.body]

    def _reader(self, seen: TableMap) -> TableReader | None:
        name = (seen.schema, seen.name)
        if not self._patterns.match(name):
            return None
        if not seen.named:
            raise ConfigError(
                "the binlog has rows from before binlog_row_metadata was FULL, without the names of columns; capture "
                "every table again"
            )
        schema = self._tables.find(name)
        if schema is None or not described(schema, seen):
            schema = self._reshaped(seen, schema)
        if schema is None:
            return None
        self.close_group()  # R2: a new reader begins a new unit
        if self._gathering.waiting and schema.number in self._gathering.touched:
            self._put_part()
        return TableReader(schema, seen.columns, self._server.charsets)

    def _reshaped(self, seen: TableMap, known: TableSchema | None) -> TableSchema | None:
        """A table that is not as the statements before said: as it is now if that fits, else as rows have it (B3).

        One that is not known and not there any more is left out: a sequence, or a table that was dropped or renamed.
        """
        now = self._look((seen.schema, seen.name))
        if known is None and now is None:
            return None
        if now is None or not described(now, seen):
            now = seen_in(seen)
        if known is None:
            unit = self._tables.create(now, self._at)
        else:
            unit = self._tables.recapture(known, now, self._at, "its columns changed in an unknown way")
        self.put(unit)
        return unit.schema

    def _on_rows(self, event: Event) -> None:
        self._opened()
        head, body = events.rows_of(event)
        if head.table not in self._maps:
            raise ProtocolError("the binlog has rows of a table that it does not describe; restart the capture")
        reader = self._maps[head.table]
        if reader is None:
            return
        whole = head.columns == len(reader.wire) and all(_count(mask) == head.columns for mask in head.masks)
        if not whole:
            if reader.schema.storage < self._opened().begin:  # once in a transaction
                self._recapture(
                    [reader.schema.number], "rows in the binlog lack columns: binlog_row_image was not FULL"
                )
            return
        self._gathering.add(reader, reader.rows(event.kind, body, head.at), len(body))
        group = self._opened()
        if group.prepared or group.begin in self._undone:
            self._gathering.leave_out()
        elif self._gathering.overflowing():
            self.close_group()
            self._put_part()

    def _recapture(self, numbers: Iterable[int], why: str) -> None:
        for number in sorted(numbers):
            schema = self._tables.get(number)
            if schema is not None and schema.storage < self._at and self._at >= self._tables.applied:
                self.put(self._tables.recapture(schema, None, self._at, why))

    def _recapture_all(self, why: str) -> None:
        self._recapture([schema.number for schema in self._tables], why)


def _count(mask: bytes) -> int:
    return int.from_bytes(mask, "little").bit_count()
