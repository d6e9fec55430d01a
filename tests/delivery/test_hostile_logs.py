"""Logs of a broken or lying producer, as sources: reported with their position, or dead letters, never a crash."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trunkline.sync
from delivery.payload_samples import KEY, rows_of
from delivery.test_log_source import COLUMNS, Events, event, row
from local_cluster import RunningCluster, local_cluster
from lying_writer import POISONED, append_body, append_corrupt_batch, append_poison, writing
from trunkline.client.bodies import encode
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.client.log import Log
from trunkline.delivery.capture.one_table.capture_log import CaptureLog
from trunkline.delivery.changes.captured import EntryPlace, change_rows, encoded, truncation
from trunkline.delivery.changes.rows import ChangeKind
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.dead_letters import GLSN_HEADER, LOG_HEADER, DeadLetter, write_dead_letters
from trunkline.delivery.sources.debezium_batches import EventBatches
from trunkline.delivery.sources.debezium_values import declared_columns
from trunkline.delivery.sources.log import LogSource
from trunkline.errors import CorruptEntry, DestinationHalted

NUMBERS = itertools.count(1)
CHANGES = encoded(KEY, change_rows(ChangeKind.INSERT, rows_of(KEY)))
DECIMAL = {"field": "id", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("hostile") / "cluster") as running:
        yield running


@pytest.fixture
def name() -> str:
    return f"log-{next(NUMBERS)}"


# -------------------------------------------------------------------------------------------------- captured changes


def captured(connect: str, name: str, *entries: tuple[bytes, bytes]) -> LogSource:
    """A log of these payloads and encoded headers."""

    async def append(log: Log) -> None:
        await append_body(log, encode([each[0] for each in entries], [each[1] for each in entries], 1, 2), len(entries))

    writing(connect, name, append)
    return LogSource(LogAddress(name, connect))


def placed(index: int = 0, *, last: bool = True) -> bytes:
    return encode_headers(EntryPlace(index, last, "p").headers())


@pytest.mark.parametrize(
    ("payload", "headers"),
    [
        (CHANGES[:-8], placed()),
        (CHANGES[:-20] + b"\xff" * 12 + CHANGES[-8:], placed()),
        (b"text", placed()),
        (CHANGES, b"\xc1"),
        (CHANGES, encode_headers({"trunkline-index": b"-1"})),
    ],
    ids=["cut short", "no metadata", "no changes", "no headers", "before its beginning"],
)
def test_g5_a_corrupt_entry_halts_with_its_log_and_position(
    cluster: RunningCluster, name: str, payload: bytes, headers: bytes
) -> None:
    source = captured(cluster.connect, name, (CHANGES, placed()), (payload, headers), (CHANGES, placed()))
    asked = ReadRequest(KEY, ("id",), "tenant")
    assert source.state(0).version == 3
    with pytest.raises(DestinationHalted, match=f"the log {name} is corrupt: entry 2"):
        source.net_changes(Window(0, 3), asked, ALL_ROUTES)
    with pytest.raises(DestinationHalted, match="entry 2"):
        list(source.scan(3, asked, ALL_ROUTES))
    assert source.net_changes(Window(2, 3), asked, ALL_ROUTES).arrived.num_rows == 5
    assert source.net_changes(Window(0, 1), asked, ALL_ROUTES).arrived.num_rows == 5


LAST = b"1"


@pytest.mark.parametrize(
    "headers",
    [
        {"trunkline-index": b"9" * 17},
        {"trunkline-index": b"1"},
        {"trunkline-index": b"2"},
        {"trunkline-index": b"3", "trunkline-last": LAST},
        {"trunkline-index": b"-1"},
        {"trunkline-index": b"-1", "trunkline-last": LAST},
        {"trunkline-index": b""},
        {"trunkline-index": b"0", "trunkline-last": LAST, "trunkline-position": b"\xff"},
        {"trunkline-last": LAST, "trunkline-index": b"1"},
        {"trunkline-index": "0"},
        {"trunkline-index": 0},
        [],
        "text",
    ],
    ids=repr,
)
def test_x2_headers_that_lie_at_the_end_of_a_log_hide_nothing_and_halt_with_their_position(
    cluster: RunningCluster, name: str, headers: Any
) -> None:
    """What came before them is delivered, or halts with them: it does not wait for ever without a word."""
    lying = msgspec.msgpack.encode(headers)
    source = captured(cluster.connect, name, (CHANGES, placed()), (CHANGES, placed()), (CHANGES, lying))
    asked = ReadRequest(KEY, ("id",), "tenant")
    version = source.state(0).version
    if headers == {"trunkline-index": "0"}:  # a text, which earlier versions took: a transaction that goes on
        assert version == 2
        return
    assert version == 3
    with pytest.raises(DestinationHalted, match=f"the log {name} is corrupt: entry 3 "):
        source.net_changes(Window(0, version), asked, ALL_ROUTES)


def test_x2_a_transaction_with_a_missing_or_foreign_entry_halts_with_its_position(
    cluster: RunningCluster, name: str
) -> None:
    asked = ReadRequest(KEY, ("id",), "tenant")
    begun = (CHANGES, placed(0, last=False))
    ends = (CHANGES, placed(2))
    for number, between in enumerate(((), ((CHANGES, placed()),), ((CHANGES, encode_headers({})),))):
        source = captured(cluster.connect, f"{name}-{number}", begun, *between, ends)
        at = 2 + len(between)
        with pytest.raises(DestinationHalted, match=f"entry {at} is number 2"):
            source.net_changes(Window(0, at), asked, ALL_ROUTES)


def test_x3_an_open_transaction_is_not_a_version_and_an_interrupted_one_is_ignored(
    cluster: RunningCluster, name: str
) -> None:
    open_ones = [(CHANGES, placed(index, last=False)) for index in range(5)]
    source = captured(cluster.connect, f"{name}-open", (CHANGES, placed()), *open_ones)
    assert source.state(0).version == 1
    source = captured(cluster.connect, f"{name}-broken", *open_ones, (b"", placed()), (CHANGES, placed()))
    assert source.state(0).version == 7
    asked = ReadRequest(KEY, ("id",), "tenant")
    assert source.net_changes(Window(0, 7), asked, ALL_ROUTES).arrived.num_rows == 5


def test_g5_a_truncation_makes_up_for_what_is_corrupt_before_it(cluster: RunningCluster, name: str) -> None:
    """As the message advises: capture a new snapshot into the log, then reseed."""
    bad: list[tuple[bytes, bytes]] = [(b"text", placed()), (CHANGES, b"\xc1"), (CHANGES, placed(7))]
    source = captured(cluster.connect, name, (CHANGES, placed()), *bad)
    writing(cluster.connect, name, append_corrupt_batch, create=False)
    snapshot = [(encoded(KEY, truncation(KEY)), placed(0, last=False)), (CHANGES, placed(1))]
    captured(cluster.connect, name, *snapshot)
    asked = ReadRequest(KEY, ("id",), "tenant")
    version = source.state(0).version
    assert version == 9
    net = source.net_changes(Window(0, version), asked, ALL_ROUTES)
    assert (net.arrived.num_rows, net.emptied) == (5, False)
    assert sum(batch.num_rows for batch in source.scan(version, asked, ALL_ROUTES)) == 5
    with pytest.raises(DestinationHalted, match="entry 2"):
        source.net_changes(Window(0, 7), asked, ALL_ROUTES)


def test_g5_a_corrupt_batch_halts_with_its_log_and_positions(cluster: RunningCluster, name: str) -> None:
    source = captured(cluster.connect, name, (CHANGES, placed()))
    writing(cluster.connect, name, append_corrupt_batch, create=False)
    with pytest.raises(DestinationHalted, match=f"positions 2 to 4 of {name} hold a corrupt batch"):
        source.net_changes(Window(0, 4), ReadRequest(KEY, ("id",), "tenant"), ALL_ROUTES)


def test_w2_a_capture_does_not_guess_how_far_it_came(cluster: RunningCluster, name: str) -> None:
    with trunkline.sync.connect(cluster.connect) as handle:
        CaptureLog(handle, name).take_over()

    async def poison(opened: Log) -> None:
        await opened.append(b"", takeover=True)
        await append_body(opened, encode([b"x"], [b"\xc1"], 1, 2), 1)

    writing(cluster.connect, name, poison, create=False)
    with (
        trunkline.sync.connect(cluster.connect) as handle,
        pytest.raises(CorruptEntry, match="entry 3 has headers that no capture writes"),
    ):
        CaptureLog(handle, name).take_over()


# ------------------------------------------------------------------------------------------------- Debezium's events


def with_schema(*fields: Any) -> bytes:
    schema = {"fields": [{"field": "after", "fields": list(fields)}]}
    return json.dumps({"schema": schema, "payload": {"op": "c", "after": {"id": 1, "tenant": "acme"}}}).encode()


def stated_row(number: int) -> bytes:
    return with_schema({"field": "id", "type": "int64"}, TENANT).replace(b'"id": 1', b'"id": %d' % number)


def nested(depth: int) -> Any:
    kind: Any = {"type": "int32"}
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return {"field": "id", **kind}


TENANT = {"field": "tenant", "type": "string"}
SCHEMAS: dict[str, bytes] = {
    "no scale": with_schema({**DECIMAL, "parameters": {}}, TENANT),
    "a scale that is not a number": with_schema({**DECIMAL, "parameters": {"scale": "x"}}, TENANT),
    "more digits behind the point than there are": with_schema({**DECIMAL, "parameters": {"scale": "99"}}, TENANT),
    "no digits": with_schema({**DECIMAL, "parameters": {"scale": "0", "connect.decimal.precision": "0"}}, TENANT),
    "digits without end": with_schema({**DECIMAL, "parameters": {"scale": "9" * 5000}}, TENANT),
    "lists without end": with_schema(nested(150), TENANT),
    "lists of lists": with_schema(nested(17), TENANT),
    "a column twice": with_schema(TENANT, TENANT),
    "a name that is none": with_schema({"field": "id", "type": "int64", "name": {"a": 1}}, TENANT),
    "a type that is none": with_schema({"field": "id", "type": ["int64"]}, TENANT),
    "fields that are none": with_schema("id", 5, None),
    "other types than those that are asked for": with_schema(
        {"field": "id", "type": "array", "items": {"type": "int32"}}, {"field": "tenant", "type": "array", "items": {}}
    ),
}
EVENTS: dict[str, bytes] = {
    "no UTF-8": b'{"op": "\xff"}',
    "a name of no UTF-8": b'{"\xff": 1}',
    "nested too deeply": b"[" * 1_000_000,
    "objects nested too deeply": b'{"a":' * 100_000,
    "a value nested too deeply": event("c", None, row(1)).replace(b'"1.50"', b"[" * 400 + b"]" * 400),
    "digits without end": event("c", None, row(1)).replace(b'"1.50"', b"9" * 100_000),
    "a number that is too large": event("c", None, {**row(1), "id": 2**64}),
    "a number beyond all": event("c", None, row(1)).replace(b'"1.50"', b"1e999"),
    "half a surrogate pair": b'{"op": "c", "after": {"tenant": "\\ud800"}}',
    "half a surrogate pair as a name": b'{"op": "c", "after": {"\\ud800": 1}}',
    "an amount beyond all": event("c", None, row(1, amount="1e999999999")),
    "an amount with digits without end": event("c", None, row(1, amount="9" * 100_000)),
    "an amount that is not a number": event("c", None, row(1, amount="NaN")),
    "an amount that signals": event("c", None, row(1, amount="sNaN")),
    "an amount without end": event("c", None, row(1, amount="Infinity")),
    "an amount in base 64 without end": event("c", None, row(1, amount="Qf/A" * 2_000_000)),
    "a time beyond the calendar": event("c", None, {**row(1), "at": 2**62}),
    "a time before the calendar": event("c", None, {**row(1), "at": -(2**62)}),
    "a long operation": event("x" * 1_000_000),
    "a long name of a column": event("c", None, {"x" * 1_000_000: 1}),
    "no object": b"5",
    "a list": b"[]",
    "rows that are none": event("u").replace(b"null", b"5"),
}


@pytest.mark.parametrize("content", [*EVENTS.values(), *SCHEMAS.values()], ids=[*EVENTS.keys(), *SCHEMAS.keys()])
@pytest.mark.parametrize("declared", [True, False], ids=["columns declared", "columns of the event"])
def test_g5_a_hostile_event_is_malformed_and_those_around_it_are_not(content: bytes, declared: bool) -> None:
    asked = ReadRequest(declared_columns(COLUMNS), ("id",), "tenant")
    address = LogAddress("events", "nowhere:1", format="debezium", columns=COLUMNS if declared else {})
    batches = EventBatches(address, asked)
    around = [event("c", None, row(number)) if declared else stated_row(number) for number in (1, 2)]
    for glsn, each in enumerate((around[0], content, around[1]), start=1):
        batches.add(Entry(glsn, each))
    tables, letters = batches.finished()
    found = {number for table in tables for number in table.column("id").to_pylist()}
    assert {1, 2} <= found
    if content in EVENTS.values():
        assert [letter.glsn for letter in letters] == [2]
    assert all(len(letter.reason) < 1000 for letter in letters)


def test_g5_hostile_events_are_put_aside_whatever_headers_their_producer_gave_them(
    cluster: RunningCluster, name: str, tmp_path: Path
) -> None:
    letters = f"{name}-letters"
    events = Events(cluster.connect, name, tmp_path, malformed="skip", dead_letters=letters)
    events.add(event("c", None, row(1)))
    hostile = [content for content in EVENTS.values() if len(content) < 200_000]
    first = events.add(*hostile) - len(hostile) + 1
    poison = len(POISONED)
    writing(cluster.connect, name, append_poison, create=False)  # texts, which are not events
    events.add(event("c", None, row(2)))
    events.direct.seed()
    assert events.ids("acme") == [1, 2]
    put_aside = [glsn for glsn, _, _ in events.letters(letters)]
    assert put_aside == list(range(first, first + len(hostile) + poison))
    events.close()


def test_l1_letters_of_another_writer_do_not_stop_dead_letters(cluster: RunningCluster, name: str) -> None:
    letters = f"{name}-letters"

    async def foreign(log: Log) -> None:
        for glsn in (b"x", b"", b"9" * 5000, b"-1"):
            await log.append(b"foreign", headers={LOG_HEADER: name.encode(), GLSN_HEADER: glsn})
        await append_poison(log)
        await append_corrupt_batch(log)

    writing(cluster.connect, letters, foreign)
    address = LogAddress(name, cluster.connect, malformed="skip", dead_letters=letters)
    letter = DeadLetter(7, "half a pair: \ud800", b"payload")
    assert [write_dead_letters(address, [letter]), write_dead_letters(address, [letter])] == [1, 0]
