"""Values as Debezium's connectors write them in JSON: what a schema says of a column, and from text or number to Arrow.

Rules
 U1  A number that stands for a time has a unit. The event's schema says it (the name of the logical type), or else the
     pipeline's file does (TIMESTAMP_MS, TIME_US, ...). Where neither does, the value is refused: milliseconds that are
     read as microseconds look like any other time.
 U2  A value comes out as it went in, or not at all: what its column would round or cut is refused.
 U3  A placeholder is no value: an update that leaves a large value alone writes one in its place.
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
LOGICAL: Final = {  # of Kafka Connect and of Debezium; what is not here is delivered as its plain type
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
    "TIMESTAMP_S": SECOND,  # of no connector: a file may say it
}
TIME_UNITS: Final = {
    "io.debezium.time.Time": 10**6,
    "io.debezium.time.MicroTime": 10**3,
    "io.debezium.time.NanoTime": 1,
    "org.apache.kafka.connect.data.Time": 10**6,
}
DATE_NAMES: Final = ("", "io.debezium.time.Date", "org.apache.kafka.connect.data.Date")  # days, whoever writes them
COLUMN_UNITS: Final = {"TIMESTAMP_S": SECOND, "TIMESTAMP_MS": 10**6, "TIMESTAMP": 10**3, "TIMESTAMP_NS": 1}
DECLARED_UNITS: Final = {  # what a file may say: the column's type, and the name of how its numbers are written
    "TIMESTAMP_S": ("TIMESTAMP_S", "TIMESTAMP_S"),
    "TIMESTAMP_MS": ("TIMESTAMP_MS", "io.debezium.time.Timestamp"),
    "TIMESTAMP_US": ("TIMESTAMP", "io.debezium.time.MicroTimestamp"),
    "TIMESTAMP_NS": ("TIMESTAMP_NS", "io.debezium.time.NanoTimestamp"),
    "TIME_MS": ("TIME", "io.debezium.time.Time"),
    "TIME_US": ("TIME", "io.debezium.time.MicroTime"),
    "TIME_NS": ("TIME", "io.debezium.time.NanoTime"),
}
NUMBER_LETTERS_MAX: Final = 1000  # more: it takes longer and longer to find that it does not fit
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
)  # in a column of text, bytes (as any `binary.handling.mode` writes them), UUID or hstore


Clock = TypeVar("Clock", dt.time, dt.datetime)


class ValueEncoding(Struct, frozen=True):
    """How a connector writes the values of a column, as far as its type does not say it."""

    name: str = ""  # of the logical type
    scale: int | None = None  # of decimals in base 64


class EventSchema(Struct, frozen=True):
    """The columns of a table, and how their values are written in events."""

    columns: Columns
    forms: dict[str, ValueEncoding] = {}


# ---------------------------------------------------------------------------------------------------- what a column is


def stated_schema(fields: list[Any]) -> EventSchema:
    """Of the fields of a row in an event's schema: its own word, so it is checked. Raises whatever comes."""
    columns, forms = [], {}
    for field in fields:
        kind, form = _stated(field)
        columns.append(Column(str(field["field"]), kind, bool(field.get("optional", False))))
        forms[columns[-1].name] = form
    _check(columns)
    return EventSchema(tuple(columns), {name: form for name, form in forms.items() if form != ValueEncoding()})


def _check(columns: list[Column]) -> None:
    """Raises for columns that no table can have."""
    if len({column.name for column in columns}) != len(columns):
        raise ValueError("two columns have the same name")
    for column in columns:
        if not column.name or "\0" in column.name or column.name.lower().startswith(RESERVED_PREFIX):
            raise ValueError(f"a column cannot have the name {column.name!r:.100}")
        arrow_type(column)


def _stated(field: Mapping[str, Any]) -> tuple[str, ValueEncoding]:
    """The type of a field, and how its values are written: of an array, how its elements are."""
    kind, logical = field.get("type"), field.get("name") or ""
    if logical == DECIMAL_NAME:
        parameters = field.get("parameters", {})
        precision, scale = parameters.get("connect.decimal.precision", PRECISION_MAX), int(parameters["scale"])
        if int(precision) > PRECISION_MAX:
            raise ProtocolError(f"a decimal has {precision!s:.20} digits; {PRECISION_MAX} can be delivered")
        return f"DECIMAL({int(precision)},{scale})", ValueEncoding(logical, scale)
    if kind == "array":
        element, form = _stated(field["items"])
        return f"{element}[]", form
    if logical in LOGICAL:
        return LOGICAL[logical], ValueEncoding(logical)
    if kind in PLAIN:
        return PLAIN[kind], ValueEncoding(logical)
    raise ProtocolError(f"{field.get('field')!r:.100} has the type {logical or kind!r:.100}, which cannot be delivered")


