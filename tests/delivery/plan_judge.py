"""Holds the Spark plan of a window to the pure rule, over histories of ``delivery.fuzz``.

PYTHONPATH=tests python tests/delivery/plan_judge.py FIRST LAST       judges some windows of each of these seeds
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from lake_fuzz.histories import History, made_history
from lake_fuzz.judge import windows
from lake_fuzz.shapes import routes
from lake_fuzz.truth import plain_rows
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.net import Settled, settle, settle_live, touched_keys
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.engine.session import SHORT_LIVED, spark_session, stop_session
from trunkline.delivery.job.large import FrameRoutes, SharedKeys, by_destination, settled_frame, settled_live_frame
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.ducklake import DuckLakeSource
from trunkline.delivery.sources.ducklake_spark import LakeWindowFrames
from trunkline.errors import SourceExpired

PARTITIONS = 2
WINDOWS = 12  # of a history; each takes seconds


class Compared(Struct, frozen=True):
    """One window, read and settled in both ways."""

    window: Window
    native: bool  # Spark's own reader read it
    files: bool  # it had files,
    deletes: bool  # delete files,
    inlined: bool  # and rows that the catalog holds
    moved: bool  # files may have been rewritten in it
    shared: bool  # keys may be shared
    wrong: str | None


def compared(spark: SparkSession, history: History, chosen: Iterable[Window]) -> Iterator[Compared]:
    """What is wrong about the plan of each window that can still be read."""
    source = DuckLakeSource(history.address)
    for window in chosen:
        layout = history.layouts[window.through]
        asked = ReadRequest(tuple(Column(each.name, each.type) for each in layout), history.shape.key, "tenant")
        try:
            net = source.net_changes(window, asked, ALL_ROUTES)
        except SourceExpired:
            continue
        plan = source.plan(window)
        frames = LakeWindowFrames(spark, source, plan, asked)
        wrong = (
            _differs("removed", frames.removed(), net.removed)
            or _differs("arrived", frames.arrived(), net.arrived)
            or _settled_wrong(spark, history, source, asked, frames, net, window)
        )
        inlined = bool(net.arrived.num_rows or net.removed.num_rows) and bool(plan.inlined)
        shared = history.shape.duplicates
        yield Compared(window, frames.native, bool(plan.files), bool(plan.deletes), inlined, plan.moved, shared, wrong)


def some_windows(history: History, count: int) -> list[Window]:
    """Short and long ones, and of the states too; the same ones for the same seed."""
    every = list(windows(history))
    return random.Random(history.seed).sample(every, min(count, len(every)))


def _settled_wrong(
    spark: SparkSession,
    history: History,
    source: DuckLakeSource,
    asked: ReadRequest,
    frames: LakeWindowFrames,
    net: NetChanges,
    window: Window,
) -> str | None:
    known = routes(history.shape)
    routed = FrameRoutes(spark, known)
    if history.shape.duplicates:
        live = source.live(window.through, asked, touched_keys(net, asked.key, known))
        wanted = settle_live(net, live, known, asked.key)
        state = Window(BEFORE_ALL, window.through)
        everything = LakeWindowFrames(spark, source, source.plan(state), asked).arrived()
        frame = settled_live_frame(frames.removed(), frames.arrived(), everything, routed, asked.key, PARTITIONS)
    else:
        wanted = settle(net, known, asked.key)
        frame = settled_frame(frames.removed(), frames.arrived(), routed, asked.key, PARTITIONS)
    return _staged_differ(_applied(asked.key, frame), wanted)


def _applied(key: tuple[str, ...], frame: DataFrame) -> list[pa.RecordBatch]:
    """What destinations would be given."""
    batches = iter(frame.toArrow().to_batches())
    return [batch for _, rows in by_destination(batches) for batch in SharedKeys(key).settled(rows)]


def _staged_differ(found: list[pa.RecordBatch], wanted: Settled) -> str | None:
    names = [DESTINATION_COLUMN, OP_COLUMN]
    names += [name for name in wanted.staged.column_names if name not in names]
    schema = pa.schema([wanted.staged.schema.field(name) for name in names])
    staged = pa.Table.from_batches([batch.select(names).cast(schema) for batch in found], schema)
    return _difference("settled", Counter(plain_rows(staged)), Counter(plain_rows(wanted.staged.select(names))))


def _differs(side: str, frame: DataFrame, wanted: pa.Table) -> str | None:
    names = [ROUTE_COLUMN, *(name for name in wanted.column_names if name != ROUTE_COLUMN)]
    found = frame.toArrow().select(names).cast(wanted.select(names).schema)
    return _difference(side, Counter(plain_rows(found)), Counter(plain_rows(wanted.select(names))))


def _difference(what: str, found: Counter[tuple[object, ...]], wanted: Counter[tuple[object, ...]]) -> str | None:
    if found == wanted:
        return None
    surplus, lost = list((found - wanted).items())[:2], list((wanted - found).items())[:2]
    return f"{what}: the plan has also {surplus}, and lacks {lost}"


def main(first: int, last: int) -> None:
    spark = spark_session("local[2]", conf=SHORT_LIVED)
    try:
        for seed in range(first, last):
            with made_history(seed) as history:
                found = list(compared(spark, history, some_windows(history, WINDOWS)))
            wrong = [each for each in found if each.wrong]
            print(f"seed {seed}: {len(found)} windows, {len(wrong)} wrong", *wrong[:3], sep="\n    ", flush=True)
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
