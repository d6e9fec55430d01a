"""Windows of a log as data frames: tasks read ranges of it and split their rows into parts, which others settle.

    range ---- rows by part, as blobs --\\
    range ---- rows by part, as blobs ---- shuffle by part -- what the rows of each part come to -- disk
    range ---- rows by part, as blobs --/

No task holds more than a piece of a range, or a part. What the parts came to is kept on the disks of Spark's workers
until the frames are forgotten: a job uses them several times, and the log is read once. Several tables share that read:
then the blobs of all of them wait on the disks, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from trunkline.delivery.backends.sql import spark_identifier
from trunkline.delivery.changes.arrow_blobs import batch_of, blobs_of
from trunkline.delivery.changes.rows import BATCH_ROWS, RESERVED_PREFIX, ROUTE_COLUMN, NetChanges
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.ducklake_spark import carrier_type
from trunkline.delivery.sources.task_errors import carrying
from trunkline.errors import DestinationHalted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINKS_MAX: Final = 200_000  # of keys; more: the window is read in one piece
SIDE: Final = f"{RESERVED_PREFIX}_side"
REMOVED, ARRIVED = 0, 1
BLOB_TEXT: Final = "number int, part int, blob binary"
BLOB_SCHEMA: Final = pa.schema([("number", pa.int32()), ("part", pa.int32()), ("blob", pa.binary())])
BUCKETS: Final = 16  # of the blobs of many tables: a table is looked for in one of them


class Facts:
    """What tasks noticed on the way; those of all tasks are added up."""

    def __init__(self) -> None:
        self.truncated = False
        self.unsplit = False  # something can only be read in one piece
        self.lacking = 0  # rows with values that are not known in their part
        self.links: set[tuple[int, int]] = set()  # keys that must be in one part
        self.parted = False  # some of them were not
        self.halted = ""  # why no task can read this
        self.misfit = self.truncation = 0  # the last entries that do not fit, and that truncate
        self.notes: list[Any] = []  # of ranges
        self.inexact = False  # some removed rows have no more than their keys

    def add_links(self, links: Collection[tuple[int, int]]) -> None:
        self.links |= set(links)
        if len(self.links) > LINKS_MAX:
            self.links, self.unsplit = set(), True

    def plus(self, other: Facts) -> Facts:
        self.truncated |= other.truncated
        self.unsplit |= other.unsplit
        self.parted |= other.parted
        self.inexact |= other.inexact
        self.lacking += other.lacking
        self.halted = self.halted or other.halted
        self.misfit, self.truncation = max(self.misfit, other.misfit), max(self.truncation, other.truncation)
        self.notes += other.notes
        self.add_links(other.links)
        return self


AllFacts = dict[int, Facts]  # by table


class Split(Protocol):
    """A table in parts; a value for tasks."""

    @property
    def number(self) -> int:
        """Of the table."""
        ...

    @property
    def parts(self) -> int: ...

    @property
    def travel(self) -> pa.Schema:
        """Of rows on their way to their part."""
        ...

    @property
    def request(self) -> ReadRequest: ...

    def settled(self, rows: pa.Table, facts: Facts) -> NetChanges:
        """What the rows of a part come to."""
        ...


class Ranges(Protocol):
    """Ranges of a log, with rows of some tables; a value for tasks."""

    @property
    def ranges(self) -> int: ...

    def split(self, number: int, facts: AllFacts) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The rows of a range, by table and part."""
        ...


class SettledFrames:
    """The net changes of a window, or a state."""

    def __init__(self, frame: DataFrame, request: ReadRequest, emptied: bool, *, exact: bool) -> None:
        self._frame = frame
        self._request = request
        self._exact = exact
        self.emptied = emptied

    def removed(self) -> DataFrame:
        return self._side(REMOVED, self._request.stated if self._exact else self._request.key)

    def arrived(self) -> DataFrame:
        return self._side(ARRIVED, tuple(column.name for column in self._request.columns))

    def _side(self, side: int, names: tuple[str, ...]) -> DataFrame:
        chosen = self._frame.where(f"{SIDE} = {side}")
        return chosen.select(ROUTE_COLUMN, *(spark_identifier(name) for name in names))


