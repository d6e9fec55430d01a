"""A pipeline for tests: a real source, real destinations of every kind, and windows carried out by the real job runner.

Every routing value goes to one destination of each kind for each read path, so that one window is delivered in every
way there is. What a destination holds is read without our own classes, and compared with the source at its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from pyspark.sql import SparkSession

from contract.delta_destination import DeltaKind
from contract.ducklake_destination import LakeKind
from contract.postgres_destination import PostgresKind
from delivery.pipe_sources import SourceTable
from delivery.task_pipelines import task_pipeline_of
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import FlushGroup, JobMember, Outcome, SeedGroup, SeedMode
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.job.results import JobReport, ReadPath
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.work import TaskDestination
from trunkline.destination_suite.place import Kind, Table, content

KINDS: Final[dict[str, Kind]] = {"ducklake": LakeKind("duckdb"), "delta": DeltaKind(), "postgres": PostgresKind()}
PATHS: Final[tuple[ReadPath, ...]] = ("small", "large")
SMALL_BYTES: Final[dict[ReadPath, int]] = {"small": 2**60, "large": -1}  # all windows are small, or none
TENANTS: Final[dict[str, tuple[str | None, ...]]] = {"acme": ("acme",), "bolt": ("bolt",)}
WELL: Final = (Outcome.APPLIED, Outcome.ALREADY)
SourceT = TypeVar("SourceT", bound=SourceTable)


class Site(Struct, frozen=True):
    """One destination, and how its windows are read."""

    target: TaskDestination
    table: Table
    path: ReadPath

    @property
    def name(self) -> str:
        return self.target.name


def address_of(table: Table) -> Address:
    return table.site.address(table.name)


def make_sites(
    folder: Path,
    server: PostgresServer,
    *,
    tenants: Mapping[str, tuple[str | None, ...]] = TENANTS,
    kinds: Iterable[str] = tuple(KINDS),
    paths: Iterable[ReadPath] = PATHS,
    mode: Mode = "mirror",
    duplicates: DuplicatePolicy = "halt",
) -> list[Site]:
    """A destination for each tenant, kind and path; nothing of them exists yet."""
    sites = []
    for path in paths:
        for kind in kinds:
            for tenant, values in tenants.items():
                name = f"{tenant}-{kind}-{path}"
                place = folder / name
                place.mkdir()
                table = Table(KINDS[kind].make(place, lambda: server))
                target = TaskDestination(name, address_of(table), values, mode, duplicates)
                sites.append(Site(target, table, path))
    return sites


class Pipe(Generic[SourceT]):
    """Delivers what a test writes."""

    def __init__(
        self, spark: SparkSession, table: SourceT, sites: Sequence[Site], *, key: Sequence[str] = ("id",)
    ) -> None:
        self.table = table
        self.sites = {site.name: site for site in sites}
        self.work = task_pipeline_of(table.source, [site.target for site in sites], key=key)
        self.paths = tuple(dict.fromkeys(site.path for site in sites))
        self.runners = {path: JobRunner(spark, self.work, SMALL_BYTES[path]) for path in PATHS}
        self.positions = dict.fromkeys(self.sites, 0)  # as the destinations themselves have them
        self.marks = dict.fromkeys(self.sites, "")  # of those
        self.version = 0  # that all of them are at, or have nothing up to
        self._shared = any(site.target.duplicates == "warn" for site in sites)
        self._jobs = count(1)

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()

    # --- whole windows ---

    def deliver(self, *steps: Any) -> dict[ReadPath, JobReport]:
        """Deliver steps as one window, with something right before it and something behind it; all must be well."""
        self.catch_up(self.table.write_boundary())
        after = through = self.version
        for step in steps:
            through = self.table.write(step)
        self.table.write_trail()
        reports = {path: self.flush(path, after, through) for path in self.paths}
        for report in reports.values():
            all_well(report)
        self.version = through
        self.assert_equal()
        return reports

    def given(self, *steps: Any) -> None:
        """The start of a case."""
        for step in steps:
            through = self.table.write(step)
        self.catch_up(through)

    def catch_up(self, through: int) -> None:
        """Bring everything to a version in the cheapest way."""
        if not any(self.positions.values()):
            all_well(self.seed("small", through), shared=self._shared)
        else:
            all_well(self.flush("small", self.version, through, names=tuple(self.sites)), shared=self._shared)
        self.version = through

    # --- jobs ---

    def flush(
        self,
        path: ReadPath,
        after: int,
        through: int,
        *,
        names: Sequence[str] | None = None,
        token: int = 1,
        stamp: bool = False,
    ) -> JobReport:
        """One window for the destinations of a path, or for those that are named."""
        members = self.members(self.of(path) if names is None else names, token)
        report = self.runners[path].flush(FlushGroup(next(self._jobs), after, through, members, stamp))
        self._learn(report)
        return report

    def seed(
        self, path: ReadPath, through: int, *, names: Sequence[str] | None = None, mode: SeedMode = SeedMode.SCAN
    ) -> JobReport:
        members = self.members(tuple(self.sites) if names is None else names)
        report = self.runners[path].seed(SeedGroup(next(self._jobs), through, mode, members))
        self._learn(report)
        return report

    def of(self, path: ReadPath) -> tuple[str, ...]:
        return tuple(name for name, site in self.sites.items() if site.path == path)

    def members(self, names: Iterable[str], token: int = 1) -> tuple[JobMember, ...]:
        return tuple(JobMember(name, self.positions[name], token, self.marks[name]) for name in names)

    def _learn(self, report: JobReport) -> None:
        for result in report.results:
            if result.outcome in WELL:
                self.positions[result.destination] = result.position
                self.marks[result.destination] = report.mark

    # --- what is there ---

    def assert_equal(self, version: int | None = None, *, names: Sequence[str] | None = None) -> None:
        """Every destination holds its part of the source as of a version."""
        rows = self.table.rows(self.version if version is None else version)
        for site in [self.sites[name] for name in names or self.sites]:
            wanted = [row for row in rows if _text(row["tenant"]) in (site.target.values or ())]
            assert content(site.table.held()) == content(wanted), site.name

    def traces(self) -> dict[str, object]:
        """Something that changes with everything that is written anywhere."""
        return {name: site.table.trace() for name, site in self.sites.items()}


def all_well(report: JobReport, *, shared: bool = False) -> None:
    """Nothing failed, and no destination held or lacked anything that it should not; keys may be ``shared``."""
    failed = [result for result in report.results if result.outcome not in WELL]
    assert (failed, report.rest) == ([], Outcome.EMPTY), report.error or failed
    assert [count for count in report.results if count.missing or (count.duplicates and not shared)] == []


def _text(value: object) -> str | None:
    return None if value is None else str(value)
