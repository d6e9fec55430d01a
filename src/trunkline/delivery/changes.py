"""Changes of a table as entries of a log: what `capture` writes, and a pipeline with a log as its source reads.

Rules
 X1  An entry holds changes in their order: an Arrow stream with KIND_COLUMN and every column of the table. Its schema
     says the columns in our own vocabulary, too: Arrow knows no UUID and no JSON.
 X2  Headers say where an entry stands in its source transaction: its number, from 0 on, and whether it is the last.
     Positions of a log at which a window may end are those of last entries.
 X3  A transaction that has no last entry was broken off by a crash. The next entry begins another one, and nothing of
     the broken one counts.
 X4  Headers also say the source's own position after the transaction, so that whoever writes finds out how far it was.
     A mark is an entry without changes and without a position: a writer leaves it when it takes the log over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.columns import Columns, arrow_schema
from trunkline.delivery.rule_ordered import KIND_COLUMN, Kind
from trunkline.errors import ProtocolError

COLUMNS_KEY: Final = b"trunkline.columns"
INDEX_HEADER: Final = "trunkline-index"
LAST_HEADER: Final = "trunkline-last"
POSITION_HEADER: Final = "trunkline-position"
ENTRY_ROWS_MOST: Final = 20_000  # of one entry; more: readers hold more in memory at once
ENTRY_BYTES_MOST: Final = 2 * 1024 * 1024  # about; a log takes entries of up to 16 MiB


class Place(Struct, frozen=True):
    """Where an entry stands in its transaction (X2, X4)."""

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


MARK: Final = Place()


def place_of(headers: Mapping[str, bytes]) -> Place:
    """An entry that says nothing is a transaction by itself."""
    if INDEX_HEADER not in headers:
        return Place()
    position = headers.get(POSITION_HEADER)
    try:
        index = int(headers[INDEX_HEADER])
        return Place(index, LAST_HEADER in headers, None if position is None else position.decode())
    except ValueError as error:
        raise ProtocolError("an entry has headers that are none of a capture; is this log a capture's?") from error


def change_rows(kind: Kind, rows: pa.Table) -> pa.Table:
    """Rows as changes of one kind."""
    kinds = pa.array([kind.value], pa.string()).take(pa.array([0] * rows.num_rows, pa.int32()))
    return rows.append_column(KIND_COLUMN, kinds)


def truncation(columns: Columns) -> pa.Table:
    """One change: every earlier row is gone."""
    nothing = pa.table({field.name: pa.nulls(1, field.type) for field in arrow_schema(columns)})
    return change_rows(Kind.TRUNCATE, nothing)


def encoded(columns: Columns, changes: pa.Table) -> bytes:
    """The payload of an entry."""
    stated = msgspec.json.encode(columns)
    fields = [pa.field(KIND_COLUMN, pa.string()), *arrow_schema(columns)]
    schema = pa.schema(fields, metadata={COLUMNS_KEY: stated})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(changes.select(schema.names).cast(schema))
    return bytes(sink.getvalue())


def payloads(columns: Columns, changes: Iterable[pa.Table]) -> Iterator[bytes]:
    """Entries of a bounded size for a transaction's changes."""
    for table in changes:
        rows = max(1, min(ENTRY_ROWS_MOST, ENTRY_BYTES_MOST * max(table.num_rows, 1) // max(table.nbytes, 1)))
        for start in range(0, table.num_rows, rows):
            yield encoded(columns, table.slice(start, rows))


def decoded(payload: bytes) -> tuple[Columns, pa.Table]:
    """The columns and the changes of an entry; raises ``ProtocolError`` for one that holds none."""
    try:
        with pa.ipc.open_stream(payload) as reader:
            table = reader.read_all()
        columns = msgspec.json.decode((table.schema.metadata or {})[COLUMNS_KEY], type=Columns)
        return columns, table.select([KIND_COLUMN, *(column.name for column in columns)]).replace_schema_metadata(None)
    except (pa.ArrowInvalid, OSError, KeyError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"an entry holds no batch of changes ({error}); is this log a capture's?") from error