class SplitBlobs:
    """The rows of all tables of some ranges, by table and part. ``keep``: they are used more than once."""

    def __init__(self, spark: SparkSession, ranges: Ranges, *, keep: bool) -> None:
        self._spark = spark
        self._kept = keep
        self._facts = _accumulator(spark)
        found = spark.range(0, ranges.ranges, 1, max(ranges.ranges, 1)).mapInArrow(
            carrying(_reader(ranges, self._facts)), BLOB_TEXT
        )
        self._frame = _on_disk(found) if keep else found
        self._buckets: dict[int, DataFrame] = {}

    def settled(self, split: Split) -> tuple[DataFrame, Facts]:
        """SIDE, ROUTE_COLUMN and columns of a table, on disk; removed rows have only some."""
        from pyspark.sql.pandas.types import from_arrow_schema

        facts = _accumulator(self._spark)
        mine = self._of(split.number).where(f"number = {split.number}")
        parted = mine.repartition(split.parts, "part").sortWithinPartitions("part")
        schema = from_arrow_schema(_settled_schema(split.request), prefer_timestamp_ntz=True)
        frame = _on_disk(parted.mapInArrow(carrying(_settler(split, facts)), schema))
        noticed = Facts().plus(self._facts.value.get(split.number, Facts()))
        return frame, noticed.plus(facts.value.get(split.number, Facts()))

    def _of(self, number: int) -> DataFrame:
        """Blobs among which those of a table are."""
        if not self._kept:
            return self._frame
        bucket = number % BUCKETS
        if bucket not in self._buckets:
            self._buckets[bucket] = _on_disk(self._frame.where(f"number % {BUCKETS} = {bucket}"))
        return self._buckets[bucket]


def _on_disk(frame: DataFrame) -> DataFrame:
    """It is computed now, once. Spark forgets it when this process does."""
    from pyspark import StorageLevel

    return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


def _accumulator(spark: SparkSession) -> Any:
    from pyspark.accumulators import AccumulatorParam

    class FactsParam(AccumulatorParam[AllFacts]):
        def zero(self, value: AllFacts) -> AllFacts:
            return {}

        def addInPlace(self, value1: AllFacts, value2: AllFacts) -> AllFacts:  # noqa: N802
            return {**value1, **{number: value1.get(number, Facts()).plus(each) for number, each in value2.items()}}

    return spark.sparkContext.accumulator({}, FactsParam())


def _reader(ranges: Ranges, facts: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        noticed: AllFacts = {}
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for table, part, rows in ranges.split(number, noticed):
                    for blob in blobs_of(rows):
                        values = {"number": [table], "part": [part], "blob": [blob]}
                        yield pa.RecordBatch.from_pydict(values, schema=BLOB_SCHEMA)
        facts.add(noticed)

    return read


def _settler(split: Split, facts: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    schema = _settled_schema(split.request)

    def blobs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in batches:
            for part, blob in zip(batch.column("part").to_pylist(), batch.column("blob"), strict=True):
                yield part, batch_of(blob.as_buffer().to_pybytes(), split.travel)

    def settle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        noticed = Facts()
        for _, of_part in groupby(blobs(batches), itemgetter(0)):
            rows = pa.Table.from_batches([batch for _, batch in of_part], split.travel)
            try:
                net = split.settled(rows, noticed)
            except DestinationHalted as error:
                noticed.halted = str(error)
                continue
            del rows
            lacks = not set(split.request.stated) <= set(net.removed.column_names)
            noticed.inexact |= lacks and net.removed.num_rows > 0
            for side, table in ((REMOVED, net.removed), (ARRIVED, net.arrived)):
                yield from _sided(side, table, schema)
        facts.add({split.number: noticed})

    return settle


def _settled_schema(request: ReadRequest) -> pa.Schema:
    fields = [pa.field(column.name, carrier_type(column)) for column in request.columns]
    return pa.schema([pa.field(SIDE, pa.int8()), pa.field(ROUTE_COLUMN, pa.string()), *fields])


def _sided(side: int, table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in table.to_batches(BATCH_ROWS):
        count = batch.num_rows
        known = {name: batch.column(name) for name in batch.schema.names}
        known[SIDE] = pa.array([side] * count, pa.int8())
        arrays = [
            known[each.name].cast(each.type) if each.name in known else pa.nulls(count, each.type) for each in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
