"""The capture of a database: entries, confirmations, take-overs, schemas, chunks, lost changes. Event by event."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from core.driver import announced, messages, timers
from trunkline.core.capture import Capture, CaptureConfig, CaptureState
from trunkline.core.capture_messages import (
    AppendEnded,
    AppendEntry,
    AppendOutcome,
    CaptureFenced,
    CaptureHalted,
    ChunkBody,
    ChunkRead,
    ChunkRefused,
    CloseSource,
    ConfirmPosition,
    DropUnit,
    EntryKind,
    KeepAlive,
    OpenSource,
    Origin,
    Piece,
    ReadChunk,
    Recaptured,
    SessionEnded,
    Shape,
    ShapeChange,
    SlotState,
    SourceOpened,
    StreamEnded,
    TableCursor,
    TakenOver,
    TakeOver,
    TakeOverFailed,
    Touched,
    Watermark,
)
from trunkline.core.effects import Address, Effects, Message, SetTimer

LOG, SOURCE = Address("log", "log"), Address("db", "source")
HERE = Origin("one", 1)
CONFIG = CaptureConfig("w", LOG, SOURCE, appends_max=2, mark_after=50)
WHOLE = (TableCursor(1, complete=True, chunks=1),)
OPENED = SourceOpened(1, HERE, ((1, 1000),), SlotState.PRESENT, 100, ())


class Driver:
    """A capture, and the entries that it appended."""

    def __init__(self, config: CaptureConfig = CONFIG) -> None:
        self.role = Capture(config)
        self.role.on_start()
        self.entries: list[AppendEntry] = []

    def tell(self, *news: Message) -> Effects:
        effects = [effect for message in news for effect in self.role.on_message(SOURCE, message)]
        self.entries += [each for each in messages(effects) if isinstance(each, AppendEntry)]
        return effects

    def fire(self, key: str) -> Effects:
        effects = self.role.on_timer(key)
        self.entries += [each for each in messages(effects) if isinstance(each, AppendEntry)]
        return effects

    def commit(self) -> list[int]:
        """The log commits everything; what is confirmed."""
        confirmed: list[int] = []
        while self.role.in_flight:
            number = self.role.in_flight[0][0]
            confirmed += positions(self.tell(AppendEnded(self.role.session, number, AppendOutcome.COMMITTED)))
        return confirmed

    @property
    def kinds(self) -> list[tuple[EntryKind, int]]:
        return [(entry.kind, entry.unit) for entry in self.entries]


def positions(effects: Effects) -> list[int]:
    return [each.position for each in messages(effects) if isinstance(each, ConfirmPosition)]


def piece(end: int, xid: int = 0, *, first: bool = True, last: bool = True, keys: Iterable[str] = ()) -> Piece:
    return Piece(1, end, end, (xid or end,), 1, first, last, tuple(Touched(1, key) for key in keys))


def streaming(
    config: CaptureConfig = CONFIG, *, tables: tuple[TableCursor, ...] = WHOLE, position: int = 100
) -> Driver:
    """A capture that has taken over a log with this position."""
    driver = Driver(config)
    driver.tell(TakenOver(1, position, HERE, tables, 1), OPENED)
    assert driver.role.state is CaptureState.STREAMING
    return driver


# ------------------------------------------------------------------------------------------------------------- entries


def test_k1_one_piece_becomes_one_entry_in_the_order_of_the_stream() -> None:
    driver = streaming()
    driver.tell(piece(110), piece(130))
    assert driver.kinds == [(EntryKind.GROUP, 110), (EntryKind.GROUP, 130)]
    assert [(entry.number, entry.position) for entry in driver.entries] == [(1, 110), (2, 130)]


def test_k1_a_large_transaction_becomes_parts() -> None:
    driver = streaming(replace(CONFIG, appends_max=9))
    driver.tell(piece(110), piece(120, last=False), piece(120, first=False, last=False), piece(120, first=False))
    assert driver.kinds == [(EntryKind.GROUP, 110), *[(EntryKind.PART, 120)] * 3]
    assert [(entry.index, entry.last, entry.position) for entry in driver.entries[1:]] == [
        (0, False, 110),
        (1, False, 110),
        (2, True, 120),
    ]


def test_k10_appends_in_flight_are_bounded_and_the_rest_waits_in_order() -> None:
    driver = streaming()
    pieces = [piece(120, first=index == 0, last=index == 3) for index in range(4)]
    driver.tell(*pieces)
    assert [entry.index for entry in driver.entries] == [0, 1]
    assert driver.role.full
    driver.commit()
    assert [entry.index for entry in driver.entries] == [0, 1, 2, 3]
    assert not driver.role.full


def test_a_catalog_is_repeated_between_transactions() -> None:
    driver = streaming(replace(CONFIG, catalog_after=2, appends_max=9))
    driver.tell(piece(110, last=False), piece(110, first=False, last=False), piece(110, first=False))
    assert [kind for kind, _ in driver.kinds] == [*[EntryKind.PART] * 3, EntryKind.CATALOG]
    assert driver.entries[-1].tables == WHOLE


# ------------------------------------------------------------------------------------------------------- confirmations


def test_k2_a_position_is_confirmed_when_the_log_has_committed_it() -> None:
    driver = streaming()
    assert positions(driver.tell(piece(110), piece(130))) == []
    assert driver.commit() == [110, 130]


def test_k2_parts_are_confirmed_with_the_last_one() -> None:
    driver = streaming()
    driver.tell(piece(110, last=False))
    assert driver.commit() == []
    driver.tell(piece(110, first=False))
    assert driver.commit() == [110]


def test_k2_without_changes_a_mark_moves_the_log_and_then_the_slot() -> None:
    driver = streaming()
    assert driver.tell(KeepAlive(1, 149)) == []
    assert positions(driver.tell(KeepAlive(1, 150))) == []
    assert [(entry.kind, entry.position) for entry in driver.entries] == [(EntryKind.MARK, 150)]
    assert driver.commit() == [150]


def test_k2_a_keep_alive_says_nothing_inside_a_transaction() -> None:
    driver = streaming()
    driver.tell(piece(170, last=False), KeepAlive(1, 900))
    driver.commit()
    assert driver.kinds == [(EntryKind.PART, 170)]


def test_k2_what_the_log_has_after_a_take_over_is_confirmed_at_once() -> None:
    driver = Driver()
    assert positions(driver.tell(TakenOver(1, 100, HERE, WHOLE, 1), OPENED)) == [100]


# ---------------------------------------------------------------------------------------------------------- take-overs


def test_k3_what_the_log_has_is_skipped_by_its_position() -> None:
    driver = streaming(position=120)
    effects = driver.tell(piece(110), piece(120, last=False), piece(120, first=False), piece(130))
    assert driver.kinds == [(EntryKind.GROUP, 130)]
    assert [each for each in messages(effects) if isinstance(each, DropUnit)] == [
        DropUnit(1, 110),
        *[DropUnit(1, 120)] * 2,
    ]


@pytest.mark.parametrize("outcome", [AppendOutcome.UNKNOWN, AppendOutcome.REFUSED])
def test_k4_after_a_failed_append_nothing_is_appended_until_the_next_take_over(outcome: AppendOutcome) -> None:
    driver = streaming()
    driver.tell(piece(110, last=False))
    effects = driver.tell(AppendEnded(1, 1, outcome))
    assert CloseSource(1) in messages(effects)
    assert isinstance(announced(effects)[0], SessionEnded)
    assert driver.tell(piece(110, first=False), KeepAlive(1, 900)) == []
    assert messages(driver.fire("retry")) == [TakeOver(2, False)]
    driver.tell(TakenOver(2, 100, HERE, WHOLE, 1), replace(OPENED, session=2))
    assert driver.tell(piece(110)) == []  # of the session before
    driver.tell(replace(piece(110, last=False), session=2))
    assert driver.entries[-1].index == 0


def test_k4_a_stream_that_ended_begins_with_a_take_over_again() -> None:
    driver = streaming()
    assert timers(driver.tell(piece(110), StreamEnded(1, "the server restarts"))) == ["retry"]
    assert messages(driver.fire("retry")) == [TakeOver(2, False)]


def test_sessions_that_commit_nothing_are_ever_further_apart() -> None:
    driver, waits = streaming(replace(CONFIG, retry_ms=10, retry_max_ms=35)), list[int]()
    for session in range(1, 5):
        if session == 4:
            driver.tell(replace(piece(110, last=False), session=session))
            driver.commit()
        effects = driver.tell(StreamEnded(session, "lost"))
        waits += [each.after_ms for each in effects if isinstance(each, SetTimer)]
        driver.fire("retry")
        driver.tell(TakenOver(session + 1, 100, HERE, WHOLE, 1), replace(OPENED, session=session + 1))
    assert waits == [10, 20, 35, 10]


def test_k9_only_the_first_take_over_is_by_force() -> None:
    role = Capture(CONFIG)
    assert messages(role.on_start()) == [TakeOver(1, True)]
    role.on_message(LOG, TakeOverFailed(1, False))
    assert messages(role.on_timer("retry")) == [TakeOver(2, True)]
    role.on_message(LOG, TakenOver(2, 0, None, ()))
    role.on_message(SOURCE, StreamEnded(2, "refused"))
    assert messages(role.on_timer("retry")) == [TakeOver(3, False)]
    assert announced(role.on_message(LOG, TakeOverFailed(3, True))) == [CaptureFenced()]
    assert role.state is CaptureState.FENCED


def test_k9_a_fenced_capture_stops() -> None:
    driver = streaming()
    driver.tell(piece(110, last=False))
    assert announced(driver.tell(AppendEnded(1, 1, AppendOutcome.FENCED))) == [CaptureFenced()]
    assert driver.tell(piece(110, first=False), StreamEnded(1, "")) == []
    assert driver.fire("retry") == []


# ----------------------------------------------------------------------------------------------------------- beginning


def test_an_empty_log_begins_with_a_slot_and_a_catalog() -> None:
    driver = Driver()
    assert messages(driver.tell(TakenOver(1, 0, None, ()))) == [OpenSource(1, 1)]
    absent = driver.tell(replace(OPENED, slot=SlotState.ABSENT))
    assert messages(absent) == [OpenSource(1, 1, create=True)]
    assert positions(driver.tell(OPENED)) == []
    assert [(entry.kind, entry.position, entry.tables) for entry in driver.entries] == [(EntryKind.CATALOG, 100, ())]
    assert driver.commit() == [100]


# ------------------------------------------------------------------------------------------------------------- schemas


def shape(change: ShapeChange, table: int = 1, *, keyed: bool = True, must_see: tuple[int, ...] = ()) -> Shape:
    return Shape(1, 7, table, change, keyed, must_see)


def test_k11_a_table_that_is_created_is_read() -> None:
    driver = streaming()
    effects = driver.tell(shape(ShapeChange.CREATED, 2))
    (entry,) = driver.entries
    assert (entry.kind, entry.unit, entry.position, entry.tables) == (EntryKind.SCHEMA, 7, 100, (TableCursor(2),))
    assert ReadChunk(1, "w", 1, 2, b"") in messages(effects)
    assert driver.role.watched is None
    driver.tell(Watermark(1, "w", 1, False))
    assert driver.role.watched == 2


def test_k11_a_table_that_changed_goes_on_where_it_was() -> None:
    driver = streaming(tables=(TableCursor(1, after=b"c", chunks=1),))
    driver.tell(*low_and_high())
    effects = driver.tell(shape(ShapeChange.CHANGED), rows("d"))
    assert [entry.kind for entry in driver.entries] == [EntryKind.SCHEMA]
    assert driver.entries[0].tables == (TableCursor(1, after=b"c", chunks=1),)
    assert messages(effects)[-2:] == [driver.entries[0], DropUnit(1, 500)]
    assert ReadChunk(1, "w", 2, 1, b"c") in messages(effects)
    driver.tell(*low_and_high(2), rows("d", number=2))
    assert driver.entries[-1].kind is EntryKind.CHUNK


def test_k11_a_table_that_is_captured_again_is_a_new_generation_from_its_first_row() -> None:
    driver = streaming()
    effects = driver.tell(shape(ShapeChange.RECAPTURED, must_see=(5,)))
    assert driver.entries[-1].tables == (TableCursor(1, generation=2),)
    assert ReadChunk(1, "w", 1, 1, b"") in messages(effects)
    low, high = low_and_high()
    effects = driver.tell(low, piece(110, 5), high, rows("d", running=(5,)))
    assert announced(effects) == [ChunkRefused(1, 5)]


def test_k11_a_table_that_was_dropped_is_neither_read_nor_in_a_catalog() -> None:
    driver = streaming(replace(CONFIG, catalog_after=1, appends_max=9), tables=HALF)
    driver.tell(*low_and_high(), shape(ShapeChange.DROPPED), rows("d"), piece(110))
    assert [(kind.value, entry.tables) for (kind, _), entry in zip(driver.kinds, driver.entries, strict=True)] == [
        ("schema", ()),
        ("group", ()),
        ("catalog", ()),
    ]
    assert driver.role.watched is None


def test_k11_a_schema_may_stand_between_the_parts_of_a_transaction() -> None:
    driver = streaming(replace(CONFIG, appends_max=9))
    driver.tell(piece(110, last=False), shape(ShapeChange.CHANGED), piece(110, first=False))
    assert [(kind.value, entry.position) for (kind, _), entry in zip(driver.kinds, driver.entries, strict=True)] == [
        ("part", 100),
        ("schema", 100),
        ("part", 110),
    ]


# ------------------------------------------------------------------------------------------------- tables without a key

KEYLESS = (TableCursor(1, keyed=False),)


def some(number: int, *, last: bool = False) -> ChunkRead:
    return replace(rows("x"), unit=number, after=b"", last=last)


def test_k12_a_table_without_a_key_is_read_whole_while_the_stream_waits() -> None:
    driver = Driver(replace(CONFIG, appends_max=9))
    effects = driver.tell(TakenOver(1, 100, HERE, KEYLESS, 1), OPENED)
    assert ReadChunk(1, "w", 1, 1, b"", whole=True) in messages(effects)
    low, high = low_and_high()
    driver.tell(piece(110), low)
    assert not driver.role.full
    driver.tell(high)
    assert (driver.role.full, driver.role.crowded) == (True, False)
    driver.tell(some(1), some(2))
    assert driver.role.full
    driver.tell(some(3, last=True))
    assert not driver.role.full
    chunks = driver.entries[1:]
    assert [(entry.kind, entry.unit, entry.position) for entry in chunks] == [
        (EntryKind.CHUNK, number, 110) for number in (1, 2, 3)
    ]
    assert [(cursor.chunks, cursor.complete) for entry in chunks for cursor in entry.tables] == [
        (1, False),
        (2, False),
        (3, True),
    ]


def test_k12_parts_of_a_transaction_pass_before_the_stream_waits() -> None:
    driver = streaming(replace(CONFIG, appends_max=9), tables=KEYLESS)
    driver.tell(piece(110, last=False), *low_and_high(), some(1))
    assert not driver.role.full
    driver.tell(piece(110, first=False))
    assert driver.role.full
    assert [kind.value for kind, _ in driver.kinds] == ["part", "part", "chunk"]


def test_k12_a_table_without_a_key_that_was_begun_waits_for_a_new_generation() -> None:
    driver = streaming(tables=(TableCursor(1, keyed=False, chunks=2),))
    assert driver.role.chunks.chunk is None
    effects = driver.tell(shape(ShapeChange.RECAPTURED, keyed=False))
    assert ReadChunk(1, "w", 1, 1, b"", whole=True) in messages(effects)


def test_k12_a_table_without_a_key_that_changed_although_it_was_locked_is_read_again() -> None:
    driver = streaming(tables=KEYLESS)
    low, high = low_and_high()
    effects = driver.tell(low, piece(110, keys="k"), high, some(1))
    assert announced(effects) == [ChunkRefused(1, 0)]
    assert ReadChunk(1, "w", 2, 1, b"", whole=True) in messages(driver.fire("chunk"))


# -------------------------------------------------------------------------------------------------------------- chunks

HALF = (TableCursor(1, after=b"c"),)


def reading(*running: int) -> Driver:
    driver = Driver()
    driver.tell(TakenOver(1, 100, HERE, HALF, 1), replace(OPENED, running=running))
    return driver


def low_and_high(number: int = 1, writer: str = "w") -> tuple[Watermark, Watermark]:
    return Watermark(1, writer, number, False), Watermark(1, writer, number, True)


def rows(*keys: str, number: int = 1, running: tuple[int, ...] = (), xid_next: int = 999) -> ChunkRead:
    return ChunkRead(1, 500, number, keys[-1].encode(), False, running, xid_next)


def test_k7_a_chunk_is_written_at_its_high_watermark_without_touched_keys() -> None:
    driver, (low, high) = reading(), low_and_high()
    driver.tell(piece(110, keys="d"), low, piece(120, keys="ex"), rows("f"))
    driver.commit()
    assert [kind.value for kind, _ in driver.kinds] == ["group", "group"]
    effects = driver.tell(high)
    *groups, chunk = driver.entries
    assert [group.unit for group in groups] == [110, 120]
    assert (chunk.kind, chunk.position, chunk.chunk) == (EntryKind.CHUNK, 120, ChunkBody(1, ("e", "x")))
    assert (chunk.unit, chunk.tables) == (500, (TableCursor(1, after=b"f", chunks=1),))
    assert ReadChunk(1, "w", 2, 1, b"f") in messages(effects)


def test_k7_rows_that_arrive_late_lose_what_was_touched_until_then() -> None:
    driver, marks = reading(), low_and_high()
    driver.tell(*marks, piece(110, keys="d"), piece(120, last=False, keys="e"), rows("f"))
    driver.commit()
    assert [kind for kind, _ in driver.kinds] == [EntryKind.GROUP, EntryKind.PART]
    driver.tell(piece(120, first=False))
    assert driver.entries[-1].chunk == ChunkBody(1, ("d", "e"))


def test_k7_a_truncation_comes_with_the_chunk() -> None:
    driver, (low, high) = reading(), low_and_high()
    driver.tell(low, piece(110, keys=("d", "")), rows("e"), high)
    assert driver.entries[-1].chunk == ChunkBody(1, ("d", ""))


def test_watermarks_and_rows_of_others_do_not_count() -> None:
    driver = reading()
    driver.tell(*low_and_high(writer="before"), *low_and_high(number=7), rows("d", number=7), rows("d"))
    assert driver.entries == []


@pytest.mark.parametrize("unseen", [rows("d", running=(5,)), rows("d", xid_next=5)], ids=["running", "later"])
def test_k5_a_chunk_that_does_not_see_a_transaction_before_it_is_read_again(unseen: ChunkRead) -> None:
    driver, (low, high) = reading(), low_and_high()
    effects = driver.tell(piece(110, 5), low, high, unseen)
    assert announced(effects) == [ChunkRefused(1, 5)]
    assert messages(driver.fire("chunk")) == [ReadChunk(1, "w", 2, 1, b"c")]
    driver.tell(*low_and_high(2), rows("d", number=2))
    assert driver.entries[-1].kind is EntryKind.CHUNK


def test_k5_a_transaction_after_the_low_watermark_need_not_be_seen() -> None:
    driver, (low, high) = reading(), low_and_high()
    driver.tell(low, piece(110, 5, keys="d"), high, rows("e", running=(5,)))
    assert driver.entries[-1].chunk == ChunkBody(1, ("d",))


def test_k5_a_transaction_that_ran_when_the_session_began_must_be_seen() -> None:
    driver, (low, high) = reading(5), low_and_high()
    effects = driver.tell(low, piece(110, 5), high, rows("d", running=(5,)))
    assert announced(effects) == [ChunkRefused(1, 5)]
    driver.commit()
    driver.fire("chunk")
    assert announced(driver.tell(*low_and_high(2), rows("d", number=2, running=(6,)))) == []
    assert driver.entries[-1].kind is EntryKind.CHUNK


def test_k5_a_transaction_in_the_window_of_one_chunk_is_before_the_next_one() -> None:
    driver, (low, high) = reading(), low_and_high()
    driver.tell(low, piece(110, 5), high, rows("d", running=(5,)))
    effects = driver.tell(*low_and_high(2), rows("e", number=2, running=(5,)))
    assert announced(effects) == [ChunkRefused(1, 5)]


def test_k10_beyond_a_number_of_transactions_all_up_to_the_last_must_be_seen() -> None:
    driver = Driver(replace(CONFIG, xids_max=1, appends_max=9))
    driver.tell(TakenOver(1, 100, HERE, HALF, 1), OPENED)
    driver.tell(piece(110, 5), piece(120, 7), piece(130, 6))
    assert (driver.role.chunks.streamed.through, driver.role.chunks.streamed.xids) == (7, {6})
    assert announced(driver.tell(*low_and_high(), rows("d", running=(4,)))) == [ChunkRefused(1, 4)]
    driver.fire("chunk")
    assert announced(driver.tell(*low_and_high(2), rows("d", number=2, running=(4, 8)))) == [ChunkRefused(1, 4)]
    driver.fire("chunk")
    assert announced(driver.tell(*low_and_high(3), rows("d", number=3, running=(8,)))) == []
    assert driver.entries[-1].kind is EntryKind.CHUNK


def test_k10_a_snapshot_from_before_the_transactions_that_were_forgotten_is_refused() -> None:
    driver = Driver(replace(CONFIG, xids_max=0, appends_max=9))
    driver.tell(TakenOver(1, 100, HERE, HALF, 1), OPENED)
    low, high = low_and_high()
    driver.tell(low, piece(110, 5, keys="d"), high)
    assert announced(driver.tell(rows("d", xid_next=5))) == []
    assert announced(driver.tell(*low_and_high(2), rows("e", number=2, xid_next=5))) == [ChunkRefused(1, 5)]


def test_k5_transactions_are_remembered_while_nothing_is_read() -> None:
    driver = streaming(replace(CONFIG, appends_max=9))
    driver.tell(piece(110, 5), shape(ShapeChange.CREATED, 2))
    effects = driver.tell(*low_and_high(), rows("d", running=(5,)))
    assert announced(effects) == [ChunkRefused(2, 5)]


# --------------------------------------------------------------------------------------------------------- lost changes

LOST = {
    "another system": replace(OPENED, origin=Origin("two", 1)),
    "a WAL that ends before the log": replace(OPENED, ends=((1, 99),), confirmed=0),
    "a timeline that left before the log": replace(OPENED, origin=Origin("one", 2), ends=((1, 99), (2, 1000))),
    "an unknown timeline": replace(OPENED, origin=Origin("one", 3), ends=((2, 500), (3, 1000))),
    "no slot": replace(OPENED, slot=SlotState.ABSENT),
    "a lost slot": replace(OPENED, slot=SlotState.LOST),
    "a slot ahead of the log": replace(OPENED, confirmed=101),
}


@pytest.mark.parametrize("source", LOST.values(), ids=LOST.keys())
def test_k6_a_capture_halts_before(source: SourceOpened) -> None:
    driver = Driver()
    effects = driver.tell(TakenOver(1, 100, HERE, WHOLE, 1), source)
    assert [type(event) for event in announced(effects)] == [CaptureHalted]
    assert driver.role.state is CaptureState.HALTED
    assert driver.tell(piece(110), OPENED) == []


@pytest.mark.parametrize("source", LOST.values(), ids=LOST.keys())
def test_k6_a_capture_reads_every_table_again_if_so_configured_before(source: SourceOpened) -> None:
    driver = Driver(replace(CONFIG, recaptures=True))
    effects = driver.tell(TakenOver(1, 100, HERE, WHOLE, 1), source)
    assert [type(event) for event in announced(effects)] == [Recaptured]
    assert messages(effects)[-1] == OpenSource(1, 2, create=True)
    driver.tell(replace(source, slot=SlotState.PRESENT, confirmed=500))
    (catalog,) = driver.entries
    assert (catalog.kind, catalog.epoch, catalog.position) == (EntryKind.CATALOG, 2, 500)
    assert catalog.tables == (TableCursor(1, generation=2),)
    assert catalog.origin == source.origin


def test_k6_a_promoted_server_that_has_everything_is_continued_on_its_timeline() -> None:
    driver = Driver()
    driver.tell(TakenOver(1, 100, HERE, WHOLE, 1), replace(OPENED, origin=Origin("one", 2), ends=((1, 100), (2, 1000))))
    assert [(entry.kind, entry.origin) for entry in driver.entries] == [(EntryKind.CATALOG, Origin("one", 2))]


def test_every_message_of_an_earlier_session_is_ignored() -> None:
    driver = streaming()
    driver.tell(StreamEnded(1, "lost"))
    driver.fire("retry")
    late = [TakenOver(1, 0, None, ()), OPENED, piece(110), AppendEnded(1, 1, AppendOutcome.FENCED)]
    assert all(driver.role.ignores(SOURCE, each) for each in late)
    assert driver.tell(*late) == []
