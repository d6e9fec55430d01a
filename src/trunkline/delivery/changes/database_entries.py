"""Entries of a log with a whole database: log format 2. Format 1, of one table, is in ``captured``.

Rules
 E1  The header ``trunkline-capture`` marks format 2 and no other entry has it. An entry without it is of format 1, or
     of another writer.
 E2  A mark, a group, the last part of a transaction and a chunk are *ends*; a window ends at ends only. Schema and
     catalog entries and other parts are none.
 E3  Each entry but the mark of a take-over has the source's position after the last transaction that ends in it or
     before it, so that a capture finds where to continue; before the first transaction there may be none. A mark with a
     position says that the source has no more changes up to it, and nothing else.
 E4  Each entry but the mark of a take-over and the first catalog names a catalog before it, from which on all later
     entries can be read.
 E5  Entries are not trusted. One that fails a check raises ``CorruptEntry`` with its position and the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Final, NoReturn, TypeVar

from msgspec import Struct

from trunkline.client.entries import Entry
from trunkline.delivery.changes.captured import (
    INDEX_DIGITS_MAX,
    INDEX_HEADER,
    LAST_HEADER,
    POSITION_HEADER,
    REASON_LETTERS_MAX,
    EntryPlace,
    entry_place,
)
from trunkline.delivery.changes.groups import ChunkHead, GroupHead, Layouts, TableRows, chunk_head, group_head, rows_in
from trunkline.delivery.changes.schemas import (
    REFUSALS,
    Catalog,
    Malformed,
    TableSchema,
    decode_catalog,
    decode_schema,
)
from trunkline.errors import CorruptEntry

FORMAT_HEADER: Final = "trunkline-capture"
KIND_HEADER: Final = "trunkline-kind"
CATALOG_HEADER: Final = "trunkline-catalog"
FORMAT: Final = b"2"
POSITION_BYTES_MAX: Final = 4_096

T = TypeVar("T")


class EntryKind(StrEnum):
    GROUP = "group"
    PART = "part"
    CHUNK = "chunk"
    SCHEMA = "schema"
    CATALOG = "catalog"
    MARK = "mark"


class Heading(Struct, frozen=True):
    """The headers of an entry. ``index``, of a part: its number in the transaction, from 0. ``end``: E2."""

    kind: EntryKind
    position: str | None = None
    catalog: int | None = None
    index: int | None = None
    end: bool = False

    def headers(self) -> dict[str, bytes]:
        found = {FORMAT_HEADER: FORMAT, KIND_HEADER: self.kind.value.encode()}
        if self.index is not None:
            found[INDEX_HEADER] = str(self.index).encode()
        if self.end:
            found[LAST_HEADER] = b"1"
        if self.position is not None:
            found[POSITION_HEADER] = self.position.encode()
        if self.catalog is not None:
            found[CATALOG_HEADER] = str(self.catalog).encode()
        return found


def mark_heading() -> Heading:
    """Of a take-over."""
    return Heading(EntryKind.MARK, end=True)


def position_heading(position: str, catalog: int) -> Heading:
    """Of a mark that moves the position (E3)."""
    return Heading(EntryKind.MARK, position, catalog, end=True)


def group_heading(position: str, catalog: int) -> Heading:
    return Heading(EntryKind.GROUP, position, catalog, end=True)


def part_heading(position: str | None, catalog: int, index: int, *, last: bool) -> Heading:
    return Heading(EntryKind.PART, position, catalog, index, last)


def chunk_heading(position: str | None, catalog: int) -> Heading:
    return Heading(EntryKind.CHUNK, position, catalog, end=True)


def schema_heading(position: str | None, catalog: int) -> Heading:
    return Heading(EntryKind.SCHEMA, position, catalog)


def catalog_heading(position: str | None, catalog: int | None) -> Heading:
    return Heading(EntryKind.CATALOG, position, catalog)


class OneTable(Struct, frozen=True):
    """An entry of format 1, or of another writer; ``captured.decoded`` reads its payload."""

    glsn: int
    place: EntryPlace
    payload: bytes


class Mark(Struct, frozen=True):
    glsn: int
    heading: Heading

    @property
    def takes_over(self) -> bool:
        return self.heading.position is None


class SchemaEntry(Struct, frozen=True):
    glsn: int
    heading: Heading
    schema: TableSchema


class CatalogEntry(Struct, frozen=True):
    glsn: int
    heading: Heading
    catalog: Catalog


class _Rows(Struct, frozen=True):
    glsn: int
    heading: Heading
    batches: memoryview

    def _rows(
        self, head: GroupHead | ChunkHead, layouts: Layouts, chosen: Collection[int] | None
    ) -> tuple[TableRows, ...]:
        return checked(self.glsn, lambda: rows_in(head, self.batches, layouts, chosen))


class Group(_Rows, frozen=True):
    head: GroupHead

    def rows(self, layouts: Layouts, chosen: Collection[int] | None = None) -> tuple[TableRows, ...]:
        """Of the chosen tables, by number. Raises ``CorruptEntry``."""
        return self._rows(self.head, layouts, chosen)


class Part(Group, frozen=True):
    """A part of one transaction."""

    @property
    def index(self) -> int:
        return self.heading.index or 0


class Chunk(_Rows, frozen=True):
    head: ChunkHead

    def rows(self, layouts: Layouts, chosen: Collection[int] | None = None) -> tuple[TableRows, ...]:
        return self._rows(self.head, layouts, chosen)


DatabaseEntry = Mark | Group | Part | Chunk | SchemaEntry | CatalogEntry


def entry_of(entry: Entry) -> DatabaseEntry | OneTable:
    """The checked entry; rows of its tables are checked when they are read. Raises ``CorruptEntry`` (E5)."""
    heading = heading_of(entry)
    if heading is None:
        return OneTable(entry.glsn, entry_place(entry), entry.payload)
    return checked(entry.glsn, lambda: _entry(entry, heading))


def heading_of(entry: Entry) -> Heading | None:
    """The checked headers alone: where transactions end, and the source's position. ``None``: not of format 2 (E1)."""
    headers = entry.headers
    if FORMAT_HEADER not in headers:
        if KIND_HEADER in headers or CATALOG_HEADER in headers:
            corrupt(entry.glsn, f"it has headers of format 2, but no {FORMAT_HEADER}")
        return None
    if (found := headers[FORMAT_HEADER]) != FORMAT:
        corrupt(entry.glsn, f"it is of format {found!r:.20}; this version reads formats 1 and 2: install a newer one")
    return checked(entry.glsn, lambda: _heading(entry))


