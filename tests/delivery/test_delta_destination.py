"""A Delta table as a destination: what only this kind does. What every kind promises is in ``contract``."""

from __future__ import annotations

import datetime
import multiprocessing
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from msgspec.structs import replace

from contract.delta_destination import DeltaSite
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.destinations import delta_files, delta_log, delta_merge
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.delivery.destinations.delta import DeltaPlace
from trunkline.destination_suite.place import Change, OneTable, Plan, Row, Table, content, plain, staged
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    DuplicateKey,
    Fenced,
    OutcomeUnknown,
    PositionMoved,
    Refused,
    SchemaMismatch,
    Unreachable,
)

ORDERS: Final[Columns] = (Column("id", "BIGINT"), Column("name", "VARCHAR"))
SEED: Final = Plan(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",), seeds=True)
FLUSH: Final = Plan(expected=10, through=20, token=1, source="lake/orders", columns=ORDERS, key=("id",))
CHANGES: Final[list[Change]] = [
    (Op.REMOVE, {"id": 1}),
    (Op.REPLACE, {"id": 2, "name": "two"}),
    (Op.INSERT, {"id": 100, "name": "new"}),
]


class DeltaTest(Table):
    """The only table of its member."""

    @property
    def path(self) -> str:
        assert isinstance(self.site, DeltaSite)
        return self.site.path(self.name)


@pytest.fixture
def place(tmp_path: Path) -> DeltaTest:
    return DeltaTest(DeltaSite(str(tmp_path)), "table")


def named(*ids: int) -> list[Row]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def seeded(place: DeltaTest, rows: list[Row], seed: Plan = SEED) -> OneTable:
    destination = place.open()
    destination.seed(seed, plain(seed.columns, rows))
    return destination


def flushed(destination: OneTable, flush: Plan, changes: list[Change]) -> Applied:
    return destination.flush(flush, staged(flush.columns, flush.key, changes))


def outcome(destination: OneTable, flush: Plan, changes: list[Change]) -> Applied | Refused:
    try:
        return flushed(destination, flush, changes)
    except Refused as error:
        return error


def files(place: DeltaTest) -> list[str]:
    """The files in the folder, named by a commit or not."""
    return sorted(path.name for path in Path(place.path).glob("*.parquet"))


def live(place: DeltaTest) -> list[str]:
    return sorted(Path(uri).name for uri in DeltaTable(place.path).file_uris())


# ------------------------------------------------------------------------------------- the commit is a compare-and-swap


class Intruder:
    """Does something to the table at the n-th step of another destination's call."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self.left = at
        self.act = act
        self.acted = False

    def __call__(self, _: str) -> None:
        if self.left == 0:
            self.acted = True
            self.act()
        self.left -= 1


def steps_of(place: DeltaTest, act: Callable[[], object]) -> Iterator[tuple[Intruder, OneTable]]:
    """A destination that is disturbed at its first step, then one that is disturbed at its second, and so on."""
    for at in range(20):
        shutil.rmtree(place.path, ignore_errors=True)
        seeded(place, named(1, 2, 3))
        intruder = Intruder(at, act)
        yield intruder, place.open(intruder)
        if not intruder.acted:
            assert at >= 3, "it has more steps than that"
            return
    pytest.fail("it has no end")


def test_another_deliverer_who_commits_at_any_step_wins(place: DeltaTest) -> None:
    theirs: list[Change] = [(Op.INSERT, {"id": 7, "name": "theirs"}), (Op.REMOVE, {"id": 1})]
    for intruder, mine in steps_of(place, lambda: flushed(place.open(), replace(FLUSH, token=2), theirs)):
        found = outcome(mine, FLUSH, CHANGES)
        if intruder.acted:
            assert isinstance(found, Fenced)
            assert content(place.held()) == content([*named(2, 3), theirs[0][1]])
            assert place.open().standing() == Standing(20, 2, "lake/orders")


def test_the_same_flush_by_another_process_at_any_step_is_done_once(place: DeltaTest) -> None:
    for intruder, mine in steps_of(place, lambda: flushed(place.open(), FLUSH, CHANGES)):
        applied = flushed(mine, FLUSH, CHANGES)
        assert applied == (Applied(20, already=True) if intruder.acted else Applied(20, 2, 2))
        assert len(place.held() or []) == 3


def test_a_flush_to_another_position_at_any_step_is_noticed(place: DeltaTest) -> None:
    shorter = replace(FLUSH, through=15)
    for intruder, mine in steps_of(place, lambda: flushed(place.open(), shorter, CHANGES)):
        found = outcome(mine, FLUSH, CHANGES)
        if intruder.acted:
            assert isinstance(found, PositionMoved)
            assert found.position == 15
        else:
            assert found == Applied(20, 2, 2)
        assert len(place.held() or []) == 3


@pytest.mark.parametrize("doing", ["append", "compact"])
def test_another_writer_that_commits_at_any_step_causes_a_retry(place: DeltaTest, doing: str) -> None:
    def act() -> None:
        if doing == "append":
            rows = pa.table({"id": pa.array([50], pa.int64()), "name": ["foreign"]})
            write_deltalake(place.path, rows, mode="append")
        else:
            flushed(place.open(), replace(FLUSH, expected=10, through=11), [(Op.INSERT, {"id": 60, "name": "x"})])
            DeltaTable(place.path).optimize.compact()

    for intruder, mine in steps_of(place, act):
        found = outcome(mine, FLUSH, CHANGES)
        if isinstance(found, Refused):
            assert intruder.acted
            again = replace(FLUSH, expected=found.position) if isinstance(found, PositionMoved) else FLUSH
            assert flushed(mine, again, CHANGES) == Applied(20, 2, 2)
        also = {"append": [{"id": 50, "name": "foreign"}], "compact": [{"id": 60, "name": "x"}]}[doing]
        kept = [*named(3), CHANGES[1][1], CHANGES[2][1]]
        assert content(place.held()) == content([*kept, *also] if intruder.acted else kept)


def test_a_key_that_another_writer_adds_at_any_step_is_found(place: DeltaTest) -> None:
    """No write between the look-up and the commit goes unnoticed (T4)."""
    same = pa.table({"id": pa.array([100], pa.int64()), "name": ["foreign"]})
    for intruder, mine in steps_of(place, lambda: write_deltalake(place.path, same, mode="append")):
        found = outcome(mine, FLUSH, CHANGES)
        if isinstance(found, Unreachable):
            found = outcome(mine, FLUSH, CHANGES)
        assert isinstance(found, DuplicateKey) == intruder.acted
        assert [row["id"] for row in place.held() or []].count(100) == 1


def test_a_seed_that_loses_a_race_changes_nothing(place: DeltaTest) -> None:
    again = replace(SEED, expected=10, through=30)
    theirs = lambda: flushed(place.open(), FLUSH, CHANGES)  # noqa: E731
    for intruder, mine in steps_of(place, theirs):
        try:
            mine.seed(again, plain(ORDERS, named(9)))
        except (Unreachable, PositionMoved):
            assert intruder.acted
            assert place.open().standing() == Standing(20, 1, "lake/orders")
            mine.seed(replace(again, expected=20), plain(ORDERS, named(9)))
        assert content(place.held()) == content(named(9))


def test_of_two_first_seeds_one_makes_the_table(place: DeltaTest) -> None:
    for at in range(3):
        shutil.rmtree(place.path, ignore_errors=True)
        intruder = Intruder(at, lambda: seeded(place, named(1, 2)))
        mine = place.open(intruder)
        if at == 0:
            with pytest.raises(PositionMoved):
                mine.seed(replace(SEED, through=11), plain(ORDERS, named(5)))
            continue
        with pytest.raises(PositionMoved):
            mine.seed(replace(SEED, through=11), plain(ORDERS, named(5)))
        assert content(place.held()) == content(named(1, 2))
        with pytest.raises(Fenced):
            mine.seed(replace(SEED, token=0), plain(ORDERS, named(5)))


def test_a_table_that_vanishes_under_a_commit_has_an_unknown_outcome(place: DeltaTest) -> None:
    def vanish(step: str) -> None:
        if step == "commit":
            shutil.rmtree(place.path)
            Path(place.path).touch()

    seeded(place, named(1, 2, 3))
    with pytest.raises(OutcomeUnknown, match="table"):
        flushed(place.open(vanish), FLUSH, CHANGES)


def test_an_open_destination_notices_a_recreated_table(place: DeltaTest) -> None:
    destination = seeded(place, named(1, 2, 3))
    flushed(destination, FLUSH, CHANGES)
    shutil.rmtree(place.path)
    assert destination.standing() is None
    flushed(seeded(place, named(1, 2, 3)), replace(FLUSH, through=12), [])  # has as many versions as the one before
    assert destination.standing() == Standing(12, 1, "lake/orders")
    assert flushed(destination, replace(FLUSH, expected=12), CHANGES) == Applied(20, 2, 2)


# ------------------------------------------------------------------------------------------------------------ the files


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that a few rows meet all of them."""
    monkeypatch.setattr(delta_files, "ROWS_PER_FILE", 10)
    monkeypatch.setattr(delta_merge, "SMALL_FILES_MAX", 2)
    monkeypatch.setattr(delta_merge, "MATCHED_ROWS", 15)
    monkeypatch.setattr(delta_merge, "KEYS_AT_ONCE", 3)
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 5)


