"""Changes of a table as entries of a log: `capture` writes them, and a pipeline with a log as its source reads them.

Rules
 X1  An entry holds changes in order: an Arrow stream with KIND_COLUMN and every column of the table. Its schema also
     has the columns in the shared vocabulary: Arrow has no UUID and no JSON type.
 X2  Headers give the place of an entry in its source transaction: its number, from 0, and whether it is the last. A
     window may end at the positions of last entries only.
 X3  A transaction without a last entry was interrupted by a crash. The next entry begins another one, and the
     interrupted one is ignored.
 X4  Headers also give the source's own position after the transaction, so that a capture finds where to continue. A
     take-over mark is an entry without changes and without a position: a capture writes it when it takes the log over.
 X5  Entries are not trusted: the stream, its types and the kinds of changes are checked before a row is used. An entry
     that fails a check is corrupt; it never passes for fewer or other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from trunkline.client.entries import Entry
from trunkline.delivery.changes.arrow_stream import MalformedStream, read_stream
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.rows import KIND_COLUMN, ChangeKind
from trunkline.errors import ConfigError, CorruptEntry

COLUMNS_KEY: Final = b"trunkline.columns"
INDEX_HEADER: Final = "trunkline-index"
LAST_HEADER: Final = "trunkline-last"
POSITION_HEADER: Final = "trunkline-position"
ENTRY_ROWS_MAX: Final = 20_000  # more: readers hold more in memory at once
ENTRY_BYTES_MAX: Final = 2 * 1024 * 1024  # about; a log takes entries of up to 16 MiB
DECODED_BYTES_MAX: Final = 64 * 1024 * 1024  # of an entry that another writer compressed; capture does not
INDEX_DIGITS_MAX: Final = 18
REASON_LETTERS_MAX: Final = 300


class EntryPlace(Struct, frozen=True):
    """The place of an entry in its transaction (X2, X4)."""

    index: int = 0
    last: bool = True
    position: str | None = None

    def headers(self) -> dict[str, bytes]:
        found = {INDEX_HEADER: str(self.index).encode()}
        if self.last:
            found[LAST_HEADER] = b"1"
        if self.position is not None:
            found[POSITION_HEADER] = self.position.encode()
        return found


TAKE_OVER_MARK: Final = EntryPlace()


def entry_place(entry: Entry) -> EntryPlace:
    """An entry without such headers is a transaction of its own. Raises ``CorruptEntry`` for invalid headers."""
    headers = entry.headers
    if INDEX_HEADER not in headers and not entry.unreadable_headers:
        return EntryPlace()
    try:
        index = _index(headers[INDEX_HEADER])
        position = headers.get(POSITION_HEADER)
        return EntryPlace(index, LAST_HEADER in headers, None if position is None else position.decode())
    except (LookupError, ValueError) as error:
        raise CorruptEntry(
            f"entry {entry.glsn} has headers that no capture writes; was this log written by a capture?",
            entry.glsn,
            entry.glsn + 1,
        ) from error


def _index(text: bytes) -> int:
    if not text.isdigit() or len(text) > INDEX_DIGITS_MAX:
        raise ValueError("not a number of an entry")
    return int(text)


def change_rows(kind: ChangeKind, rows: pa.Table) -> pa.Table:
    """Rows as changes of one kind."""
    kinds = pa.array([kind.value], pa.string()).take(pa.array([0] * rows.num_rows, pa.int32()))
    return rows.append_column(KIND_COLUMN, kinds)


def truncation(columns: Columns) -> pa.Table:
    """One change that removes every earlier row."""
    nothing = pa.table({field.name: pa.nulls(1, field.type) for field in arrow_schema(columns)})
    return change_rows(ChangeKind.TRUNCATE, nothing)


def encoded(columns: Columns, changes: pa.Table) -> bytes:
    """The payload of an entry."""
    schema = _schema(columns).with_metadata({COLUMNS_KEY: msgspec.json.encode(columns)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(changes.select(schema.names).cast(schema))
    return bytes(sink.getvalue())


def payloads(columns: Columns, changes: Iterable[pa.Table]) -> Iterator[bytes]:
    """Entries of a bounded size for a transaction's changes; a single row may exceed it."""
    for table in changes:
        for part in _parts(table):
            yield encoded(columns, part)


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    """Halves a table until the parts fit: large rows may be adjacent."""
    if table.num_rows <= ENTRY_ROWS_MAX and (table.nbytes <= ENTRY_BYTES_MAX or table.num_rows <= 1):
        if table.num_rows:
            yield table
        return
    half = table.num_rows // 2
    yield from _parts(table.slice(0, half))
    yield from _parts(table.slice(half))


def decoded(payload: bytes, bytes_max: int = DECODED_BYTES_MAX) -> tuple[Columns, pa.Table]:
    """The columns and the changes of an entry; raises ``CorruptEntry`` (X5)."""
    stated: Columns = ()

    def check(schema: pa.Schema) -> None:
        nonlocal stated
        stated = _stated_columns(schema)

    try:
        schema, batches = read_stream(payload, bytes_max, check)
        changes = pa.Table.from_batches(batches, schema).replace_schema_metadata(None)
        _check_kinds(changes.column(KIND_COLUMN))
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, RecursionError, ConfigError) as error:
        why = f"{error}"[:REASON_LETTERS_MAX]
        raise CorruptEntry(f"an entry is not a batch of changes ({why}); was this log written by a capture?") from error
    return stated, changes


def _stated_columns(schema: pa.Schema) -> Columns:
    """The columns that a stream declares in the shared vocabulary; raises unless its schema has just these."""
    columns = msgspec.json.decode((schema.metadata or {})[COLUMNS_KEY], type=Columns)
    if len({column.name for column in columns}) != len(columns):
        raise MalformedStream("two columns have the same name")
    if not schema.equals(_schema(columns)):
        raise MalformedStream("its columns are not those that it declares")
    return columns


def _schema(columns: Columns) -> pa.Schema:
    return pa.schema([pa.field(KIND_COLUMN, pa.string()), *arrow_schema(columns)])


def _check_kinds(kinds: pa.ChunkedArray) -> None:
    known = pa.array([kind.value for kind in ChangeKind], pa.string())
    if kinds.null_count or pc.all(pc.is_in(kinds, value_set=known)).as_py() is False:
        raise MalformedStream("a change has an unknown kind")
