"""Columns and values of a captured PostgreSQL table: its types in our vocabulary, its texts as Arrow values.

Types that we do not have are captured as their text, and so is `numeric` without a scale: nothing is rounded. Times
that Python does not have (infinite, before year 1, after 9999, 24:00:00) become the numbers that Arrow and DuckDB use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Final

import psycopg
import pyarrow as pa
from msgspec import Struct
from psycopg.adapt import Transformer
from psycopg.pq import Format

from trunkline.client.bodies import ENTRY_BYTES_MAX
from trunkline.delivery.capture.postgres.pgoutput import Relation, RelationColumn, Row
from trunkline.delivery.changes.columns import Column, Columns, arrow_type

TYPES: Final = {
    16: "BOOLEAN",
    21: "SMALLINT",
    23: "INTEGER",
    20: "BIGINT",
    700: "FLOAT",
    701: "DOUBLE",
    17: "BLOB",
    25: "VARCHAR",
    1043: "VARCHAR",
    1042: "VARCHAR",
    1082: "DATE",
    1083: "TIME",
    1114: "TIMESTAMP",
    1184: "TIMESTAMP WITH TIME ZONE",
    2950: "UUID",
    114: "JSON",
    3802: "JSON",
}
ARRAYS: Final = {  # of types that a list may hold
    1000: "BOOLEAN",
    1005: "SMALLINT",
    1007: "INTEGER",
    1016: "BIGINT",
    1021: "FLOAT",
    1022: "DOUBLE",
    1009: "VARCHAR",
    1015: "VARCHAR",
    1182: "DATE",
    1115: "TIMESTAMP",
    1185: "TIMESTAMP WITH TIME ZONE",
    2951: "UUID",
}
NUMERIC: Final = 1700
PRECISION_MAX: Final = 38
ROW_BYTES_MAX: Final = ENTRY_BYTES_MAX - 1024 * 1024  # the rest is for the framing
VALUE_LETTERS_MAX: Final = 60  # of a value, in a message
UNFIT: Final = (
    pa.ArrowException,
    psycopg.Error,
    ValueError,
    TypeError,
    ArithmeticError,
)  # raised by a loader
INFINITE: Final = {"DATE": 2**31 - 1, "TIMESTAMP": 2**63 - 1, "TIMESTAMP WITH TIME ZONE": 2**63 - 1}
_MOMENT: Final = re.compile(r"(?:(\d+)-(\d\d)-(\d\d))? ?(?:(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?")
YEARS_400_DAYS: Final = 146_097  # the period of the calendar
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


Load = Callable[[Any], Any]


class UnfitValue(Exception):
    """A value that its column's type cannot hold."""

    def __init__(self, index: int, row: Row, why: str) -> None:
        super().__init__(why)
        self.index = index  # of the column
        self.row = row


class TableValues(Struct, frozen=True):
    """How one shape of a table is read."""

    relation: tuple[RelationColumn, ...]
    columns: Columns

    def arrow(self, rows: Sequence[Row], connection: psycopg.Connection[Any] | None = None) -> pa.Table:
        """Rows of the server's texts as Arrow; without a connection, of a session with UTC and ISO dates."""
        loaders = Transformer(connection)
        arrays = []
        for index, (found, column) in enumerate(zip(self.relation, self.columns, strict=True)):
            load = _loader(column, loaders.get_loader(found.type_oid, Format.TEXT).load)

            def read(chosen: Sequence[Row], index: int = index, column: Column = column, load: Load = load) -> pa.Array:
                values = [None if row[index] is None else load(row[index]) for row in chosen]
                return pa.array(values, arrow_type(column))

            try:
                arrays.append(read(rows))
            except UNFIT:
                raise _unfit(rows, index, read) from None
        table = pa.table(arrays, names=[column.name for column in self.columns])
        if table.nbytes > ROW_BYTES_MAX:
            _check_sizes(rows, table)
        return table


def _check_sizes(rows: Sequence[Row], table: pa.Table) -> None:
    for number, row in enumerate(rows):
        if (size := table.slice(number, 1).nbytes) > ROW_BYTES_MAX:
            longest = max(range(len(row)), key=lambda index: len(row[index] or b""))
            raise UnfitValue(longest, row, f"its row has {size:,} bytes, and an entry of a log holds {ROW_BYTES_MAX:,}")


def _unfit(rows: Sequence[Row], index: int, read: Callable[[Sequence[Row]], pa.Array]) -> UnfitValue:
    """The first value that cannot be read."""
    for row in rows:
        try:
            read([row])
        except UNFIT as error:
            return UnfitValue(index, row, " ".join(str(error).split()))
    raise AssertionError("each value alone can be read")


def table_values(relation: Relation | Sequence[RelationColumn]) -> TableValues:
    found = relation.columns if isinstance(relation, Relation) else tuple(relation)
    return TableValues(found, tuple(Column(each.name, type_of(each)) for each in found))


def type_of(column: RelationColumn) -> str:
    if column.type_oid == NUMERIC and column.modifier >= 4:
        precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, (column.modifier - 4) & 0x7FF
        if precision <= PRECISION_MAX and scale <= precision:
            return f"DECIMAL({precision},{scale})"
    if column.type_oid in ARRAYS:
        return f"{ARRAYS[column.type_oid]}[]"
    return TYPES.get(column.type_oid, "VARCHAR")


def shown(text: object) -> str:
    """A value of the server for a message."""
    whole = "NULL" if text is None else bytes(text).decode(errors="replace") if isinstance(text, bytes) else str(text)
    return whole if len(whole) <= VALUE_LETTERS_MAX else f"{whole[:VALUE_LETTERS_MAX]}..."


def _loader(column: Column, load: Load) -> Load:
    """Converts the server's text for Arrow; ``load`` is psycopg's own."""
    if column.type in ("VARCHAR", "JSON"):
        return lambda text: bytes(text).decode()
    if column.type == "UUID":
        return lambda text: str(load(text))
    if column.type == "UUID[]":
        return lambda text: [None if each is None else str(each) for each in _flat(load(text))]
    if column.type.endswith("[]"):
        return lambda text: _flat(load(text))
    if column.type == "TIME" or column.type in INFINITE:
        return lambda text: _moment(text, column.type, load)
    return load


def _flat(values: list[Any]) -> list[Any]:
    if any(isinstance(each, list) for each in values):
        raise ValueError("it has more than one dimension")
    return values


def _moment(text: Any, kind: str, load: Load) -> Any:
    """Python's value, or days or microseconds for a time that Python does not have."""
    try:
        return load(text)
    except psycopg.DataError:
        written = bytes(text).decode()
    if written in ("infinity", "-infinity"):
        return INFINITE[kind] if written == "infinity" else -INFINITE[kind]
    found = _MOMENT.fullmatch(written)
    if found is None:
        raise ValueError("it is not a known time")
    year, month, day, hours, minutes, seconds = (int(each or 0) for each in found.groups()[:6])
    micros = (hours * 3600 + minutes * 60 + seconds) * 10**6 + int((found[7] or "").ljust(6, "0"))
    if kind == "TIME":
        return micros
    days = _days(1 - year if found[8] else year, month, day)
    number = days if kind == "DATE" else days * 86_400 * 10**6 + micros
    if abs(number) >= INFINITE[kind]:
        raise ValueError("it is out of range for its type")
    return number


def _days(year: int, month: int, day: int) -> int:
    """Since 1970; the year before 1 is 0."""
    cycles = (year - 2000) // 400
    return date(year - cycles * 400, month, day).toordinal() - EPOCH_DAY + cycles * YEARS_400_DAYS