@pytest.mark.usefixtures("small_files")
def test_only_files_that_hold_a_key_are_written_again(place: DeltaTest) -> None:
    destination = seeded(place, named(*range(40)))
    before = live(place)
    assert len(before) == 4
    looked: list[str] = []
    watched = place.open(looked.append)
    changes: list[Change] = [(Op.REPLACE, {"id": 12, "name": "x"}), (Op.REMOVE, {"id": 15}), (Op.INSERT, named(99)[0])]
    assert flushed(watched, FLUSH, changes) == Applied(20, 2, 2)
    assert len(set(before) - set(live(place))) == 1
    assert (looked.count("look up"), looked.count("read")) == (1, 1), (
        "three files cannot hold these keys, by their bounds"
    )
    assert destination.standing() == Standing(20, 1, "lake/orders")


@pytest.mark.usefixtures("small_files")
def test_a_replaced_row_stays_among_its_neighbours_so_that_bounds_stay_narrow(place: DeltaTest) -> None:
    destination = seeded(place, named(*range(40)))
    for at in range(10, 20):
        changes: list[Change] = [(Op.REPLACE, {"id": 3, "name": str(at)}), (Op.INSERT, named(100 + at)[0])]
        flushed(destination, replace(FLUSH, expected=at, through=at + 1), changes)
    found = pa.table(DeltaTable(place.path).get_add_actions(flatten=True))
    pairs = zip(found["min.id"].to_pylist(), found["max.id"].to_pylist(), strict=True)
    assert all(highest - lowest < 20 for lowest, highest in pairs)


