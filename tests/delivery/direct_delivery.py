"""A pipeline on a real DuckLake, delivered by calling the tasks directly: without Spark, planner or control store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from delivery.task_pipelines import flush_work, member_of, seed_work, task_pipeline_of
from trunkline.core.delivery_messages import JobMember, Outcome, Result
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.small import flush_portion, seed_portion
from trunkline.delivery.job.work import Portion, TaskDestination
from trunkline.delivery.sources.contract import Source, TableSource
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

    def __init__(self, source: Source | TableSource, *targets: TaskDestination, **settings: Any) -> None:
        """``settings``: of ``task_pipeline_of``."""
        self.work = task_pipeline_of(source, targets, **settings)

    def seed(self, *, nothing: bool = False, through: int = 0) -> JobReport:
        work = seed_work(self.work, through or self.work.source.state(0).version, nothing=nothing)
        return all_well(seed_portion(self.work, work, self.portion()))

    def flush(self, *, through: int = 0) -> JobReport:
        """Bring everything to the newest version; members at one position in one flush."""
        through = through or self.work.source.state(0).version
        at: dict[int, list[JobMember]] = {}
        for member in self.portion().members:
            at.setdefault(member.expected, []).append(member)
        results: list[Result] = []
        for position, members in at.items():
            work = flush_work(self.work, Window(position, through), stamp=True)
            results += all_well(flush_portion(self.work, work, Portion(0, tuple(members), True))).results
        return JobReport(tuple(results))

    def portion(self) -> Portion:
        return Portion(0, tuple(member_of(self.work, each.name) for each in self.work.targets), True)


def delta_target(folder: Path, name: str, **options: Any) -> TaskDestination:
    return TaskDestination(name, DeltaAddress(str(folder / name)), options.pop("values", (name,)), **options)


def lake_source(lake: Lake) -> DuckLakeSource:
    return DuckLakeSource(lake.address)


def all_well(report: JobReport) -> JobReport:
    failed = [each.error for each in report.results if each.outcome not in (Outcome.APPLIED, Outcome.ALREADY)]
    assert failed == [], failed
    return report
