"""The capture of a database: groups, parts, confirmations, take-overs, chunks, lost changes. Event by event."""

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
    EntryKind,
    KeepAlive,
    OpenSource,
    Origin,
    Piece,
    ReadChunk,
    Recaptured,
    SessionEnded,
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
CONFIG = CaptureConfig("w", LOG, SOURCE, (1,), group_size=3, group_count=3, appends_max=2, mark_after=50)
WHOLE = (TableCursor(1, complete=True),)
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
    def kinds(self) -> list[tuple[EntryKind, tuple[int, ...]]]:
        return [(entry.kind, entry.ends) for entry in self.entries]


def positions(effects: Effects) -> list[int]:
    return [each.position for each in messages(effects) if isinstance(each, ConfirmPosition)]


def piece(end: int, xid: int = 0, *, first: bool = True, last: bool = True, keys: Iterable[str] = ()) -> Piece:
    return Piece(1, end, xid or end, 1, first, last, tuple(Touched(1, key) for key in keys))


def streaming(
    config: CaptureConfig = CONFIG, *, tables: tuple[TableCursor, ...] = WHOLE, position: int = 100
) -> Driver:
    """A capture that has taken over a log with this position."""
    driver = Driver(config)
    driver.tell(TakenOver(1, position, HERE, tables), OPENED)
    assert driver.role.state is CaptureState.STREAMING
    return driver


# ---------------------------------------------------------------------------------------------------- groups and parts


def test_k1_small_transactions_share_a_group_until_it_is_full_or_its_time_is_up() -> None:
    driver = streaming()
    assert timers(driver.tell(piece(110), piece(120))) == ["group"]
    assert driver.entries == []
    assert timers(driver.tell(piece(130))) == []
    assert driver.kinds == [(EntryKind.GROUP, (110, 120, 130))]
    driver.tell(piece(140))
    driver.fire("group")
    assert driver.kinds[1:] == [(EntryKind.GROUP, (140,))]
    assert [entry.number for entry in driver.entries] == [1, 2]


def test_k1_a_large_transaction_becomes_parts_after_the_open_group() -> None:
    driver = streaming(replace(CONFIG, appends_max=9))
    driver.tell(piece(110), piece(120, last=False), piece(120, first=False, last=False), piece(120, first=False))
    assert driver.kinds == [(EntryKind.GROUP, (110,)), *[(EntryKind.PART, (120,))] * 3]
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
    assert positions(driver.tell(piece(110), piece(120), piece(130))) == []
    assert driver.commit() == [130]


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


def test_k2_a_keep_alive_closes_the_open_group_and_says_nothing_inside_a_transaction() -> None:
    driver = streaming()
    driver.tell(piece(110), KeepAlive(1, 159))
    assert driver.entries == []
    driver.tell(KeepAlive(1, 160))
    assert [kind for kind, _ in driver.kinds] == [EntryKind.GROUP, EntryKind.MARK]
    driver.tell(piece(170, last=False), KeepAlive(1, 900))
    driver.commit()
    assert [kind for kind, _ in driver.kinds[2:]] == [EntryKind.PART]


def test_k2_what_the_log_has_after_a_take_over_is_confirmed_at_once() -> None:
    driver = Driver()
    assert positions(driver.tell(TakenOver(1, 100, HERE, WHOLE), OPENED)) == [100]


# ---------------------------------------------------------------------------------------------------------- take-overs


def test_k3_what_the_log_has_is_skipped_by_its_position() -> None:
    driver = streaming(position=120)
    driver.tell(piece(110), piece(120, last=False), piece(120, first=False), piece(130))
    driver.fire("group")
    assert driver.kinds == [(EntryKind.GROUP, (130,))]