@pytest.mark.usefixtures("small_files")
def test_many_small_files_are_joined(place: DeltaTest) -> None:
    destination = seeded(place, [], replace(SEED, mode="append", key=()))
    for at in range(10, 40):
        flush = replace(FLUSH, expected=at, through=at + 1, mode="append", key=())
        assert flushed(destination, flush, [(Op.INSERT, {"id": at, "name": "x"})]) == Applied(at + 1, written=1)
        assert len(live(place)) <= 2 + len(place.held() or []) // 3
    assert sorted(row["id"] for row in place.held() or []) == list(range(10, 40))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("waiting_bytes", [0, 1 << 20], ids=["handed on at once", "waiting"])
@pytest.mark.parametrize("kind", ["BIGINT", "far BIGINT", "VARCHAR", "both"])
def test_random_flushes_over_many_files_leave_what_a_dictionary_holds(
    place: DeltaTest, kind: str, waiting_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_merge, "WAITING_BYTES_MAX", waiting_bytes)
    draw = random.Random(7)
    columns = (Column("a", "VARCHAR" if kind == "VARCHAR" else "BIGINT"), Column("b", "VARCHAR"), Column("v", "BIGINT"))
    key = ("a", "b") if kind == "both" else ("a",)
    seed = replace(SEED, columns=columns, key=key, through=1)
    destination = seeded(place, [], seed)
    model: dict[tuple[Any, ...], Row] = {}
    first = 2**63 - 60 if kind == "far BIGINT" else -20  # where a double cannot distinguish neighbours
    names: list[Any] = [None, *(f"k{n:03}" if kind == "VARCHAR" else n + first for n in range(60))]
    for version in range(1, 40):
        changes: list[Change] = []
        middle = draw.randrange(60)
        near = [names[n] for n in range(max(0, middle - 8), min(61, middle + 8))]
        for a in draw.sample(near, draw.randint(0, min(len(near), 8))):
            row = {"a": a, "b": draw.choice(("x", None)) if kind == "both" else "x", "v": version}
            held = tuple(row[name] for name in key)
            op = Op.INSERT if held not in model else draw.choice((Op.REPLACE, Op.REPLACE, Op.REMOVE))
            changes.append((op, row))
            model.pop(held, None)
            if op is not Op.REMOVE:
                model[held] = row
        removed = sum(op is not Op.INSERT for op, _ in changes)
        written = sum(op is not Op.REMOVE for op, _ in changes)
        flush = Plan(version + 1, 1, SEED.source, columns, key, expected=version)
        assert flushed(destination, flush, changes) == Applied(version + 1, removed, written)
        assert content(place.held()) == content(model.values())
    assert len(live(place)) > 2


