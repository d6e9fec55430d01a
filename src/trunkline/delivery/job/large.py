"""A large window as one Spark plan: read by Spark, routed by a broadcast table, settled with one shuffle, then applied.

The same rule as ``net.settle``, written as a plan; the same fuzz tests both:

    removed --route--\\
                      union -- shuffle by place -- sort by destination and key -- ops -- apply, one after another
    arrived --route--/

With policy warn, all live rows of a touched key replace those that arrived (``net.settle_live``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.delivery.backends.sql import spark_identifier
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.net import row_codes, winners
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, ROUTE_COLUMN, Op
from trunkline.delivery.job.apply import flush_destination, seed_destination
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.work import FlushWork, SeedWork, TaskDestination, TaskPipeline
from trunkline.errors import DuplicateKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARRIVED = "_trunkline_arrived"  # 1: the row arrived, 0: it was removed
SHARED = "_trunkline_shared"  # arrivals of this key
VALUE = "_trunkline_value"
RANK = "_trunkline_rank"
ANSWER_TEXT: Final = "kind string, text string, number bigint, body binary"
ANSWER_SCHEMA: Final = pa.schema(
    [("kind", pa.string()), ("text", pa.string()), ("number", pa.int64()), ("body", pa.binary())]
)
PLACE = "_trunkline_place"  # rows of one place are in one partition: its destinations are written one after another


def settled_frame(
    removed: DataFrame, arrived: DataFrame, routes: DataFrame, key: tuple[str, ...], partitions: int
) -> DataFrame:
    """DESTINATION_COLUMN, OP_COLUMN, SHARED and every column, sorted by destination and key; one row for each key
    unless rows that arrived share it."""
    return _settled(routed_frame(removed, routes), routed_frame(arrived, routes), key, partitions)


def settled_live_frame(
    removed: DataFrame,
    arrived: DataFrame,
    live: DataFrame,
    routes: DataFrame,
    key: tuple[str, ...],
    partitions: int,
) -> DataFrame:
    """In the form of ``settled_frame``; ``live`` are all rows at `through`."""
    from pyspark.sql import functions as F  # noqa: N812

    gone, came, held = (routed_frame(rows, routes) for rows in (removed, arrived, live))
    names = [DESTINATION_COLUMN, *(spark_identifier(name) for name in key)]
    touched = gone.select(*names).unionByName(came.select(*names)).distinct().alias("touched")
    same_key = [f"held.{name} <=> touched.{name}" for name in names]
    found = held.alias("held").join(touched, F.expr(" AND ".join(same_key)), "left_semi")
    return _settled(gone, found, key, partitions)


def _settled(gone: DataFrame, came: DataFrame, key: tuple[str, ...], partitions: int) -> DataFrame:
    """The shuffle is by place alone, and serves the window function too: it groups by place, destination and key."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    gone, came = gone.withColumn(ARRIVED, F.lit(0)), came.withColumn(ARRIVED, F.lit(1))
    both = came.unionByName(gone, allowMissingColumns=True).repartition(partitions, PLACE)
    same_key = Over.partitionBy(PLACE, DESTINATION_COLUMN, *(F.col(spark_identifier(name)) for name in key))
    ranked = (
        both.withColumn(SHARED, F.sum(ARRIVED).over(same_key))
        .withColumn("_trunkline_gone", F.min(ARRIVED).over(same_key) == 0)
        .withColumn(RANK, F.row_number().over(same_key.orderBy(F.col(ARRIVED).desc())))
    )
    kept = ranked.where(f"({ARRIVED} = 1) OR ({SHARED} = 0 AND {RANK} = 1)")
    op = (
        F.when(F.col(ARRIVED) == 0, int(Op.REMOVE))
        .when(F.col("_trunkline_gone"), int(Op.REPLACE))
        .otherwise(int(Op.INSERT))
        .cast("tinyint")
    )
    names = [name for name in came.columns if name not in (PLACE, DESTINATION_COLUMN, ARRIVED)]
    columns = [F.col(spark_identifier(name)) for name in names]
    return kept.select(PLACE, DESTINATION_COLUMN, op.alias(OP_COLUMN), SHARED, *columns)


def one_frame(alike: Sequence[DataFrame], key: tuple[str, ...], partitions: int) -> DataFrame:
    """Settled frames of several policies as one; rows of one place are in one partition."""
    if len(alike) == 1:
        return alike[0]
    every = reduce(lambda one, other: one.unionByName(other), alike).repartition(partitions, PLACE)
    return every.sortWithinPartitions(DESTINATION_COLUMN, *(spark_identifier(name) for name in key))


