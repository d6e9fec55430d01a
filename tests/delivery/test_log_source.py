"""A log of Debezium's events as a source: the rule for ordered changes, malformed events, and dead letters."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import trunkline.sync
from delivery.direct_delivery import Direct
from delivery.task_pipelines import opened_rows, task_pipeline_of
from local_cluster import RunningCluster, local_cluster
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import ChangeKind
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import DeltaAddress, LogAddress
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, RouteFilter
from trunkline.delivery.sources.dead_letters import GLSN_HEADER, REASON_HEADER, DeadLetter, write_dead_letters
from trunkline.delivery.sources.debezium import changes_of, event_schema
from trunkline.delivery.sources.debezium_values import DECIMAL_NAME, EventSchema, ValueEncoding, converter
from trunkline.delivery.sources.log import LogSource
from trunkline.errors import DestinationHalted, NoSuchLog, ProtocolError, Unreachable

COLUMNS = {"id": "BIGINT", "tenant": "VARCHAR", "amount": "DECIMAL(10,2)", "at": "TIMESTAMP_US"}
AT = 1_767_225_600_000_000  # 2026-01-01 in microseconds


def row(number: int, tenant: str = "acme", amount: str = "1.50") -> dict[str, Any]:
    return {"id": number, "tenant": tenant, "amount": amount, "at": AT}


def event(op: str, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> bytes:
    return json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": 1}, "ts_ms": 1}).encode()


class Events:
    """A log of events, as a source without a schema of its own."""

    def __init__(self, connect: str, name: str, folder: Path, **changed: Any) -> None:
        self.address = LogAddress(name, connect, **{"format": "debezium", "columns": COLUMNS, **changed})
        self.source = LogSource(self.address)
        self._folder = folder
        self._cluster = trunkline.sync.connect(connect)
        self._cluster.open()
        self._log = self._cluster.log(name, create=True)
        self.targets = tuple(
            TaskDestination(each, DeltaAddress(str(folder / each)), (each,), "mirror", "halt", replace_existing=False)
            for each in ("acme", "bolt")
        )
        self.direct = Direct(self.source, *self.targets)

    def close(self) -> None:
        self._cluster.close()

    def add(self, *events: bytes) -> int:
        return self._log.append(list(events)) + len(events) - 1

    def held(self, name: str) -> list[dict[str, Any]]:
        address = next(target.address for target in self.targets if target.name == name)
        with opened_rows(address) as (_, batches):
            return [row for batch in batches for row in batch.to_pylist()]

    def ids(self, name: str) -> list[int]:
        return sorted(row["id"] for row in self.held(name))

    def letters(self, name: str) -> list[tuple[int, str, bytes]]:
        entries = self._cluster.log(name).subscribe(to_tail=True)
        return [
            (int(each.headers[GLSN_HEADER]), each.headers[REASON_HEADER].decode(), each.payload) for each in entries
        ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def events(cluster: RunningCluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Events]:
    changed = getattr(request, "param", {})
    made = Events(cluster.connect, f"log-{abs(hash(request.node.name)) % 10**9}", tmp_path, **changed)
    yield made
    made.close()


def test_events_are_delivered_by_key_with_moves_repeats_and_truncation(events: Events) -> None:
    events.add(*(event("r", None, row(number)) for number in range(1, 6)))
    events.direct.seed()
    assert events.ids("acme") == [1, 2, 3, 4, 5]
    events.add(
        event("c", None, row(6)),
        event("c", None, row(6)),  # a repeat
        event("u", row(1), row(1, "bolt")),
        event("u", row(2), row(20)),
        event("u", None, row(3, amount="9.75")),  # without REPLICA IDENTITY FULL
        event("d", row(4), None),
        b"",  # a tombstone
        json.dumps({"ts_ms": 5}).encode(),  # a heartbeat
    )
    events.direct.flush()
    assert (events.ids("acme"), events.ids("bolt")) == ([3, 5, 6, 20], [1])
    assert {row["amount"] for row in events.held("acme") if row["id"] == 3} == {Decimal("9.75")}
    events.add(event("t"), event("c", None, row(7)))
    events.direct.flush()  # replaces all rows
    assert (events.ids("acme"), events.ids("bolt")) == ([7], [])


@pytest.mark.parametrize("events", [{"columns": {}}], indirect=True)
def test_events_that_say_no_columns_halt_with_a_position_and_why(events: Events) -> None:
    flat = {"schema": {"fields": [{"field": "id", "type": "int64"}]}, "payload": {"id": 1, "tenant": "acme"}}
    heartbeat = json.dumps({"ts_ms": 5}).encode()
    events.add(heartbeat)
    with pytest.raises(Unreachable, match="no changes with columns"):
        events.source.columns(1)
    at = events.add(json.dumps(flat).encode())
    events.add(*[heartbeat] * 1500)
    with pytest.raises(DestinationHalted, match=f"entry {at} of the log .*ExtractNewRecordState"):
        events.source.columns(at + 1500)


def test_a_history_begins_with_the_first_event(events: Events) -> None:
    events.add(b"", *(event("r", None, row(number)) for number in range(1, 4)))
    state = events.direct.work.source.state(0)
    assert (state.first, state.version) == (state.version - 2, state.version)


def test_a_malformed_event_halts_with_its_position(events: Events) -> None:
    events.add(event("c", None, row(1)))
    at = events.add(b"{no json")
    asked = ReadRequest(events.source.columns(at), ("id",), "tenant")
    with pytest.raises(DestinationHalted, match=f"entry {at} of the log .* is malformed: not JSON"):
        events.source.net_changes(Window(0, at), asked, ALL_ROUTES)


def test_a_malformed_event_halts_discovery_and_counting_with_its_position(events: Events, spark: SparkSession) -> None:
    at = events.add(event("c", None, row(1)), b"{no json")
    runner = JobRunner(spark, task_pipeline_of(events.source, ()), 0)
    try:
        with pytest.raises(DestinationHalted, match=f"entry {at} of the log .* is malformed: not JSON"):
            runner.count_unrouted(Window(0, at))
    finally:
        runner.close()


@pytest.mark.parametrize("events", [{"malformed": "skip", "dead_letters": "dead"}], indirect=True)
def test_skipped_events_are_kept_once_each_with_reason_and_position(events: Events) -> None:
    wrong = [
        b"[1]",
        event("x", None, row(1)),
        event("c", None, {**row(2), "amount": "much!"}),
        event("c", None, {**row(3), "amount": "123456789012.00"}),
        event("d", {"id": 1}, None),
        event("c", None, {**row(4), "surprise": 1}),
        json.dumps(row(5)).encode(),  # without its envelope
        event("d", {"id": 8, "tenant": None, "amount": None, "at": None}),  # without REPLICA IDENTITY FULL
        event("d", {"id": 8, "tenant": "", "amount": "", "at": 0}),
        event("u", None, {**row(8), "tenant": "__debezium_unavailable_value"}),
    ]
    at = events.add(event("c", None, row(8)), *wrong, event("c", None, row(9)))
    events.direct.seed()
    assert events.ids("acme") == [8, 9]
    asked = ReadRequest(events.source.columns(at), ("id",), "tenant")
    for _ in range(2):  # a second read of the window adds none
        events.source.net_changes(Window(0, at), asked, RouteFilter(("acme",), ("acme", "bolt")))
    found = events.letters("dead")
    assert [payload for _, _, payload in found] == wrong
    assert [glsn for glsn, _, _ in found] == list(range(at - len(wrong), at))
    assert all(reason for _, reason, _ in found)


@pytest.mark.parametrize("events", [{"malformed": "skip", "dead_letters": "any-order"}], indirect=True)
def test_l1_letters_of_an_older_window_that_is_written_later_are_kept(events: Events) -> None:
    """As when the task that read it died, and destinations of other tasks went on."""
    first = events.add(b"[1]")
    second = events.add(event("c", None, row(1)), b"[2]")
    asked = ReadRequest(events.source.columns(second), ("id",), "tenant")
    one = RouteFilter(("acme",))  # any task, not only the one that also reads unrouted rows
    events.source.net_changes(Window(first, second), asked, one)
    events.source.net_changes(Window(0, first), asked, one)
    events.source.net_changes(Window(0, second), asked, one)
    assert [(glsn, payload) for glsn, _, payload in events.letters("any-order")] == [(second, b"[2]"), (first, b"[1]")]


@pytest.mark.parametrize("events", [{"malformed": "skip", "dead_letters": "looks"}], indirect=True)
def test_a_read_without_delivery_writes_no_dead_letters(events: Events) -> None:
    at = events.add(event("c", None, row(1)), b"[1]")
    asked = ReadRequest(events.source.columns(at), ("id",), "tenant")
    found = [row["id"] for batch in events.source.scan(at, asked, RouteFilter(("acme",))) for row in batch.to_pylist()]
    assert found == [1]
    with pytest.raises(NoSuchLog):
        events.letters("looks")


@pytest.mark.parametrize("events", [{"malformed": "skip", "dead_letters": "many"}], indirect=True)
def test_l1_l2_many_letters_of_several_writers_at_once_are_there_once(events: Events) -> None:
    letters = [DeadLetter(glsn, "wrong", b"x" * 20_000) for glsn in range(1, 2501)]
    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(lambda _: write_dead_letters(events.address, letters), range(4)))
    assert sum(written) == len(letters)
    assert [glsn for glsn, _, _ in events.letters("many")] == [letter.glsn for letter in letters]


def test_the_schema_of_an_envelope_gives_the_columns() -> None:
    fields = [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "tenant", "type": "string", "optional": True},
        {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "optional": True,
         "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": True},
        {"field": "ms", "type": "int64", "name": "io.debezium.time.Timestamp", "optional": True},
        {"field": "zoned", "type": "string", "name": "io.debezium.time.ZonedTimestamp", "optional": True},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date", "optional": True},
        {"field": "doc", "type": "string", "name": "io.debezium.data.Json", "optional": True},
        {"field": "tags", "type": "array", "items": {"type": "string", "optional": True}, "optional": True},
        {"field": "raw", "type": "bytes", "optional": True},
    ]  # fmt: skip
    unscaled = base64.b64encode((-1234).to_bytes(2, "big", signed=True)).decode()
    after = {
        "id": 7, "tenant": "acme", "price": unscaled, "at": AT, "ms": AT // 1000, "zoned": "2026-01-01T02:00:00+02:00",
        "day": 1, "doc": '{"a": 1}', "tags": ["x", None], "raw": base64.b64encode(b"\xff").decode(),
    }  # fmt: skip
    made = {
        "schema": {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]},
        "payload": {"op": "c", "before": None, "after": after},
    }
    shape = event_schema(made)
    assert shape is not None
    assert shape.columns[:4] == (
        Column("id", "BIGINT", False), Column("tenant", "VARCHAR"), Column("price", "DECIMAL(10,2)"),
        Column("at", "TIMESTAMP"),
    )  # fmt: skip
    (_, _), (kind, found) = changes_of(made, shape, ReadRequest(shape.columns, ("id",), "tenant"))
    assert kind is ChangeKind.UPDATE_POSTIMAGE
    midnight = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert found == {
        "id": 7, "tenant": "acme", "price": Decimal("-12.34"), "at": midnight.replace(tzinfo=None),
        "ms": midnight.replace(tzinfo=None), "zoned": midnight, "day": dt.date(1970, 1, 2),
        "doc": '{"a": 1}', "tags": ["x", None], "raw": b"\xff",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"op": "c", "after": None}, "has no after"),
        ({"op": "d", "before": None}, "REPLICA IDENTITY FULL"),
        ({"op": "?", "after": {}}, "op is"),
        ("text", "not an envelope"),
        ({"op": "c", "after": {"id": "seven", "tenant": 1}}, "cannot be 'seven'"),
        ({"op": "c", "after": {"id": True, "tenant": 1}}, "cannot be True"),
    ],
)
def test_the_reason_names_what_is_wrong_with_an_event(made: Any, why: str) -> None:
    columns = (Column("id", "BIGINT"), Column("tenant", "BIGINT"))
    with pytest.raises(ProtocolError, match=why):
        changes_of(made, EventSchema(columns), ReadRequest(columns, ("id",), "tenant"))


@pytest.mark.parametrize("fields", [None, ["x"], [{"field": "after", "fields": [{"field": "a", "type": {}}]}]])
def test_an_invalid_schema_makes_an_event_malformed(fields: Any) -> None:
    with pytest.raises(ProtocolError):
        event_schema({"schema": {"fields": fields}, "payload": {"op": "c"}})


def test_a_decimal_is_read_by_its_schema() -> None:
    """Some base 64 looks like a number."""
    kind, form = "DECIMAL(12,2)", ValueEncoding(DECIMAL_NAME, 2)
    assert converter(kind, form)("1234") == Decimal(int.from_bytes(base64.b64decode("1234"), "big", signed=True)) / 100
    assert converter(kind, ValueEncoding())("12.34") == Decimal("12.34")
    with pytest.raises(ValueError, match="not a time of day"):
        converter("TIME", ValueEncoding("io.debezium.time.MicroTime"))(25 * 3_600_000_000)


def test_values_that_do_not_fit_are_refused_and_texts_are_taken() -> None:
    assert converter("DATE", ValueEncoding())("2026-01-02") == dt.date(2026, 1, 2)
    assert converter("TIME", ValueEncoding("io.debezium.time.MicroTime"))(1_000_000) == dt.time(0, 0, 1)
    assert converter("JSON", ValueEncoding())({"a": 1}) == '{"a":1}'
    assert converter("DOUBLE[]", ValueEncoding())([1, None]) == [1.0, None]
    for kind, wrong in (("BOOLEAN", 1), ("VARCHAR", 1), ("TIMESTAMP WITH TIME ZONE", "2026-01-01T00:00:00")):
        with pytest.raises((TypeError, ValueError)):
            converter(kind, ValueEncoding())(wrong)
