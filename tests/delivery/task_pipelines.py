"""Pipelines as tasks see them, for tests: without a file, a control store or a deliverer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, cast

import pyarrow as pa

from trunkline.core.delivery_messages import JobMember
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.address_rules import home_of
from trunkline.delivery.config.addresses import Address, LogAddress
from trunkline.delivery.config.tree import Pipeline, RoutingConfig, TableConfig
from trunkline.delivery.destinations.contract import MemberTables, Standing
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.table_works import known_tables, state_tables, window_tables
from trunkline.delivery.job.work import FlushWork, SeedWork, TaskDestination, TaskPipeline
from trunkline.delivery.sources.contract import Source, TableSource
from trunkline.delivery.sources.table_set import OneTable
from trunkline.errors import TrunklineError

NAME = "shop"


def task_pipeline_of(
    source: Source | TableSource,
    targets: Iterable[TaskDestination],
    *,
    key: Sequence[str] = ("id",),
    routing: str = "tenant",
    tables: Sequence[str | TableConfig] = (),
    **settings: Any,
) -> TaskPipeline:
    """``tables``: entries of a set; none: the source is one table."""
    entries = tuple(each if isinstance(each, TableConfig) else TableConfig(table=each) for each in tables)
    rules = Pipeline(
        name=NAME,
        source=LogAddress("unused"),
        key=tuple(key),
        routing=RoutingConfig(column=routing) if routing else None,
        tables=entries,
        **settings,
    )
    named = tuple(targets)
    living = frozenset(f"{NAME}/{target.name}" for target in named)
    return TaskPipeline(NAME, as_set(source), named, rules, living=living)


def as_set(source: Source | TableSource) -> Source:
    """One table is a set of one."""
    return cast(Source, source) if hasattr(source, "tables") else OneTable(source)


@contextmanager
def opened_rows(address: Address, member: str = "any") -> Iterator[tuple[Standing, Iterator[pa.RecordBatch]]]:
    """The record and the rows of a destination with one table; it is found by that (T9)."""
    with closing(open_place(address)) as place:
        standing, [batches], end = place.rows(MemberTables(member, home_of(address), (address,)))
        try:
            yield standing, batches
        finally:
            end()


def standing_at(address: Address, member: str = "any") -> Standing | None:
    """The record of a destination with one table."""
    tables = MemberTables(member, home_of(address), (address,))
    with closing(open_place(address)) as place:
        return _known(place.standings([tables])[member])


def standing_of(pipeline: TaskPipeline, name: str) -> Standing | None:
    """The record of a destination."""
    target = pipeline.targets[pipeline.index[name]]
    member = pipeline.tables_of(target, known_tables(pipeline))
    with closing(open_place(target.address)) as place:
        return _known(place.standings([member])[member.member])


def _known(found: Standing | TrunklineError | None) -> Standing | None:
    if isinstance(found, TrunklineError):
        raise found
    return found


def member_of(pipeline: TaskPipeline, name: str, token: int = 1) -> JobMember:
    """A destination as it stands."""
    standing = standing_of(pipeline, name)
    if standing is None:
        return JobMember(name, 0, token)
    return JobMember(name, standing.position, token, standing.mark, standing.ahead)


def flush_work(pipeline: TaskPipeline, window: Window, *, stamp: bool = False) -> FlushWork:
    """What the driver would send to tasks."""
    survey = pipeline.source.survey(window)
    found = window_tables(pipeline, survey, window)
    drops = pipeline.rules is not None and pipeline.rules.dropped_tables == "drop"
    stamp = stamp or found.for_everyone
    return FlushWork(window, found.tables, survey.identity, found.quiet, stamp, survey.mark, found.left, drops)


def seed_work(pipeline: TaskPipeline, through: int, *, nothing: bool = False) -> SeedWork:
    survey = pipeline.source.survey(Window(BEFORE_ALL, through))
    return SeedWork(through, state_tables(pipeline, survey), survey.identity, nothing, survey.mark)
