"""Applies settled rows to one destination after the other, inside a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.delivery.destinations.contract import Applied, Destination, Flush, Seed
from trunkline.delivery.destinations.factory import cached_destination, forget_destination
from trunkline.delivery.job.results import failed, succeeded
from trunkline.delivery.job.work import FlushWork, SeedWork, TaskDestination
from trunkline.errors import TrunklineError


def flush_destination(
    target: TaskDestination, member: JobMember, work: FlushWork, key: tuple[str, ...], staged: Iterable[pa.RecordBatch]
) -> Result:
    flush = Flush(
        expected=member.expected,
        mark=member.mark,
        through=work.window.through,
        through_mark=work.mark,
        token=member.token,
        source=work.identity,
        columns=work.columns,
        key=key,
        mode=target.mode,
        duplicates=target.duplicates,
        steps=work.steps,
    )
    return _applied(target, member, lambda destination: destination.flush(flush, staged))


def seed_destination(
    target: TaskDestination, member: JobMember, work: SeedWork, key: tuple[str, ...], rows: Iterable[pa.RecordBatch]
) -> Result:
    seed = Seed(
        expected=member.expected,
        mark=member.mark,
        through=work.through,
        through_mark=work.mark,
        token=member.token,
        source=work.identity,
        columns=work.columns,
        key=key,
        mode=target.mode,
        replace_existing=target.replace_existing,
    )
    return _applied(target, member, lambda destination: destination.seed(seed, rows))


def _applied(target: TaskDestination, member: JobMember, apply: Callable[[Destination], Applied]) -> Result:
    try:
        return succeeded(target.name, apply(cached_destination(target.address)), member.token)
    except TrunklineError as error:
        forget_destination(target.address)
        return failed(target.name, error)
