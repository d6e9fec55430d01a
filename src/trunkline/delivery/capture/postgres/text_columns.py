"""PostgreSQL's texts as Arrow columns, a whole column at a time.

The types are those of `postgres_values`, and so are the values, exactly: that module reads each value alone. Here Arrow
reads a column at once. Where Arrow does not accept a text (a year before 1 or after 9999, 24:00:00, NaN in a numeric),
and for arrays, the column is read by `postgres_values`, which also names the value that cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from trunkline.delivery.capture.postgres.pgoutput import RelationColumn
from trunkline.delivery.capture.postgres.tuple_columns import TEXT, JoinedMessages, Texts
from trunkline.delivery.capture.postgres.values import (
    INFINITE,
    ROW_BYTES_MAX,
    TableValues,
    UnfitValue,
    table_values,
)
from trunkline.delivery.changes.columns import Column, Columns, arrow_type

TEXT_BYTES_MAX: Final = 4 * ROW_BYTES_MAX  # of a row; no type takes less than a quarter of its text in Arrow
UUID_LETTERS: Final = 36
_INFINITY: Final = np.frombuffer(b"infinity", "<u8")[0]
_TRUE, _FALSE, _MINUS, _BACKSLASH, _X = b"tf-\\x"


class NotAccepted(Exception):
    """The fast path does not have this text; it may still be valid."""


class TableReader(Struct, frozen=True):
    """How the texts of one shape of a table become Arrow columns."""

    relation: tuple[RelationColumn, ...]
    columns: Columns

    def arrays(self, texts: Sequence[Texts], joined: JoinedMessages) -> list[pa.Array]:
        """One array for each column. Raises ``UnfitValue``."""
        self._check_sizes(texts, joined)
        found = [self._array(index, texts, joined) for index in range(len(self.columns))]
        if sum(each.nbytes for each in found) > ROW_BYTES_MAX:
            for row in range(len(found[0])):
                if (size := sum(each.slice(row, 1).nbytes for each in found)) > ROW_BYTES_MAX:
                    raise _too_large(row, size, texts, joined)
        return found

    def _array(self, index: int, texts: Sequence[Texts], joined: JoinedMessages) -> pa.Array:
        column = self.columns[index]
        read = _read_cast if column.type.startswith("DECIMAL(") else _FAST.get(column.type)
        try:
            if read is not None:
                return read(texts[index], joined, column)
        except (pa.ArrowInvalid, NotAccepted):
            pass
        rows = [(texts[index].text(joined, row),) for row in range(len(texts[index].state))]
        try:
            [found] = TableValues((self.relation[index],), (column,)).arrow(rows).columns
        except UnfitValue as unfit:
            row = next(number for number, each in enumerate(rows) if each is unfit.row)
            raise UnfitValue(index, whole_row(texts, joined, row), str(unfit)) from None
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def _check_sizes(self, texts: Sequence[Texts], joined: JoinedMessages) -> None:
        """A row that cannot fit is not even converted."""
        if len(joined.content) > TEXT_BYTES_MAX:
            sizes = np.sum([each.length for each in texts], axis=0)
            if (row := int(sizes.argmax())) >= 0 and sizes[row] > TEXT_BYTES_MAX:
                raise _too_large(row, int(sizes[row]), texts, joined)


def table_reader(relation: Sequence[RelationColumn]) -> TableReader:
    return TableReader(tuple(relation), table_values(relation).columns)


def whole_row(texts: Sequence[Texts], joined: JoinedMessages, row: int) -> tuple[bytes | None, ...]:
    """The texts of one row; None also for a value that was not sent."""
    return tuple(each.text(joined, row) for each in texts)


def _too_large(row: int, size: int, texts: Sequence[Texts], joined: JoinedMessages) -> UnfitValue:
    longest = max(range(len(texts)), key=lambda index: int(texts[index].length[row]))
    why = f"its row has {size:,} bytes, and an entry of a log holds {ROW_BYTES_MAX:,}"
    return UnfitValue(longest, whole_row(texts, joined, row), why)


# --- the fast path: raises what Arrow raises, or NotAccepted ---

Read = Callable[[Texts, JoinedMessages, Column], pa.Array]


def _read_numbers(texts: Texts, joined: JoinedMessages, column: Column) -> pa.Array:
    return texts.views(joined, pa.string_view()).cast(arrow_type(column))  # the views suffice: nothing is copied


def _read_texts(texts: Texts, joined: JoinedMessages, column: Column) -> pa.Array:
    return texts.views(joined, pa.binary_view()).cast(pa.string())  # validates UTF-8


def _read_cast(texts: Texts, joined: JoinedMessages, column: Column) -> pa.Array:
    return _read_texts(texts, joined, column).cast(arrow_type(column))


def _read_booleans(texts: Texts, joined: JoinedMessages, column: Column) -> pa.Array:
    present, letter = texts.state == TEXT, joined.octets[texts.start]
    if (present & ((texts.length != 1) | ((letter != _TRUE) & (letter != _FALSE)))).any():
        raise NotAccepted
    return pa.array(letter == _TRUE, pa.bool_(), mask=~present)


def _read_uuids(texts: Texts, joined: JoinedMessages, column: Column) -> pa.Array:
    """The server writes them in one form only."""
    if ((texts.state == TEXT) & (texts.length != UUID_LETTERS)).any():
        raise NotAccepted
    return _read_texts(texts, joined, column)


def _read_bytes(texts: Texts, joined: JoinedMessages, column: Column) -> pa.Array:
    """From `\\x` and two digits for each byte; the digits of all values are converted at once."""
    present, first = texts.state == TEXT, joined.octets[texts.start]
    second = joined.octets[texts.start + 1]
    hexadecimal = (texts.length >= 2) & (texts.length % 2 == 0) & (first == _BACKSLASH) & (second == _X)
    if not (hexadecimal | ~present).all():
        raise NotAccepted
    digits = Texts(texts.start + 2, np.where(present, texts.length - 2, 0), texts.state)
    valid, offsets, content = digits.views(joined, pa.binary_view()).cast(pa.binary()).buffers()
    try:
        values = bytes.fromhex(content.to_pybytes().decode("ascii")) if content is not None else b""
    except ValueError:
        raise NotAccepted from None
    halves: NDArray[np.int32] = np.frombuffer(offsets, np.int32)[: len(present) + 1] // 2
    if len(values) < int(halves[-1]):  # blanks among the digits
        raise NotAccepted
    return pa.Array.from_buffers(pa.binary(), len(present), [valid, pa.py_buffer(halves), pa.py_buffer(values)])


def _read_times(texts: Texts, joined: JoinedMessages, column: Column) -> pa.Array:
    """As moments of the first day, for Arrow has no cast of its own."""
    moments = pc.binary_join_element_wise("1970-01-01", _read_texts(texts, joined, column), " ")
    return moments.cast(pa.timestamp("us")).view(pa.time64("us"))


def _read_moments(texts: Texts, joined: JoinedMessages, column: Column) -> pa.Array:
    """Dates and timestamps. Infinite ones are usual in tables of periods, so Arrow reads the others around them."""
    letter, present = joined.octets[texts.start], texts.state == TEXT
    late = present & (texts.length == 8) & (joined.words(texts.start) == _INFINITY)
    early = present & (texts.length == 9) & (letter == _MINUS) & (joined.words(texts.start + 1) == _INFINITY)
    infinite = late | early
    if not infinite.any():
        return _read_cast(texts, joined, column)
    finite = Texts(texts.start, np.where(infinite, 0, texts.length), np.where(infinite, 0, texts.state))
    kind = arrow_type(column)
    number = pa.int32() if kind == pa.date32() else pa.int64()
    numbers: NDArray[Any] = _read_cast(finite, joined, column).view(number).fill_null(0).to_numpy().copy()
    numbers[late], numbers[early] = INFINITE[column.type], -INFINITE[column.type]
    return pa.array(numbers, number, mask=~present).view(kind)


_FAST: Final[dict[str, Read]] = {
    "BOOLEAN": _read_booleans,
    **dict.fromkeys(("SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE"), _read_numbers),
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"), _read_moments),
    **dict.fromkeys(("VARCHAR", "JSON"), _read_texts),
    "UUID": _read_uuids,
    "BLOB": _read_bytes,
    "TIME": _read_times,
}
