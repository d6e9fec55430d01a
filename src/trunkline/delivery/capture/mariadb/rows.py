"""Rows of binlog events, gathered into groups of whole transactions and parts of large ones.

Rules
 R1  A transaction leaves when it is whole, or as parts when it is beyond the limits: memory is bounded by the limits.
 R2  Rows of one unit and one version of a table were read by one reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.capture.mariadb.events import DELETES, INSERTS, malformed
from trunkline.delivery.capture.mariadb.tablemap import MALFORMED, WireColumn
from trunkline.delivery.capture.mariadb.values import column_reader
from trunkline.delivery.capture.postgres.values import ROW_BYTES_MAX
from trunkline.delivery.capture.source import Changes
from trunkline.delivery.changes.groups import (
    GROUP_BYTES_MAX,
    GROUP_ROWS_MAX,
    PLACE_FIELDS,
    Layout,
    RowKind,
    TableRows,
    Transaction,
    table_rows,
)
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ConfigError

Values = list[Any]


class Limits(Struct, frozen=True):
    """Of a unit; a single row may exceed them."""

    rows: int = GROUP_ROWS_MAX
    bytes: int = GROUP_BYTES_MAX


class TableReader:
    """Reads the rows of one version of a table, as one table map describes them."""

    def __init__(self, schema: TableSchema, columns: Sequence[WireColumn], charsets: Mapping[int, str]) -> None:
        self.schema, self.wire = schema, columns
        self.layout = Layout(schema)
        self.text = f"{schema.schema}.{schema.name}"
        readers = [
            column_reader(wire, column, charsets.get(wire.collation, "unknown"), self.text)
            for wire, column in zip(columns, schema.columns, strict=True)
        ]
        self._reads = [reader.read for reader in readers]
        self._finishes = [reader.finish for reader in readers]
        self._key = [place for place, column in enumerate(schema.columns) if column.name in schema.key]
        self._width = (len(readers) + 7) // 8

    def rows(self, kind: int, body: bytes, at: int) -> list[tuple[RowKind, Values]]:
        """Raises ``ProtocolError``."""
        found: list[tuple[RowKind, Values]] = []
        try:
            while at < len(body):
                values, at = self._row(body, at)
                if kind in INSERTS:
                    found.append((RowKind.INSERT, values))
                elif kind in DELETES:
                    found.append((RowKind.DELETE, values))
                else:
                    new, at = self._row(body, at)
                    if not self._key or any(values[place] != new[place] for place in self._key):
                        found.append((RowKind.UPDATE_OLD, values))
                    found.append((RowKind.UPDATE_NEW, new))
        except MALFORMED as error:
            raise malformed(f"a row of {self.text}: {error}") from None
        if at != len(body):
            raise malformed(f"a row of {self.text} goes beyond its event")
        return found

    def _row(self, body: bytes, at: int) -> tuple[Values, int]:
        nulls = int.from_bytes(body[at : at + self._width], "little")
        at += self._width
        values: Values = []
        append = values.append
        if not nulls:
            for read in self._reads:
                value, at = read(body, at)
                append(value)
            return values, at
        for place, read in enumerate(self._reads):
            if nulls >> place & 1:
                append(None)
            else:
                value, at = read(body, at)
                append(value)
        return values, at

    def batch(self, tx: Sequence[int], seq: Sequence[int], kind: Sequence[int], rows: Sequence[Values]) -> TableRows:
        """Raises ``ConfigError`` for a value that cannot be captured."""
        arrays = []
        for place, (finish, raws) in enumerate(zip(self._finishes, zip(*rows, strict=True), strict=True)):
            try:
                arrays.append(finish(list(raws)))
            except (pa.ArrowException, ValueError, IndexError) as error:
                column = self.schema.columns[place].name
                raise ConfigError(
                    f"a value in column {column!r} of {self.text} cannot be captured ({str(error)[:200]}); correct it, "
                    "then leave the table out and start again, so that it is captured again afterwards"
                ) from None
        if any(arrays[place].null_count for place in self._key):
            raise ConfigError(
                f"a key of {self.text} is a date with a zero month or day; correct it, or leave the table out"
            )
        return table_rows(self.layout, arrays, tx=tx, seq=seq, kind=kind)


class Row(Struct, frozen=True, gc=False):
    tx: int  # index among the transactions
    reader: TableReader
    kind: RowKind
    values: Values


def changes_of(
    transactions: Sequence[Transaction], rows: Sequence[Row], *, end: int, part: int | None = None, last: bool = True
) -> Changes:
    """One unit."""
    by_table: dict[TableReader, list[tuple[int, Row]]] = {}
    for seq, row in enumerate(rows):
        by_table.setdefault(row.reader, []).append((seq, row))
    tables = []
    for reader, chosen in by_table.items():
        tables.append(
            reader.batch(
                [row.tx for _, row in chosen],
                [seq for seq, _ in chosen],
                [row.kind for _, row in chosen],
                [row.values for _, row in chosen],
            )
        )
    size = sum(each.batch.nbytes for each in tables)
    if size > ROW_BYTES_MAX:
        names = ", ".join(reader.text for reader in by_table)
        raise ConfigError(
            f"a row of {names} has {size:,} bytes, and an entry of a log holds {ROW_BYTES_MAX:,}; leave the table out"
        )
    return Changes(tuple(transactions), tuple(tables), size, part, last, end)


def truncation(schema: TableSchema, begin: int, commit_us: int, end: int) -> Changes:
    """One transaction that empties a table."""
    layout = Layout(schema)
    nulls = [pa.nulls(1, field.type) for field in layout.arrow][len(PLACE_FIELDS) :]
    rows = table_rows(layout, nulls, tx=[0], seq=[0], kind=[int(RowKind.TRUNCATE)])
    return Changes((Transaction(begin, commit_us, begin, 1),), (rows,), rows.batch.nbytes, end=end)


SEGMENT: Final = 64  # about the bytes of a transaction without its rows


class Gathering:
    """The open group, and the open transaction after it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rows: list[Row] = []
        self._transactions: list[Transaction] = []
        self._bytes = 0
        self._open: list[tuple[TableReader, RowKind, Values]] = []
        self._open_bytes = 0
        self._parts = 0
        self.touched: set[int] = set()  # tables of the open transaction

    @property
    def parts(self) -> int:
        """Of the open transaction that left."""
        return self._parts

    @property
    def empty(self) -> bool:
        return not (self._transactions or self._open or self._parts)

    def add(self, reader: TableReader, rows: Sequence[tuple[RowKind, Values]], size: int) -> None:
        self._open += [(reader, kind, values) for kind, values in rows]
        self._open_bytes += size
        self.touched.add(reader.schema.number)

    @property
    def waiting(self) -> bool:
        """Whether the open transaction has rows that have not left."""
        return bool(self._open)

    def leave_out(self) -> None:
        """Rows of the open transaction are not captured."""
        self._open, self._open_bytes = [], 0

    def overflowing(self) -> bool:
        return len(self._open) >= self._limits.rows or self._open_bytes >= self._limits.bytes

    def full(self) -> bool:
        return len(self._rows) >= self._limits.rows or self._bytes >= self._limits.bytes

    def group(self, end: int) -> Changes | None:
        """The group so far: it ends here."""
        if not self._transactions:
            return None
        found = changes_of(self._transactions, self._rows, end=end)
        self._rows, self._transactions, self._bytes = [], [], 0
        return found

    def part(self, begin: int, commit_us: int, *, end: int = 0, last: bool = False) -> Changes:
        """The open transaction so far, after its group has left."""
        assert not self._transactions, "a group is open before a part"
        rows = [Row(0, *each) for each in self._open]
        number, self._parts = self._parts, self._parts + 1
        transaction = Transaction(begin, commit_us, begin, len(rows))
        self._open, self._open_bytes = [], 0
        return changes_of([transaction], rows, end=end, part=number, last=last)

    def commit(self, begin: int, commit_us: int) -> None:
        """The open transaction joins the group; if it has rows."""
        assert not self._parts, "a part cannot join a group"
        if self._open:
            index = len(self._transactions)
            self._transactions.append(Transaction(begin, commit_us, begin, len(self._open)))
            self._rows += [Row(index, *each) for each in self._open]
            self._bytes += self._open_bytes + SEGMENT
        self.forget()

    def forget(self) -> None:
        """The open transaction has ended."""
        self._open, self._open_bytes, self._parts = [], 0, 0
        self.touched = set()
