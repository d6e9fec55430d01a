"""Masks: what stands in the place of a value.

A hash is HMAC-SHA-256 of the value's text in UTF-8, keyed by a secret from the environment, as 64 hexadecimal digits.
NULL stays NULL. The same value has the same hash in every column and table, so that tables can be joined by it. The
text of a value is made here, not by a library, and does not change when a column is widened:

    VARCHAR, JSON, UUID     the value itself
    BOOLEAN                 true, false
    integers                decimal digits
    DECIMAL                 decimal digits without trailing zeros after the point: 1.5, 20, 0
    FLOAT, DOUBLE           the shortest digits that give the same double: 0.1, 1e+300, nan, inf; both zeros are 0.0
    BLOB                    hexadecimal digits
    DATE                    2026-01-31
    TIME                    23:59:59.000001
    TIMESTAMP               2026-01-31 23:59:59.000001; with seconds, 3 or 9 digits by its type
    ... WITH TIME ZONE      the same in UTC, followed by Z
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import duckdb
import pyarrow as pa

from trunkline.config import secret
from trunkline.delivery.backends.sql import first_line
from trunkline.delivery.changes.columns import Column, arrow_type, decimal_of
from trunkline.delivery.changes.shape import secret_mark
from trunkline.delivery.shapes.sealed_duckdb import sealed_duckdb
from trunkline.errors import ConfigError

FRACTIONS: Final = {"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3, "TIMESTAMP": 6, "TIMESTAMP_NS": 9}  # digits of a second
INTEGERS: Final = frozenset(
    f"{sign}{size}" for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
)
DAY_SECONDS: Final = 24 * 60 * 60


def mask_secret(variable: str | None, mark: str = "") -> bytes:
    """The key of hashes. Raises ``ConfigError`` that does not have it; also if its mark is another one."""
    if not variable:
        raise ConfigError("mask_secret_env is missing: name the environment variable with the secret of hash masks")
    found = secret(variable, "the secret of hash masks").encode("utf-8", "surrogateescape")
    if mark and secret_mark(found) != mark:
        raise ConfigError(
            f"the environment variable {variable} has another value on this machine than where the deliverer runs: the "
            "hashes would differ; set it to the same secret wherever a task may run"
        )
    return found


def hashable(kind: str) -> bool:
    """Whether values of a type travel, and have a text."""
    try:
        arrow_type(Column("", kind))
        text_of(kind)
    except ConfigError:
        return False
    return True


def hashed(values: pa.ChunkedArray, kind: str, key: bytes) -> pa.ChunkedArray:
    """The hashes of a column of some type: each distinct value is hashed once."""
    encoded = values.combine_chunks().dictionary_encode()
    text = text_of(kind)
    digests = [hmac.digest(key, text(each).encode(), "sha256").hex() for each in _plain(encoded.dictionary, kind)]
    return pa.chunked_array([pa.array(digests, pa.string()).take(encoded.indices)], pa.string())


def constant_of(column: Column, text: str) -> pa.Scalar:
    """A constant in the type of its column. Raises ``ConfigError`` if it does not fit."""
    kind = column.type
    try:
        with sealed_duckdb() as connection:
            found = connection.execute(f"SELECT CAST(CAST($1 AS VARCHAR) AS {kind}) AS value", [text]).to_arrow_table()
        return found["value"].combine_chunks().cast(arrow_type(column))[0]
    except (duckdb.Error, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"the constant {text!r:.100} does not fit {kind}: {first_line(error)}") from error


def _plain(values: pa.Array, kind: str) -> list[Any]:
    """Values of Python; dates and times as numbers, which may be outside of Python's range."""
    if kind == "DATE":
        return list(values.cast(pa.int32()).to_pylist())
    if kind.startswith("TIME"):
        return list(values.cast(pa.int64()).to_pylist())
    return list(values.to_pylist())


def text_of(kind: str) -> Callable[[Any], str]:
    """How values of a type are written."""
    if kind in ("VARCHAR", "JSON", "UUID"):
        return str
    if kind == "BOOLEAN":
        return lambda value: "true" if value else "false"
    if kind in INTEGERS:
        return str
    if decimal_of(kind) is not None:
        return _decimal_text
    if kind in ("FLOAT", "DOUBLE"):
        return lambda value: repr(float(value) or 0.0)
    if kind == "BLOB":
        return bytes.hex
    if kind == "DATE":
        return _date_text
    if kind == "TIME":
        return lambda value: _clock_text(value, 6)
    if kind == "TIMESTAMP WITH TIME ZONE":
        return lambda value: f"{_timestamp_text(value, 6)}Z"
    if kind in FRACTIONS:
        digits = FRACTIONS[kind]
        return lambda value: _timestamp_text(value, digits)
    raise ConfigError(f"values of the type {kind:.100} cannot be hashed; mask them with null or a constant")


def _decimal_text(value: Decimal) -> str:
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _date_text(days: int) -> str:
    """By the proleptic Gregorian calendar, with a year 0; days since 1970-01-01."""
    era, day = divmod(days + 719_468, 146_097)  # eras of 400 years, which begin in March
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    rest = day - (365 * year + year // 4 - year // 100)
    month = (5 * rest + 2) // 153
    number = month + 3 if month < 10 else month - 9
    return f"{400 * era + year + (number <= 2):04d}-{number:02d}-{rest - (153 * month + 2) // 5 + 1:02d}"


def _clock_text(value: int, digits: int) -> str:
    seconds, fraction = divmod(value, 10**digits)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{clock}.{fraction:0{digits}d}" if digits else clock


def _timestamp_text(value: int, digits: int) -> str:
    day, rest = divmod(value, DAY_SECONDS * 10**digits)
    return f"{_date_text(day)} {_clock_text(rest, digits)}"