def appended_frame(arrived: DataFrame, routes: DataFrame, partitions: int) -> DataFrame:
    """Every row that arrived as an INSERT, in the form of ``settled_frame``."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [name for name in arrived.columns if name != ROUTE_COLUMN]
    rows = routed_frame(arrived, routes).repartition(partitions, PLACE)
    op = F.lit(int(Op.INSERT)).cast("tinyint").alias(OP_COLUMN)
    shared = F.lit(1).cast("bigint").alias(SHARED)
    chosen = rows.select(PLACE, DESTINATION_COLUMN, op, shared, *(F.col(spark_identifier(name)) for name in names))
    return chosen.sortWithinPartitions(DESTINATION_COLUMN)


def routed_frame(rows: DataFrame, routes: DataFrame) -> DataFrame:
    """Each row with its destination; NULL is a routing value like any other."""
    from pyspark.sql import functions as F  # noqa: N812

    known = F.broadcast(routes)
    return rows.join(known, rows[ROUTE_COLUMN].eqNullSafe(known[VALUE])).drop(ROUTE_COLUMN, VALUE)


def unrouted_frame(arrived: DataFrame, routes: DataFrame) -> DataFrame:
    """(route, count) of arrivals that no destination takes, as rows of answers."""
    from pyspark.sql import functions as F  # noqa: N812

    known = F.broadcast(routes)
    lost = arrived.join(known, arrived[ROUTE_COLUMN].eqNullSafe(known[VALUE]), "left_anti")
    counts = lost.groupBy(ROUTE_COLUMN).count()
    return counts.select(
        F.lit("unrouted").alias("kind"),
        F.col(ROUTE_COLUMN).alias("text"),
        F.col("count").alias("number"),
        F.lit(None).cast("binary").alias("body"),
    )


def routes_frame(spark: SparkSession, pipeline: TaskPipeline, places: set[int]) -> DataFrame:
    routes = [
        (value, place, pipeline.shared_places[pipeline.targets[place].name])
        for value, found in pipeline.routes.items()
        for place in found
        if place in places
    ]
    return spark.createDataFrame(routes, f"{VALUE} string, {DESTINATION_COLUMN} int, {PLACE} int")


def applier(
    pipeline: TaskPipeline, job: FlushWork | SeedWork, members: dict[int, JobMember]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that a task applies to its rows, which are sorted by destination."""

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for place, rows in by_destination(batches):
            target, member = pipeline.targets[place], members[place]
            keys = SharedKeys(target, pipeline.key)
            staged = in_schema(keys.settled(rows), job, with_op=isinstance(job, FlushWork))
            if isinstance(job, FlushWork):
                result = flush_destination(target, member, job, pipeline.key, staged)
            else:
                result = seed_destination(target, member, job, pipeline.key, staged)
            for _ in rows:
                pass  # a destination that stopped early leaves rows; those of the next one follow them
            yield answer_batch(replace(result, duplicates=max(result.duplicates, keys.extra)))

    return apply


def answer_batch(result: Result) -> pa.RecordBatch:
    body = msgspec.msgpack.encode(result)
    return pa.RecordBatch.from_pydict(
        {"kind": ["result"], "text": [result.destination], "number": [0], "body": [body]}, schema=ANSWER_SCHEMA
    )


def answers_report(rows: Iterable[tuple[str, str | None, int, bytes | None]]) -> JobReport:
    """The answers of all tasks: the only rows that reach the driver."""
    results, unrouted = [], {}
    for kind, text, number, body in rows:
        if kind == "unrouted":
            unrouted[text] = int(number)
        else:
            assert body is not None
            results.append(msgspec.msgpack.decode(bytes(body), type=Result))
    return JobReport(tuple(results), unrouted=unrouted, path="large")


def by_destination(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Cut a stream that is sorted by destination into one stream for each; each must be consumed before the next."""
    pending: list[pa.RecordBatch] = []

    def following() -> pa.RecordBatch | None:
        while not pending:
            batch = next(batches, None)
            if batch is None:
                return None
            if batch.num_rows:
                pending.append(batch)
        return pending.pop()

    def of(place: int) -> Iterator[pa.RecordBatch]:
        while (batch := following()) is not None:
            places = batch.column(DESTINATION_COLUMN).to_numpy()
            same = int((places == place).argmin()) if places[-1] != place else len(places)
            if same < len(places):
                pending.append(batch.slice(same))
            if same:
                yield batch.slice(0, same)
            if same < len(places):
                return

    while (first := following()) is not None:
        place = int(first.column(DESTINATION_COLUMN)[0].as_py())
        pending.append(first)
        yield place, of(place)


class SharedKeys:
    """Handles rows that share a key, in a stream that is sorted by key, by the policy of the destination."""

    def __init__(self, target: TaskDestination, key: tuple[str, ...]) -> None:
        self._target = target
        self._key = key
        self.extra = 0  # rows that lost against another

    def settled(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """At most one row of each key. With policy halt the flush fails before anything is committed."""
        waiting: pa.Table | None = None  # rows of shared keys; more of the last key may follow
        for batch in rows:
            shared = batch.column(SHARED).to_numpy(zero_copy_only=False) > 1
            if not shared.any():
                yield batch
                continue
            if self._target.duplicates == "halt":
                raise DuplicateKey(
                    f"rows of the source share a key ({', '.join(self._key)}) with another row of "
                    f"{self._target.name}; make the key unique, or set duplicates: warn, and resume the destination"
                )
            yield batch.filter(pa.array(~shared))
            found = pa.Table.from_batches([batch.filter(pa.array(shared))])
            waiting = found if waiting is None else pa.concat_tables([waiting, found])
            codes = row_codes(waiting.select(self._key))
            last = codes == codes[-1]
            yield from self._won(waiting.filter(pa.array(~last)))
            waiting = waiting.filter(pa.array(last))
        if waiting is not None:
            yield from self._won(waiting)

    def _won(self, rows: pa.Table) -> list[pa.RecordBatch]:
        """One row of each key, by rule R3."""
        columns = rows.drop_columns([PLACE, DESTINATION_COLUMN, OP_COLUMN, SHARED])
        chosen = np.sort(winners(columns, row_codes(rows.select(self._key))))
        self.extra += rows.num_rows - len(chosen)
        found: list[pa.RecordBatch] = rows.take(chosen).to_batches()
        return found


def in_schema(rows: Iterator[pa.RecordBatch], job: FlushWork | SeedWork, *, with_op: bool) -> Iterator[pa.RecordBatch]:
    """The columns of a destination, in their transport types."""
    fields: list[Any] = [pa.field(OP_COLUMN, pa.int8())] if with_op else []
    schema = pa.schema([*fields, *arrow_schema(job.columns)])
    for batch in rows:
        yield batch.select(schema.names).cast(schema)
