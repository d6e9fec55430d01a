"""Windows and states of the log of one table in ranges and parts come to the same as in one piece."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from delivery.memory_log import MemoryLog
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.delivery.changes.arrow_blobs import batch_of, blobs_of
from trunkline.delivery.changes.captured import TAKE_OVER_MARK, EntryPlace, change_rows, encoded, truncation
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import ChangeKind, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources import log as log_source
from trunkline.delivery.sources import log_split
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.log import LogSource
from trunkline.delivery.sources.log_split import LogSplit
from trunkline.delivery.sources.shuffled_reads import AllFacts, Facts
from trunkline.errors import DestinationHalted

COLUMNS: Columns = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"), Column("note", "VARCHAR"))
NAMES = count(1)


class OneTableLog:
    """A log as a capture of one table writes it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.columns = COLUMNS
        self.ends: list[int] = []
        self.mark()

    def mark(self) -> None:
        self._append(TAKE_OVER_MARK, b"")

    def _append(self, place: EntryPlace, payload: bytes) -> None:
        glsn = len(self.entries) + 1
        self.entries.append(Entry(glsn, payload, encoded_headers=encode_headers(place.headers())))
        if place.last:
            self.ends.append(glsn)

    def transaction(self, *parts: pa.Table, whole: bool = True) -> None:
        for index, part in enumerate(parts):
            last = whole and index == len(parts) - 1
            self._append(EntryPlace(index, last, "x" if last else None), encoded(self.columns, part))

    def rows(self, kind: ChangeKind, *rows: tuple[Any, ...]) -> pa.Table:
        schema = arrow_schema(self.columns)
        arrays = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
        return change_rows(kind, pa.table(arrays, schema=schema))

    def truncation(self) -> pa.Table:
        return truncation(self.columns)


def source_of(log: OneTableLog) -> LogSource:
    name = f"one{next(NAMES)}"
    MemoryLog(name, log.entries)
    return LogSource(LogAddress(name, "nowhere:1"))


def shuffled(source: LogSource, split: LogSplit) -> NetChanges | None:
    """As Spark does it, without Spark."""
    noticed: AllFacts = {}
    parts: dict[int, list[pa.RecordBatch]] = {}
    for number in reversed(range(split.ranges)):
        for _, part, rows in split.split(number, noticed):
            parts.setdefault(part, []).extend(batch_of(blob, split.travel) for blob in blobs_of(rows))
    facts = noticed.get(split.number, Facts())
    following = source.checked(split, facts)
    if following != split:
        return None if following is None else shuffled(source, following)
    found = [split.settled(pa.Table.from_batches(batches, split.travel), facts) for batches in parts.values()]
    nothing = split.request.empty_rows()
    empty = NetChanges(nothing.select([nothing.column_names[0], *split.request.key]), nothing)
    sides = zip(*((each.removed, each.arrived) for each in [empty, *found]), strict=True)
    removed, arrived = (pa.concat_tables(side) for side in sides)
    return NetChanges(removed, arrived, facts.truncated)


def _rows(table: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("key", [("id",), ()])
def test_parts_of_any_log_come_to_what_one_piece_does(
    seed: int, key: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_split, "RANGE_ENTRIES", 1 + seed % 4)
    monkeypatch.setattr(log_split, "PIECE_BYTES", (1, 10**7)[seed % 2])
    monkeypatch.setattr(log_source, "PART_BYTES", 5000)
    log, chance = OneTableLog(), random.Random(seed)
    for _ in range(40):
        parts = []
        for _ in range(chance.randrange(1, 5)):
            kind = chance.choice([ChangeKind.INSERT, ChangeKind.UPDATE_POSTIMAGE, ChangeKind.DELETE])
            rows = [(chance.randrange(20), chance.choice("xy"), "note") for _ in range(chance.randrange(1, 4))]
            parts.append(log.rows(kind, *rows))
        if chance.random() < 0.1:
            parts.insert(0, log.truncation())
        if chance.random() < 0.2:  # a crash
            log.transaction(*parts, whole=False)
            if chance.random() < 0.5:
                log.mark()
        log.transaction(*parts)
    source = source_of(log)
    request = ReadRequest(COLUMNS, key, "tenant")
    for _ in range(8):
        after, through = sorted(chance.sample(log.ends, 2))
        if chance.random() < 0.3:
            after = BEFORE_ALL
        split = source.split(Window(after, through), request)
        assert split is not None
        found, net = shuffled(source, split), source.net_changes(Window(after, through), request, ALL_ROUTES)
        assert found is not None
        assert _rows(found.arrived) == _rows(net.arrived)
        if after != BEFORE_ALL:
            assert found.emptied == net.emptied
            assert _rows(found.removed) == _rows(net.removed)
    batches = list(source.scan(log.ends[-1], request, ALL_ROUTES))
    state = source._state_at(log.ends[-1], request)
    assert _rows(pa.Table.from_batches(batches, state.schema)) == _rows(state)


def test_what_does_not_fit_matters_only_after_the_last_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_split, "RANGE_ENTRIES", 2)
    log = OneTableLog()
    log.columns = (Column("id", "VARCHAR"), *COLUMNS[1:])
    log.transaction(log.rows(ChangeKind.INSERT, ("one", "x", "not a number")))
    log._append(EntryPlace(), b"corrupt")
    log.columns = COLUMNS
    source, request = source_of(log), ReadRequest(COLUMNS, ("id",), "tenant")
    log.transaction(log.rows(ChangeKind.INSERT, (1, "x", "a")))
    split = source.split(Window(BEFORE_ALL, len(log.entries)), request)
    assert split is not None
    assert shuffled(source, split) is None  # one piece says why
    log.transaction(log.truncation(), log.rows(ChangeKind.INSERT, (2, "y", "b")))
    split = source.split(Window(BEFORE_ALL, len(log.entries)), request)
    assert split is not None
    found = shuffled(source, replace(split, parts=3))
    assert found is not None
    assert _rows(found.arrived) == [("y", 2, "y", "b")]


def test_a_trimmed_log_without_a_truncation_has_no_state() -> None:
    log = OneTableLog()
    for number in range(6):
        log.transaction(
            log.rows(ChangeKind.INSERT, (number, "x", "a")), log.rows(ChangeKind.INSERT, (number, "y", "b"))
        )
    source, request = source_of(log), ReadRequest(COLUMNS, ("id",), "tenant")
    memory = MemoryLog(source.address.log, log.entries)
    memory.trimmed = 4  # in the middle of a transaction
    split = source.split(Window(BEFORE_ALL, len(log.entries)), request)
    assert split is not None
    with pytest.raises(DestinationHalted, match="was trimmed up to 4, so it no longer has all rows"):
        shuffled(source, split)
    log.transaction(log.truncation(), log.rows(ChangeKind.INSERT, (9, "x", "z")))
    split = source.split(Window(BEFORE_ALL, len(log.entries)), request)
    assert split is not None
    found = shuffled(source, split)
    assert found is not None
    assert _rows(found.arrived) == [("x", 9, "x", "z")]
