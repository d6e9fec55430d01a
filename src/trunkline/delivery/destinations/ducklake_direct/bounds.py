"""Statistics of a column as DuckLake's catalog has them: smallest and largest value as text, by type.

Rules
 B1  Values are compared as numbers, bytes or decimals, never as text. ``value_of(text_of(x))`` is x, or a bound of it.
 B2  Texts are what the extension writes: booleans 0 and 1, blobs in hexadecimal, times without trailing zeros, UTC as
     ``+00``. What it would spell in a way that is not known here raises ``Unusual``: the extension writes such rows.
 B3  Texts and blobs are cut after ``BOUND_BYTES_MAX``: a largest value is then increased, so that it stays a bound. If
     that is impossible, there are no bounds at all.
 B4  NaN is not a bound; a column has a flag for it. A column of nothing but NULL and NaN has no bounds.
 B5  A bound of a whole table that is missing may mean "none yet" or "unknown". It is set only if no row had a value so
     far; else it stays missing. (The extension sets it, and loses what earlier rows had.)
"""

from __future__ import annotations

import datetime
import math
import re
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

BOUND_BYTES_MAX: Final = 256  # of a text or a blob; what the extension writes
ASCII_MAX: Final = 0x7F
DAY_ZERO: Final = datetime.date(1970, 1, 1).toordinal()
DAYS: Final = (datetime.date.min.toordinal() - DAY_ZERO, datetime.date.max.toordinal() - DAY_ZERO)
DAY_US: Final = 86_400_000_000
TEXTS: Final = ("VARCHAR", "JSON")
FLOATS: Final = ("FLOAT", "DOUBLE")
WHOLE: Final = tuple(f"{sign}{size}" for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT"))
_HEX: Final = re.compile(r"(?:[0-9A-F]{2})*")
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


class Unusual(Exception):
    """Something that only the extension writes; says what. Nothing was written."""


class ColumnBounds(Struct, frozen=True):
    """Statistics of one column of one file. ``low`` and ``high`` are values as ``value_of`` returns them."""

    values: int  # that are not NULL
    nulls: int
    low: Any = None
    high: Any = None
    nan: bool | None = None  # None: it cannot have any

    def texts(self, kind: str) -> tuple[str | None, str | None]:
        if self.low is None:
            return None, None
        return text_of(kind, self.low), text_of(kind, self.high)


def bounds_of(kind: str, column: pa.ChunkedArray) -> ColumnBounds:
    """``kind`` is the type of the table's column; the values are in the form in which they are written to Parquet."""
    nulls, nan = column.null_count, None
    values = len(column) - nulls
    if kind in FLOATS:
        numbers = column.drop_null()
        wrong = pc.is_nan(numbers)
        nan = bool(pc.any(wrong).as_py())
        column = numbers.filter(pc.invert(wrong)) if nan else numbers
    if len(column) == column.null_count:
        return ColumnBounds(values, nulls, nan=nan)
    found = pc.min_max(_comparable(column))
    low, high = (found[name].as_py() for name in ("min", "max"))
    if kind in TEXTS:
        low, high = low.encode(), high.encode()
    if isinstance(low, bytes):
        low, high = _cut(low, text=kind in TEXTS), _increased(high, text=kind in TEXTS)
        if high is None:
            return ColumnBounds(values, nulls, nan=nan)
    if kind == "BOOLEAN":
        low, high = int(low), int(high)
    return ColumnBounds(values, nulls, low, high, nan)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and times as numbers: Python has no year 10,000."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return column.cast(pa.int64())
    return column


def _cut(value: bytes, *, text: bool) -> bytes:
    """Not longer than a bound may be; a text ends with a whole character."""
    if len(value) <= BOUND_BYTES_MAX:
        return value
    end = BOUND_BYTES_MAX
    while text and value[end] & 0xC0 == 0x80:
        end -= 1
    return value[:end]


def _increased(value: bytes, *, text: bool) -> bytes | None:
    """A bound from above that is not too long; ``None`` without one (B3)."""
    if len(value) <= BOUND_BYTES_MAX:
        return value
    limit = ASCII_MAX if text else 0xFF
    cut = _cut(value, text=text)
    end = len(cut)
    while end and cut[end - 1] >= limit:
        end -= 1
    return cut[: end - 1] + bytes([cut[end - 1] + 1]) if end else None


# --------------------------------------------------------------------------------------------------- values and texts


def text_of(kind: str, value: Any) -> str:
    """As the extension spells it (B2)."""
    if kind in TEXTS:
        found: str = value.decode()
        return found
    if kind == "BLOB":
        return str(value.hex().upper())
    if kind == "UUID":
        return str(uuid.UUID(bytes=value))
    if kind == "DOUBLE":
        return repr(float(value))
    if kind == "FLOAT":
        return str(np.float32(value))
    if kind == "DATE":
        return _day(value)
    if kind == "TIME":
        return _clock(value)
    if kind in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"):
        days, rest = divmod(value, DAY_US)
        return f"{_day(days)} {_clock(rest)}{'+00' if kind != 'TIMESTAMP' else ''}"
    if kind == "BOOLEAN" or kind in WHOLE:
        return str(int(value))
    if kind.startswith("DECIMAL"):
        return format(value, "f")
    raise Unusual(f"values of the type {kind}")


def _day(days: int) -> str:
    if not DAYS[0] <= days <= DAYS[1]:
        raise Unusual("dates before the year 1 or after 9999")
    return datetime.date.fromordinal(days + DAY_ZERO).isoformat()


def _clock(us: int) -> str:
    seconds, rest = divmod(us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    part = f".{rest:06}".rstrip("0") if rest else ""
    return f"{hour:02}:{minute:02}:{second:02}{part}"


def value_of(kind: str, text: str) -> Any:
    """What a text of the catalog stands for. Raises ``Unusual`` for a spelling that is not known here."""
    try:
        if kind in TEXTS:
            return text.encode()
        if kind == "BLOB":
            return _blob(text)
        if kind == "UUID":
            return uuid.UUID(text).bytes
        if kind in FLOATS:
            return _number(text)
        if kind == "BOOLEAN" or kind in WHOLE:
            return int(text)
        if kind.startswith("DECIMAL"):
            return Decimal(text)
        if kind == "DATE":
            return _days_of(text)
        if kind == "TIME":
            return _us_of(text)
        if kind in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"):
            day, _, clock = text.removesuffix("+00" if kind != "TIMESTAMP" else "").partition(" ")
            return _days_of(day) * DAY_US + _us_of(clock)
    except (ValueError, InvalidOperation) as error:
        raise Unusual(f"the statistic {text[:40]!r} of the type {kind}") from error
    raise Unusual(f"values of the type {kind}")


def _blob(text: str) -> bytes:
    """In hexadecimal; where the extension updated rows, as DuckDB spells a blob."""
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    return re.sub(rb"\\x([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode("ascii"))


def _number(text: str) -> float:
    found = float(text)
    if math.isnan(found):
        raise ValueError(text)
    return found


def _days_of(text: str) -> int:
    if (found := _DATE.fullmatch(text)) is None:
        raise ValueError(text)
    return datetime.date(*map(int, found.groups())).toordinal() - DAY_ZERO


def _us_of(text: str) -> int:
    if (found := _TIME.fullmatch(text)) is None:
        raise ValueError(text)
    hour, minute, second = (int(part) for part in found.groups()[:3])
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((found[4] or "").ljust(6, "0"))


# ------------------------------------------------------------------------------------------------------ whole tables


class TableBounds(Struct, frozen=True):
    """Statistics of one column of a whole table, as the catalog has them."""

    nulls: bool | None = None
    nan: bool | None = None
    low: str | None = None
    high: str | None = None


def first_bounds(kind: str, new: ColumnBounds) -> TableBounds:
    """Of a table whose first rows these are."""
    return TableBounds(new.nulls > 0, new.nan, *new.texts(kind))


def widened(kind: str, held: TableBounds, new: ColumnBounds, *, had_values: bool) -> TableBounds:
    """After rows were added. ``had_values``: whether earlier rows may have had one (B5)."""
    nulls = True if new.nulls else held.nulls
    nan = True if new.nan else held.nan
    if new.values == 0:
        return TableBounds(nulls, nan, held.low, held.high)
    if not had_values:
        return TableBounds(nulls, nan, *new.texts(kind))
    low = high = None
    if new.low is not None:
        if held.low is not None:
            low = held.low if value_of(kind, held.low) <= new.low else text_of(kind, new.low)
        if held.high is not None:
            high = held.high if value_of(kind, held.high) >= new.high else text_of(kind, new.high)
    elif new.nan:  # and nothing else
        low, high = held.low, held.high
    return TableBounds(nulls, nan, low, high)
