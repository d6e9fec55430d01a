"""Values in the JSON of Debezium's connectors: the types of a schema, and conversion to Arrow.

Rules
 U1  A number that stands for a time has a unit. It comes from the event's schema (the name of the logical type), or
     else from the pipeline's file (TIMESTAMP_MS, TIME_US, ...). Without a unit the value is refused: milliseconds that
     are read as microseconds look like any other time.
 U2  A value is delivered unchanged, or refused: nothing is rounded or cut off.
 U3  A placeholder is not a value: an update that does not change a large value writes one in its place.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import hashlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from trunkline.delivery.changes.columns import PRECISION_MAX, Column, Columns, arrow_type, decimal_of
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.errors import ConfigError, ProtocolError

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
EPOCH_DAY: Final = EPOCH.date()
PLAIN: Final = {
    "boolean": "BOOLEAN",
    "int8": "SMALLINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "float32": "FLOAT",
    "double": "DOUBLE",
    "float64": "DOUBLE",
    "string": "VARCHAR",
    "bytes": "BLOB",
}
LOGICAL: Final = {  # of Kafka Connect and of Debezium; others are delivered as their plain type
    "io.debezium.time.Date": "DATE",
    "org.apache.kafka.connect.data.Date": "DATE",
    "io.debezium.time.Timestamp": "TIMESTAMP",
    "io.debezium.time.MicroTimestamp": "TIMESTAMP",
    "io.debezium.time.NanoTimestamp": "TIMESTAMP_NS",
    "org.apache.kafka.connect.data.Timestamp": "TIMESTAMP",
    "io.debezium.time.ZonedTimestamp": "TIMESTAMP WITH TIME ZONE",
    "io.debezium.time.Time": "TIME",
    "io.debezium.time.MicroTime": "TIME",
    "org.apache.kafka.connect.data.Time": "TIME",
    "io.debezium.data.Json": "JSON",
    "io.debezium.data.Uuid": "UUID",
}
DECIMAL_NAME: Final = "org.apache.kafka.connect.data.Decimal"
SECOND: Final = 10**9  # nanoseconds, as all units here
TIMESTAMP_UNITS: Final = {
    "io.debezium.time.Timestamp": 10**6,
    "io.debezium.time.MicroTimestamp": 10**3,
    "io.debezium.time.NanoTimestamp": 1,
    "org.apache.kafka.connect.data.Timestamp": 10**6,
    "TIMESTAMP_S": SECOND,  # not from a connector: declared in a file
}
TIME_UNITS: Final = {
    "io.debezium.time.Time": 10**6,
    "io.debezium.time.MicroTime": 10**3,
    "io.debezium.time.NanoTime": 1,
    "org.apache.kafka.connect.data.Time": 10**6,
}
DATE_NAMES: Final = ("", "io.debezium.time.Date", "org.apache.kafka.connect.data.Date")  # all in days
COLUMN_UNITS: Final = {"TIMESTAMP_S": SECOND, "TIMESTAMP_MS": 10**6, "TIMESTAMP": 10**3, "TIMESTAMP_NS": 1}
DECLARED_UNITS: Final = {  # declared in a file -> the column's type, and the logical type of its numbers
    "TIMESTAMP_S": ("TIMESTAMP_S", "TIMESTAMP_S"),
    "TIMESTAMP_MS": ("TIMESTAMP_MS", "io.debezium.time.Timestamp"),
    "TIMESTAMP_US": ("TIMESTAMP", "io.debezium.time.MicroTimestamp"),
    "TIMESTAMP_NS": ("TIMESTAMP_NS", "io.debezium.time.NanoTimestamp"),
    "TIME_MS": ("TIME", "io.debezium.time.Time"),
    "TIME_US": ("TIME", "io.debezium.time.MicroTime"),
    "TIME_NS": ("TIME", "io.debezium.time.NanoTime"),
}
NUMBER_LETTERS_MAX: Final = 1000  # longer: converting takes quadratic time, and no column fits it
UNAVAILABLE: Final = "__debezium_unavailable_value"  # `unavailable.value.placeholder` of a connector, by default
UNAVAILABLE_BYTES: Final = UNAVAILABLE.encode()
UNAVAILABLE_TEXTS: Final = frozenset(
    {
        UNAVAILABLE,
        base64.b64encode(UNAVAILABLE_BYTES).decode(),
        base64.urlsafe_b64encode(UNAVAILABLE_BYTES).decode(),
        UNAVAILABLE_BYTES.hex(),
        str(uuid.UUID(bytes=hashlib.md5(UNAVAILABLE_BYTES, usedforsecurity=False).digest(), version=3)),
        f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}',
    }
)  # in a column of text, bytes (in any `binary.handling.mode`), UUID or hstore


Clock = TypeVar("Clock", dt.time, dt.datetime)


class ValueEncoding(Struct, frozen=True):
    """How a connector encodes the values of a column, beyond its type."""

    name: str = ""  # of the logical type
    scale: int | None = None  # of decimals in base 64


class EventSchema(Struct, frozen=True):
    """The columns of a table, and how events encode their values."""

    columns: Columns
    encodings: dict[str, ValueEncoding] = {}


# ---------------------------------------------------------------------------------------------------- what a column is


def stated_schema(fields: list[Any]) -> EventSchema:
    """From the fields of a row in an event's schema, which is not trusted. May raise any exception."""
    columns, encodings = [], {}
    for field in fields:
        kind, encoding = _stated(field)
        columns.append(Column(str(field["field"]), kind, bool(field.get("optional", False))))
        encodings[columns[-1].name] = encoding
    _check(columns)
    return EventSchema(
        tuple(columns), {name: encoding for name, encoding in encodings.items() if encoding != ValueEncoding()}
    )


