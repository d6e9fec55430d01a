"""Arrow columns in PostgreSQL's binary formats, without Python code per value.

A column becomes *elements*: each value with its length before it, NULL as length -1. That is how an array has its
values and how a row of ``COPY`` has its fields. So the rows of many tables with the same columns are encoded at once,
and a slice of the elements is the array of one table:

    elements of a column   | table 0 ......... | table 1 ... | table 2 ........ |
    array of table 1                            header + ^^^^^

Only types whose values numpy and Arrow encode exactly are here (``element_form``). ``OddValue`` reports a value that
is not: the caller then takes the slow way of ``postgres_copy.py``, which encodes every value or names the column.
"""

from __future__ import annotations

import binascii
import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from trunkline.delivery.backends.postgres_session import BinaryParameter
from trunkline.delivery.changes.columns import Column, Columns, arrow_type, decimal_of

Bytes = npt.NDArray[np.uint8]
Valid = npt.NDArray[np.bool_] | None  # None: no NULL

EPOCH_DAYS: Final = 10_957  # from 1970 to 2000, where PostgreSQL's dates and times begin
EPOCH_US: Final = EPOCH_DAYS * 86_400 * 10**6
DAY_US: Final = 86_400 * 10**6
SAFE_US: Final = 2**62  # of a time, on both sides of 1970; PostgreSQL's begin and end are inside
DIGITS: Final = 10_000  # of one place of PostgreSQL's numeric
DECIMAL_MAX: Final = (18, 16)  # precision and scale that fit into 64 bits, also with whole places after the point
UUID_TEXT: Final = 36
DASHES: Final = (8, 13, 18, 23)
COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # signature, flags and length of the extension
COPY_END: Final = b"\xff\xff"
_NOTHING: Final = pa.scalar(b"", pa.binary())


class OddValue(Exception):
    """A value that this module does not encode."""


class ElementForm(Struct, frozen=True):
    """A type in PostgreSQL: of the parameter, and the number of its elements' type."""

    array: str
    oid: int


_NUMBERS: Final = {
    "TINYINT": (ElementForm("smallint[]", 21), ">i2"),
    "UTINYINT": (ElementForm("smallint[]", 21), ">i2"),
    "SMALLINT": (ElementForm("smallint[]", 21), ">i2"),
    "USMALLINT": (ElementForm("integer[]", 23), ">i4"),
    "INTEGER": (ElementForm("integer[]", 23), ">i4"),
    "UINTEGER": (ElementForm("bigint[]", 20), ">i8"),
    "BIGINT": (ElementForm("bigint[]", 20), ">i8"),
    "FLOAT": (ElementForm("real[]", 700), ">f4"),
    "DOUBLE": (ElementForm("double precision[]", 701), ">f8"),
}
_TIMES: Final = {  # microseconds in a unit
    "TIMESTAMP": (ElementForm("timestamp without time zone[]", 1114), 1),
    "TIMESTAMP_S": (ElementForm("timestamp without time zone[]", 1114), 10**6),
    "TIMESTAMP_MS": (ElementForm("timestamp without time zone[]", 1114), 10**3),
    "TIMESTAMP WITH TIME ZONE": (ElementForm("timestamp with time zone[]", 1184), 1),
}
_FORMS: Final = {
    **{name: form for name, (form, _) in _NUMBERS.items()},
    **{name: form for name, (form, _) in _TIMES.items()},
    "BOOLEAN": ElementForm("boolean[]", 16),
    "VARCHAR": ElementForm("text[]", 25),
    "JSON": ElementForm("json[]", 114),
    "BLOB": ElementForm("bytea[]", 17),
    "UUID": ElementForm("uuid[]", 2950),
    "DATE": ElementForm("date[]", 1082),
    "TIME": ElementForm("time without time zone[]", 1083),
}
_NUMERIC: Final = ElementForm("numeric[]", 1700)


def element_form(column: Column) -> ElementForm | None:
    """``None``: this module does not encode the type."""
    if (decimal := decimal_of(column.type)) is not None:
        return _NUMERIC if decimal[0] <= DECIMAL_MAX[0] and decimal[1] <= DECIMAL_MAX[1] else None
    return _FORMS.get(column.type)


