"""One window of a DuckLake table as Spark data frames, for windows that are too large for one task.

The plan and its cases are those of ``ducklake_window``.

Spark's own reader reads Parquet files, by field id. Files are identified by name, which DuckLake makes unique: Spark
and the catalog spell a path with different numbers of slashes, and a join on paths silently matches nothing. One task
reads inlined rows; it makes the plan again in one transaction and fails if it differs. DuckDB reads types that Spark's
reader does not have, a few files in each task.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.backends.delta_types import STORED
from trunkline.delivery.backends.sql import spark_identifier
from trunkline.delivery.changes.columns import Column, arrow_type, decimal_of
from trunkline.delivery.changes.rows import ROUTE_COLUMN
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.object_urls import is_url
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.ducklake_catalog import LakeDataFile, LakeDeleteFile
from trunkline.delivery.sources.ducklake_window import FAR, POSITION_FIELD, SNAPSHOT_FIELD, WindowPlan
from trunkline.delivery.sources.task_errors import carrying
from trunkline.errors import Unreachable

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from trunkline.delivery.sources.ducklake import DuckLakeSource

NATIVE_TYPES = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INTEGER": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "VARCHAR": "string",
    "JSON": "string",
    "BLOB": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp_ntz",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
}  # DuckDB reads all other types
CARRIERS = {**STORED, "TIMESTAMP_NS": pa.int64()}  # for types that Spark does not have; Delta's types are Spark's
PATTERN = re.compile(r"[\[\]{}*?\\]")  # special characters in a path of Spark
TASK_BYTES = 64 * 1024 * 1024  # of files that one task reads with DuckDB


def native_type(column: Column) -> str | None:
    """The type in Spark of a column that its Parquet reader reads, or ``None`` if DuckDB has to read it."""
    if (decimal := decimal_of(column.type)) is not None:
        return f"decimal({decimal[0]},{decimal[1]})"
    if column.type.endswith("[]"):
        inner = native_type(Column(column.name, column.type[:-2]))
        return None if inner is None else f"array<{inner}>"
    return NATIVE_TYPES.get(column.type)


def carrier_type(column: Column) -> pa.DataType:
    """The Arrow type of a column that DuckDB reads, on its way through Spark."""
    if column.type.endswith("[]"):
        return pa.list_(carrier_type(Column(column.name, column.type[:-2])))
    return CARRIERS.get(column.type) or arrow_type(column)


class LakeLargeReads(Struct, frozen=True):
    """Windows of a lake's table, read by Spark."""

    source: DuckLakeSource

    def frames(self, spark: SparkSession, window: Window, request: ReadRequest) -> LakeWindowFrames:
        return LakeWindowFrames(spark, self.source, self.source.plan(window, request.mark), request)


