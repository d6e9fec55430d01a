"""Capture: the log of a database has each transaction once, whole and in order, and its snapshots fit in exactly.

The log of the checked world announces each entry, the source what it commits, confirms and serves. Transaction ``n`` of
the script ends at ``n * LSN_STEP``. The unit of a piece names the transactions in it, that of a schema its place in the
script.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from trunkline.check.scenario import Monitor, ObservedEvent, ProcessEnded, SafetyMonitor, Violation
from trunkline.core.capture_messages import AppendEntry, CaptureHalted, EntryKind, ShapeChange, TableCursor
from trunkline.core.effects import Event

LSN_STEP = 100  # room for watermarks between two transactions

UNIT_STEP = 100  # more than the transactions or the tables of a script
Row = tuple[int, str, int]  # table, key, value
Rows = tuple[Row, ...]


class Reshape(Struct, frozen=True):
    """A table begins, changes, is captured again or ends in a transaction, before this part of it."""

    table: int
    change: ShapeChange
    keyed: bool = True
    part: int = 0


class Transaction(Struct, frozen=True):
    """One transaction of a script. A value of 0 deletes the row."""

    changes: Rows = ()  # none: it is of other databases, and not streamed
    silent: Rows = ()  # changes before the table was in the stream: they never are
    shapes: tuple[Reshape, ...] = ()
    parts: int = 1
    truncates: int = 0  # a table whose rows it deletes by a truncation
    late: bool = False  # others see it some time after its commit is in the WAL
    begins: int | None = None  # it runs from this transaction on, or (0) from the beginning


class CaptureScript(Struct, frozen=True):
    """The rows at the beginning, and the transactions in commit order."""

    rows: Rows
    transactions: tuple[Transaction, ...]
    tables: tuple[int, ...] = ()  # that are captured from the beginning
    keyless: tuple[int, ...] = ()

    def state(self, count: int, unseen: tuple[int, ...] = ()) -> Rows:
        """The rows after the first ``count`` transactions, without those with the numbers in ``unseen``."""
        rows = self.rows
        for number, transaction in enumerate(self.transactions[:count], start=1):
            rows = rows if number in unseen else applied(rows, transaction.changes + transaction.silent)
        return rows

    def transaction(self, end: int) -> Transaction:
        return self.transactions[end // LSN_STEP - 1]

    def schema(self, unit: int) -> Reshape:
        number, place = divmod(unit, UNIT_STEP)
        if number:
            return self.transactions[number - 1].shapes[place]
        return Reshape(place, ShapeChange.CREATED, place not in self.keyless)

    def schema_at(self, table: int, number: int, part: int = UNIT_STEP) -> int:
        """The unit of the schema that rows of a table have in this transaction; 0: it is not captured."""
        found = table if table in self.tables else 0
        for each, transaction in enumerate(self.transactions[:number], start=1):
            for place, shape in enumerate(transaction.shapes):
                if shape.table == table and (each < number or shape.part <= part):
                    found = 0 if shape.change is ShapeChange.DROPPED else shape_unit(each, place)
        return found

    def captured(self, number: int) -> tuple[int, ...]:
        """The tables that are captured after a transaction."""
        shapes = [shape for transaction in self.transactions for shape in transaction.shapes]
        tables = sorted({*self.tables, *(shape.table for shape in shapes)})
        return tuple(table for table in tables if self.schema_at(table, number))

    def next_end(self, position: int) -> int:
        """The end of the first streamed transaction after a position."""
        numbers = range(position // LSN_STEP + 1, len(self.transactions) + 1)
        return next((number * LSN_STEP for number in numbers if self.transactions[number - 1].changes), 1 << 60)


def applied(rows: Rows, changes: Rows) -> Rows:
    """Rows that are there twice, which only a table without a key can have, stay so until they change."""
    found = list(rows)
    for table, key, value in changes:
        found = [row for row in found if row[:2] != (table, key)] + ([(table, key, value)] if value else [])
    return tuple(sorted(found))


def piece_unit(first: int, last: int) -> int:
    """Of a piece with these transactions, by their numbers."""
    return first * UNIT_STEP + last


def shape_unit(number: int, place: int) -> int:
    """Of a schema of a transaction; of transaction 0: of a table that is captured from the beginning."""
    return number * UNIT_STEP + place


def ends_of(entry: AppendEntry) -> tuple[int, ...]:
    """Of the transactions in a group; of that of a part."""
    if entry.kind not in (EntryKind.GROUP, EntryKind.PART):
        return ()
    first, last = divmod(entry.unit, UNIT_STEP)
    return tuple(number * LSN_STEP for number in range(first, last + 1))


class EntryLogged(Event, frozen=True):
    """The log has this entry."""

    entry: AppendEntry


class LogTakenOver(Event, frozen=True):
    """A take-over: parts without a last part before it do not count."""

    by: str  # a process


class SourceCommitted(Event, frozen=True):
    """The WAL has this many transactions."""

    count: int


class SlotConfirmed(Event, frozen=True):
    position: int


class SlotMoved(Event, frozen=True):
    """The slot is at this position, without the capture; ``lost``: what the log lacks may no longer be streamed."""

    position: int
    lost: bool


class SourceDiverged(Event, frozen=True):
    """The history of the source ends here, and another one begins."""

    position: int


class ChunkServed(Event, frozen=True):
    """Rows of a chunk, and the schema of the table, as its snapshot sees them."""

    unit: int
    rows: Rows
    schema: int = 0


class EachTransactionOnce(SafetyMonitor):
    """The log has each transaction once, whole and in commit order; only a new epoch leaves some out."""

    name = "EachTransactionOnce"

    class State(NamedTuple):
        position: int = -1  # of the log; -1: it is empty
        open_end: int = 0  # of the transaction whose last part is missing
        open_parts: int = 0
        epoch: int = 0
        diverged: bool = False  # the log has what the source lacks

    def __init__(self, script: CaptureScript) -> None:
        self._script = script

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case LogTakenOver():
                return state._replace(open_end=0, open_parts=0)
            case SourceDiverged(position):
                return state._replace(diverged=state.diverged or state.position > position)
            case EntryLogged(entry):
                return self._logged(state, entry)
        return state

    def _logged(self, state: State, entry: AppendEntry) -> State:
        if entry.epoch > state.epoch:
            if entry.kind is not EntryKind.CATALOG:
                raise Violation(f"the log begins with a {entry.kind.value}, not with a catalog")
            return self.State(entry.position, epoch=entry.epoch)
        if state.diverged:
            raise Violation(f"a {entry.kind.value} at {entry.position} follows changes that the source does not have")
        if entry.kind is EntryKind.SCHEMA:  # also between parts
            self._moved(state.position, entry)
            return state
        if state.open_end and (entry.kind is not EntryKind.PART or ends_of(entry) != (state.open_end,)):
            raise Violation(f"a {entry.kind.value} stands between the parts of the transaction {state.open_end}")
        if entry.kind is EntryKind.PART:
            return self._part(state, entry)
        position = state.position
        for end in ends_of(entry):
            position = self._follow(position, end)
            if self._script.transaction(end).parts > 1:
                raise Violation(f"the large transaction {end} is in a group")
        return state._replace(position=self._moved(position, entry))

    def _part(self, state: State, entry: AppendEntry) -> State:
        (end,) = ends_of(entry)
        self._follow(state.position, end)
        if entry.index != state.open_parts:
            raise Violation(f"part {entry.index} of the transaction {end} follows {state.open_parts} parts")
        whole = entry.index + 1 == self._script.transaction(end).parts
        if entry.last != whole:
            raise Violation(
                f"part {entry.index} of the transaction {end} is {'' if entry.last else 'not '}the last one"
            )
        if not entry.last:
            return state._replace(open_end=end, open_parts=entry.index + 1)
        return state._replace(position=self._moved(end, entry), open_end=0, open_parts=0)

    def _follow(self, position: int, end: int) -> int:
        following = self._script.next_end(position)
        if end != following:
            raise Violation(f"the transaction {end} follows {position}, but the next one is {following}")
        return end

    def _moved(self, position: int, entry: AppendEntry) -> int:
        if entry.position < position or entry.position >= self._script.next_end(position):
            raise Violation(f"an entry says {entry.position}, but the log has the transactions up to {position}")
        return entry.position


class ConfirmedIsCaptured(SafetyMonitor):
    """Nothing is confirmed to the source that the committed log lacks."""

    name = "ConfirmedIsCaptured"

    def initial(self) -> int:
        return 0

    def observe(self, state: int, observed: ObservedEvent) -> int:
        match observed.event:
            case EntryLogged(entry) if entry.last:
                return entry.position
            case SlotConfirmed(position) if position > state:
                raise Violation(f"{position} is confirmed, but the log is at {state}")
        return state


def _added(rows: Rows, read: Rows, cursor: TableCursor) -> Rows:
    """With rows of a table without a key; the first ones replace those that it has."""
    kept = rows if cursor.chunks > 1 else tuple(row for row in rows if row[0] != cursor.table)
    return tuple(sorted(kept + read))


class ChunkExact(SafetyMonitor):
    """At each end in the log the rows of a table, up to its cursor, are those of the source at that position."""

    name = "ChunkExact"

    class State(NamedTuple):
        rows: Rows = ()
        cursors: tuple[TableCursor, ...] = ()
        served: tuple[tuple[int, Rows], ...] = ()  # units and their rows

    def __init__(self, script: CaptureScript) -> None:
        self._script = script

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case ChunkServed(unit, rows):
                return state._replace(served=(*state.served, (unit, rows)))
            case LogTakenOver():
                return state._replace(served=())  # chunks before it are never written
            case EntryLogged(entry) if entry.last:
                after = self._logged(state, entry)
                self._judge(after, entry.position)
                return after
        return state

    def _logged(self, state: State, entry: AppendEntry) -> State:
        rows, cursors, served = state.rows, {cursor.table: cursor for cursor in state.cursors}, state.served
        for end in ends_of(entry):
            rows = applied(rows, self._script.transaction(end).changes)
        if entry.shape is not None and not entry.tables:
            cursors.pop(entry.shape.table, None)
        for cursor in entry.tables:
            if cursor.generation > (cursors[cursor.table].generation if cursor.table in cursors else 0):
                rows = tuple(row for row in rows if row[0] != cursor.table)
            cursors[cursor.table] = cursor
        if entry.chunk is not None:
            touched = entry.chunk.touched
            found = [] if "" in touched else [row for unit, read in served if unit == entry.unit for row in read]
            left = tuple(row for row in found if row[1] not in touched)
            rows = applied(rows, left) if entry.tables[0].keyed else _added(rows, left, entry.tables[0])
            served = tuple(each for each in served if each[0] != entry.unit)
        return self.State(rows, tuple(cursor for _, cursor in sorted(cursors.items())), served)

    def _judge(self, state: State, position: int) -> None:
        source = self._script.state(position // LSN_STEP)
        for cursor in state.cursors:
            logged, real = (self._reached(rows, cursor) for rows in (state.rows, source))
            if logged != real:
                name = f"table {cursor.table} up to {'its end' if cursor.complete else repr(cursor.after.decode())}"
                raise Violation(f"{name}, at {position}, is {real} in the source, but {logged} in the log")

    def _reached(self, rows: Rows, cursor: TableCursor) -> Rows:
        return tuple(
            row for row in rows if row[0] == cursor.table and (cursor.complete or row[1].encode() <= cursor.after)
        )


class SchemaFirst(SafetyMonitor):
    """Rows follow the schema that they have, and the newest one of their table in the log is that one."""

    name = "SchemaFirst"

    class State(NamedTuple):
        schemas: tuple[tuple[int, int], ...] = ()  # tables, and the units of their schemas
        served: tuple[tuple[int, int], ...] = ()  # units of chunks, and of their schemas

    def __init__(self, script: CaptureScript) -> None:
        self._script = script

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case ChunkServed(unit, _, schema):
                return state._replace(served=(*state.served, (unit, schema)))
            case LogTakenOver():
                return state._replace(served=())
            case EntryLogged(entry):
                return self._logged(state, entry)
        return state

    def _logged(self, state: State, entry: AppendEntry) -> State:
        schemas = dict(state.schemas)
        if entry.shape is not None:
            return state._replace(schemas=self._reshaped(schemas, entry))
        if entry.kind is EntryKind.CATALOG and {cursor.table for cursor in entry.tables} != {*schemas}:
            raise Violation(f"a catalog has {entry.tables}, but there are schemas of {sorted(schemas)}")
        for end in ends_of(entry):
            number = end // LSN_STEP
            for table in {table for table, _, _ in self._script.transaction(end).changes}:
                self._need(schemas, table, self._script.schema_at(table, number, entry.index))
        if entry.chunk is not None:
            self._need(schemas, entry.tables[0].table, dict(state.served)[entry.unit])
            return state._replace(served=tuple(each for each in state.served if each[0] != entry.unit))
        return state

    def _reshaped(self, schemas: dict[int, int], entry: AppendEntry) -> tuple[tuple[int, int], ...]:
        assert entry.shape is not None
        table, change = entry.shape.table, entry.shape.change
        if (table in schemas) == (change is ShapeChange.CREATED):
            raise Violation(f"table {table} is {change.value}, but there are schemas of {sorted(schemas)}")
        schemas = {**schemas, table: entry.unit}
        if change is ShapeChange.DROPPED:
            del schemas[table]
        return tuple(sorted(schemas.items()))

    def _need(self, schemas: dict[int, int], table: int, unit: int) -> None:
        if unit and schemas.get(table) != unit:
            raise Violation(f"rows of table {table} have the schema {unit}, but the log has {schemas.get(table)}")


class NotTakenBack(SafetyMonitor):
    """A capture whose log was taken over by another one does not take it back."""

    name = "NotTakenBack"

    class State(NamedTuple):
        owner: str = ""
        former: tuple[str, ...] = ()

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case LogTakenOver(by) if by in state.former:
                raise Violation(f"{by} takes the log back from {state.owner}")
            case LogTakenOver(by) if by != state.owner:
                return self.State(by, tuple(sorted({*state.former, state.owner} - {""})))
            case ProcessEnded():
                former = tuple(each for each in state.former if each != observed.process)
                return self.State("" if state.owner == observed.process else state.owner, former)
        return state


class Captured:
    """When faults have stopped, the log has every transaction and every table, with its newest schema, and the source
    may forget them; or the capture has halted, where changes are lost.
    """

    name = "Captured"

    class State(NamedTuple):
        committed: int = 0
        position: int = -1
        confirmed: int = 0
        tables: tuple[tuple[int, int, bool], ...] = ()  # with their schemas; complete?
        lost: bool = False
        halted: bool = False

    def __init__(self, script: CaptureScript) -> None:
        self._script = script

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case SourceCommitted(count):
                return state._replace(committed=count)
            case SlotConfirmed(position):
                return state._replace(confirmed=max(state.confirmed, position))
            case SlotMoved(position, lost):
                return state._replace(lost=state.lost or lost, confirmed=position)
            case SourceDiverged():
                return state._replace(lost=True)
            case EntryLogged(entry) if entry.last:
                return state._replace(position=entry.position, tables=self._tables(state, entry))
            case CaptureHalted(error):
                if not state.lost:
                    raise Violation(f"it halts although nothing is lost: {error}")
                return state._replace(halted=True)
        return state

    def _tables(self, state: State, entry: AppendEntry) -> tuple[tuple[int, int, bool], ...]:
        found = {table: (schema, complete) for table, schema, complete in state.tables}
        if entry.shape is not None:
            found.pop(entry.shape.table, None)
        for cursor in entry.tables:
            schema = entry.unit if entry.shape is not None else found.get(cursor.table, (0, False))[0]
            found[cursor.table] = (schema, cursor.complete)
        return tuple((table, *each) for table, each in sorted(found.items()))

    def hot(self, state: State) -> str:
        end = state.committed * LSN_STEP
        if state.halted:
            return ""
        if state.position < end:
            return f"the source is at {end}, the log at {state.position}"
        expected = [
            (each, self._script.schema_at(each, state.committed)) for each in self._script.captured(state.committed)
        ]
        if [each[:2] for each in state.tables] != expected:
            return f"the source has tables {expected}, the log {state.tables}"
        left = [table for table, _, complete in state.tables if not complete]
        if left:
            return f"table {left[0]} is not complete"
        return f"the source is at {end}, its slot at {state.confirmed}" if state.confirmed < end else ""


def capture_monitors(script: CaptureScript) -> tuple[Monitor, ...]:
    return (
        EachTransactionOnce(script),
        ConfirmedIsCaptured(),
        ChunkExact(script),
        SchemaFirst(script),
        NotTakenBack(),
        Captured(script),
    )