class Elements:
    """The values of a column. Element n is ``data[offsets[n]:offsets[n + 1]]``."""

    def __init__(self, form: ElementForm, data: Bytes, offsets: npt.NDArray[np.int64], *, nulls: bool) -> None:
        self._form = form
        self._data = data
        self._offsets = offsets
        self._nulls = nulls

    def array(self, first: int, end: int) -> BinaryParameter:
        """Not empty. Dimensions, whether there are NULLs, type, length, first index; then the elements."""
        head = struct.pack(">iiIii", 1, int(self._nulls), self._form.oid, end - first, 1)
        return BinaryParameter(head + self._data[self._offsets[first] : self._offsets[end]].tobytes())

    def binary(self) -> pa.Array:
        return _binary(self._data, self._offsets)


class CopyRows:
    """The rows of some columns, for ``COPY … (FORMAT binary)``."""

    def __init__(self, columns: list[Elements]) -> None:
        count = pa.scalar(struct.pack(">h", len(columns)), pa.binary())
        self._data, self._offsets = _parts(
            pc.binary_join_element_wise(count, *(each.binary() for each in columns), _NOTHING)
        )

    def content(self, first: int, end: int) -> bytes:
        return COPY_HEADER + self._data[self._offsets[first] : self._offsets[end]].tobytes() + COPY_END


def table_elements(rows: pa.Table, columns: Columns) -> list[Elements]:
    """Of each of these columns. Raises ``OddValue``."""
    return [elements(column, rows[column.name]) for column in columns]


def elements(column: Column, values: pa.ChunkedArray) -> Elements:
    """Raises ``OddValue``."""
    form = element_form(column)
    if form is None:
        raise OddValue(column.type)
    array = _whole(column, values)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if column.type in ("VARCHAR", "JSON", "BLOB"):
        data, offsets = _texts(array.cast(pa.binary()), valid, zeros=column.type == "BLOB")
    else:
        data, offsets = _fixed(_payload(column, array, valid), valid)
    return Elements(form, data, offsets, nulls=valid is not None)


def _whole(column: Column, values: pa.ChunkedArray) -> pa.Array:
    """In one piece, in the type of the column."""
    try:
        found = values.cast(arrow_type(column)).combine_chunks()
    except pa.ArrowException as error:
        raise OddValue(str(error)) from error
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


# ------------------------------------------------------------------------------------------------------------- layout


def _fixed(payload: Bytes, valid: Valid) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Values of one size: a matrix with a row for each."""
    count, width = payload.shape
    cells = np.empty((count, 4 + width), np.uint8)
    cells[:, :4] = np.frombuffer(struct.pack(">i", width), np.uint8)
    cells[:, 4:] = payload
    if valid is None:
        return cells.reshape(-1), np.arange(count + 1, dtype=np.int64) * (4 + width)
    kept = np.ones(cells.shape, np.bool_)
    kept[~valid, 4:] = False
    cells[~valid, :4] = 255
    return cells[kept], _ends(np.where(valid, 4 + width, 4))


def _texts(array: pa.Array, valid: Valid, *, zeros: bool) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Values of any size; with ``zeros``, they may contain the byte 0."""
    filled = array if valid is None else array.fill_null(b"")
    data, offsets = _parts(filled)
    if not zeros and b"\0" in data[offsets[0] : offsets[-1]].tobytes():
        raise OddValue("a text with a NUL character")
    sizes = np.diff(offsets).astype(">i4")
    if valid is not None:
        sizes[~valid] = -1
    heads = _binary(sizes.view(np.uint8), np.arange(len(sizes) + 1, dtype=np.int64) * 4)
    return _parts(pc.binary_join_element_wise(heads, filled, _NOTHING))


def _ends(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _binary(data: Bytes, offsets: npt.NDArray[np.int64]) -> pa.Array:
    places = pa.py_buffer(np.ascontiguousarray(offsets, np.int32))
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, places, pa.py_buffer(np.ascontiguousarray(data))]
    )


