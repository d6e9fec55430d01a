"""Values of every type as whole numbers, floats, texts and bytes, for stores that have nothing else.

Rules
 P1  A value comes back exactly as it was.
 P2  Equal values of a column have equal forms, so that keys can be compared; after a column was widened, its older
     values must be written again.
 P3  Whole numbers have 64 bits: UBIGINT is text. So are decimals, dates and times, as ISO 8601 writes them. A list is
     JSON, of texts. The floats NaN and -0.0 are texts, which many stores would take for NULL and 0.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
from pyarrow import types

from trunkline.delivery.changes.columns import Column, arrow_type
from trunkline.errors import DestinationHalted

PlainType = Literal["integer", "float", "text", "bytes"]
Plain = int | float | str | bytes | None


def plain_type(column: Column) -> PlainType:
    """The form of a column's values; of a float some are texts."""
    kind = arrow_type(column)
    if types.is_floating(kind):
        return "float"
    if types.is_boolean(kind) or (types.is_integer(kind) and kind != pa.uint64()):
        return "integer"
    return "bytes" if types.is_binary(kind) else "text"


def to_plain(column: Column, values: pa.Array) -> list[Plain]:
    """Raises ``DestinationHalted`` for a value that has no such form, such as bytes in a list."""
    form = plain_type(column)
    if form == "float":
        return [each if each is None or not _odd(each) else str(each) for each in values.to_pylist()]
    if form != "text":
        return [int(each) if isinstance(each, bool) else each for each in values.to_pylist()]
    try:
        listed = values.cast(_of_texts(values.type)).to_pylist()
        if not types.is_string(values.type) and not _from_texts(listed, values.type).equals(values):  # P1
            raise pa.ArrowInvalid("one of them would come back as another")
    except (pa.ArrowInvalid, ValueError) as error:
        raise DestinationHalted(
            f"column {column.name!r}: its values cannot be written as text: {error}; leave the column out"
        ) from error
    return [each if each is None else json.dumps(each) for each in listed] if types.is_list(values.type) else listed


def from_plain(column: Column, values: Sequence[Plain]) -> pa.Array:
    """Raises ``pyarrow.ArrowInvalid`` or ``ValueError`` for what ``to_plain`` does not write."""
    kind = arrow_type(column)
    if types.is_floating(kind):
        return pa.array([None if each is None else float(each) for each in values], kind)
    if types.is_boolean(kind):
        return pa.array(values, pa.int8()).cast(kind)
    if plain_type(column) != "text":
        return pa.array(values, kind)
    if types.is_list(kind):
        values = [None if each is None else json.loads(str(each)) for each in values]
    return _from_texts(values, kind)


def _from_texts(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    innermost = kind
    while types.is_list(innermost):
        innermost = innermost.value_type
    if types.is_time(innermost):  # Arrow casts no texts to times
        return pa.array([_times(each) for each in values], kind)
    return pa.array(values, _of_texts(kind)).cast(kind)


def _times(value: Any) -> Any:
    if isinstance(value, list):
        return [_times(each) for each in value]
    return None if value is None else datetime.time.fromisoformat(value)


def _odd(value: float) -> bool:
    return math.isnan(value) or (value == 0 and math.copysign(1, value) < 0)


def _of_texts(kind: pa.DataType) -> pa.DataType:
    return pa.list_(_of_texts(kind.value_type)) if types.is_list(kind) else pa.string()