def _entry(entry: Entry, heading: Heading) -> DatabaseEntry:
    glsn, payload = entry.glsn, entry.payload
    match heading.kind:
        case EntryKind.MARK:
            if payload:
                raise Malformed("a mark has no content")
            return Mark(glsn, heading)
        case EntryKind.SCHEMA:
            return SchemaEntry(glsn, heading, decode_schema(payload))
        case EntryKind.CATALOG:
            return CatalogEntry(glsn, heading, decode_catalog(payload))
        case EntryKind.CHUNK:
            chunk, begin = chunk_head(payload)
            return Chunk(glsn, heading, memoryview(payload)[begin:], chunk)
        case EntryKind.GROUP | EntryKind.PART:
            head, begin = group_head(payload)
            if heading.kind is EntryKind.GROUP:
                return Group(glsn, heading, memoryview(payload)[begin:], head)
            if len(head.transactions) != 1:
                raise Malformed("a part is of one transaction")
            return Part(glsn, heading, memoryview(payload)[begin:], head)


def _heading(entry: Entry) -> Heading:
    headers = entry.headers
    kind = EntryKind(headers[KIND_HEADER].decode())
    position = headers.get(POSITION_HEADER)
    if position is not None and len(position) > POSITION_BYTES_MAX:
        raise Malformed("its position is too long")
    if headers.get(LAST_HEADER, b"1") != b"1":
        raise Malformed("it neither ends a transaction nor does it not")
    index, catalog = _number(headers.get(INDEX_HEADER)), _number(headers.get(CATALOG_HEADER))
    heading = Heading(kind, None if position is None else position.decode(), catalog, index, LAST_HEADER in headers)
    if (index is not None) != (kind is EntryKind.PART):
        raise Malformed("parts have an index, and no other entries")
    if kind is not EntryKind.PART and heading.end != (kind in (EntryKind.GROUP, EntryKind.CHUNK, EntryKind.MARK)):
        raise Malformed(f"a {kind} is an end, or is not, other than its headers say")
    if kind is EntryKind.MARK and (position is None) != (catalog is None):
        raise Malformed("a mark has a position and a catalog, or neither")
    if position is None and (kind is EntryKind.GROUP or (kind is EntryKind.PART and heading.end)):
        raise Malformed("the end of a transaction has no position")
    if catalog is None and kind not in (EntryKind.MARK, EntryKind.CATALOG):
        raise Malformed("it names no catalog")
    if catalog is not None and not 0 < catalog < entry.glsn:
        raise Malformed("it names a catalog that is not before it")
    return heading


def _number(text: bytes | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or len(text) > INDEX_DIGITS_MAX:
        raise Malformed("a number in its headers is none")
    return int(text)


def checked(glsn: int, read: Callable[[], T]) -> T:
    """What ``read`` returns; what it refuses is corrupt."""
    try:
        return read()
    except CorruptEntry:
        raise
    except REFUSALS as error:
        return corrupt(glsn, f"{error}" or type(error).__name__, error)


def corrupt(glsn: int, why: str, cause: Exception | None = None) -> NoReturn:
    raise CorruptEntry(
        f"entry {glsn} is corrupt ({why[:REASON_LETTERS_MAX]}); was it written by a capture of this database?",
        glsn,
        glsn + 1,
    ) from cause
