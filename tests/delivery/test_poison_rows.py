"""A row on which an expression of a shape fails halts the destination that takes it, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from delivery.direct_delivery import Lake
from delivery.set_addresses import Make
from delivery.set_delivery import direct, held
from delivery.set_source import Row, SetSource, memory_table
from delivery.task_pipelines import flush_work, member_of, seed_work, task_pipeline_of
from trunkline.core.delivery_messages import FlushGroup, Outcome, SeedGroup, SeedMode
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.small import flush_portion, seed_portion, unknown_values
from trunkline.delivery.job.work import Portion, TaskDestination, TaskPipeline
from trunkline.delivery.sources.lake_tables import LakeTables

COLUMNS = "id BIGINT, tenant VARCHAR, note VARCHAR"
TENANTS = ("acme", "bolt", "corp")
SHAPES: dict[str, dict[str, Any]] = {
    "filter": {"filter": "CAST(note AS INTEGER) > 0"},
    "computed": {"computed": {"size": "CAST(note AS INTEGER)"}},
}


def note(number: int, tenant: str, text: str) -> Row:
    return {"id": number, "tenant": tenant, "note": text}


def failed(report: JobReport) -> list[str]:
    assert {each.outcome for each in report.results} <= {Outcome.APPLIED, Outcome.PERMANENT}
    wrong = [each for each in report.results if each.outcome is Outcome.PERMANENT]
    assert all("fails on a row of the source" in each.error for each in wrong)
    return [each.destination for each in wrong]


def portion(work: TaskPipeline, names: Sequence[str]) -> Portion:
    return Portion(0, tuple(member_of(work, name) for name in names), True)


@pytest.mark.parametrize("mode", ["mirror", "append", "history"])
@pytest.mark.parametrize("part", SHAPES)
def test_a_row_that_cannot_be_shaped_halts_only_its_destination(make: Make, part: str, mode: Any) -> None:
    source = SetSource(notes=memory_table(COLUMNS, *(note(place, each, "1") for place, each in enumerate(TENANTS))))
    targets = [TaskDestination(each, make(each), (each,), mode=mode) for each in TENANTS]
    delivery = direct(source, *targets, **SHAPES[part])
    delivery.seed()
    version = source.put("notes", note(10, "acme", "2"), note(11, "bolt", "poison"), note(12, "corp", "2"))
    work = flush_work(delivery.work, Window(version - 1, version))
    assert failed(flush_portion(delivery.work, work, portion(delivery.work, TENANTS))) == ["bolt"]
    assert [len(held(delivery, each)["notes"]) for each in TENANTS] == [2, 1, 2]
    source.put("notes", note(11, "bolt", "2"))
    delivery.flush()
    assert [len(held(delivery, each)["notes"]) for each in TENANTS] == [2, 2, 2]


@pytest.mark.parametrize("part", SHAPES)
def test_a_seed_leaves_out_only_the_destination_with_such_a_row(make: Make, part: str) -> None:
    rows = [note(place, each, "poison" if each == "bolt" else "1") for place, each in enumerate(TENANTS)]
    source = SetSource(notes=memory_table(COLUMNS, *rows))
    delivery = direct(source, *(TaskDestination(each, make(each), (each,)) for each in TENANTS), **SHAPES[part])
    report = seed_portion(delivery.work, seed_work(delivery.work, 1), portion(delivery.work, TENANTS))
    assert failed(report) == ["bolt"]
    assert [len(held(delivery, each)["notes"]) for each in ("acme", "corp")] == [1, 1]


def test_a_row_that_no_destination_takes_halts_none_and_others_are_counted(make: Make) -> None:
    source = SetSource(notes=memory_table(COLUMNS, note(1, "acme", "1")))
    everything = TaskDestination("acme", make("acme"), ("acme",))
    delivery = direct(source, everything, **SHAPES["filter"])
    delivery.seed()
    version = source.put("notes", note(2, "nothing", "poison"), note(3, "no one", "1"), note(4, "acme", "1"))
    work = flush_work(delivery.work, Window(version - 1, version))
    report = flush_portion(delivery.work, work, portion(delivery.work, ["acme"]))
    assert failed(report) == []
    assert report.unrouted == {"no one": 1}
    assert unknown_values(delivery.work, Window(version - 1, version), work.tables) == {"no one": 1}
    assert len(held(delivery, "acme")["notes"]) == 2


def test_a_destination_of_every_row_halts_and_the_others_do_not(make: Make) -> None:
    source = SetSource(notes=memory_table(COLUMNS, note(1, "acme", "1")))
    targets = [TaskDestination("acme", make("acme"), ("acme",)), TaskDestination("all", make("all"), None)]
    delivery = direct(source, *targets, **SHAPES["computed"])
    delivery.seed()
    version = source.put("notes", note(2, "bolt", "poison"), note(3, "acme", "1"))
    work = flush_work(delivery.work, Window(version - 1, version))
    assert failed(flush_portion(delivery.work, work, portion(delivery.work, ["acme", "all"]))) == ["all"]
    assert len(held(delivery, "acme")["notes"]) == 2


@pytest.mark.parametrize("part", SHAPES)
def test_a_large_window_with_such_a_row_halts_only_its_destination(
    spark: SparkSession, tmp_path: Path, part: str
) -> None:
    address = LakeAddress(f"sqlite:{tmp_path}/source.db", "", data_path=str(tmp_path / "source"))
    lake = Lake.__new__(Lake)
    lake.address = address
    tenants = [f"t{number}" for number in range(5)]
    values = ", ".join(f"({number}, '{each}', '1')" for number, each in enumerate(tenants))
    lake.run(f"CREATE TABLE lake.notes ({COLUMNS})", f"INSERT INTO lake.notes VALUES {values}")
    where = LakeAddress(f"sqlite:{tmp_path}/lake.db", "{table}", data_path=str(tmp_path / "lake"))
    targets = [TaskDestination(each, replace(where, table=f"{each}_{{table}}"), (each,)) for each in tenants]
    source = LakeTables(address, Selection(("main.*",), "main"))
    work = task_pipeline_of(source, targets, tables=["main.*"], **SHAPES[part])
    runner = JobRunner(spark, work, -1)
    members = tuple(member_of(work, each) for each in tenants)
    version = source.state(0).version
    assert failed(runner.seed(SeedGroup(1, version, SeedMode.SCAN, members))) == []
    later = lake.run(
        "INSERT INTO lake.notes VALUES (10, 't1', 'poison'), (11, 'none', 'poison'), (12, 't4', '1'), (13, 't0', '1')"
    )
    members = tuple(member_of(work, each) for each in tenants)
    report = runner.flush(FlushGroup(2, version, later, members))
    assert failed(report) == ["t1"]
    assert (report.path, report.unrouted) == ("large", None)
    assert {each.destination for each in report.results} == {"t0", "t1", "t4"}
    assert runner.unknown_values(Window(version, later)) == {}
    runner.close()