@pytest.mark.parametrize("outcome", [AppendOutcome.UNKNOWN, AppendOutcome.REFUSED])
def test_k4_after_a_failed_append_nothing_is_appended_until_the_next_take_over(outcome: AppendOutcome) -> None:
    driver = streaming()
    driver.tell(piece(110, last=False))
    effects = driver.tell(AppendEnded(1, 1, outcome))
    assert CloseSource(1) in messages(effects)
    assert isinstance(announced(effects)[0], SessionEnded)
    assert driver.tell(piece(110, first=False), KeepAlive(1, 900)) == []
    assert driver.fire("group") == []
    assert messages(driver.fire("retry")) == [TakeOver(2, False)]
    driver.tell(TakenOver(2, 100, HERE, WHOLE), replace(OPENED, session=2))
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
        driver.tell(TakenOver(session + 1, 100, HERE, WHOLE), replace(OPENED, session=session + 1))
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
    driver = Driver(replace(CONFIG, tables=(1,)))
    assert messages(driver.tell(TakenOver(1, 0, None, ()))) == [OpenSource(1)]
    absent = driver.tell(replace(OPENED, slot=SlotState.ABSENT))
    assert messages(absent) == [OpenSource(1, create=True)]
    effects = driver.tell(OPENED)
    assert positions(effects) == []
    assert [(entry.kind, entry.position, entry.tables) for entry in driver.entries] == [
        (EntryKind.CATALOG, 100, (TableCursor(1),))
    ]
    assert ReadChunk(1, "w", 1, 1, "") in messages(effects)
    assert driver.commit() == [100]


def test_a_table_that_the_log_lacks_is_added_to_its_catalog() -> None:
    driver = streaming(replace(CONFIG, tables=(1, 2)))
    assert [entry.tables for entry in driver.entries] == [(*WHOLE, TableCursor(2))]
    assert driver.role.watched == 2


def test_a_table_that_is_no_longer_captured_is_not_read() -> None:
    driver = streaming(tables=(TableCursor(2, after="c"), *WHOLE))
    assert (driver.role.watched, driver.entries) == (None, [])


# -------------------------------------------------------------------------------------------------------------- chunks

HALF = (TableCursor(1, after="c"),)


def reading(*running: int) -> Driver:
    driver = Driver()
    driver.tell(TakenOver(1, 100, HERE, HALF), replace(OPENED, running=running))
    return driver


def low_and_high(number: int = 1, writer: str = "w") -> tuple[Watermark, Watermark]:
    return Watermark(1, writer, number, False), Watermark(1, writer, number, True)


def rows(*keys: str, number: int = 1, running: tuple[int, ...] = (), xid_next: int = 999) -> ChunkRead:
    return ChunkRead(1, number, keys, keys[-1], False, running, xid_next)


def test_k7_a_chunk_is_written_at_its_high_watermark_without_touched_keys() -> None:
    driver, (low, high) = reading(), low_and_high()
    driver.tell(piece(110, keys="d"), low, piece(120, keys="ex"), rows("d", "e", "f"))
    assert driver.entries == []
    effects = driver.tell(high)
    group, chunk = driver.entries
    assert (group.kind, group.ends) == (EntryKind.GROUP, (110, 120))
    assert (chunk.kind, chunk.position, chunk.chunk) == (EntryKind.CHUNK, 120, ChunkBody(1, ("e",)))
    assert chunk.tables == (TableCursor(1, after="f"),)
    assert ReadChunk(1, "w", 2, 1, "f") in messages(effects)


def test_k7_rows_that_arrive_late_lose_what_was_touched_until_then() -> None:
    driver, marks = reading(), low_and_high()
    driver.tell(*marks, piece(110, keys="d"), piece(120, last=False, keys="e"), rows("d", "e", "f"))
    driver.commit()
    assert [kind for kind, _ in driver.kinds] == [EntryKind.GROUP, EntryKind.PART]
    driver.tell(piece(120, first=False))
    assert driver.entries[-1].chunk == ChunkBody(1, ("d", "e"))


def test_k7_a_truncation_drops_every_row_of_the_chunk() -> None:
    driver, (low, high) = reading(), low_and_high()
    driver.tell(low, piece(110, keys=("",)), rows("d", "e"), high)
    assert driver.entries[-1].chunk == ChunkBody(1, ("d", "e"))


