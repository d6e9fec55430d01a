"""Events in the form of Debezium's connectors: JSON envelopes, with their schema or without.

    {"op": "u", "before": {...}, "after": {...}, "source": {...}, "ts_ms": ...}

or the same under "payload", beside "schema".

Rules
 B1  c, r and u are arrivals of `after`; u also removes `before`, and d removes `before`; t empties the table. Anything
     else (heartbeats, tombstones, messages) is no change of the table and says nothing.
 B2  Debezium delivers at least once, so an arrival of a key that is there is taken for a repeat, not for a duplicate:
     each arrival first removes its own key. Without `before` that is all that a removal can know: a row that moved to
     another destination then stays at the old one too, unless its table has REPLICA IDENTITY FULL.
 B3  Types come from the envelope's schema, or else from the pipeline's `columns`. Values that do not fit their type
     make an event malformed. So does a removal without its key or routing value.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from trunkline.delivery.columns import PRECISION_MOST, Column, Columns, arrow_type, decimal_of
from trunkline.delivery.rule_ordered import Kind
from trunkline.errors import ConfigError, ProtocolError

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
EPOCH_DAY: Final = EPOCH.date()
ARRIVALS: Final = ("c", "r", "u")
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
LOGICAL: Final = {  # of Kafka Connect and of Debezium; the rest of a name is its version
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
MICROS: Final = {  # how many microseconds one unit of a number is
    "io.debezium.time.Timestamp": 1000,
    "org.apache.kafka.connect.data.Timestamp": 1000,
    "io.debezium.time.Time": 1000,
    "org.apache.kafka.connect.data.Time": 1000,
}
NUMBER_LETTERS_MOST: Final = 1000  # more: it takes longer and longer to find that it does not fit
REASON_LETTERS: Final = 500
DAY_MICROS: Final = 86_400_000_000
DECIMAL_NAME: Final = "org.apache.kafka.connect.data.Decimal"

Row = Mapping[str, Any]
Change = tuple[Kind, Row | None]  # no row: a truncation
Names = Mapping[str, str]  # column -> the name of its logical type


def event_columns(event: Any) -> tuple[Columns, Names] | None:
    """The columns that an event's own schema says; ``None`` if it has none."""
    schema = event.get("schema") if isinstance(event, dict) else None
    if not isinstance(schema, dict):
        return None
    try:
        found = _schema_columns(schema)
        if found is not None:
            _check_types(found[0])
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError, ConfigError) as error:
        raise ProtocolError(f"the event's schema is none of Debezium's ({error!r:.200})") from error
    return found


def _check_types(columns: Columns) -> None:
    """Raises for columns that no table can have: a schema is an event's own word."""
    if len({column.name for column in columns}) != len(columns):
        raise ValueError("two columns have the same name")
    for column in columns:
        arrow_type(column)


def _schema_columns(schema: Row) -> tuple[Columns, Names] | None:
    for field in schema.get("fields", ()):
        if field.get("field") in ("after", "before") and isinstance(field.get("fields"), list):
            made = [(_column(each), each.get("name", "")) for each in field["fields"]]
            return tuple(column for column, _ in made), {column.name: name for column, name in made if name}
    return None


def _column(field: Row) -> Column:
    name, kind, logical = str(field["field"]), field.get("type"), field.get("name", "")
    nullable = bool(field.get("optional", False))
    if logical == DECIMAL_NAME:
        parameters = field.get("parameters", {})
        precision = int(parameters.get("connect.decimal.precision", PRECISION_MOST))
        if precision > PRECISION_MOST:
            raise ProtocolError(f"column {name!r} has {precision} digits; {PRECISION_MOST} can be delivered")
        return Column(name, f"DECIMAL({precision},{parameters['scale']})", nullable)
    if kind == "array":
        return Column(name, _column({"field": name, **field["items"]}).type + "[]", nullable)
    if logical in LOGICAL:
        return Column(name, LOGICAL[logical], nullable)
    if kind in PLAIN:
        return Column(name, PLAIN[kind], nullable)
    raise ProtocolError(f"column {name!r:.100} has the type {logical or kind!r:.100}, which cannot be delivered")


def declared_columns(columns: Mapping[str, str]) -> Columns:
    """Those of a pipeline's file."""
    found = tuple(Column(name, kind) for name, kind in columns.items())
    for column in found:
        arrow_type(column)
    return found


