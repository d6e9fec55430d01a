"""The monitors of a capture accept what is allowed, and reject what is not at its last event."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from trunkline.check.monitors.capture import (
    LSN_STEP,
    Captured,
    CaptureScript,
    ChunkExact,
    ChunkServed,
    ConfirmedIsCaptured,
    EachTransactionOnce,
    EntryLogged,
    LogTakenOver,
    NotTakenBack,
    Reshape,
    SchemaFirst,
    SlotConfirmed,
    SlotMoved,
    SourceCommitted,
    SourceDiverged,
    Transaction,
    capture_monitors,
    piece_unit,
    shape_unit,
)
from trunkline.check.scenario import Monitor, ObservedEvent, ProcessEnded, Violation
from trunkline.core.capture_messages import (
    AppendEntry,
    CaptureHalted,
    ChunkBody,
    EntryKind,
    Origin,
    Shape,
    ShapeChange,
    TableCursor,
)
from trunkline.core.effects import Event

SCRIPT = CaptureScript(
    ((1, "a", 1), (1, "c", 1)),
    (
        Transaction(((1, "a", 2),)),
        Transaction(((1, "a", 3), (1, "b", 3)), parts=2),
        Transaction(),
        Transaction(((1, "a", 0),), shapes=(Reshape(1, ShapeChange.CHANGED),)),
    ),
    (1,),
)


def entry(kind: EntryKind, position: int, *ends: int, **more: Any) -> EntryLogged:
    unit = piece_unit(ends[0] // LSN_STEP, ends[-1] // LSN_STEP) if ends else more.pop("unit", 0)
    return EntryLogged(AppendEntry(1, 1, kind, position, Origin("one", 1), more.pop("epoch", 1), unit, **more))


def part(index: int, *, last: bool, position: int) -> EntryLogged:
    return entry(EntryKind.PART, position, 200, index=index, last=last)


def catalog(position: int = 0, *, epoch: int = 1, **cursor: Any) -> EntryLogged:
    return entry(EntryKind.CATALOG, position, epoch=epoch, tables=(TableCursor(1, **cursor),))


def chunk(number: int, position: int, after: str, *dropped: str, complete: bool = False) -> EntryLogged:
    cursor = TableCursor(1, after=after.encode(), complete=complete)
    return entry(EntryKind.CHUNK, position, unit=number, tables=(cursor,), chunk=ChunkBody(number, dropped))


def schema(change: ShapeChange, unit: int = 1, position: int = 0, **cursor: Any) -> EntryLogged:
    tables = () if change is ShapeChange.DROPPED else (TableCursor(1, **cursor),)
    return entry(EntryKind.SCHEMA, position, unit=unit, tables=tables, shape=Shape(1, unit, 1, change))


def rows_of(number: int, chunks: int, *, complete: bool) -> EntryLogged:
    """Of a table without a key."""
    cursor = TableCursor(1, keyed=False, chunks=chunks, complete=complete)
    return entry(EntryKind.CHUNK, 100, unit=number, tables=(cursor,), chunk=ChunkBody(1, ()))


GROUP = entry(EntryKind.GROUP, 100, 100)
PART, LAST = part(0, last=False, position=100), part(1, last=True, position=200)
MARK = entry(EntryKind.MARK, 300)
ONCE, EXACT, FIRST = EachTransactionOnce(SCRIPT), ChunkExact(SCRIPT), SchemaFirst(SCRIPT)
WHOLE = ChunkServed(1, SCRIPT.rows, 1)
GOAL = Captured(SCRIPT)
CREATED, DROPPED = schema(ShapeChange.CREATED), schema(ShapeChange.DROPPED)
CHANGED = schema(ShapeChange.CHANGED, shape_unit(4, 0), 300)
NOTHING = entry(EntryKind.CATALOG, 0)
A, C = ChunkServed(2, ((1, "a", 2),)), ChunkServed(3, ((1, "c", 1),))

ACCEPTED: dict[str, tuple[Monitor, tuple[Event, ...]]] = {
    "transactions follow each other": (ONCE, (catalog(), GROUP, PART, LAST, MARK, entry(EntryKind.GROUP, 400, 400))),
    "a log begins in the middle": (ONCE, (catalog(250), entry(EntryKind.GROUP, 400, 400))),
    "parts begin again after a take-over": (ONCE, (catalog(), GROUP, PART, LogTakenOver("a"), PART, LAST)),
    "an epoch leaves some out": (ONCE, (catalog(), catalog(300, epoch=2), entry(EntryKind.GROUP, 400, 400))),
    "a source diverges after the log": (ONCE, (catalog(), SourceDiverged(100), GROUP)),
    "the log is confirmed": (ConfirmedIsCaptured(), (catalog(), GROUP, SlotConfirmed(100))),
    "chunks and changes make the state": (
        EXACT,
        (
            *(catalog(), ChunkServed(1, ((1, "a", 1),)), chunk(1, 0, "a"), GROUP, PART, LAST),
            *(ChunkServed(2, ((1, "b", 3), (1, "c", 1))), chunk(2, 200, "c", "b", complete=True)),
        ),
    ),
    "a schema stands between parts": (ONCE, (catalog(), GROUP, PART, schema(ShapeChange.CHANGED, 1, 100), LAST)),
    "a generation begins with nothing": (EXACT, (catalog(), schema(ShapeChange.RECAPTURED, generation=2))),
    "a dropped table is not compared": (
        EXACT,
        (catalog(), ChunkServed(1, SCRIPT.rows), chunk(1, 0, "c"), schema(ShapeChange.DROPPED, 1, 300)),
    ),
    "rows without a key replace those before and follow each other": (
        EXACT,
        (catalog(keyed=False), GROUP, A, C, rows_of(2, 1, complete=False), rows_of(3, 2, complete=True)),
    ),
    "rows follow their schemas": (
        FIRST,
        (NOTHING, CREATED, GROUP, WHOLE, chunk(1, 100, "c"), CHANGED, entry(EntryKind.GROUP, 400, 400)),
    ),
    "a table that was dropped is in no catalog": (FIRST, (NOTHING, CREATED, catalog(), DROPPED, NOTHING)),
    "a captured log is taken over once": (NotTakenBack(), (LogTakenOver("a"), LogTakenOver("b"))),
    "a lost slot halts": (
        GOAL,
        (NOTHING, CREATED, chunk(1, 0, "", complete=True), SlotMoved(0, True), CaptureHalted("x")),
    ),
}
REJECTED: dict[str, tuple[Monitor, str, tuple[Event, ...]]] = {
    "a transaction is missing": (ONCE, "the next one is 100", (catalog(), PART)),
    "a transaction comes twice": (ONCE, "the next one is 200", (catalog(), GROUP, GROUP)),
    "an entry stands between parts": (ONCE, "between the parts", (catalog(), GROUP, PART, MARK)),
    "a part is missing": (ONCE, "part 1 of", (catalog(), GROUP, LAST)),
    "a part ends too early": (ONCE, "the last one", (catalog(), GROUP, part(0, last=True, position=200))),
    "a large transaction is in a group": (ONCE, "in a group", (catalog(), GROUP, entry(EntryKind.GROUP, 200, 200))),
    "a position is too high": (ONCE, "says 300", (catalog(), GROUP, MARK)),
    "a log begins without a catalog": (ONCE, "begins with", (GROUP,)),
    "a diverged source is captured": (ONCE, "does not have", (catalog(), GROUP, SourceDiverged(50), PART)),
    "the log lacks what is confirmed": (ConfirmedIsCaptured(), "log is at 100", (catalog(), GROUP, SlotConfirmed(101))),
    "parts do not count": (ConfirmedIsCaptured(), "log is at 100", (catalog(), GROUP, PART, SlotConfirmed(200))),
    "a chunk is stale": (EXACT, "in the log", (catalog(), GROUP, WHOLE, chunk(1, 100, "c"))),
    "a row is missing": (EXACT, "in the log", (catalog(), ChunkServed(1, ((1, "a", 1),)), chunk(1, 0, "c"))),
    "a cursor is ahead": (EXACT, "in the log", (catalog(), catalog(after=b"a"))),
    "rows come before their schema": (FIRST, "has None", (NOTHING, GROUP)),
    "rows come before their shape": (FIRST, "has 1", (NOTHING, CREATED, entry(EntryKind.GROUP, 400, 400))),
    "a chunk has an older shape": (FIRST, "the schema 1,", (NOTHING, CREATED, WHOLE, CHANGED, chunk(1, 300, "c"))),
    "a table is created twice": (FIRST, "is created", (NOTHING, CREATED, CREATED)),
    "a table changes that is not captured": (FIRST, "is changed", (NOTHING, CHANGED)),
    "a catalog has a table that was dropped": (FIRST, "a catalog has", (NOTHING, CREATED, DROPPED, catalog())),
    "a recapture keeps its cursor": (
        EXACT,
        "in the log",
        (catalog(), WHOLE, chunk(1, 0, "c"), schema(ShapeChange.RECAPTURED, generation=2, after=b"c")),
    ),
    "rows without a key are there twice": (
        EXACT,
        "in the log",
        (catalog(keyed=False), GROUP, A, rows_of(2, 1, complete=False), WHOLE, rows_of(1, 2, complete=True)),
    ),
    "the log is taken back": (NotTakenBack(), "back from b", (LogTakenOver("a"), LogTakenOver("b"), LogTakenOver("a"))),
    "it halts for nothing": (GOAL, "nothing is lost", (catalog(), CaptureHalted("x"))),
}


def watched(monitor: Monitor, events: tuple[Event, ...]) -> Any:
    state = monitor.initial()
    for event in events:
        state = monitor.observe(state, ObservedEvent("log", "log", event))
    return state


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_capture_is_accepted_in_which(name: str) -> None:
    monitor, events = ACCEPTED[name]
    assert monitor.hot(watched(monitor, events)) == ""


@pytest.mark.parametrize("name", REJECTED)
def test_a_capture_is_rejected_at_its_last_event_in_which(name: str) -> None:
    monitor, why, events = REJECTED[name]
    state = watched(monitor, events[:-1])
    with pytest.raises(Violation, match=why):
        monitor.observe(state, ObservedEvent("log", "log", events[-1]))


def test_every_monitor_accepts_something_and_rejects_something() -> None:
    names = {monitor.name for monitor in capture_monitors(SCRIPT)}
    assert {monitor.name for monitor, _ in ACCEPTED.values()} == names
    assert {monitor.name for monitor, _, _ in REJECTED.values()} == names


def test_a_capture_that_restarts_may_take_the_log_over_again() -> None:
    monitor = NotTakenBack()
    state = watched(monitor, (LogTakenOver("a"), LogTakenOver("b")))
    state = monitor.observe(state, ObservedEvent("a", "", ProcessEnded("crash")))
    assert monitor.observe(state, ObservedEvent("log", "log", LogTakenOver("a"))).owner == "a"


def test_the_goal_is_a_log_with_everything_and_a_slot_that_follows_it() -> None:
    monitor = GOAL
    whole = chunk(1, 100, "", complete=True)
    steps: tuple[Event, ...] = (SourceCommitted(1), NOTHING, GROUP, CREATED, GROUP, whole, SlotConfirmed(100))
    *reasons, last = [monitor.hot(watched(monitor, steps[:count])) for count in range(1, len(steps) + 1)]
    expected = ("the log at", "the log at", "has tables", "the log at", "complete", "slot")
    assert [word in reason for word, reason in zip(expected, reasons, strict=True)] == [True] * 6
    assert last == ""
    assert monitor.hot(watched(monitor, (*steps, SlotMoved(0, False)))) != ""


def test_a_script_knows_its_states_and_what_is_streamed_next() -> None:
    assert SCRIPT.state(2) == ((1, "a", 3), (1, "b", 3), (1, "c", 1))
    assert SCRIPT.state(2, unseen=(2,)) == ((1, "a", 2), (1, "c", 1))
    assert [SCRIPT.schema_at(1, number) for number in (0, 3, 4)] == [1, 1, shape_unit(4, 0)]
    assert (SCRIPT.captured(4), replace(SCRIPT, tables=()).captured(3)) == ((1,), ())
    assert [SCRIPT.next_end(position) for position in (0, 99, 100, 250, 300)] == [100, 100, 200, 400, 400]
    assert replace(SCRIPT, transactions=()).next_end(0) > 10**9
