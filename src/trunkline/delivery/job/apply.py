"""Applies settled rows to one destination after the other, inside a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

import pyarrow as pa

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.delivery.destinations.contract import Applied, Destination, Flush, Seed
from trunkline.delivery.destinations.factory import forget, kept_open
from trunkline.delivery.job.outcomes import failed, succeeded
from trunkline.delivery.job.work import Counted, FlushWork, SeedWork, Target
from trunkline.errors import TrunklineError


def flush_destination(
    target: Target, member: JobMember, work: FlushWork, key: tuple[str, ...], staged: Iterable[pa.RecordBatch]
) -> tuple[Result, Counted]:
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
    )
    return _applied(target, member, lambda destination: destination.flush(flush, staged))


def seed_destination(
    target: Target, member: JobMember, work: SeedWork, key: tuple[str, ...], rows: Iterable[pa.RecordBatch]
) -> tuple[Result, Counted]:
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


def _applied(target: Target, member: JobMember, apply: Callable[[Destination], Applied]) -> tuple[Result, Counted]:
    begun = monotonic()
    try:
        applied = apply(kept_open(target.address))
    except TrunklineError as error:
        forget(target.address)
        return failed(target.name, error), Counted(target.name)
    took_ms = round((monotonic() - begun) * 1000)
    counted = Counted(target.name, applied.removed, applied.written, applied.duplicates, applied.missing, took_ms)
    return succeeded(target.name, applied, member.token), counted