def test_a_refused_flush_leaves_no_file_behind(place: DeltaTest) -> None:
    destination = seeded(place, named(1, 2, 3))
    before = files(place)
    with pytest.raises(DuplicateKey, match="id = 3"):
        flushed(destination, FLUSH, [*CHANGES, (Op.INSERT, named(3)[0])])
    assert files(place) == before
    with pytest.raises(DuplicateKey, match="id = 9"):
        destination.seed(replace(SEED, expected=10, through=30), plain(ORDERS, named(8, 9, 9)))
    assert files(place) == before


def test_a_full_disk_leaves_the_table_as_it_was(place: DeltaTest) -> None:
    destination = seeded(place, named(1, 2, 3))
    before = files(place)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        found = outcome(destination, FLUSH, [(Op.INSERT, row) for row in named(*range(1000, 2000))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(found, Unreachable)
    assert "free some space" in str(found)
    assert files(place) == before
    assert flushed(destination, FLUSH, CHANGES) == Applied(20, 2, 2)


def test_others_may_compact_the_table_between_flushes(place: DeltaTest) -> None:
    destination = seeded(place, named(*range(50)))
    flushed(destination, FLUSH, [(Op.INSERT, named(70)[0])])
    DeltaTable(place.path).optimize.compact()
    flush = replace(FLUSH, expected=20, through=30)
    assert flushed(destination, flush, [*CHANGES[:2], (Op.REMOVE, {"id": 70})]) == Applied(30, 3, 1)
    assert len(place.held() or []) == 49
    assert DeltaTable(place.path).to_pyarrow_table().num_rows == 49


# -------------------------------------------------------------------------------------------------------------- the log


def test_the_log_stays_short_and_old_files_go(place: DeltaTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(delta_log, "VACUUM_EVERY", 10)
    gone = "interval 0 seconds"
    monkeypatch.setattr(
        delta_log, "PROPERTIES", {"delta.logRetentionDuration": gone, "delta.deletedFileRetentionDuration": gone}
    )
    destination = seeded(place, named(1, 2, 3))
    (Path(place.path) / "part-of-a-killed-process.parquet").write_bytes(b"torn")
    for at in range(10, 60):
        flush = replace(FLUSH, expected=at, through=at + 1)
        assert flushed(destination, flush, [(Op.REPLACE, {"id": 1, "name": str(at)})]) == Applied(at + 1, 1, 1)
    assert place.open().standing() == Standing(60, 1, "lake/orders")
    assert content(place.held()) == content([*named(2, 3), {"id": 1, "name": "59"}])
    assert len(list((Path(place.path) / "_delta_log").glob("*.json"))) < 20
    assert len(files(place)) < 20
    assert "part-of-a-killed-process.parquet" not in files(place)


def test_a_destination_that_slept_while_the_log_was_cut_goes_on(
    place: DeltaTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(delta_log, "PROPERTIES", {"delta.logRetentionDuration": "interval 0 seconds"})
    sleeper = seeded(place, named(1, 2, 3))
    assert sleeper.standing() == Standing(10, 1, "lake/orders")
    other = place.open()
    for at in range(10, 20):
        flushed(other, replace(FLUSH, expected=at, through=at + 1), [(Op.REPLACE, {"id": 1, "name": str(at)})])
    assert sleeper.standing() == Standing(20, 1, "lake/orders")
    assert flushed(sleeper, replace(FLUSH, expected=20, through=21), CHANGES) == Applied(21, 2, 2)


# ------------------------------------------------------------------------------------------------------ columns, types


def test_a_foreign_table_of_the_same_columns_becomes_ours(place: DeltaTest) -> None:
    write_deltalake(place.path, pa.table({"id": pa.array([9], pa.int64()), "name": ["x"]}))
    destination = seeded(place, named(1, 2, 3), replace(SEED, replace_existing=True))
    assert destination.standing() == Standing(10, 1, "lake/orders")
    assert flushed(destination, FLUSH, CHANGES) == Applied(20, 2, 2)


def test_a_time_without_a_zone_can_be_added_to_a_table_that_had_none(place: DeltaTest) -> None:
    destination = seeded(place, named(1, 2, 3))
    assert DeltaTable(place.path).protocol().min_reader_version == 1, "any reader can read a plain table"
    wider = (*ORDERS, Column("at", "TIMESTAMP"), Column("all", "TIMESTAMP[]"))
    noon = datetime.datetime(2026, 11, 15, 12)  # noqa: DTZ001
    row = {"id": 4, "name": "n", "at": noon, "all": [noon, None]}
    assert flushed(destination, replace(FLUSH, columns=wider), [(Op.INSERT, row)]) == Applied(20, written=1)
    assert content(place.held()) == content([*({**each, "at": None, "all": None} for each in named(1, 2, 3)), row])
    assert destination.columns() == wider


@pytest.mark.parametrize("narrow", ["INTEGER", "FLOAT", "DECIMAL(10,2)", "UINTEGER"])
def test_a_column_is_widened_within_the_flush_with_its_values(place: DeltaTest, narrow: str) -> None:
    wide = {"INTEGER": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(10,2)": "DECIMAL(20,4)", "UINTEGER": "UBIGINT"}[narrow]
    before, after = ((Column("id", "BIGINT"), Column("v", kind)) for kind in (narrow, wide))
    rows: list[Row] = [{"id": 1, "v": 7}, {"id": 2, "v": None}]
    destination = seeded(place, rows, replace(SEED, columns=before))
    flush = replace(FLUSH, columns=after)
    assert flushed(destination, flush, [(Op.REMOVE, {"id": 2}), (Op.INSERT, {"id": 3, "v": 8})]) == Applied(20, 1, 1)
    assert destination.columns() == after
    _, batches = destination.rows()
    assert {row["id"]: row["v"] for batch in batches for row in batch.to_pylist()} == {1: 7, 3: 8}


def test_times_of_day_and_coarse_timestamps_come_back(place: DeltaTest) -> None:
    columns = tuple(Column(name, kind) for name, kind in (("t", "TIME"), ("s", "TIMESTAMP_S"), ("m", "TIMESTAMP_MS")))
    row = {"t": datetime.time(1, 2, 3, 4), "s": datetime.datetime(1, 1, 1), "m": datetime.datetime(9999, 1, 1)}  # noqa: DTZ001
    destination = seeded(place, [row], replace(SEED, columns=columns, key=("t",)))
    assert destination.columns() == columns
    _, batches = destination.rows()
    assert [found for batch in batches for found in batch.to_pylist()] == [row]
    assert (place.held() or [])[0]["t"] == 3_723_000_004


def test_what_delta_cannot_keep_is_refused_by_name(place: DeltaTest) -> None:
    nanoseconds = (Column("id", "BIGINT"), Column("at", "TIMESTAMP_NS[]"))
    with pytest.raises(SchemaMismatch, match="'at' is TIMESTAMP_NS"):
        seeded(place, [], replace(SEED, columns=nanoseconds))
    seconds = (Column("id", "BIGINT"), Column("at", "TIMESTAMP_S"))
    far = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2**60], pa.timestamp("s"))], ["id", "at"])
    with pytest.raises(DestinationHalted, match="'at'"):
        place.open().seed(replace(SEED, columns=seconds), [far])
    with pytest.raises(ConfigError, match="percent"):
        DeltaPlace().columns(DeltaAddress("a%20b"))
    assert place.held() is None


@pytest.mark.parametrize("odd", ["partitioned", "deletionVectors"])
def test_a_table_of_a_form_that_is_not_written_is_refused_by_name(place: DeltaTest, odd: str) -> None:
    rows = pa.table({"id": [9], "name": ["x"]})
    if odd == "partitioned":
        write_deltalake(place.path, rows, partition_by=["name"])
    else:
        write_deltalake(place.path, rows, configuration={"delta.enableChangeDataFeed": "true"})
        feature = TableFeatures.DeletionVectors
        DeltaTable(place.path).alter.add_feature(feature, allow_protocol_versions_increase=True)
    before = place.trace()
    with pytest.raises(DestinationHalted, match=odd):
        seeded(place, named(1), replace(SEED, replace_existing=True))
    assert place.trace() == before


# ------------------------------------------------------------------------------------------------------ killed any time

KILLS: Final = 4


def _flush_for_ever(place: DeltaTest) -> None:
    destination = place.open()
    while True:
        standing = destination.standing()
        assert standing is not None
        at = standing.position
        changes: list[Change] = [(Op.REPLACE, {"id": 1, "name": str(at)}), (Op.INSERT, named(1000 + at)[0])]
        flushed(destination, replace(FLUSH, expected=at, through=at + 1), changes)


def test_a_process_killed_at_any_moment_leaves_rows_that_fit_the_position(place: DeltaTest) -> None:
    """The contract suite kills between statements; here the moment may be inside of delta-rs."""
    seeded(place, named(1, 2, 3))
    draw = random.Random(1)
    seen = [10]
    for _ in range(KILLS):
        child = multiprocessing.get_context("forkserver").Process(target=_flush_for_ever, args=(place,), daemon=True)
        child.start()
        observer = place.open()
        while (standing := observer.standing()) is None or standing.position < seen[-1] + draw.randint(2, 9):
            child.join(0.01)
            assert child.is_alive()
        child.kill()
        child.join()
        child.close()
        found = place.open().standing()
        assert found is not None
        seen.append(found.position)
        kept = named(2, 3, *range(1010, 1000 + found.position))
        assert content(place.held()) == content([*kept, {"id": 1, "name": str(found.position - 1)}])
    assert seen == sorted(set(seen))
