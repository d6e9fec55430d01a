"""A large window as Spark plans: read by Spark, routed by a broadcast table, settled with a shuffle by key.

The same rule as ``net.settle``, written as a plan; the same fuzz tests both:

    removed --route--\\
                      union -- shuffle by key -- sort by destination and key -- ops -- blobs
    arrived --route--/

With policy warn, all live rows of a touched key replace those that arrived (``net.settle_live``).

Tables have different columns. So settled rows become blobs (``arrow_blobs``), which all tables share: a second shuffle
brings those of a member's tables together, and ``large_apply`` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from trunkline.delivery.backends.sql import spark_identifier
from trunkline.delivery.changes.arrow_blobs import blobs_of
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.history import open_versions, versioned
from trunkline.delivery.changes.net import Routes, row_codes, winners
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, ROUTE_COLUMN, Mode, Op
from trunkline.delivery.job.work import Policy, TableWork, TaskPipeline
from trunkline.delivery.sources.contract import WindowFrames
from trunkline.delivery.sources.ducklake_spark import carrier_type
from trunkline.delivery.sources.task_errors import carrying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARRIVED = "_trunkline_arrived"  # 1: the row arrived, 0: it was removed
SHARED = "_trunkline_shared"  # arrivals of this key
VALUE = "_trunkline_value"
PLACES = "_trunkline_places"
RANK = "_trunkline_rank"
PARTITION_BYTES: Final = 64 * 1024 * 1024  # of a window in one partition of the shuffle by key
PARTITIONS_MAX: Final = 64  # of a shuffle
BLOB_TEXT: Final = "hand int, place int, destination int, number int, duplicates bigint, blob binary"
BLOB_SCHEMA: Final = pa.schema(
    [
        ("hand", pa.int32()),  # see TaskPipeline.hands and places
        ("place", pa.int32()),
        ("destination", pa.int32()),
        ("number", pa.int32()),  # of the table, in the work
        ("duplicates", pa.int64()),  # rows that lost against another of their key
        ("blob", pa.binary()),  # NULL: the row is about duplicates only
    ]
)


class TablePlan:
    """The plan of one table of a window. ``table``: with what its frames are known to be."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: TaskPipeline,
        table: TableWork,
        frames: WindowFrames,
        state: WindowFrames | None,
    ) -> None:
        """``state``: all rows at the window's end, if some destination needs them (``needs_state``)."""
        self._spark = spark
        self._pipeline = pipeline
        self._frames = frames
        self._state = state
        request = table.shaped.request()
        whole = table.whole or frames.emptied
        filters = table.shape is not None and table.shape.filter is not None and not whole
        exact = not filters or set(request.stated) <= set(frames.removed().columns)
        self.table = replace(table, whole=whole, exact=exact)
        self._partitions = int(min(PARTITIONS_MAX, 1 + table.size_bytes // PARTITION_BYTES))

    def unrouted(self) -> DataFrame:
        """(value, count) of arrivals whose routing value no destination has."""
        routes = FrameRoutes(self._spark, self._pipeline.routes)
        if self.table.shaped.computes_route:
            return unrouted_frame(shaped_frame(self._frames.arrived(), self.table, "arrived"), routes)
        unknown = routes.unknown(self._frames.arrived())
        return unrouted_frame(shaped_frame(unknown, self.table, "arrived"), routes)

    def _shaped(self, rows: DataFrame, side: str, routes: FrameRoutes) -> DataFrame:
        """ROUTE_COLUMN and columns, as destinations see them: of rows that some destination takes, as far as that is
        known before they are shaped. A row on which an expression fails harms only these."""
        chosen = rows if self.table.shape is None or self.table.shaped.computes_route else routes.taken(rows)
        return shaped_frame(chosen, self.table, side)

    def blobs(self, number: int, members: Collection[int], through: int) -> DataFrame:
        """The settled rows of these members, as rows of BLOB_TEXT; ``number``: of the table."""
        pipeline, targets = self._pipeline, self._pipeline.targets
        where = {
            place: (pipeline.hands[targets[place].name], pipeline.places[targets[place].name]) for place in members
        }
        frames = []
        for policy, places in pipeline.by_policy(self.table, members).items():
            replaces = targets[min(places)].replaces(self.table, whole=self.table.whole)
            form = BlobForm(self.table.shaped.columns, self.table.shaped.key, policy.mode, replaces)
            encode = encoder(form, through, number, where)
            frames.append(self._settled(policy, places).mapInArrow(carrying(encode), BLOB_TEXT))
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _settled(self, policy: Policy, places: set[int]) -> DataFrame:
        """The rows of destinations with one policy."""
        routes = FrameRoutes(self._spark, self._pipeline.routes.only(places))
        key, partitions = self.table.shaped.key, self._partitions
        arrived = self._shaped(self._frames.arrived(), "arrived", routes)
        if policy.mode == "append":
            return appended_frame(arrived, routes)
        if self.table.whole:
            nothing = arrived.limit(0).select(ROUTE_COLUMN, *(spark_identifier(name) for name in key))
            return settled_frame(nothing, arrived, routes, key, partitions)
        removed = self._shaped(self._frames.removed(), "removed", routes)
        if not policy.warns:
            return settled_frame(removed, arrived, routes, key, partitions)
        assert self._state is not None
        live = self._shaped(self._state.arrived(), "arrived", routes)
        return settled_live_frame(removed, arrived, live, routes, key, partitions)


def needs_state(pipeline: TaskPipeline, table: TableWork, frames: WindowFrames) -> bool:
    """Whether rows that share a key may be settled by all live rows of it."""
    whole = table.whole or frames.emptied
    return not whole and any(target.policy(table).warns for target in pipeline.targets)


# --- plans ---


class FrameRoutes:
    """Routes as a broadcast table; those to destinations that take every row need none."""

    def __init__(self, spark: SparkSession, routes: Routes) -> None:
        self._everywhere = routes.everywhere
        found = [(value, list(places)) for value, places in routes.by_value.items()]
        self._known = spark.createDataFrame(found, f"{VALUE} string, {PLACES} array<int>")

    def routed(self, rows: DataFrame) -> DataFrame:
        """Each row with its destinations; NULL is a routing value like any other."""
        from pyspark.sql import functions as F  # noqa: N812

        known = F.broadcast(self._known)
        how = "left" if self._everywhere else "inner"
        joined = rows.join(known, rows[ROUTE_COLUMN].eqNullSafe(known[VALUE]), how)
        everywhere = F.expr(f"array({', '.join(map(str, self._everywhere))})").cast("array<int>")
        places = F.concat(F.coalesce(F.col(PLACES), F.expr("array()").cast("array<int>")), everywhere)
        return joined.withColumn(DESTINATION_COLUMN, F.explode(places)).drop(ROUTE_COLUMN, VALUE, PLACES)

    def taken(self, rows: DataFrame) -> DataFrame:
        """The rows that have a destination."""
        from pyspark.sql import functions as F  # noqa: N812

        if self._everywhere:
            return rows
        known = F.broadcast(self._known)
        return rows.join(known, rows[ROUTE_COLUMN].eqNullSafe(known[VALUE]), "left_semi")

    def unknown(self, rows: DataFrame) -> DataFrame:
        """The rows whose routing value no destination has."""
        from pyspark.sql import functions as F  # noqa: N812

        known = F.broadcast(self._known)
        return rows.join(known, rows[ROUTE_COLUMN].eqNullSafe(known[VALUE]), "left_anti")


def settled_frame(
    removed: DataFrame, arrived: DataFrame, routes: FrameRoutes, key: tuple[str, ...], partitions: int
) -> DataFrame:
    """DESTINATION_COLUMN, OP_COLUMN, SHARED and every column, sorted by destination and key; one row for each key
    unless rows that arrived share it."""
    return _settled(routes.routed(removed), routes.routed(arrived), key, partitions)


def settled_live_frame(
    removed: DataFrame,
    arrived: DataFrame,
    live: DataFrame,
    routes: FrameRoutes,
    key: tuple[str, ...],
    partitions: int,
) -> DataFrame:
    """In the form of ``settled_frame``; ``live`` are all rows at `through`."""
    from pyspark.sql import functions as F  # noqa: N812

    gone, came, held = (routes.routed(rows) for rows in (removed, arrived, live))
    names = [DESTINATION_COLUMN, *(spark_identifier(name) for name in key)]
    touched = gone.select(*names).unionByName(came.select(*names)).distinct().alias("touched")
    same_key = [f"held.{name} <=> touched.{name}" for name in names]
    found = held.alias("held").join(touched, F.expr(" AND ".join(same_key)), "left_semi")
    return _settled(gone, found, key, partitions)


def _settled(gone: DataFrame, came: DataFrame, key: tuple[str, ...], partitions: int) -> DataFrame:
    """The shuffle is by destination and key, and serves the window function too."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    by = [F.col(DESTINATION_COLUMN), *(F.col(spark_identifier(name)) for name in key)]
    gone, came = gone.withColumn(ARRIVED, F.lit(0)), came.withColumn(ARRIVED, F.lit(1))
    both = came.unionByName(gone, allowMissingColumns=True).repartition(partitions, *by)
    same_key = Over.partitionBy(*by)
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
    names = [name for name in came.columns if name not in (DESTINATION_COLUMN, ARRIVED)]
    columns = [F.col(spark_identifier(name)) for name in names]
    return kept.select(DESTINATION_COLUMN, op.alias(OP_COLUMN), SHARED, *columns)


def appended_frame(arrived: DataFrame, routes: FrameRoutes) -> DataFrame:
    """Every row that arrived as an INSERT, in the form of ``settled_frame``."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [name for name in arrived.columns if name != ROUTE_COLUMN]
    op = F.lit(int(Op.INSERT)).cast("tinyint").alias(OP_COLUMN)
    shared = F.lit(1).cast("bigint").alias(SHARED)
    columns = [F.col(spark_identifier(name)) for name in names]
    rows = routes.routed(arrived).select(DESTINATION_COLUMN, op, shared, *columns)
    return rows.sortWithinPartitions(DESTINATION_COLUMN)


def unrouted_frame(arrived: DataFrame, routes: FrameRoutes) -> DataFrame:
    """(value, count) of arrivals whose routing value no destination has."""
    from pyspark.sql import functions as F  # noqa: N812

    return routes.unknown(arrived).groupBy(F.col(ROUTE_COLUMN).alias("value")).count()


def shaped_frame(rows: DataFrame, table: TableWork, side: str) -> DataFrame:
    """Rows of a source as destinations see them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if table.shape is None:
        return rows
    shaped, request = table.shaped, table.shaped.request("")
    columns = shaped.columns
    if side == "removed":
        columns = tuple(column for column in columns if column.name in shaped.key)
    carried = _carriers(columns)
    known = request.empty_rows().schema

    def shape(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            restored = batch.cast(pa.schema([known.field(name) for name in batch.schema.names]))
            made = shaped.removals([restored]) if side == "removed" else shaped.rows([restored])
            yield from (each.select(carried.names).cast(carried) for each in made)

    return rows.mapInArrow(carrying(shape), from_arrow_schema(carried, prefer_timestamp_ntz=True))


def _carriers(columns: Columns) -> pa.Schema:
    fields = [pa.field(column.name, carrier_type(column)) for column in columns]
    return pa.schema([pa.field(ROUTE_COLUMN, pa.string()), *fields])


# --- rows to blobs ---


class BlobForm(NamedTuple):
    """The form of a table's rows in blobs: as destinations with one mode get them."""

    columns: Columns  # of the table as destinations see it, without those of a history
    key: tuple[str, ...]
    mode: Mode
    replaces: bool

    @property
    def schema(self) -> pa.Schema:
        """In their transport types."""
        fields = [] if self.replaces else [pa.field(OP_COLUMN, pa.int8())]
        columns = versioned(self.columns) if self.mode == "history" else self.columns
        return pa.schema([*fields, *arrow_schema(columns)])

    def made(self, batch: pa.RecordBatch, through: int) -> list[pa.RecordBatch]:
        """Of settled rows. Those of a history are of a whole table: windows of one are never large."""
        kept = pa.schema([pa.field(OP_COLUMN, pa.int8()), *arrow_schema(self.columns)])
        rows = pa.Table.from_batches([batch.select(kept.names).cast(kept)])
        if self.mode == "history":
            assert self.replaces
            rows = open_versions(rows, self.columns, through, None)
        found: list[pa.RecordBatch] = rows.select(self.schema.names).combine_chunks().to_batches()
        return found


def encoder(
    form: BlobForm, through: int, number: int, where: Mapping[int, tuple[int, int]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that turns settled rows, sorted by destination and key, into blobs."""

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for place, rows in by_destination(batches):
            keys = SharedKeys(form.key)
            for batch in keys.settled(rows):
                for made in form.made(batch, through):
                    yield from (_blob_row(place, 0, blob) for blob in blobs_of(made))
            if keys.extra:
                yield _blob_row(place, keys.extra, None)

    def _blob_row(place: int, duplicates: int, blob: bytes | None) -> pa.RecordBatch:
        values: list[Any] = [*where[place], place, number, duplicates, blob]
        arrays = [pa.array([value], field.type) for value, field in zip(values, BLOB_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=BLOB_SCHEMA)

    return encode


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
    """Handles rows that share a key, in a stream that is sorted by key."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key
        self.extra = 0  # rows that lost against another

    def settled(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """At most one row of each key. With policy halt the member fails afterwards: ``extra`` counts."""
        waiting: pa.Table | None = None  # rows of shared keys; more of the last key may follow
        for batch in rows:
            shared = batch.column(SHARED).to_numpy(zero_copy_only=False) > 1
            if not shared.any():
                yield batch
                continue
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
        columns = rows.drop_columns([DESTINATION_COLUMN, OP_COLUMN, SHARED])
        chosen = np.sort(winners(columns, row_codes(rows.select(self._key))))
        self.extra += rows.num_rows - len(chosen)
        found: list[pa.RecordBatch] = rows.take(chosen).to_batches()
        return found