def test_watermarks_and_rows_of_others_do_not_count() -> None:
    driver = reading()
    driver.tell(*low_and_high(writer="before"), *low_and_high(number=7), rows("d", number=7), rows("d"))
    assert driver.entries == []


@pytest.mark.parametrize("unseen", [rows("d", running=(5,)), rows("d", xid_next=5)], ids=["running", "later"])
def test_k5_a_chunk_that_does_not_see_a_transaction_before_it_is_read_again(unseen: ChunkRead) -> None:
    driver, (low, high) = reading(), low_and_high()
    effects = driver.tell(piece(110, 5), low, high, unseen)
    assert announced(effects) == [ChunkRefused(1, 5)]
    assert messages(driver.fire("chunk")) == [ReadChunk(1, "w", 2, 1, "c")]
    driver.tell(*low_and_high(2), rows("d", number=2))
    assert driver.entries[-1].kind is EntryKind.CHUNK


def test_k5_a_transaction_after_the_low_watermark_need_not_be_seen() -> None:
    driver, (low, high) = reading(5), low_and_high()
    driver.tell(low, piece(110, 5, keys="d"), high, rows("d", "e", running=(5,)))
    assert driver.entries[-1].chunk == ChunkBody(1, ("d",))


def test_k5_a_transaction_of_an_earlier_session_must_be_seen() -> None:
    driver = reading(5)
    assert announced(driver.tell(*low_and_high(), rows("d", running=(5,)))) == [ChunkRefused(1, 5)]
    driver.fire("chunk")
    assert announced(driver.tell(*low_and_high(2), rows("d", number=2, running=(6,)))) == []
    assert driver.entries[-1].kind is EntryKind.CHUNK


def test_k5_a_transaction_in_the_window_of_one_chunk_is_before_the_next_one() -> None:
    driver, (low, high) = reading(), low_and_high()
    driver.tell(low, piece(110, 5), high, rows("d", running=(5,)))
    effects = driver.tell(*low_and_high(2), rows("e", number=2, running=(5,)))
    assert announced(effects) == [ChunkRefused(1, 5)]


def test_when_every_table_is_complete_transactions_are_not_remembered() -> None:
    driver = streaming()
    driver.tell(*(piece(110 + number) for number in range(10)))
    assert driver.role.chunks.streamed == set()


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
    effects = driver.tell(TakenOver(1, 100, HERE, WHOLE), source)
    assert [type(event) for event in announced(effects)] == [CaptureHalted]
    assert driver.role.state is CaptureState.HALTED
    assert driver.tell(piece(110), OPENED) == []


@pytest.mark.parametrize("source", LOST.values(), ids=LOST.keys())
def test_k6_a_capture_reads_every_table_again_if_so_configured_before(source: SourceOpened) -> None:
    driver = Driver(replace(CONFIG, recaptures=True))
    effects = driver.tell(TakenOver(1, 100, HERE, WHOLE), source)
    assert [type(event) for event in announced(effects)] == [Recaptured]
    if source.slot is not SlotState.PRESENT:
        assert messages(effects)[-1] == OpenSource(1, create=True)
        driver.tell(replace(source, slot=SlotState.PRESENT, confirmed=500))
    (catalog,) = driver.entries
    assert catalog.tables == (TableCursor(1, generation=2),)
    assert catalog.origin == source.origin


def test_k6_a_promoted_server_that_has_everything_is_continued_on_its_timeline() -> None:
    driver = Driver()
    driver.tell(TakenOver(1, 100, HERE, WHOLE), replace(OPENED, origin=Origin("one", 2), ends=((1, 100), (2, 1000))))
    assert [(entry.kind, entry.origin) for entry in driver.entries] == [(EntryKind.CATALOG, Origin("one", 2))]


def test_every_message_of_an_earlier_session_is_ignored() -> None:
    driver = streaming()
    driver.tell(StreamEnded(1, "lost"))
    driver.fire("retry")
    late = [TakenOver(1, 0, None, ()), OPENED, piece(110), AppendEnded(1, 1, AppendOutcome.FENCED)]
    assert all(driver.role.ignores(SOURCE, each) for each in late)
    assert driver.tell(*late) == []