def parsed(payload: bytes) -> Any:
    """An event as JSON; raises ``ProtocolError``."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no JSON: {error}") from error


def changes_of(event: Any, columns: Columns, names: Names, needed: Sequence[str]) -> list[Change]:
    """The changes that an event means, in order (B1, B2). ``needed``: columns without which a removal means nothing."""
    body = event.get("payload", event) if isinstance(event, dict) and "op" not in event else event
    if body is None or (isinstance(body, dict) and "op" not in body and "after" not in body):
        return []  # a tombstone, a heartbeat, a message
    if not isinstance(body, dict):
        raise ProtocolError("the event is no envelope: it must be an object with op, before and after")
    op, before, after = body.get("op"), body.get("before"), body.get("after")
    if op == "t":
        return [(Kind.TRUNCATE, None)]
    if op == "m":
        return []
    if op == "d":
        return [(Kind.DELETE, _removed(before, columns, names, needed))]
    if op not in ARRIVALS:
        raise ProtocolError(f"op is {op!r:.100}; it must be one of c, r, u, d, t and m")
    if not isinstance(after, dict):
        raise ProtocolError(f"an event with op {op} has no after")
    arrival = _row(after, columns, names)
    found: list[Change] = []
    if op == "u" and before is not None:
        found.append((Kind.UPDATE_PREIMAGE, _removed(before, columns, names, needed)))
    return [*found, (Kind.UPDATE_PREIMAGE, arrival), (Kind.UPDATE_POSTIMAGE, arrival)]


def _removed(before: Any, columns: Columns, names: Names, needed: Sequence[str]) -> Row:
    if not isinstance(before, dict):
        raise ProtocolError("a removal has no before; give its table REPLICA IDENTITY FULL")
    missing = [name for name in needed if name not in before]
    if missing:
        raise ProtocolError(f"a removal has no {missing[0]!r}; give its table REPLICA IDENTITY FULL")
    return _row(before, columns, names)


def _row(values: Row, columns: Columns, names: Names) -> Row:
    known = {column.name for column in columns}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ProtocolError(f"column {unknown[0]!r:.100} is not known; add it to columns of the source")
    return {column.name: _value(column, values.get(column.name), names.get(column.name, "")) for column in columns}


def _value(column: Column, value: Any, logical: str) -> Any:
    if value is None:
        return None
    try:
        return converter(column.type, logical)(value)
    except (ValueError, TypeError, ArithmeticError, RecursionError, binascii.Error, ConfigError) as error:
        raise ProtocolError(f"column {column.name!r} of type {column.type} cannot be {value!r:.100}") from error


def converter(kind: str, logical: str) -> Callable[[Any], Any]:
    """From a JSON value to one that Arrow takes; raises ``ValueError`` or ``TypeError`` for one that does not fit."""
    if kind.endswith("[]"):
        element = converter(kind[:-2], logical)
        return lambda value: [None if each is None else element(each) for each in _as(list, value)]
    if (size := decimal_of(kind)) is not None:
        return lambda value: _decimal(value, size[1], encoded=logical == DECIMAL_NAME)
    return {
        "BOOLEAN": lambda value: _as(bool, value),
        "FLOAT": float,
        "DOUBLE": float,
        "VARCHAR": lambda value: _as(str, value),
        "UUID": lambda value: _as(str, value).lower(),
        "JSON": lambda value: value if isinstance(value, str) else msgspec.json.encode(value).decode(),
        "BLOB": lambda value: base64.b64decode(_as(str, value), validate=True),
        "DATE": lambda value: _date(value),
        "TIME": lambda value: _time(value, MICROS.get(logical, 1)),
        "TIMESTAMP": lambda value: _timestamp(value, MICROS.get(logical, 1)),
        "TIMESTAMP_NS": lambda value: int(_as(int, value)),
        "TIMESTAMP WITH TIME ZONE": lambda value: _zoned(value),
    }.get(kind, lambda value: _whole(value))


def _as(kind: type, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"not a {kind.__name__}")
    return value


def _whole(value: Any) -> int:
    return int(_as(int, value))


def _decimal(value: Any, scale: int, *, encoded: bool) -> decimal.Decimal:
    """Kafka Connect's form is the unscaled number in base 64; connectors can be told to write a text or a number.

    A schema says which it is. Without one a text that is a number is taken for that: have the connector write texts
    (`decimal.handling.mode=string`), because some base 64 looks like a number.
    """
    if isinstance(value, str):
        if len(value) > NUMBER_LETTERS_MOST:
            raise ValueError("longer than any number here")
        try:
            if not encoded:
                return decimal.Decimal(value)
            raise decimal.InvalidOperation
        except decimal.InvalidOperation:
            unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
            return decimal.Decimal(unscaled).scaleb(-scale)
    if isinstance(value, bool):
        raise TypeError("not a number")
    return decimal.Decimal(str(value))


def _date(value: Any) -> dt.date:
    return dt.date.fromisoformat(value) if isinstance(value, str) else EPOCH_DAY + dt.timedelta(days=_whole(value))


def _time(value: Any, micros: int) -> dt.time:
    if isinstance(value, str):
        return dt.time.fromisoformat(value)
    found = _whole(value) * micros
    if not 0 <= found < DAY_MICROS:
        raise ValueError("not a time of a day")
    return (EPOCH + dt.timedelta(microseconds=found)).time()


def _timestamp(value: Any, micros: int) -> dt.datetime:
    if isinstance(value, str):
        return dt.datetime.fromisoformat(value).replace(tzinfo=None)
    return EPOCH + dt.timedelta(microseconds=_whole(value) * micros)


def _zoned(value: Any) -> dt.datetime:
    found = dt.datetime.fromisoformat(_as(str, value))
    if found.tzinfo is None:
        raise ValueError("no time zone")
    return found.astimezone(dt.UTC)


def arrow_rows(changes: Sequence[Row | None], columns: Columns) -> pa.Table:
    """Rows in the types in which they travel; raises ``ProtocolError`` for a value that has no place in its type."""
    arrays = []
    for column in columns:
        values = [None if row is None else row[column.name] for row in changes]
        try:
            arrays.append(pa.array(values, arrow_type(column)))
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
            raise ProtocolError(f"column {column.name!r} of type {column.type}: {error}"[:REASON_LETTERS]) from error
    return pa.table(arrays, names=[column.name for column in columns])
