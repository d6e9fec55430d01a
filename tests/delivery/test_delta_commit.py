"""Versions of a Delta table that a flush writes and reads without delta-rs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from contract.delta_destination import DeltaSite
from trunkline.delivery.backends.table_folder import LocalFolder
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations import delta_log
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.delivery.destinations.delta_commit import log_file, put_version, read_change
from trunkline.delivery.destinations.delta_log import DeltaLog, LoadedVersion
from trunkline.destination_suite.place import Change, OneTable, Plan, Row, Table, content, plain, staged
from trunkline.errors import PositionMoved

ORDERS: Final[Columns] = (Column("id", "BIGINT"), Column("name", "VARCHAR"))
SEED: Final = Plan(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",), seeds=True)
FLUSH: Final = Plan(expected=10, through=20, token=1, source="lake/orders", columns=ORDERS, key=("id",))
NEW: Final[list[Change]] = [(Op.REPLACE, {"id": 2, "name": "two"}), (Op.INSERT, {"id": 100, "name": "new"})]


class DeltaTest(Table):
    @property
    def path(self) -> Path:
        assert isinstance(self.site, DeltaSite)
        return Path(self.site.path(self.name))


@pytest.fixture
def place(tmp_path: Path) -> DeltaTest:
    found = DeltaTest(DeltaSite(str(tmp_path)), "table")
    found.open().seed(SEED, plain(ORDERS, named(1, 2, 3)))
    return found


def named(*ids: int) -> list[Row]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def flushed(destination: OneTable, at: int, changes: list[Change], through: int | None = None) -> Applied:
    flush = replace(FLUSH, expected=at, through=through or at + 1)
    return destination.flush(flush, staged(ORDERS, ("id",), changes))


def renamed(number: int, name: object) -> list[Change]:
    return [(Op.REPLACE, {"id": number, "name": str(name)})]


def engine(place: DeltaTest) -> str:
    """Who wrote the newest version."""
    written = DeltaTable(str(place.path)).history(1)[0]["engineInfo"]
    assert isinstance(written, str)
    return written


def state(loaded: LoadedVersion | None) -> dict[str, Any]:
    assert loaded is not None
    found = msgspec.structs.asdict(loaded)
    found["files"] = sorted(loaded.files, key=lambda file: file.path)
    return found


# -------------------------------------------------------------------------------------------------------------- writing


def test_p1_of_many_writers_of_a_version_one_succeeds_and_no_draft_is_left(place: DeltaTest) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def put(number: int) -> None:
        start.wait()
        try:
            put_version(place.path, 1, b"%d\n" % number * 10_000, lambda _: None)
        except FileExistsError:
            return
        won.append(number)

    writers = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    [winner] = won
    assert Path(log_file(place.path, 1)).read_bytes() == b"%d\n" % winner * 10_000
    assert len(list((place.path / "_delta_log").iterdir())) == 2


def test_an_ordinary_flush_is_committed_without_delta_rs_and_read_by_it(place: DeltaTest) -> None:
    destination = place.open()
    assert flushed(destination, 10, NEW) == Applied(11, 1, 2)
    assert engine(place) == "trunkline"
    table = DeltaTable(str(place.path))
    assert content(table.to_pyarrow_table().to_pylist()) == content([*named(1, 3), *(row for _, row in NEW)])
    assert table.transaction_version("trunkline.position") == 11
    table.create_checkpoint()
    assert content(place.held()) == content([*named(1, 3), *(row for _, row in NEW)])
    assert place.open().standing() == Standing(11, 1, "lake/orders")


@pytest.mark.parametrize("special", ["property", "constraint"])
def test_a_table_that_another_program_made_special_is_committed_by_delta_rs(place: DeltaTest, special: str) -> None:
    table = DeltaTable(str(place.path))
    if special == "property":
        table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    else:
        table.alter.add_constraint({"positive": "id > 0"})
    destination = place.open()
    assert flushed(destination, 10, NEW) == Applied(11, 1, 2)
    assert engine(place) != "trunkline"
    assert flushed(destination, 11, renamed(1, "x")) == Applied(12, 1, 1)
    assert len(place.held() or []) == 4


# -------------------------------------------------------------------------------------------------------------- reading


def test_l5_versions_of_another_process_are_read_without_opening_the_table(
    place: DeltaTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = place.open(), place.open()
    assert first.standing() == second.standing() == Standing(10, 1, "lake/orders")

    def opened(*_: object, **__: object) -> None:
        pytest.fail("it was opened")

    monkeypatch.setattr(delta_log, "DeltaTable", opened)
    for at in range(10, 20):
        flushed(first if at % 2 else second, at, renamed(1, at))
        assert first.standing() == second.standing() == Standing(at + 1, 1, "lake/orders")


def test_l5_the_state_that_followed_others_is_that_of_a_table_that_was_opened(place: DeltaTest) -> None:
    """Whatever others do: flushes of another process, appends, compactions, new columns, checkpoints."""
    draw = random.Random(3)
    log, other = DeltaLog(LocalFolder(place.path), lambda _: None), place.open()
    at, followed = 10, 0

    def flush() -> None:
        nonlocal at
        flushed(other, at, renamed(draw.randint(1, 3), at))
        at += 1

    def append() -> None:
        rows = pa.table({"id": pa.array([draw.randint(1000, 10**9)], pa.int64()), "name": [None]})
        write_deltalake(str(place.path), rows, mode="append", schema_mode="merge")

    acts: list[Callable[[], object]] = [
        *(flush, flush, append),
        lambda: DeltaTable(str(place.path)).optimize.compact(),
        lambda: DeltaTable(str(place.path)).create_checkpoint(),
        lambda: DeltaTable(str(place.path)).delete("id > 1000"),
        lambda: DeltaTable(str(place.path)).alter.set_table_properties({"delta.checkpointInterval": "10"}),
    ]
    for _ in range(40):
        for act in draw.choices(acts, k=draw.randint(1, 3)):
            before = log.loaded
            act()
        found, fresh = log.load(), DeltaLog(LocalFolder(place.path), lambda _: None).load()
        followed += before is not None and found is not None and found.form is before.form
        mine, theirs = state(found), state(fresh)
        mine.pop("checkpoint"), theirs.pop("checkpoint")
        assert mine == theirs
    assert followed > 20


@pytest.mark.parametrize(
    "line",
    [
        b'{"metaData":{"id":"x"}}',
        b'{"protocol":{"minReaderVersion":3}}',
        b'{"add":{"path":"a%20b.parquet","size":1}}',
        b'{"add":{"path":"a.parquet","size":1,"deletionVector":{"storageType":"i"}}}',
        b'{"remove":{"path":"file:///a.parquet"}}',
        b'{"invented":{}}',
        b'{"txn":{"appId":"a","version":1},"metaData":{}}',
        b'{"txn":{"appId":"a"',
        b"{}",
        b"[]",
    ],
)
def test_l5_a_version_that_says_anything_else_is_left_to_delta_rs(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "_delta_log").mkdir()
    known = b'{"txn":{"appId":"a","version":1}}\n'
    put_version(tmp_path, 1, known, lambda _: None)
    put_version(tmp_path, 2, known + line + b"\n", lambda _: None)
    understood = read_change(tmp_path, 1)
    assert understood is not None
    assert understood.numbers == {"a": 1}
    assert read_change(tmp_path, 2) is None


# --------------------------------------------------------------------------------------------------- a log that was cut


def go_on_and_cut(place: DeltaTest, keep: int) -> None:
    """Another process goes on; then a clean-up of the log is killed, and has not yet removed this version."""
    other = place.open()
    standing = other.standing()
    assert standing is not None
    for at in range(standing.position, standing.position + 5):
        flushed(other, at, renamed(1, at))
    table = DeltaTable(str(place.path))
    table.create_checkpoint()
    for version in range(table.version()):
        if version != keep:
            Path(log_file(place.path, version)).unlink(missing_ok=True)


def test_l6_a_process_that_slept_while_the_log_was_cut_finds_the_newest_version(place: DeltaTest) -> None:
    sleeper = place.open()
    assert sleeper.standing() == Standing(10, 1, "lake/orders")
    go_on_and_cut(place, keep=0)
    assert not Path(log_file(place.path, 1)).exists(), "only the checkpoint says that there is more"
    assert sleeper.standing() == Standing(15, 1, "lake/orders")
    assert flushed(sleeper, 15, NEW) == Applied(16, 1, 2)
    assert content(place.held()) == content([{"id": 1, "name": "14"}, *named(3), *(row for _, row in NEW)])


@pytest.mark.parametrize("asleep", ["commit", "link"])
def test_l6_a_process_that_slept_just_before_its_commit_finds_that_it_did_not_succeed(
    place: DeltaTest, asleep: str
) -> None:
    slept: list[str] = []

    def sleep(step: str) -> None:
        if step == asleep and not slept:
            slept.append(step)
            go_on_and_cut(place, keep=0)

    sleeper = place.open(sleep)
    with pytest.raises(PositionMoved) as moved:
        flushed(sleeper, 10, NEW, through=30)
    assert moved.value.position == 15
    assert slept
    assert content(place.held()) == content([{"id": 1, "name": "14"}, *named(2, 3)])
    assert flushed(sleeper, 15, NEW, through=30) == Applied(30, 1, 2)
    assert place.open().standing() == Standing(30, 1, "lake/orders")
