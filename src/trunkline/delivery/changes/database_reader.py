"""Reads the entries of a captured database in order: whole transactions, their rows, and which tables can be read.

Rules
 R1  A reader begins at a catalog and takes every entry after it. An entry that does not follow the one before it is
     corrupt: a lost, repeated or moved one never passes for other rows.
 R2  The parts of a transaction follow each other; only schema entries may lie between. After the mark of a take-over
     they begin again, and parts without a last part are forgotten, but not the schemas between them. Anything else
     between parts is corrupt. A table that begins a generation, or ends, between parts loses its rows of those before.
 R3  A table can be read at an end once the last chunk of its generation is there. A new generation empties it, and so
     does the first chunk of a table without a key: its snapshot has all rows of the changes before.
 R4  A catalog must say what the entries before it said. Rows after it have versions that it names, or later ones.
 R5  Rows of an older version can be presented under the newest version of their generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.changes.database_entries import (
    CatalogEntry,
    Chunk,
    DatabaseEntry,
    Group,
    Mark,
    OneTable,
    Part,
    SchemaEntry,
    checked,
)
from trunkline.delivery.changes.groups import PLACE_FIELDS, Layout, TableRows, Transaction
from trunkline.delivery.changes.schemas import (
    Catalog,
    CatalogTable,
    Malformed,
    SchemaChange,
    TableSchema,
    check_step,
    stepped,
)

PLACES: Final = len(PLACE_FIELDS)

Choice = Callable[[TableSchema], bool]


class Step(Struct, frozen=True):
    """What one entry comes to."""

    glsn: int
    transactions: tuple[Transaction, ...] = ()  # of a part: its transaction, with the rows of the part
    rows: tuple[TableRows, ...] = ()  # of chosen tables
    emptied: tuple[int, ...] = ()  # numbers of tables that lose all earlier rows, before the rows of this step
    end: bool = False
    forgets: bool = False  # the rows of parts since the last end never were


class End(Struct, frozen=True):
    """Everything since the end before it. ``blocked``: numbers of chosen tables that cannot be read here (R3)."""

    glsn: int
    transactions: tuple[Transaction, ...]
    steps: tuple[Step, ...]
    blocked: tuple[int, ...]


class _OpenParts(Struct, frozen=True):
    transaction: Transaction
    following: int  # index of the next part
    counts: dict[int, int]  # rows of each table so far


class DatabaseReader:
    """The state after the entries so far. Not to be used after it raised ``CorruptEntry``."""

    def __init__(self, start: CatalogEntry, chosen: Choice = lambda _: True) -> None:
        self._chosen = chosen
        self._glsn = self._catalog_glsn = start.glsn
        self._open: _OpenParts | None = None
        self._history: dict[int, list[TableSchema]] = {}  # every version of the generation, for R5
        self._adopt(start.catalog)

    # ---------------------------------------------------------------------------------------------------- what is so

    @property
    def lsn(self) -> int:
        """The position of the last whole transaction."""
        return self._lsn

    @property
    def epoch(self) -> int:
        return self._epoch

    def table(self, number: int) -> CatalogTable:
        return replace(self._tables[number], rows=self._counts[number])

    def tables(self) -> tuple[CatalogTable, ...]:
        """All tables, with every version whose rows may follow, by number."""
        return tuple(self.table(number) for number in sorted(self._tables))

    def find(self, number: int) -> CatalogTable | None:
        """``None``: there is none with this number, or it was dropped."""
        return self.table(number) if number in self._tables else None

    def number_of(self, schema: str, name: str) -> int | None:
        """The number of the table that has this name."""
        for number, table in self._tables.items():
            if (table.newest.schema, table.newest.name) == (schema, name):
                return number
        return None

    @property
    def glsn(self) -> int:
        """Of the last entry."""
        return self._glsn

    def copy(self, chosen: Choice) -> DatabaseReader:
        """Another reader in the same state, for the rows of other tables."""
        made = copy(self)
        made._chosen = chosen
        made._tables, made._counts, made._layouts = dict(self._tables), dict(self._counts), dict(self._layouts)
        made._incomplete = set(self._incomplete)
        made._history = {number: list(versions) for number, versions in self._history.items()}
        return made

    def catalog(self) -> Catalog:
        """What a catalog entry that follows has to say."""
        return Catalog(self._epoch, self._lsn, self._next_number, self.tables())

    def blocked(self) -> tuple[int, ...]:
        """The numbers of chosen tables that cannot be read (R3)."""
        return tuple(sorted(number for number in self._incomplete if self._chosen(self._tables[number].newest)))

    def versions(self, number: int) -> tuple[TableSchema, ...]:
        """The versions of a table that were seen of its generation, oldest first."""
        return tuple(self._history.get(number, ()))

    def presented(self, rows: TableRows, version: int | None = None) -> TableRows:
        """Rows under a later version, the newest if ``None`` (R5). Raises ``ValueError`` for an earlier generation."""
        return presented(self.versions(rows.number), rows, version)

    # ----------------------------------------------------------------------------------------------------- what comes

    def feed(self, entry: DatabaseEntry | OneTable, *, rows: bool = True) -> Step:
        """The next entry. ``rows``: whether its rows are wanted. Raises ``CorruptEntry``."""
        return checked(entry.glsn, lambda: self._fed(entry, rows))

    def _fed(self, entry: DatabaseEntry | OneTable, rows: bool) -> Step:
        if isinstance(entry, OneTable):
            raise Malformed("it is not of format 2, as the entries before it are")
        if entry.glsn <= self._glsn:
            raise Malformed(f"it comes after entry {self._glsn}")
        self._glsn = entry.glsn
        if self._open is not None and not _may_lie_between_parts(entry):
            raise Malformed(f"it lies between parts of the transaction {self._open.transaction.xid}")
        if (named := entry.heading.catalog) is not None and named > self._catalog_glsn:
            raise Malformed(f"it names the catalog {named}, and there is none after {self._catalog_glsn}")
        match entry:
            case Mark():
                forgets, self._open = self._open is not None, None
                return Step(entry.glsn, end=True, forgets=forgets)
            case Part():
                return self._part(entry, rows)
            case Group():
                return self._group(entry, rows)
            case Chunk():
                return self._chunk(entry, rows)
            case SchemaEntry():
                return Step(entry.glsn, emptied=self._schema(entry.schema))
            case CatalogEntry():
                return Step(entry.glsn, emptied=self._catalog(entry))

    def _group(self, entry: Group, rows: bool) -> Step:
        self._check_follows(entry.head.after)
        found = Step(entry.glsn, entry.head.transactions, self._rows(entry, rows), end=True)
        self._lsn = entry.head.transactions[-1].lsn
        self._count({}, entry)
        return found

    def _part(self, entry: Part, rows: bool) -> Step:
        self._check_follows(entry.head.after)
        [transaction] = entry.head.transactions
        expected = 0 if self._open is None else self._open.following
        if entry.index != expected:
            raise Malformed(f"it is part {entry.index} of a transaction, and part {expected} must follow here")
        if self._open is not None and _identity(self._open.transaction) != _identity(transaction):
            raise Malformed("it is a part of another transaction than the part before")
        found = Step(entry.glsn, (transaction,), self._rows(entry, rows), end=entry.heading.end)
        before = {} if self._open is None else self._open.counts
        if entry.heading.end:
            self._open, self._lsn = None, transaction.lsn
            self._count(before, entry)
        else:
            self._open = _OpenParts(transaction, entry.index + 1, _added(before, entry))
        return found

    def _chunk(self, entry: Chunk, rows: bool) -> Step:
        head = entry.head
        self._check_follows(head.after)
        [share] = head.tables
        table = self._tables.get(share.number)
        if table is None or table.complete or share.version != table.newest.version:
            raise Malformed(f"table {share.number} is complete, has another version, or is not there")
        if (head.generation, head.chunk) != (table.newest.generation, table.chunks):
            raise Malformed(
                f"it is chunk {head.chunk} of generation {head.generation}, and chunk {table.chunks} of generation "
                f"{table.newest.generation} must follow here"
            )
        emptied = (share.number,) if not head.chunk and not table.newest.key else ()
        found = Step(entry.glsn, (), self._rows(entry, rows), emptied, end=True)
        self._put(CatalogTable(table.schemas, head.complete, head.chunk + 1, head.cursor))
        self._count({}, entry)
        return found

    def _count(self, before: dict[int, int], entry: Group | Chunk) -> None:
        """The rows of an entry that ends, and of the parts before it."""
        for number, rows in _added(before, entry).items():
            if number in self._counts:  # not dropped between the parts
                self._counts[number] += rows

    def _rows(self, entry: Group | Chunk, wanted: bool) -> tuple[TableRows, ...]:
        chosen = {share.number for share in entry.head.tables} if wanted else set()
        chosen = {each for each in chosen if each in self._tables and self._chosen(self._tables[each].newest)}
        return entry.rows(self._layouts, chosen)

    def _schema(self, schema: TableSchema) -> tuple[int, ...]:
        """The tables that it empties."""
        number = schema.number
        table = self._tables.get(number)
        if table is None:
            if number != self._next_number or SchemaChange.CREATED not in schema.changes:
                raise Malformed(f"there is no table {number}, and the next new one has number {self._next_number}")
            self._put(CatalogTable((schema,)))
            self._counts[number] = 0
            self._next_number += 1
        else:
            check_step(table.newest, schema)
            recaptured = schema.generation > table.newest.generation
            if recaptured or schema.dropped:
                self._forget(number)
            if schema.dropped:
                return (number,)
            schemas = (schema,) if recaptured else (*table.schemas, schema)
            state = (False, 0, None) if recaptured else (table.complete, table.chunks, table.cursor)
            self._put(CatalogTable(schemas, *state))
            self._counts[number] = 0 if recaptured else self._counts[number]
        self._layouts[number, schema.version] = Layout(schema)
        self._history.setdefault(number, []).append(schema)
        return (number,) if schema.generation > 1 and self._tables[number].schemas == (schema,) else ()

    def _put(self, table: CatalogTable) -> None:
        number = table.newest.number
        self._tables[number] = table
        if table.complete:
            self._incomplete.discard(number)
        else:
            self._incomplete.add(number)

    def _forget(self, number: int) -> None:
        table = self._tables.pop(number)
        del self._counts[number]
        if self._open is not None:
            counts = {each: rows for each, rows in self._open.counts.items() if each != number}
            self._open = replace(self._open, counts=counts)
        self._incomplete.discard(number)
        for schema in table.schemas:
            del self._layouts[number, schema.version]
        del self._history[number]

    def _catalog(self, entry: CatalogEntry) -> tuple[int, ...]:
        """R4. The tables that it empties: all, if the source was replaced."""
        found, known = entry.catalog, self.catalog()
        emptied: tuple[int, ...] = ()
        if found.epoch == known.epoch + 1:
            _check_replaced(found, known)
            emptied = tuple(sorted(self._tables))
            self._history = {}
        elif (found.epoch, found.lsn, found.next_number) != (known.epoch, known.lsn, known.next_number):
            raise Malformed("its catalog does not follow from the entries before it")
        else:
            _check_same(found, known)
        self._adopt(found)
        self._catalog_glsn = entry.glsn
        return emptied

    def _adopt(self, catalog: Catalog) -> None:
        self._epoch, self._lsn, self._next_number = catalog.epoch, catalog.lsn, catalog.next_number
        self._tables = {table.newest.number: table for table in catalog.tables}
        self._counts = {table.newest.number: table.rows for table in catalog.tables}
        self._incomplete = {table.newest.number for table in catalog.tables if not table.complete}
        self._layouts: dict[tuple[int, int], Layout] = {
            (schema.number, schema.version): Layout(schema) for table in catalog.tables for schema in table.schemas
        }
        for number, table in self._tables.items():
            self._history.setdefault(number, list(table.schemas))

    def _check_follows(self, after: int) -> None:
        if after != self._lsn:
            raise Malformed(f"it follows the transaction at {after}, and the last one here is at {self._lsn}")


def _identity(transaction: Transaction) -> tuple[int, int, int]:
    return (transaction.lsn, transaction.commit_us, transaction.xid)


def _may_lie_between_parts(entry: DatabaseEntry) -> bool:
    return isinstance(entry, Part | SchemaEntry) or (isinstance(entry, Mark) and entry.takes_over)


def _added(counts: dict[int, int], entry: Group | Chunk) -> dict[int, int]:
    """With the rows that the head of an entry states for each table."""
    found = dict(counts)
    for share in entry.head.tables:
        found[share.number] = found.get(share.number, 0) + share.rows
    return found


def _check_same(found: Catalog, known: Catalog) -> None:
    said = {table.newest.number: table for table in found.tables}
    for table in known.tables:
        other = said.pop(table.newest.number, None)
        if (
            other is None
            or other.schemas != table.schemas[-len(other.schemas) :]
            or replace(other, schemas=table.schemas) != table
        ):
            raise Malformed(f"its catalog has table {table.newest.number} other than the entries before it")
    if said:
        raise Malformed(f"its catalog has table {min(said)}, which no entry before it created")


def _check_replaced(found: Catalog, known: Catalog) -> None:
    before = {table.newest.number: table.newest for table in known.tables}
    if found.next_number < known.next_number:
        raise Malformed("its catalog uses numbers of tables again")
    for table in found.tables:
        older = before.get(table.newest.number)
        if table.chunks or table.rows or (older is None and table.newest.number < known.next_number):
            raise Malformed(f"the source was replaced, and table {table.newest.number} is not captured again")
        if older is not None:
            if older.generation == table.newest.generation or len(table.schemas) > 1:
                raise Malformed(f"the source was replaced, and table {older.number} is not captured again")
            check_step(older, table.newest)


def presented(versions: Sequence[TableSchema], rows: TableRows, version: int | None = None) -> TableRows:
    """Rows under a later one of the versions of their generation, the last if ``None`` (R5). Raises ``ValueError``."""
    known = [schema.version for schema in versions]
    wanted = known[-1] if version is None and known else version
    if rows.version not in known or wanted not in known:
        raise ValueError(f"table {rows.number} has no versions {rows.version} and {wanted} in this generation")
    batch = rows.batch
    for older, newer in pairwise(versions[known.index(rows.version) : known.index(wanted) + 1]):
        batch = _stepped(batch, older, newer)
    return TableRows(rows.number, wanted, batch)


def _stepped(batch: pa.RecordBatch, older: TableSchema, newer: TableSchema) -> pa.RecordBatch:
    """Rows with their places under the next version."""
    names = batch.schema.names
    rows = stepped(batch.select(names[PLACES:]), older, newer)
    places = list(batch.columns[:PLACES])
    if places[-1].null_count < batch.num_rows:
        numbers = [column.number for column in older.columns]
        moves = [
            (numbers.index(column.number), place)
            for place, column in enumerate(newer.columns)
            if column.number in numbers
        ]
        width = -(-len(newer.columns) // 8)
        places[-1] = pa.array([_moved(bits, moves, width) for bits in places[-1].to_pylist()], pa.binary())
    return pa.RecordBatch.from_arrays([*places, *rows.columns], schema=Layout(newer).arrow)


def _moved(bits: bytes | None, moves: list[tuple[int, int]], width: int) -> bytes | None:
    """Bits of unchanged columns at the places of the newer version."""
    if bits is None:
        return None
    before = int.from_bytes(bits, "little")
    return sum(1 << to for of, to in moves if before >> of & 1).to_bytes(width, "little")


def _without(rows: tuple[TableRows, ...], emptied: tuple[int, ...]) -> tuple[TableRows, ...]:
    return tuple(each for each in rows if each.number not in emptied)


def ends(reader: DatabaseReader, entries: Iterable[DatabaseEntry | OneTable]) -> Iterator[End]:
    """The ends among entries, in order; parts are joined, forgotten ones and emptied tables left out.

    Holds one transaction in memory.
    """
    steps: list[Step] = []
    for entry in entries:
        step = reader.feed(entry)
        if step.forgets:
            steps = [each for each in steps if not each.transactions]
        if step.emptied and steps:
            steps = [replace(each, rows=_without(each.rows, step.emptied)) for each in steps]
        steps.append(step)
        if step.end:
            found = [each for earlier in steps for each in earlier.transactions]
            if isinstance(entry, Part):
                found = [Transaction(*_identity(found[-1]), sum(each.rows for each in found))]
            yield End(step.glsn, tuple(found), tuple(steps), reader.blocked())
            steps = []