def _check(columns: list[Column]) -> None:
    """Raises for columns that no table can have."""
    if len({column.name for column in columns}) != len(columns):
        raise ValueError("two columns have the same name")
    for column in columns:
        if not column.name or "\0" in column.name or column.name.lower().startswith(RESERVED_PREFIX):
            raise ValueError(f"a column cannot have the name {column.name!r:.100}")
        arrow_type(column)


def _stated(field: Mapping[str, Any]) -> tuple[str, ValueEncoding]:
    """The type of a field, and the encoding of its values; of an array, that of its elements."""
    kind, logical = field.get("type"), field.get("name") or ""
    if logical == DECIMAL_NAME:
        parameters = field.get("parameters", {})
        precision, scale = parameters.get("connect.decimal.precision", PRECISION_MAX), int(parameters["scale"])
        if int(precision) > PRECISION_MAX:
            raise ProtocolError(f"a decimal has {precision!s:.20} digits; {PRECISION_MAX} can be delivered")
        return f"DECIMAL({int(precision)},{scale})", ValueEncoding(logical, scale)
    if kind == "array":
        element, encoding = _stated(field["items"])
        return f"{element}[]", encoding
    if logical in LOGICAL:
        return LOGICAL[logical], ValueEncoding(logical)
    if kind in PLAIN:
        return PLAIN[kind], ValueEncoding(logical)
    raise ProtocolError(f"{field.get('field')!r:.100} has the type {logical or kind!r:.100}, which cannot be delivered")


def declared_schema(columns: Mapping[str, str]) -> EventSchema:
    """From the columns in a pipeline's file; raises ``ConfigError`` for a type that cannot be delivered."""
    found, encodings = [], {}
    for name, declared in columns.items():
        element = declared.rstrip("[]")
        kind, unit = DECLARED_UNITS.get(element, (element, ""))
        found.append(Column(name, kind + declared[len(element) :]))
        arrow_type(found[-1])
        if unit:
            encodings[name] = ValueEncoding(unit)
    return EventSchema(tuple(found), encodings)


def declared_columns(columns: Mapping[str, str]) -> Columns:
    return declared_schema(columns).columns


# ------------------------------------------------------------------------------------------------------ what a value is


def is_unavailable(value: Any) -> bool:
    """Whether it is the placeholder for a value (U3), which arrays and maps contain."""
    if isinstance(value, str):
        return value in UNAVAILABLE_TEXTS
    if isinstance(value, dict):
        return UNAVAILABLE in value
    if isinstance(value, list):
        return value == list(UNAVAILABLE_BYTES) or (len(value) == 1 and is_unavailable(value[0]))
    return False


def value_of(column: Column, value: Any, encoding: ValueEncoding) -> Any:
    """A value for Arrow; raises ``ProtocolError`` if it does not fit its column."""
    if value is None:
        return None
    try:
        return converter(column.type, encoding)(value)
    except (ValueError, TypeError, ArithmeticError, RecursionError, binascii.Error, ConfigError) as error:
        why = f"{error}"[:200]
        raise ProtocolError(f"column {column.name!r} of type {column.type} cannot be {value!r:.100} ({why})") from error


