"""Events of Debezium's connectors: JSON envelopes, with a schema or without.

    {"op": "u", "before": {...}, "after": {...}, "source": {...}, "ts_ms": ...}

or the same under "payload", beside "schema".

Rules
 B1  c, r and u are arrivals of `after`; u also removes `before`, and d removes `before`; t empties the table. Messages
     (m), tombstones, heartbeats, schema changes and transaction markers do not change the table and are ignored. All
     else is malformed: above all a row without its envelope, which the transform ExtractNewRecordState leaves. Its
     removals are missing, or have no key here.
 B2  Debezium delivers at least once, so an arrival of an existing key is a repeat, not a duplicate: each arrival first
     removes its own key. Without `before` nothing else can be removed: a row that moved to another destination then
     also stays at the old one, unless its table has REPLICA IDENTITY FULL.
 B3  Types come from the envelope's schema, or else from the pipeline's `columns`. Values that do not fit their type
     make an event malformed (``debezium_values``). So does an arrival or a removal without its key or routing column.
 B4  Without REPLICA IDENTITY FULL `before` has the primary key alone; the other columns are absent, null, or as empty
     as their type allows. So a removal whose routing value or key is empty, and with it most of the row, is malformed:
     it would remove nothing, and the row would stay.
 B5  An update that did not change a large value may have a placeholder for it. The value is taken from `before`; if
     that lacks it as well, the event is malformed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import msgspec
import pyarrow as pa

from trunkline.delivery.changes.columns import Columns, arrow_type
from trunkline.delivery.changes.rows import ChangeKind
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.debezium_values import (
    EventSchema,
    ValueEncoding,
    is_unavailable,
    stated_schema,
    value_of,
)
from trunkline.errors import ConfigError, ProtocolError

ARRIVALS: Final = ("c", "r", "u")
TIMES: Final = frozenset({"ts_ms", "ts_us", "ts_ns"})
ENVELOPE: Final = TIMES | {"op", "before", "after", "source", "transaction", "message"}
TRANSACTION: Final = TIMES | {"status", "id", "event_count", "data_collections"}
SCHEMA_CHANGE: Final = TIMES | {"source", "position", "databaseName", "schemaName", "ddl", "tableChanges"}
BLANK: Final = ("", 0, "0", "AA==", "{}", "1970-01-01T00:00:00Z", "00:00:00Z")  # what a connector writes for no value
REASON_LETTERS: Final = 500
IDENTITY: Final = "give its table REPLICA IDENTITY FULL"
FLATTENED: Final = (
    "it is a row without its envelope, as Debezium's ExtractNewRecordState leaves it, so removals and moves are lost; "
    "remove that transform (unwrap, after.state.only) from the connector"
)

EventRow = Mapping[str, Any]
EventChange = tuple[ChangeKind, EventRow | None]  # no row: a truncation


def event_schema(event: Any) -> EventSchema | None:
    """The columns of an event's own schema; ``None`` if it has none."""
    schema = event.get("schema") if isinstance(event, dict) else None
    if not isinstance(schema, dict):
        return None
    try:
        rows = (field for field in schema.get("fields", ()) if field.get("field") in ("after", "before"))
        fields = next((row["fields"] for row in rows if isinstance(row.get("fields"), list)), None)
        return None if fields is None else stated_schema(fields)
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError, ConfigError) as error:
        raise ProtocolError(f"the event's schema is not one of Debezium's ({error!r:.200})") from error


def check_schema_without_row(event: Any) -> None:
    """Raises ``ProtocolError`` if an event has a schema, but neither of an envelope nor of an ignored event."""
    schema = event.get("schema") if isinstance(event, dict) else None
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if isinstance(fields, list):
        names = {str(field.get("field")) for field in fields if isinstance(field, dict)}
        if "op" not in names and not _ignored_fields(names):
            raise ProtocolError(FLATTENED)