def _parts(array: pa.Array) -> tuple[Bytes, npt.NDArray[np.int64]]:
    _, places, data = array.buffers()
    ends = np.frombuffer(places, np.int32) if places is not None and places.size else np.zeros(1, np.int32)
    offsets = ends[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return content, offsets.astype(np.int64)


# ------------------------------------------------------------------------------------------------------------- values


def _payload(column: Column, array: pa.Array, valid: Valid) -> Bytes:
    """A row of bytes for each value; those of NULLs mean nothing."""
    if column.type in _NUMBERS:
        return _bytes(_filled(array, valid), _NUMBERS[column.type][1])
    if column.type in _TIMES:
        return _bytes(_times(_integers(array, pa.int64(), valid), _TIMES[column.type][1]), ">i8")
    if column.type == "BOOLEAN":
        return _bytes(_filled(array.cast(pa.uint8()), valid), "u1")
    if column.type == "DATE":
        return _bytes(_dates(_integers(array, pa.int32(), valid).astype(np.int64)), ">i4")
    if column.type == "TIME":
        return _bytes(_between(_integers(array, pa.int64(), valid), 0, DAY_US), ">i8")
    if column.type == "UUID":
        return _uuids(array, valid)
    decimal = decimal_of(column.type)
    assert decimal is not None
    return _decimals(array, valid, *decimal)


def _bytes(values: npt.NDArray[np.generic], form: str) -> Bytes:
    width = np.dtype(form).itemsize
    return np.ascontiguousarray(values.astype(form)).view(np.uint8).reshape(len(values), width)


def _filled(array: pa.Array, valid: Valid) -> npt.NDArray[np.generic]:
    found: npt.NDArray[np.generic] = (array if valid is None else array.fill_null(0)).to_numpy()
    return found


def _integers(array: pa.Array, kind: pa.DataType, valid: Valid) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = _filled(array.view(kind), valid)  # type: ignore[assignment]
    return found


def _between(values: npt.NDArray[np.int64], least: int, most: int) -> npt.NDArray[np.int64]:
    if len(values) and not least <= int(values.min()) <= int(values.max()) <= most:
        raise OddValue("out of range")
    return values


def _times(values: npt.NDArray[np.int64], unit_us: int) -> npt.NDArray[np.int64]:
    """Microseconds since 2000; those of infinite times are the largest and the smallest number in PostgreSQL."""
    future, past = values == 2**63 - 1, values == -(2**63 - 1)
    finite = np.where(future | past, 0, values)
    shifted = _between(finite, -SAFE_US // unit_us, SAFE_US // unit_us) * unit_us - EPOCH_US
    return np.where(future, 2**63 - 1, np.where(past, -(2**63), shifted))


def _dates(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    future, past = values == 2**31 - 1, values == -(2**31 - 1)
    shifted = _between(np.where(future | past, 0, values) - EPOCH_DAYS, -(2**31) + 1, 2**31 - 2)
    return np.where(future, 2**31 - 1, np.where(past, -(2**31), shifted))


def _uuids(array: pa.Array, valid: Valid) -> Bytes:
    blank = "00000000-0000-0000-0000-000000000000"
    data, offsets = _parts((array if valid is None else array.fill_null(blank)).cast(pa.binary()))
    if len(array) and not (np.diff(offsets) == UUID_TEXT).all():
        raise OddValue("a UUID in another form")
    letters = data[offsets[0] : offsets[-1]].reshape(-1, UUID_TEXT)
    if not (letters[:, DASHES] == ord("-")).all():
        raise OddValue("a UUID in another form")
    try:
        found = binascii.unhexlify(np.delete(letters, DASHES, axis=1).tobytes())
    except binascii.Error as error:
        raise OddValue("a UUID in another form") from error
    return np.frombuffer(found, np.uint8).reshape(-1, 16)


def _decimals(array: pa.Array, valid: Valid, precision: int, scale: int) -> Bytes:
    """The count of places, the weight of the first, sign, digits after the point; then places of four digits."""
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array), 0]
    values = words if valid is None else np.where(valid, words, 0)
    before, after = -(-(precision - scale) // 4), -(-scale // 4)
    whole, part = np.divmod(np.abs(values), 10**scale)
    part = part * 10 ** (4 * after - scale)
    cells = np.empty((len(values), 4 + before + after), ">i2")
    cells[:, 0], cells[:, 1], cells[:, 3] = before + after, before - 1, scale
    cells[:, 2] = np.where(values < 0, 0x4000, 0)
    for place in range(before):
        cells[:, 3 + before - place] = whole % DIGITS
        whole = whole // DIGITS
    for place in range(after):
        cells[:, 3 + before + after - place] = part % DIGITS
        part = part // DIGITS
    return cells.view(np.uint8).reshape(len(values), 2 * cells.shape[1])
