"""Makes what the planner and the tasks use from a pipeline's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trunkline.core.delivery_messages import Life, Planned, SeedMode
from trunkline.core.planner_tracks import PlannerConfig
from trunkline.delivery.changes.columns import check_columns, check_routing
from trunkline.delivery.config import DestinationConfig, Pipeline
from trunkline.delivery.config.address_rules import shared_place
from trunkline.delivery.config.digests import address_digest, digest_of
from trunkline.delivery.config.table_rules import selection_of, settings_of
from trunkline.delivery.job.work import TableWork, TaskDestination, TaskPipeline
from trunkline.delivery.sources.contract import Source
from trunkline.delivery.sources.factory import source_of
from trunkline.errors import ConfigError

SEED_MODES = {"scan": SeedMode.SCAN, "history": SeedMode.START, "now": SeedMode.NOW}


def task_pipeline(pipeline: Pipeline, source: Source, destinations: Sequence[DestinationConfig]) -> TaskPipeline:
    targets = tuple(
        TaskDestination(
            *(each.name, each.address, each.values, each.mode, each.duplicates, each.replace_existing),
            seed_from=each.seed_from or "",
        )
        for each in destinations
    )
    return TaskPipeline(pipeline.name, source, targets, pipeline, living=pipeline.living)


def pipeline_source(pipeline: Pipeline) -> Source:
    """Connects to nothing."""
    return source_of(pipeline.source, selection_of(pipeline))


def planned(pipeline: Pipeline, destination: DestinationConfig, life: Life) -> Planned:
    digest, shared = digest_of(pipeline, destination), shared_place(destination.address)
    return Planned(destination.name, life, SEED_MODES[destination.seed], digest, place=shared)


def places_of(destinations: Iterable[DestinationConfig]) -> dict[str, str]:
    """The place of each destination that has one writer at a time, by name: it has one owner, too (C9)."""
    found = ((each.name, shared_place(each.address)) for each in destinations)
    return {name: place for name, place in found if place}


def addresses_of(destinations: Iterable[DestinationConfig]) -> dict[str, str]:
    """What identifies the tables of each destination, by its name (C12)."""
    return {each.name: address_digest(each) for each in destinations}


def planner_config(pipeline: Pipeline) -> PlannerConfig:
    return PlannerConfig(
        interval_ms=pipeline.flush.interval_ms,
        rows=pipeline.flush.rows,
        size_bytes=pipeline.flush.bytes,
        groups_max=pipeline.flush.groups,
        retry_first_ms=pipeline.retry.first_ms,
        retry_max_ms=pipeline.retry.most_ms,
        breaker_after=pipeline.retry.breaker_after,
    )


def check_source(pipeline: Pipeline, source: Source) -> None:
    """Raise ``ConfigError`` or ``Unreachable`` unless the source is reachable and has the configured tables and
    columns."""
    source.state(0)
    for table in source.tables(0):
        if (settings := settings_of(pipeline, table.name, table.columns, table.key)) is None:
            continue
        try:
            check_columns(table.columns, (), None)
            work = TableWork(table.name, table.columns, settings.key, settings.routing, shape=settings.shape)
            check_columns(work.shaped.columns, settings.key, None)
            request = work.shaped.request()
            check_columns(table.columns, (), request.routing or None)
            check_routing(table.columns, request.routing)
            source.check_keys(table.name, request.key, request.routing)
        except ConfigError as error:
            raise ConfigError(f"table {table.name}: {error}" if table.name else str(error)) from None
