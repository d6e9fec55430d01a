"""A pipeline on a real DuckLake, delivered by calling the tasks directly: without Spark, planner or control store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trunkline.core.delivery_messages import JobMember, Outcome
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.destinations.factory import open_destination
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.small import flush_portion, seed_portion
from trunkline.delivery.job.work import FlushWork, Portion, SeedWork, TaskDestination, TaskPipeline
from trunkline.delivery.sources.contract import Source
from trunkline.delivery.sources.ducklake import DuckLakeSource

ORDERS = "CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, item VARCHAR, price DOUBLE)"


class Lake:
    """A lake with one table ``orders``, which is written by statements on ``lake.orders``."""

    def __init__(self, folder: Path, *statements: str, catalog: str = "") -> None:
        self.address = LakeAddress(
            catalog=catalog or str(folder / "source.ducklake"), table="orders", data_path=str(folder / "source")
        )
        self.run(*(statements or (ORDERS,)))

    def run(self, *statements: str) -> int:
        """Run each in a transaction of its own; returns the newest version."""
        connection = new_duckdb("ducklake", "sqlite_scanner")
        try:
            attach_lake(connection, self.address, "lake", read_only=False)
            for statement in statements:
                connection.execute(statement)
            (found,) = connection.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()
            return int(found[0])
        finally:
            connection.close()


class Direct:
    """Delivers to every target of a pipeline in this process."""

    def __init__(
        self, source: Source, *targets: TaskDestination, key: Sequence[str] = ("id",), routing: str = "tenant"
    ) -> None:
        self.work = TaskPipeline(source, tuple(key), routing, targets)

    def seed(self, *, nothing: bool = False) -> None:
        state = self.work.source.state(0)
        columns = self.work.source.survey(Window(BEFORE_ALL, state.version)).columns
        work = SeedWork(state.version, columns, state.identity, nothing, state.mark)
        _all_well(seed_portion(self.work, work, self._portion()))

    def flush(self) -> None:
        """Bring everything to the newest version."""
        state, portion = self.work.source.state(0), self._portion()
        for member in portion.members:
            window = Window(member.expected, state.version)
            survey = self.work.source.survey(window)
            work = FlushWork(window, survey.columns, survey.identity, True, survey.mark, survey.steps)
            _all_well(flush_portion(self.work, work, replace(portion, members=(member,))))

    def _portion(self) -> Portion:
        return Portion(0, tuple(_member(each) for each in self.work.targets), True)


def delta_target(folder: Path, name: str, **options: Any) -> TaskDestination:
    return TaskDestination(name, DeltaAddress(str(folder / name)), options.pop("values", (name,)), **options)


def lake_source(lake: Lake) -> DuckLakeSource:
    return DuckLakeSource(lake.address)


def _member(target: TaskDestination) -> JobMember:
    destination = open_destination(target.address)
    try:
        standing = destination.standing()
    finally:
        destination.close()
    return (
        JobMember(target.name, 0, 1)
        if standing is None
        else JobMember(target.name, standing.position, 1, standing.mark)
    )


def _all_well(report: JobReport) -> None:
    failed = [each.error for each in report.results if each.outcome not in (Outcome.APPLIED, Outcome.ALREADY)]
    assert failed == [], failed