def declared_schema(columns: Mapping[str, str]) -> EventSchema:
    """That of a pipeline's file; raises ``ConfigError`` for a type that cannot be delivered."""
    found, forms = [], {}
    for name, declared in columns.items():
        element = declared.rstrip("[]")
        kind, unit = DECLARED_UNITS.get(element, (element, ""))
        found.append(Column(name, kind + declared[len(element) :]))
        arrow_type(found[-1])
        if unit:
            forms[name] = ValueEncoding(unit)
    return EventSchema(tuple(found), forms)


def declared_columns(columns: Mapping[str, str]) -> Columns:
    return declared_schema(columns).columns


# ------------------------------------------------------------------------------------------------------ what a value is


def is_unavailable(value: Any) -> bool:
    """Whether it stands for a value that the database did not tell (U3); arrays and maps hold the placeholder."""
    if isinstance(value, str):
        return value in UNAVAILABLE_TEXTS
    if isinstance(value, dict):
        return UNAVAILABLE in value
    if isinstance(value, list):
        return value == list(UNAVAILABLE_BYTES) or (len(value) == 1 and is_unavailable(value[0]))
    return False


def value_of(column: Column, value: Any, form: ValueEncoding) -> Any:
    """As Arrow takes it; raises ``ProtocolError`` for one that does not fit its column."""
    if value is None:
        return None
    try:
        return converter(column.type, form)(value)
    except (ValueError, TypeError, ArithmeticError, RecursionError, binascii.Error, ConfigError) as error:
        why = f"{error}"[:200]
        raise ProtocolError(f"column {column.name!r} of type {column.type} cannot be {value!r:.100} ({why})") from error


def converter(kind: str, form: ValueEncoding) -> Callable[[Any], Any]:
    """From a JSON value to one that Arrow takes; raises ``ValueError`` or ``TypeError`` for one that does not fit."""
    if kind.endswith("[]"):
        element = converter(kind[:-2], form)
        return lambda value: [None if each is None else element(each) for each in _as(list, value)]
    if decimal_of(kind) is not None:
        return lambda value: _decimal(value, form)
    if kind in COLUMN_UNITS:
        return lambda value: _timestamp(value, TIMESTAMP_UNITS.get(form.name), kind)
    return {
        "BOOLEAN": lambda value: _as(bool, value),
        "FLOAT": _float,
        "DOUBLE": _float,
        "VARCHAR": lambda value: _as(str, value),
        "UUID": lambda value: _as(str, value).lower(),
        "JSON": lambda value: value if isinstance(value, str) else msgspec.json.encode(value).decode(),
        "BLOB": lambda value: base64.b64decode(_as(str, value), validate=True),
        "DATE": lambda value: _date(value, form),
        "TIME": lambda value: _time(value, TIME_UNITS.get(form.name)),
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


def _decimal(value: Any, form: ValueEncoding) -> decimal.Decimal:
    """Kafka Connect's form is the unscaled number in base 64, by its schema; else it is a text or a number.

    Without a schema base 64 is refused: some of it looks like a number.
    """
    if form.name == DECIMAL_NAME and form.scale is not None:
        if len(_as(str, value)) > NUMBER_LETTERS_MAX:
            raise ValueError("longer than any number here")
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return decimal.Decimal(unscaled).scaleb(-form.scale)
    if isinstance(value, bool):
        raise TypeError("not a number")
    text = str(value)
    if len(text) > NUMBER_LETTERS_MAX:
        raise ValueError("longer than any number here")
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError("not a number; without a schema set decimal.handling.mode=string") from None


def _date(value: Any, form: ValueEncoding) -> dt.date:
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    if form.name not in DATE_NAMES:
        raise ValueError(f"the event says {form.name}, which is no date")
    return EPOCH_DAY + dt.timedelta(days=_whole(value))


def _time(value: Any, unit: int | None) -> dt.time:
    if isinstance(value, str):
        return _without_zone(dt.time.fromisoformat(value))
    nanos = _nanos(value, unit, "TIME_MS, TIME_US or TIME_NS")
    if not 0 <= nanos < 86_400 * SECOND:
        raise ValueError("not a time of a day")
    return (EPOCH + dt.timedelta(microseconds=_exactly(nanos, COLUMN_UNITS["TIMESTAMP"]))).time()


def _timestamp(value: Any, unit: int | None, kind: str) -> dt.datetime | int:
    """A TIMESTAMP as a moment of the calendar, the others as a number in their own unit."""
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
        raise ValueError(f"nothing says the unit of this number; declare its column as {units}")
    return number * unit


def _exactly(nanos: int, unit: int) -> int:
    """In a coarser unit; raises where that would cut something off (U2)."""
    found, rest = divmod(nanos, unit)
    if rest:
        raise ValueError("finer than its column")
    return found


def _zoned(value: Any) -> dt.datetime:
    found = dt.datetime.fromisoformat(_as(str, value))
    if found.tzinfo is None:
        raise ValueError("no time zone")
    return found.astimezone(dt.UTC)


def _without_zone(found: Clock) -> Clock:
    """A column without time zones takes a text without one, or one that says UTC, as Debezium's ISO texts do."""
    if found.utcoffset():
        raise ValueError("it has a time zone, and its column has none")
    return found.replace(tzinfo=None)