class LakeWindowFrames:
    """The removed and the arrived rows of a window, as data frames of ROUTE_COLUMN and columns.

    Values of some types travel in others (``carrier_type``); a cast restores them.
    """

    def __init__(self, spark: SparkSession, source: DuckLakeSource, plan: WindowPlan, request: ReadRequest) -> None:
        self._spark = spark
        self._source = source
        self._plan = plan
        self._request = request
        self._known = {column.column.name: column for column in plan.columns}
        self._columns = tuple(column.name for column in request.columns)

    @property
    def emptied(self) -> bool:
        """The survey of a set says which of its tables are read whole."""
        return False

    @property
    def native(self) -> bool:
        """Whether Spark's own reader can read every column: it has no defaults for added columns, and files on an
        object store would need Java packages."""
        if is_url(self._source.address.data_path):
            return False
        return all(native_type(column) and self._known[column.name].default is None for column in self._request.columns)

    def removed(self) -> DataFrame:
        if not self._plan.moved:
            return self._removed(self._request.stated)
        removed = _less(self._removed(self._columns), self._arrived(self._columns))
        return removed.select(ROUTE_COLUMN, *(spark_identifier(name) for name in self._request.stated))

    def arrived(self) -> DataFrame:
        if not self._plan.moved:
            return self._arrived(self._columns)
        return _less(self._arrived(self._columns), self._removed(self._columns))

    def _removed(self, names: Sequence[str]) -> DataFrame:
        window = self._plan.window
        if not self.native:
            return self._by_duckdb("removed", names)
        ended = [part.file for part in self._plan.files if part.at_after and not part.at_through]
        both = [
            part.file
            for part in self._plan.files
            if part.at_after and part.at_through and part.file.id in self._with_deletes()
        ]
        born = f"coalesce(_snapshot, 0) <= {window.after}"
        parts = [self._inlined("removed", names)]
        if ended:
            parts.append(self._joined(ended, names, f"{born} AND NOT coalesce(by_after, false)"))
        if both:
            parts.append(self._joined(both, names, f"{born} AND by_through AND NOT by_after"))
        return reduce(lambda left, right: left.unionByName(right), parts)

    def _arrived(self, names: Sequence[str]) -> DataFrame:
        window = self._plan.window
        if not self.native:
            return self._by_duckdb("arrived", names)
        whole = [part.file for part in self._plan.files if part.at_through and not part.at_after]
        clean = [
            file for file in whole if file.id not in self._with_deletes() and (file.partial_max or 0) <= window.through
        ]
        other = [file for file in whole if file not in clean]
        both = [part.file for part in self._plan.files if part.at_through and part.at_after and part.file.partial_max]
        parts = [self._inlined("arrived", names)]
        if clean:
            parts.append(self._chosen(self._read(clean, names), names))
        alive = "NOT coalesce(by_through, false)"
        if other:
            parts.append(self._joined(other, names, f"coalesce(_snapshot, 0) <= {window.through} AND {alive}"))
        if both:
            born = f"_snapshot > {window.after} AND _snapshot <= {window.through}"
            parts.append(self._joined(both, names, f"{born} AND {alive}"))
        return reduce(lambda left, right: left.unionByName(right), parts)

    # --- Spark's own reader ---

    def _read(self, files: Sequence[LakeDataFile], names: Sequence[str]) -> DataFrame:
        """Rows of files with ``_snapshot``, ``_file`` and ``_position``."""
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import LongType, StructField, StructType

        wanted = list(dict.fromkeys([*names, *self._request.routings]))
        fields = [
            StructField(name, self._type(name), True, {"parquet.field.id": self._known[name].id}) for name in wanted
        ]
        fields.append(StructField("_snapshot", LongType(), True, {"parquet.field.id": SNAPSHOT_FIELD}))
        frame = self._parquet(StructType(fields), files)
        return frame.select(
            "*", F.col("_metadata.file_name").alias("_file"), F.col("_metadata.row_index").alias("_position")
        )

    def _parquet(self, schema: StructType, files: Sequence[LakeDataFile] | Sequence[LakeDeleteFile]) -> DataFrame:
        """Escapes paths, which Spark takes for patterns; with patterns disabled it reads such files several times."""
        return self._spark.read.schema(schema).parquet(*(PATTERN.sub(r"\\\g<0>", file.path) for file in files))

    def _type(self, name: str) -> DataType:
        kind = native_type(self._known[name].column)
        assert kind is not None
        return _parsed(kind)

    def _joined(self, files: Sequence[LakeDataFile], names: Sequence[str], condition: str) -> DataFrame:
        rows = self._read(files, names)
        return self._chosen(rows.join(self._dead(), ["_file", "_position"], "left").where(condition), names)

    def _chosen(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        return rows.select(_text(rows, self._request.routing), *(rows[name] for name in names))

    def _dead(self) -> DataFrame:
        """(file, position, by_after, by_through) of every deleted position of the plan's files."""
        from pyspark.sql import functions as F  # noqa: N812

        window = self._plan.window
        names = {part.file.id: os.path.basename(part.file.path) for part in self._plan.files}
        events = self._spark.createDataFrame(
            [(names[file], position, died, FAR) for file, position, died in self._plan.inlined_dead],
            "_file string, _position bigint, died bigint, ended bigint",
        )
        if self._plan.deletes:
            events = events.unionByName(self._delete_files(names))
        return events.groupBy("_file", "_position").agg(
            F.expr(f"bool_or(died <= {window.after} AND ended > {window.after})").alias("by_after"),
            F.expr(f"bool_or(died <= {window.through} AND ended > {window.through})").alias("by_through"),
        )

    def _delete_files(self, names: dict[int, str]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import LongType, StructField, StructType

        spans = self._spark.createDataFrame(
            [
                (
                    os.path.basename(file.path),
                    names[file.data_file],
                    file.begin,
                    FAR if file.end is None else file.end,
                )
                for file in self._plan.deletes
            ],
            "_delete_file string, _file string, begun bigint, ended bigint",
        )
        schema = StructType(
            [
                StructField("_position", LongType(), True, {"parquet.field.id": POSITION_FIELD}),
                StructField("_snapshot", LongType(), True, {"parquet.field.id": SNAPSHOT_FIELD}),
            ]
        )
        positions = self._parquet(schema, self._plan.deletes)
        positions = positions.select("*", F.col("_metadata.file_name").alias("_delete_file"))
        died = F.coalesce("_snapshot", "begun").alias("died")
        return positions.join(F.broadcast(spans), "_delete_file").select("_file", "_position", died, "ended")

    def _with_deletes(self) -> set[int]:
        return {file.data_file for file in self._plan.deletes} | {row[0] for row in self._plan.inlined_dead}

    # --- DuckDB in tasks ---

    def _inlined(self, side: str, names: Sequence[str]) -> DataFrame:
        """Inlined rows, read by one task."""
        return self._tasks(side, names, [None] if self._plan.inlined else [])

    def _by_duckdb(self, side: str, names: Sequence[str]) -> DataFrame:
        chunks: list[tuple[int, ...] | None] = [*file_chunks(self._plan)]
        return self._tasks(side, names, [*chunks, None])

    def _tasks(self, side: str, names: Sequence[str], chunks: Sequence[tuple[int, ...] | None]) -> DataFrame:
        carried = [pa.field(name, carrier_type(self._known[name].column)) for name in names]
        schema = pa.schema([pa.field(ROUTE_COLUMN, pa.string()), *carried])
        request = replace(self._request, key=tuple(names), also=()) if side == "removed" else self._request
        read = chunk_reader(self._source, self._plan, request, side, tuple(chunks), schema)
        count = max(len(chunks), 1)
        numbers = self._spark.range(0, len(chunks), 1, count)
        return numbers.mapInArrow(carrying(read), _spark_schema(schema))


def file_chunks(plan: WindowPlan) -> Iterator[tuple[int, ...]]:
    """The plan's files in chunks, one for each task."""
    chunk: list[int] = []
    size = 0
    for part in plan.files:
        chunk.append(part.file.id)
        size += part.file.size_bytes
        if size >= TASK_BYTES:
            yield tuple(chunk)
            chunk, size = [], 0
    if chunk:
        yield tuple(chunk)


def chunk_reader(
    source: DuckLakeSource,
    plan: WindowPlan,
    request: ReadRequest,
    side: str,
    chunks: tuple[tuple[int, ...] | None, ...],
    schema: pa.Schema,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The code of a task: for each number, read that chunk of files, or (None) the inlined rows."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with source.reader(plan.window, request, partial(_part, plan, chunks[number])) as reader:
                    if side == "removed":
                        yield from reader.read(ALL_ROUTES).removed.cast(schema).to_batches()
                    else:
                        yield from (batch.cast(schema) for batch in reader.arrived(ALL_ROUTES))

    return read


def _part(plan: WindowPlan, chunk: tuple[int, ...] | None, now: WindowPlan) -> WindowPlan:
    if now != plan:
        raise Unreachable("the source's files were reorganised during the read; retrying")
    return replace(part_of(plan, chunk), moved=False)  # moved rows are known only when all parts are


def part_of(plan: WindowPlan, chunk: tuple[int, ...] | None) -> WindowPlan:
    """The plan of some files only, or (None) of inlined rows only."""
    if chunk is None:
        return replace(plan, files=(), deletes=(), inlined_dead=())
    ids = set(chunk)
    return replace(
        plan,
        files=tuple(part for part in plan.files if part.file.id in ids),
        deletes=tuple(file for file in plan.deletes if file.data_file in ids),
        inlined_dead=tuple(row for row in plan.inlined_dead if row[0] in ids),
        inlined=(),
    )


def _less(rows: DataFrame, others: DataFrame) -> DataFrame:
    """A difference of multisets of whole rows. Floats are compared as text: for Spark, -0.0 equals 0.0 here."""
    kinds = {spark_identifier(field.name): field.dataType.simpleString() for field in rows.schema}
    texts = {name: re.sub("float|double", "string", kind) for name, kind in kinds.items()}
    as_text, back = (
        [f"CAST({name} AS {found[name]}) AS {name}" if texts[name] != kinds[name] else name for name in kinds]
        for found in (texts, kinds)
    )
    return rows.selectExpr(*as_text).exceptAll(others.selectExpr(*as_text)).selectExpr(*back)


def _text(rows: DataFrame, routing: str) -> SparkColumn:
    from pyspark.sql import functions as F  # noqa: N812

    return (rows[routing] if routing else F.lit(None)).cast("string").alias(ROUTE_COLUMN)


def _parsed(kind: str) -> DataType:
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(kind)


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
