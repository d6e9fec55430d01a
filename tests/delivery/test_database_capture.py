"""The capture of a scripted database into a real log: the state at every end is one that the database had."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import trunkline.sync
from delivery.group_log import schema_of
from delivery.scripted_source import Change, Row, ScriptedDatabase, ScriptedSource, State
from local_cluster import RunningCluster, local_cluster, wait_until
from trunkline.client.entries import Entry
from trunkline.delivery.capture.database_capture import CaptureOptions, DatabaseCapture
from trunkline.delivery.capture.database_progress import DatabaseProgress
from trunkline.delivery.capture.log_survey import position_in
from trunkline.delivery.capture.one_table.capture_log import CaptureLog
from trunkline.delivery.changes.database_entries import CatalogEntry, entry_of, heading_of
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rebuilt import rebuilt_states
from trunkline.errors import ConfigError, OutcomeUnknown, OwnedByAnother, TrunklineError, Unreachable

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
KIND = "scripted-database"
QUICK = CaptureOptions(KIND, retry_ms=10, retry_max_ms=100, mark_after=10**9)

_names = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


class Rig:
    """One database, one log, any number of captures."""

    def __init__(self, connect: str, database: ScriptedDatabase) -> None:
        self.connect = connect
        self.database = database
        self.log = f"database-{next(_names)}"

    def capture(self, source: ScriptedSource | None = None, options: CaptureOptions = QUICK) -> DatabaseCapture:
        return DatabaseCapture(source or ScriptedSource(self.database), [self.connect], self.log, options)

    def once(self, source: ScriptedSource | None = None, options: CaptureOptions = QUICK) -> DatabaseProgress:
        return self.capture(source, options).run(once=True)

    def entries(self) -> list[Entry]:
        with trunkline.sync.connect(self.connect) as cluster:
            log = cluster.log(self.log)
            return list(log.subscribe(1, log.tail() - 1, to_tail=True))

    def states(self) -> dict[int, tuple[int, State]]:
        """At each end: the source's position there, and the tables that can be read, by name."""
        entries, found = self.entries(), {}
        headings = {entry.glsn: heading for entry in entries if (heading := heading_of(entry)) is not None}
        position = 0
        for glsn, reader, tables in rebuilt_states(entries):
            said = position_in(glsn, headings[glsn])
            position = position if said is None else said.lsn
            names = {table.newest.number: table.newest.name for table in reader.tables()}
            found[glsn] = position, {names[number]: rows_in(table) for number, table in tables.items()}
        return found

    def check(self) -> State:
        """Every state is one that the database had; returns the last one."""
        last: State = {}
        for glsn, (position, state) in self.states().items():
            expected = self.database.state_at(position)
            assert state == {name: expected[name] for name in state}, f"at entry {glsn}, position {position}"
            last = state
        return last


def rows_in(table: Any) -> list[Row]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.fixture
def rig(cluster: RunningCluster) -> Callable[..., Rig]:
    return lambda *tables: Rig(cluster.connect, ScriptedDatabase(*tables))


ITEMS = schema_of(1, "id BIGINT, note VARCHAR, size INTEGER", name="items")
PAIRS = schema_of(2, "id BIGINT, other BIGINT", name="pairs")
PLAIN = schema_of(3, "a INTEGER, b VARCHAR", key=(), name="plain")


def item(number: int) -> Row:
    return (number, f"note {number}", number)


def test_rows_that_were_there_and_changes_since_are_in_the_log(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS, PAIRS)
    database = made.database
    database.commit(*(("items", INSERT, item(number)) for number in range(10)))
    first = made.once()
    assert made.check() == {"items": [item(number) for number in range(10)], "pairs": []}
    assert (first.transactions, first.chunk_rows) == (0, 10)
    database.commit(("items", NEW, (3, "new", 3)), ("pairs", INSERT, (1, 3)))
    database.commit(("items", DELETE, (4, None, None)))
    again = made.once()
    assert (again.transactions, again.rows, again.failures) == (2, 3, 0)
    assert made.check() == database.state_at(database.lsn + 5)
    assert made.once().transactions == 0


# ------------------------------------------------------------------------------------------------------------- chunks