def converter(kind: str, encoding: ValueEncoding) -> Callable[[Any], Any]:
    """From a JSON value to one for Arrow; raises ``ValueError`` or ``TypeError`` if it does not fit."""
    if kind.endswith("[]"):
        element = converter(kind[:-2], encoding)
        return lambda value: [None if each is None else element(each) for each in _as(list, value)]
    if decimal_of(kind) is not None:
        return lambda value: _decimal(value, encoding)
    if kind in COLUMN_UNITS:
        return lambda value: _timestamp(value, TIMESTAMP_UNITS.get(encoding.name), kind)
    return {
        "BOOLEAN": lambda value: _as(bool, value),
        "FLOAT": _float,
        "DOUBLE": _float,
        "VARCHAR": lambda value: _as(str, value),
        "UUID": lambda value: _as(str, value).lower(),
        "JSON": lambda value: value if isinstance(value, str) else msgspec.json.encode(value).decode(),
        "BLOB": lambda value: base64.b64decode(_as(str, value), validate=True),
        "DATE": lambda value: _date(value, encoding),
        "TIME": lambda value: _time(value, TIME_UNITS.get(encoding.name)),
        "TIMESTAMP WITH TIME ZONE": lambda value: _zoned(value),
    }.get(kind, lambda value: _whole(value))


def _as(kind: type, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"not a {kind.__name__}")
    return value


def _whole(value: Any) -> int:
    return int(_as(int, value))


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError("not a number")
    return float(value)


def _decimal(value: Any, encoding: ValueEncoding) -> decimal.Decimal:
    """Kafka Connect writes the unscaled number in base 64, with a schema; other events have a text or a number.

    Without a schema base 64 is refused: some of it looks like a number.
    """
    if encoding.name == DECIMAL_NAME and encoding.scale is not None:
        if len(_as(str, value)) > NUMBER_LETTERS_MAX:
            raise ValueError("longer than any number here")
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return decimal.Decimal(unscaled).scaleb(-encoding.scale)
    if isinstance(value, bool):
        raise TypeError("not a number")
    text = str(value)
    if len(text) > NUMBER_LETTERS_MAX:
        raise ValueError("longer than any number here")
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError("not a number; without a schema set decimal.handling.mode=string") from None


def _date(value: Any, encoding: ValueEncoding) -> dt.date:
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    if encoding.name not in DATE_NAMES:
        raise ValueError(f"the event's schema has {encoding.name}, which is not a date")
    return EPOCH_DAY + dt.timedelta(days=_whole(value))


def _time(value: Any, unit: int | None) -> dt.time:
    if isinstance(value, str):
        return _without_zone(dt.time.fromisoformat(value))
    nanos = _nanos(value, unit, "TIME_MS, TIME_US or TIME_NS")
    if not 0 <= nanos < 86_400 * SECOND:
        raise ValueError("not a time of day")
    return (EPOCH + dt.timedelta(microseconds=_exactly(nanos, COLUMN_UNITS["TIMESTAMP"]))).time()


def _timestamp(value: Any, unit: int | None, kind: str) -> dt.datetime | int:
    """A TIMESTAMP as a datetime, the others as a number in their own unit."""
    if isinstance(value, str):
        moment = _without_zone(dt.datetime.fromisoformat(value))
        nanos = (moment - EPOCH) // dt.timedelta(microseconds=1) * 1000
    else:
        nanos = _nanos(value, unit, "TIMESTAMP_S, TIMESTAMP_MS, TIMESTAMP_US or TIMESTAMP_NS")
        moment = EPOCH + dt.timedelta(microseconds=nanos // 1000)
    found = _exactly(nanos, COLUMN_UNITS[kind])
    return moment if kind == "TIMESTAMP" else found


def _nanos(value: Any, unit: int | None, units: str) -> int:
    number = _whole(value)
    if unit is None:  # U1
        raise ValueError(f"the unit of this number is unknown; declare its column as {units}")
    return number * unit


def _exactly(nanos: int, unit: int) -> int:
    """In a coarser unit; raises if that would lose digits (U2)."""
    found, rest = divmod(nanos, unit)
    if rest:
        raise ValueError("more precise than its column")
    return found


def _zoned(value: Any) -> dt.datetime:
    found = dt.datetime.fromisoformat(_as(str, value))
    if found.tzinfo is None:
        raise ValueError("no time zone")
    return found.astimezone(dt.UTC)


def _without_zone(found: Clock) -> Clock:
    """A column without time zones accepts a text without one, or one in UTC, as Debezium's ISO texts are."""
    if found.utcoffset():
        raise ValueError("it has a time zone, and its column has none")
    return found.replace(tzinfo=None)
