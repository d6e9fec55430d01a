"""Events of Debezium, each as its documentation has it: rows as they are, or malformed with the reason."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

from trunkline.client.entries import Entry
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.debezium_batches import EventBatches

UNAVAILABLE = "__debezium_unavailable_value"
COLUMNS = {"id": "BIGINT", "tenant": "VARCHAR", "amount": "DECIMAL(10,2)", "note": "VARCHAR"}
NANOS = 1_767_225_600_123_456_000  # 2026-01-01T00:00:00.123456
MOMENT = dt.datetime.fromisoformat("2026-01-01T00:00:00.123456")
MILLIS = dt.datetime.fromisoformat("2026-01-01T00:00:00.123")
SOURCE = {"connector": "postgresql", "table": "orders"}


def row(number: int = 1, tenant: Any = "acme", **values: Any) -> dict[str, Any]:
    return {"id": number, "tenant": tenant, "amount": "1.50", "note": "kept", **values}


def envelope(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": SOURCE, "ts_ms": 1}


class Read:
    """What events mean, without a schema or (``fields``) with theirs."""

    def __init__(self, *events: Any, columns: dict[str, str] = COLUMNS, declared: bool = True, **asked: Any) -> None:
        stated = tuple(Column(name, kind) for name, kind in (asked.pop("types", None) or columns).items())
        self._asked = ReadRequest(stated, asked.pop("key", ("id",)), "tenant")
        address = LogAddress("events", "nowhere:1", format="debezium", columns=columns if declared else {})
        batches = EventBatches(address, self._asked)
        for glsn, event in enumerate(events, start=1):
            batches.add(Entry(glsn, event if isinstance(event, bytes) else json.dumps(event).encode()))
        tables, letters = batches.finished()
        self.rows = [found for table in tables for found in table.to_pylist()]
        self.reasons = {letter.glsn: letter.reason for letter in letters}

    @property
    def kinds(self) -> list[str]:
        return [found["_trunkline_kind"] for found in self.rows]

    def arrived(self, name: str) -> Any:
        assert self.reasons == {}
        (found,) = (found[name] for found in self.rows if found["_trunkline_kind"] == "update_postimage")
        return found


# ------------------------------------------------------------------------------------------ events without an envelope


@pytest.mark.parametrize(
    "flat",
    [
        row(),
        {**row(), "__deleted": "false"},
        {**row(), "__deleted": "true"},
        {**row(), "__op": "u", "__table": "orders", "__lsn": 1, "__source_ts_ms": 1},
        {"id": 2, "tenant": None, "__deleted": "true"},
        {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}, "payload": row()},
        {"schema": None, "payload": {**row(), "__deleted": "true"}},
        {**row(), "ts_ms": 1},
        {**row(), "op": "t"},
        {**row(), "op": "m"},
        {**row(), "status": "BEGIN"},
    ],
    ids=["plain", "rewritten", "deleted", "with fields", "by key", "with schema", "wrapped", "ts", "t", "m", "status"],
)
def test_b1_a_flattened_event_is_malformed_and_the_reason_names_the_transform(flat: Any) -> None:
    found = Read(envelope("c", None, row(7)), flat)
    assert "ExtractNewRecordState" in found.reasons[2]
    assert {each["id"] for each in found.rows} == {7}


NOTHING = {
    "a tombstone": b"",
    "a tombstone in JSON": b"null",
    "a tombstone with schema": {"schema": None, "payload": None},
    "a heartbeat": {"ts_ms": 5},
    "a heartbeat with schema": {"schema": {"fields": [{"field": "ts_ms", "type": "int64"}]}, "payload": {"ts_ms": 5}},
    "a beginning": {"status": "BEGIN", "id": "571:53195829", "event_count": None, "data_collections": None, "ts_ms": 1},
    "an end": {"status": "END", "id": "571:53195832", "event_count": 2, "data_collections": [{"event_count": 1}]},
    "a schema change": {"source": SOURCE, "ts_ms": 1, "databaseName": "shop", "schemaName": "public",
                        "ddl": "ALTER TABLE orders", "tableChanges": [{"type": "ALTER"}]},
    "a message": {"op": "m", "ts_ms": 1, "source": SOURCE, "message": {"prefix": "a", "content": "Ymxh"}},
}  # fmt: skip


@pytest.mark.parametrize("event", NOTHING.values(), ids=NOTHING.keys())
def test_b1_events_that_do_not_change_the_table_are_ignored(event: Any) -> None:
    for declared in (True, False):
        found = Read(event, declared=declared)
        assert (found.rows, found.reasons) == ([], {})


@pytest.mark.parametrize("event", [{}, {"a": 1}, {"source": SOURCE}, {"payload": {}}, {"status": "BEGIN"}, [], "c", 1])
def test_b1_anything_else_is_malformed(event: Any) -> None:
    assert "must be an object with op, before and after" in Read(event).reasons[1]


def test_b1_a_truncation_counts_with_and_without_a_schema() -> None:
    for declared in (True, False):
        assert Read({"op": "t", "source": SOURCE, "ts_ms": 1}, declared=declared).kinds == ["truncate"]


def test_b3_an_event_without_a_schema_means_the_same_in_every_window() -> None:
    fields = [{"field": "id", "type": "int64"}, {"field": "tenant", "type": "string"}]
    schema = {"fields": [{"field": "after", "fields": fields}]}
    stated = {"schema": schema, "payload": envelope("c", None, {"id": 1, "tenant": "acme"})}
    bare = envelope("c", None, {"id": 2, "tenant": "acme"})
    for events in ((stated, bare), (bare, stated)):
        found = Read(*events, declared=False, columns={"id": "BIGINT", "tenant": "VARCHAR"})
        assert {each["id"] for each in found.rows} == {1}
        (reason,) = found.reasons.values()
        assert "it has no schema" in reason


def test_b3_an_arrival_without_its_key_or_routing_column_is_malformed() -> None:
    lacking = [{name: value for name, value in row().items() if name != left_out} for left_out in ("id", "tenant")]
    found = Read(*(envelope("c", None, after) for after in lacking))
    assert "has no 'id'" in found.reasons[1]
    assert "has no 'tenant'" in found.reasons[2]


# --------------------------------------------------------------------------------------------------------- removals


@pytest.mark.parametrize("tenant", [None, "", 0, False])
@pytest.mark.parametrize("rest", [{}, {"amount": None, "note": None}, {"amount": "AA==", "note": ""}])
@pytest.mark.parametrize("op", ["d", "u"])
def test_b4_a_removal_with_its_key_alone_is_malformed(tenant: Any, rest: Any, op: str) -> None:
    before = {"id": 1, "tenant": tenant, **rest}
    found = Read(envelope(op, before, row(2) if op == "u" else None))
    assert "REPLICA IDENTITY FULL" in found.reasons[1]
    assert found.rows == []


def test_b4_a_removal_without_a_routing_value_is_recognised_by_its_other_columns() -> None:
    """It was unrouted, and counted as such."""
    found = Read(envelope("d", row(1, None)), envelope("u", row(2, None), row(2, "acme")))
    assert found.reasons == {}
    assert [each["_trunkline_route"] for each in found.rows] == [None, None, "acme", "acme"]


def test_b4_a_key_that_the_database_did_not_tell_removes_nothing_in_silence() -> None:
    """The table's primary key is another one than the pipeline's."""
    found = Read(envelope("d", {"id": None, "tenant": "", "amount": None, "note": "the primary key"}))
    assert "REPLICA IDENTITY FULL" in found.reasons[1]


def test_b4_a_key_of_zero_is_a_key() -> None:
    found = Read(envelope("d", {"id": 0, "tenant": "acme", "amount": None, "note": None}))
    assert (found.kinds, found.reasons) == (["delete"], {})


def test_without_a_key_removals_are_ignored() -> None:
    found = Read(envelope("d", {"id": 1}), envelope("u", {"id": 1}, row(2)), key=())
    assert (found.arrived("id"), found.reasons) == (2, {})


# ---------------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("declared", "number", "expected"),
    [
        ("TIMESTAMP_MS", NANOS // 10**6, MILLIS),
        ("TIMESTAMP_US", NANOS // 1000, MOMENT),
        ("TIMESTAMP_NS", NANOS, MOMENT),
        ("TIMESTAMP_S", NANOS // 10**9, MOMENT.replace(microsecond=0)),
        ("TIMESTAMP_MS[]", [NANOS // 10**6, None], [MILLIS, None]),
        ("TIMESTAMP_US[]", [NANOS // 1000], [MOMENT]),
        ("TIME_MS", 3_600_001, dt.time(1, 0, 0, 1000)),
        ("TIME_US", 3_600_000_001, dt.time(1, 0, 0, 1)),
        ("TIME_NS", 3_600_000_001_000, dt.time(1, 0, 0, 1)),
        ("DATE", 1, dt.date(1970, 1, 2)),
        ("TIMESTAMP", "2026-01-01T00:00:00.123456Z", MOMENT),
        ("TIMESTAMP_MS", "2026-01-01T00:00:00.123", MILLIS),
        ("TIME", "01:00:00.000001", dt.time(1, 0, 0, 1)),
    ],
)
def test_u1_a_number_of_an_event_without_a_schema_has_the_unit_of_the_file(
    declared: str, number: Any, expected: Any
) -> None:
    columns = {"id": "BIGINT", "tenant": "VARCHAR", "at": declared}
    types = {**columns, "at": declared.replace("_US", "").replace("TIME_MS", "TIME").replace("TIME_NS", "TIME")}
    if declared.startswith("TIMESTAMP"):
        types["at"] = declared.replace("_US", "")
    found = Read(envelope("c", None, {"id": 1, "tenant": "acme", "at": number}), columns=columns, types=types)
    assert found.arrived("at") == expected


@pytest.mark.parametrize(
    ("declared", "value", "why"),
    [
        ("TIMESTAMP", NANOS // 10**6, "TIMESTAMP_MS, TIMESTAMP_US or TIMESTAMP_NS"),
        ("TIMESTAMP", 0, "unit"),
        ("TIMESTAMP[]", [1], "unit"),
        ("TIME", 3_600_000, "TIME_MS, TIME_US or TIME_NS"),
        ("TIMESTAMP", "2026-01-01T00:00:00+02:00", "time zone"),
        ("TIMESTAMP_S", "2026-01-01T00:00:00.5", "more precise"),
        ("TIMESTAMP WITH TIME ZONE", 1, "not a str"),
        ("DECIMAL(10,2)", base64.b64encode(b"\x0f\x00\xff").decode(), "decimal.handling.mode=string"),
    ],
)
def test_u1_a_number_without_a_unit_is_malformed(declared: str, value: Any, why: str) -> None:
    columns = {"id": "BIGINT", "tenant": "VARCHAR", "at": declared}
    found = Read(envelope("c", None, {"id": 1, "tenant": "acme", "at": value}), columns=columns)
    assert why in found.reasons[1]


TIMES = {
    "io.debezium.time.Timestamp": ("TIMESTAMP", NANOS // 10**6, MILLIS),
    "io.debezium.time.MicroTimestamp": ("TIMESTAMP", NANOS // 1000, MOMENT),
    "io.debezium.time.NanoTimestamp": ("TIMESTAMP_NS", NANOS, MOMENT),
    "org.apache.kafka.connect.data.Timestamp": ("TIMESTAMP", NANOS // 10**6, MILLIS),
    "io.debezium.time.Date": ("DATE", 1, dt.date(1970, 1, 2)),
    "org.apache.kafka.connect.data.Date": ("DATE", 1, dt.date(1970, 1, 2)),
    "io.debezium.time.Time": ("TIME", 3_600_000, dt.time(1)),
    "io.debezium.time.MicroTime": ("TIME", 3_600_000_000, dt.time(1)),
    "org.apache.kafka.connect.data.Time": ("TIME", 3_600_000, dt.time(1)),
    "io.debezium.time.ZonedTimestamp": (
        "TIMESTAMP WITH TIME ZONE",
        "2026-01-01T02:00:00.123456+02:00",
        MOMENT.replace(tzinfo=dt.UTC),
    ),
}


def stated(field: dict[str, Any], value: Any) -> dict[str, Any]:
    fields = [{"field": "id", "type": "int64"}, {"field": "tenant", "type": "string"}, {"field": "at", **field}]
    after = {"id": 1, "tenant": "acme", "at": value}
    return {"schema": {"fields": [{"field": "after", "fields": fields}]}, "payload": envelope("c", None, after)}


@pytest.mark.parametrize("name", TIMES)
def test_u1_a_schema_gives_the_unit_of_arrays_and_with_declared_columns_as_well(name: str) -> None:
    kind, value, expected = TIMES[name]
    plain = {"type": "string" if isinstance(value, str) else "int64", "name": name}
    columns = {"id": "BIGINT", "tenant": "VARCHAR", "at": kind}
    lists = {**columns, "at": f"{kind}[]"}
    for declared in (True, False):
        assert Read(stated(plain, value), columns=columns, declared=declared).arrived("at") == expected
        of_array = stated({"type": "array", "items": plain}, [value, None])
        assert Read(of_array, columns=lists, declared=declared).arrived("at") == [expected, None]


def test_u2_what_a_declared_column_would_cut_or_misread_is_malformed() -> None:
    nanos = stated({"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, NANOS + 1)
    days = stated({"type": "int64", "name": "io.debezium.time.Timestamp"}, 1)
    for event, declared in ((nanos, "TIMESTAMP"), (nanos, "TIMESTAMP_MS"), (days, "DATE"), (days, "TIME")):
        assert 1 in Read(event, columns={"id": "BIGINT", "tenant": "VARCHAR", "at": declared}).reasons


def test_a_decimal_has_the_scale_of_its_schema_whatever_is_declared() -> None:
    name = "org.apache.kafka.connect.data.Decimal"
    plain = {"type": "bytes", "name": name, "parameters": {"scale": "4", "connect.decimal.precision": "12"}}
    unscaled = base64.b64encode((12_500).to_bytes(2, "big")).decode()
    columns = {"id": "BIGINT", "tenant": "VARCHAR", "at": "DECIMAL(10,2)"}
    assert Read(stated(plain, unscaled), columns=columns).arrived("at") == Decimal("1.25")
    of_array = stated({"type": "array", "items": plain}, [unscaled])
    assert Read(of_array, columns={**columns, "at": "DECIMAL(10,2)[]"}).arrived("at") == [Decimal("1.25")]


# ---------------------------------------------------------------------------------------------------- placeholders

PLACEHOLDERS = {
    "VARCHAR": UNAVAILABLE,
    "JSON": UNAVAILABLE,
    "BLOB": base64.b64encode(UNAVAILABLE.encode()).decode(),
    "VARCHAR[]": [UNAVAILABLE],
    "INTEGER[]": list(UNAVAILABLE.encode()),
    "BIGINT[]": list(UNAVAILABLE.encode()),
}


@pytest.mark.parametrize("kind", PLACEHOLDERS)
def test_b5_a_placeholder_is_never_delivered_as_data(kind: str) -> None:
    columns = {"id": "BIGINT", "tenant": "VARCHAR", "big": kind}
    after = {"id": 1, "tenant": "acme", "big": PLACEHOLDERS[kind]}
    untold = [None, {"id": 1, "tenant": "acme", "big": None}, {"id": 1, "tenant": "acme", "big": PLACEHOLDERS[kind]}]
    found = Read(*(envelope("u", before, after) for before in untold), columns=columns)
    assert found.rows == []
    assert all("'big' has a placeholder" in found.reasons[glsn] for glsn in (1, 2, 3))


def test_b5_a_value_that_was_left_alone_is_taken_from_before() -> None:
    found = Read(envelope("u", row(note="long"), row(note=UNAVAILABLE)))
    assert found.arrived("note") == "long"


def test_b5_a_removal_needs_its_key_and_routing_value_alone() -> None:
    found = Read(envelope("d", row(note=UNAVAILABLE)), envelope("d", row(1, UNAVAILABLE)))
    assert found.kinds == ["delete"]
    assert "'tenant'" in found.reasons[2]


# ----------------------------------------------------------------------------------------------- schemas and the rest


@pytest.mark.parametrize("name", ["", "a\0b", "_trunkline_route", "_TRUNKLINE_VERSION"])
def test_g5_a_column_that_no_table_can_have_makes_an_event_malformed(name: str) -> None:
    made = stated({"type": "int64"}, 1)
    made["schema"]["fields"][0]["fields"][2]["field"] = name
    found = Read(made, declared=False)
    assert "schema is not one of Debezium's" in found.reasons[1]