def parse_event(payload: bytes) -> Any:
    """An event as JSON; raises ``ProtocolError``."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from error


def changes_of(event: Any, schema: EventSchema | None, request: ReadRequest) -> list[EventChange]:
    """The changes of an event, in order (B1, B2). Raises ``ProtocolError``."""
    is_wrapped = isinstance(event, dict) and "payload" in event and "op" not in event
    body = event["payload"] if is_wrapped and event.keys().isdisjoint(request.routings or request.key) else event
    if body is None or (isinstance(body, dict) and _is_ignored(body, request)):
        return []
    if not isinstance(body, dict) or "op" not in body:
        raise ProtocolError(_not_an_envelope(body, request))
    op, before, after = body["op"], body.get("before"), body.get("after")
    if op in ("t", "m"):
        if before is not None or after is not None or not body.keys() <= ENVELOPE:
            raise ProtocolError(_not_an_envelope(body, request))
        return [(ChangeKind.TRUNCATE, None)] if op == "t" else []
    if op not in (*ARRIVALS, "d"):
        raise ProtocolError(f"op is {op!r:.100}; it must be one of c, r, u, d, t and m")
    if schema is None:
        raise ProtocolError("it has no schema; list the table's columns in `columns` of the source")
    removed: list[EventChange] = []
    if op == "d" or (op == "u" and before is not None):
        kind = ChangeKind.DELETE if op == "d" else ChangeKind.UPDATE_PREIMAGE
        removed = (
            [(kind, _removed(before, schema, request))] if request.key else []
        )  # without a key there are arrivals only
    if op == "d":
        return removed
    if not isinstance(after, dict):
        raise ProtocolError(f"an event with op {op} has no after")
    arrival = _arrival(after, before, schema, request)
    return [*removed, (ChangeKind.UPDATE_PREIMAGE, arrival), (ChangeKind.UPDATE_POSTIMAGE, arrival)]


def _is_ignored(body: EventRow, request: ReadRequest) -> bool:
    """A heartbeat, a transaction marker, or a schema change; a row has more fields."""
    row = request.named or tuple(column.name for column in request.columns)
    if body.keys() >= set(row) or not _ignored_fields(body.keys()):
        return False
    return "status" not in body or body["status"] in ("BEGIN", "END")


def _ignored_fields(names: Set[str]) -> bool:
    is_heartbeat = "ts_ms" in names and names <= TIMES
    is_mark = {"status", "id"} <= names <= TRANSACTION
    is_schema = "source" in names and not names.isdisjoint({"ddl", "tableChanges"}) and names <= SCHEMA_CHANGE
    return is_heartbeat or is_mark or is_schema


def _not_an_envelope(body: Any, request: ReadRequest) -> str:
    if isinstance(body, dict) and not body.keys().isdisjoint({*request.named, "__deleted", "__op"}):
        return FLATTENED
    return "the event is not an envelope: it must be an object with op, before and after"


def _arrival(after: EventRow, before: Any, schema: EventSchema, request: ReadRequest) -> EventRow:
    _check_names(after, schema)
    missing = [name for name in request.named if name not in after]
    if missing:
        raise ProtocolError(f"the row has no {missing[0]!r}, which is its routing column or part of its key")
    row = {}
    for column in schema.columns:
        value = after.get(column.name)
        if is_unavailable(value):  # B5
            value = before.get(column.name) if isinstance(before, dict) else None
            if _is_blank(value) or is_unavailable(value):
                raise ProtocolError(f"column {column.name!r} has a placeholder instead of its value; {IDENTITY}")
        row[column.name] = value_of(column, value, schema.encodings.get(column.name, ValueEncoding()))
    return row


def _removed(before: Any, schema: EventSchema, request: ReadRequest) -> EventRow:
    """The key and the routing value of a removed row; other columns are ignored."""
    if not isinstance(before, dict):
        raise ProtocolError(f"a removal has no before; {IDENTITY}")
    _check_names(before, schema)
    needed = set(request.named)
    missing = [name for name in request.named if name not in before or is_unavailable(before[name])]
    if missing:
        raise ProtocolError(f"a removal has no {missing[0]!r}; {IDENTITY}")
    empty = [name for name in request.named if _is_blank(before[name], in_key=name in request.key)]
    if empty and not _is_whole(before, schema, request):  # B4
        raise ProtocolError(
            f"a removal has no value for {empty[0]!r} and few others, as if it had the primary key alone; {IDENTITY}"
        )
    return {
        column.name: value_of(column, before[column.name], schema.encodings.get(column.name, ValueEncoding()))
        if column.name in needed
        else None
        for column in schema.columns
    }


def _is_blank(value: Any, *, in_key: bool = False) -> bool:
    """Whether a connector may have written it in place of a missing value; a key may well be 0."""
    return value is None or value == "" or (not in_key and (value in BLANK or value in ([], {})))


def _is_whole(before: EventRow, schema: EventSchema, request: ReadRequest) -> bool:
    """Whether most columns besides the key have a value: then it is more than the primary key, which may have other
    columns than the pipeline's."""
    others = [column.name for column in schema.columns if column.name not in request.named]
    known = sum(not _is_blank(before.get(name)) and not is_unavailable(before.get(name)) for name in others)
    return 2 * known > len(others)


def _check_names(values: EventRow, schema: EventSchema) -> None:
    unknown = values.keys() - {column.name for column in schema.columns}
    if unknown:
        raise ProtocolError(f"column {min(unknown)!r:.100} is unknown; add it to `columns` of the source")


def arrow_rows(changes: Sequence[EventRow | None], columns: Columns) -> pa.Table:
    """Rows as Arrow; raises ``ProtocolError`` for a value that does not fit its type."""
    arrays = []
    for column in columns:
        values = [None if row is None else row[column.name] for row in changes]
        try:
            arrays.append(pa.array(values, arrow_type(column)))
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
            raise ProtocolError(f"column {column.name!r} of type {column.type}: {error}"[:REASON_LETTERS]) from error
    return pa.table(arrays, names=[column.name for column in columns])
