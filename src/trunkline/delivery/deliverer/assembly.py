"""Makes what the planner and the tasks use from a pipeline's configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from trunkline.core.delivery_messages import Life, Planned, SeedMode
from trunkline.core.planner_tracks import PlannerConfig
from trunkline.delivery.changes.columns import check_columns, check_routing
from trunkline.delivery.config import DestinationConfig, Pipeline
from trunkline.delivery.config.address_rules import shared_place
from trunkline.delivery.config.addresses import Address, LogAddress
from trunkline.delivery.job.work import TaskDestination, TaskPipeline
from trunkline.delivery.sources.contract import Source

SEED_MODES = {"scan": SeedMode.SCAN, "history": SeedMode.START, "now": SeedMode.NOW}


def task_pipeline(pipeline: Pipeline, source: Source, destinations: Sequence[DestinationConfig]) -> TaskPipeline:
    targets = tuple(
        TaskDestination(each.name, each.address, each.values, each.mode, each.duplicates, each.replace_existing)
        for each in destinations
    )
    return TaskPipeline(source, pipeline.key, pipeline.routing.column, targets)


def planned(pipeline: Pipeline, destination: DestinationConfig, life: Life) -> Planned:
    digest, shared = digest_of(pipeline, destination), shared_place(destination.address)
    return Planned(destination.name, life, SEED_MODES[destination.seed], digest, place=shared)


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


def digest_of(pipeline: Pipeline, destination: DestinationConfig) -> str:
    """Of all that decides which rows a destination holds: when it changes, the destination is seeded again."""
    decisive = (
        _lasting(pipeline.source),
        pipeline.routing,
        pipeline.key,
        destination.address,
        destination.values,
        destination.mode,
    )
    return _digest(decisive)


def pipeline_digest(pipeline: Pipeline) -> str:
    """Of the configuration that all deliverers of a pipeline must share."""
    common = (_lasting(pipeline.source), pipeline.routing, pipeline.key, pipeline.destinations, pipeline.discover)
    return _digest(common)


def _lasting(address: Address) -> object:
    """An address as earlier versions wrote it: a key that they did not know counts only if it is set."""
    found: dict[str, object] = msgspec.to_builtins(address)
    if isinstance(address, LogAddress) and address.table is None:
        del found["table"]
    return found


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:16]


def check_source(pipeline: Pipeline, source: Source) -> None:
    """Raise ``ConfigError`` or ``Unreachable`` unless the source is reachable and has the configured columns."""
    state = source.state(0)
    columns = source.columns(state.version)
    check_columns(columns, pipeline.key, pipeline.routing.column)
    check_routing(columns, pipeline.routing.column)
    source.check_keys(pipeline.key, pipeline.routing.column)