def test_t1_rows_that_change_while_a_chunk_is_read_are_not_overwritten(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    database, source = made.database, ScriptedSource(made.database)
    database.commit(*(("items", INSERT, item(number)) for number in range(9)))
    work: Iterator[list[Change]] = iter(
        [
            [("items", NEW, (1, "before the snapshot", 0))],
            [("items", NEW, (0, "after the snapshot", 0))],
            [("items", DELETE, (4, None, None))],
            [("items", OLD, (5, None, None)), ("items", NEW, (50, "moved", 5))],
            [("items", TRUNCATE, ()), ("items", INSERT, item(7))],
            [("items", INSERT, item(100))],
        ]
    )

    def change() -> None:
        if changes := next(work, None):
            database.commit(*changes)

    source.during_chunk = source.after_snapshot = change
    made.once(source)
    assert made.check() == database.state_at(database.lsn + 5)
    assert next(work, None) is None


def test_t2_a_value_that_no_update_states_comes_from_the_snapshot(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    database, source = made.database, ScriptedSource(made.database)
    database.commit(*(("items", INSERT, item(number)) for number in range(6)))
    work: Iterator[list[Change]] = iter(
        [
            [("items", NEW, (0, None, 7), b"\x02"), ("items", NEW, (1, None, 7), b"\x02"), ("items", NEW, (1, "x", 8))],
            [("items", NEW, (2, None, 7), b"\x02"), ("items", DELETE, (2, None, None))],
            [("items", NEW, (3, None, 7), b"\x02"), ("items", NEW, (3, "n", None), b"\x04")],
        ]
    )

    def change() -> None:
        if changes := next(work, None):
            database.commit(*changes)

    source.during_chunk = source.after_snapshot = change
    made.once(source)
    assert made.check() == {"items": [(0, "note 0", 7), (1, "x", 8), (3, "n", 7), item(4), item(5)]}


def test_t3_a_row_that_moves_without_its_large_values_makes_its_table_be_read_again(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    database, source = made.database, ScriptedSource(made.database)
    database.commit(*(("items", INSERT, item(number)) for number in range(2, 9)))
    work: Iterator[list[Change]] = iter([[], [("items", OLD, (8, None, None)), ("items", NEW, (1, None, 8), b"\x02")]])
    source.during_chunk = lambda: database.commit(*changes) if (changes := next(work, None)) else None
    assert made.once(source).recaptures == 1
    assert (1, "note 8", 8) in made.check()["items"]


def test_a_table_without_a_key_is_read_whole_and_again_after_a_crash(rig: Callable[..., Rig]) -> None:
    made = rig(PLAIN)
    database, source = made.database, ScriptedSource(made.database)
    database.commit(*(("plain", INSERT, (1, "same")) for _ in range(100)))
    capture = made.capture(source)

    def crash() -> None:
        if capture.captured.chunks:
            raise Crash

    source.before_receive = crash
    with pytest.raises(Crash):
        capture.run(once=True)
    database.commit(("plain", INSERT, (2, "other")), ("plain", DELETE, (1, "same")))
    assert made.once().recaptures == 1
    assert made.check() == {"plain": [(1, "same")] * 99 + [(2, "other")]}


# ------------------------------------------------------------------------------------------------ crashes and failures


class Crash(BaseException):
    """Ends a capture as a kill does: nothing but the log and the database remains."""


def crash_after(source: ScriptedSource, receives: int) -> None:
    left = iter(range(receives))

    def count() -> None:
        if next(left, None) is None:
            raise Crash

    source.before_receive = count


def test_a_capture_that_is_killed_anywhere_goes_on_where_it_was(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS, PAIRS, PLAIN)
    database = made.database
    database.commit(*(("items", INSERT, item(number)) for number in range(7)))
    for attempt in range(12):
        source = ScriptedSource(database)
        crash_after(source, 2 * attempt + 1)
        start = 100 * attempt + 100
        large = [("items", INSERT, item(start + number)) for number in range(10)]  # in parts
        database.commit(*large, ("pairs", INSERT, (start, start)), ("plain", INSERT, (start, "x")))
        database.commit(("items", NEW, (start, "later", 1)))
        with pytest.raises(Crash):
            made.once(source)
    made.once()
    assert made.check() == database.state_at(database.lsn + 5)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", range(2, 9))
def test_k4_an_append_whose_outcome_is_unknown_is_settled_by_the_log(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, number: int, done: bool
) -> None:
    made = rig(ITEMS, PAIRS)
    database = made.database
    database.commit(*(("items", INSERT, item(number)) for number in range(7)))
    append, calls = trunkline.sync.Log.append, itertools.count(1)

    def failing(log: trunkline.sync.Log, *arguments: Any, **options: Any) -> int:
        if next(calls) != number:
            return append(log, *arguments, **options)
        if done:
            append(log, *arguments, **options)
        raise OutcomeUnknown("made up")

    monkeypatch.setattr(trunkline.sync.Log, "append", failing)
    source = ScriptedSource(database)
    work = iter([[("pairs", INSERT, (10 * chunk + at, 1)) for at in range(6)] for chunk in range(3)])
    source.during_chunk = lambda: database.commit(*next(work, ()))
    found = made.once(source, replace(QUICK, appends_max=1))
    assert found.failures == 1
    assert made.check() == database.state_at(database.lsn + 5)


def test_k9_the_first_of_two_captures_stops_when_the_second_one_begins(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    first = made.capture()
    ended: list[BaseException] = []

    def run() -> None:
        try:
            first.run()
        except TrunklineError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: first.captured.running and first.captured.tables)
    made.database.commit(("items", INSERT, item(1)))
    made.once()
    made.database.commit(("items", INSERT, item(2)))
    thread.join(30)
    assert [type(each) for each in ended] == [OwnedByAnother]
    made.once()
    assert made.check() == {"items": [item(1), item(2)]}


def test_a_capture_waits_for_a_sealed_log_and_for_its_database(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    source = ScriptedSource(made.database)
    capture = made.capture(source)
    thread = threading.Thread(target=capture.run)
    thread.start()
    wait_until(lambda: capture.captured.chunks == 1)
    with trunkline.sync.connect(made.connect) as cluster:
        log = cluster.log(made.log)
        log.seal()
        made.database.commit(("items", INSERT, item(1)))
        wait_until(lambda: capture.captured.failures >= 2)
        assert "sealed" in capture.captured.error
        log.reopen()
        wait_until(lambda: capture.captured.transactions == 1)
        source.down = True
        wait_until(lambda: "is down" in capture.captured.error)
        tail = log.tail()
        made.database.commit(("items", INSERT, item(2)))
        wait_until(lambda: capture.captured.failures >= 6)
        assert log.tail() == tail  # no marks of take-overs
        source.down = False
        wait_until(lambda: capture.captured.transactions == 2)
    capture.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert made.check() == {"items": [item(1), item(2)]}


# ------------------------------------------------------------------------------------------------------ refused input


def test_y2_a_log_that_is_not_of_this_kind_of_database_is_refused_before_anything_is_written(
    rig: Callable[..., Rig],
) -> None:
    made = rig(ITEMS)
    made.once()
    other = CaptureOptions("other-database")
    with trunkline.sync.connect(made.connect) as cluster:
        tail = cluster.log(made.log).tail()
        with pytest.raises(ConfigError, match="changes of a scripted-database, not of a other-database"):
            made.once(options=other)
        assert cluster.log(made.log).tail() == tail

        made.log = "one-table"
        old = CaptureLog(cluster, made.log)
        old.take_over()
        with pytest.raises(ConfigError, match="capture of one table, or of another writer"):
            made.once()
        assert cluster.log(made.log).tail() == 2

        made.log = "chained"
        cluster.log(made.log, create=True, policy="chain")
        with pytest.raises(ConfigError, match="needs one with a single writer"):
            made.once()


def test_a_log_is_continued_after_it_was_trimmed_up_to_a_catalog_and_not_beyond(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    often = CaptureOptions(KIND, retry_ms=10, mark_after=10**9, catalog_after=1)
    made.database.commit(*(("items", INSERT, item(number)) for number in range(7)))
    made.once(options=often)
    newest = max(entry.glsn for entry in made.entries() if isinstance(entry_of(entry), CatalogEntry))
    with trunkline.sync.connect(made.connect) as cluster:
        log = cluster.log(made.log)
        log.trim(newest - 1)
        made.database.commit(("items", INSERT, item(9)))
        assert made.once().transactions == 1
        log.trim(log.tail() - 2)
        with pytest.raises(ConfigError, match="capture the database into another log"):
            made.once()


def test_k6_another_database_halts_the_capture_or_begins_an_epoch(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS, PLAIN)
    made.database.commit(("items", INSERT, item(1)), ("plain", INSERT, (1, "x")))
    made.once()
    made.database = ScriptedDatabase(ITEMS, PLAIN, system="another")
    made.database.commit(("items", INSERT, item(2)))
    with pytest.raises(ConfigError, match="another database system"):
        made.once()
    made.once(options=replace(QUICK, recaptures=True))
    made.database.commit(("items", INSERT, item(3)))
    made.once()
    assert list(made.states().values())[-1][1] == {"items": [item(2), item(3)], "plain": []}


def test_b2_a_change_that_no_log_takes_ends_the_capture_with_its_table_and_key(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    made.once()
    made.database.commit(("items", INSERT, item(1)))
    made.database.commit(("items", INSERT, (77, "x" * 17_000_000, 1)))
    source = ScriptedSource(made.database)
    source.group_max = 1
    with pytest.raises(ConfigError, match=r"public.items \(id = 77\) has 17,\d+,\d+ bytes"):
        made.once(source)
    assert made.check() == {"items": [item(1)]}
    assert made.database.slot is not None
    assert made.database.slot < made.database.wal[-1].lsn


def test_b1_what_no_reader_would_take_is_not_written(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    made.once()
    made.database.commit(("items", INSERT, item(1)))
    made.database.wal[-1] = replace(made.database.wal[-1], changes=(("items", INSERT, (None, "no key", 1)),))
    with pytest.raises(TrunklineError, match=r"a key is NULL.*it was not written"):
        made.once()
    assert list(made.states().values())[-1][1] == {"items": []}


# ------------------------------------------------------------------------------------------------------------- shapes


def test_tables_that_come_change_and_go_while_a_capture_runs(rig: Callable[..., Rig]) -> None:
    made = rig(ITEMS)
    database = made.database
    database.commit(("items", INSERT, item(1)))
    made.once()
    database.add_column("items", "more", "BIGINT", 5)
    database.create(PAIRS)
    database.commit(("items", INSERT, (*item(2), 6)), ("pairs", INSERT, (1, 1)))
    made.once()
    assert made.check() == {"items": [(*item(1), 5), (*item(2), 6)], "pairs": [(1, 1)]}
    database.drop("items")
    database.commit(("pairs", INSERT, (2, 2)))
    found = made.once()
    assert [table.name for table in found.tables] == ["public.pairs"]
    assert list(made.states().values())[-1][1] == {"pairs": [(1, 1), (2, 2)]}


# ------------------------------------------------------------------------------------------------------------- chance


class Chance:
    """Random work on a database, and random failures of its captures."""

    def __init__(self, made: Rig, seed: int) -> None:
        self.made = made
        self.random = random.Random(seed)
        self.next = 1000

    def change(self) -> list[Change]:
        """Of one row or two."""
        rows, choose = self.made.database.rows, self.random
        items, width = [row[0] for row in rows["items"]], len(self.made.database.schemas["items"].columns)
        more = (7,) * (width - 3)
        self.next += 1
        match choose.randrange(9) if len(items) > 3 else 0:
            case 0 | 1:
                return [("items", INSERT, (*item(self.next), *more))]
            case 2:
                return [("items", NEW, (choose.choice(items), f"new {self.next}", None, *more))]
            case 3:
                return [("items", NEW, (choose.choice(items), None, self.next, *more), b"\x02")]
            case 4:
                return [("items", DELETE, (choose.choice(items), None, None, *(None for _ in more)))]
            case 5:
                gone = (choose.choice(items), None, None, *(None for _ in more))
                unsent = choose.choice((None, b"\x02"))
                note = None if unsent else "moved"
                return [("items", OLD, gone), ("items", NEW, (self.next, note, 5, *more), unsent)]
            case 6 if rows["plain"]:
                return [("plain", DELETE, choose.choice(rows["plain"]))]
            case 7 if choose.random() < 0.1:
                return [("items", TRUNCATE, ())]
        return [("plain", INSERT, (choose.randrange(3), "same"))]

    def commit(self) -> None:
        database, before = self.made.database, len(self.made.database.wal)
        for _ in range(self.random.choice((1, 1, 2))):
            with database.lock:
                changes: list[Change] = []
                for _ in range(self.random.choice((1, 1, 2, 9))):
                    one = self.change()
                    database.try_out(one)
                    changes += one
                database.commit_tried(changes)
        if self.random.random() < 0.03 and len(database.schemas["items"].columns) < 8:  # one byte of unsent columns
            database.add_column("items", f"more{before}", "BIGINT", 7)

    def source(self) -> ScriptedSource:
        source = ScriptedSource(self.made.database, chunk_rows=self.random.choice((1, 3, 10)))
        left = self.random.randrange(2, 40)

        def sometimes() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise self.random.choice((Crash, Unreachable))("by chance")
            if self.random.random() < 0.3:
                self.commit()

        source.before_receive = source.during_chunk = source.after_snapshot = sometimes
        return source


@pytest.mark.parametrize("seed", range(3))
def test_any_work_and_any_failures_leave_a_log_of_states_that_the_database_had(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    made = rig(ITEMS, PLAIN)
    chance = Chance(made, seed)
    append = trunkline.sync.Log.append
    fails = random.Random(seed)

    def failing(log: trunkline.sync.Log, *arguments: Any, **options: Any) -> int:
        kind = fails.randrange(30)
        if kind == 0:
            raise OutcomeUnknown("not done")
        glsn = append(log, *arguments, **options)
        if kind == 1:
            raise OutcomeUnknown("done")
        return glsn

    for _ in range(10):
        chance.commit()
    with monkeypatch.context() as patched:
        patched.setattr(trunkline.sync.Log, "append", failing)
        for _ in range(12):
            with suppress(Crash, Unreachable, OutcomeUnknown):
                made.once(chance.source())
    made.once()
    assert made.check() == made.database.state_at(made.database.lsn + 5)
