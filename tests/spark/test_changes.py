"""The changes of one table of a captured database, read by Spark as rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from delivery.group_log import COMMIT_US, GroupLog, Work, changed, schema_of
from local_cluster import wait_until
from spark.spark_log import QUERY_S, SparkLog
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.schemas import SchemaChange, SourceColumn, TableSchema
from trunkline.spark.change_ranges import transaction_end

ORDERS = schema_of(1, "id BIGINT, total DECIMAL(9,2), note VARCHAR", name="orders")
OTHER = schema_of(2, "id BIGINT", name="other")
INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
EPOCH = dt.datetime.fromtimestamp(0, dt.UTC).replace(tzinfo=None)  # as Spark returns times
MOMENT = EPOCH + dt.timedelta(microseconds=COMMIT_US)


class CapturedLog:
    """A log in memory, appended to a real one entry by entry."""

    def __init__(self, log: SparkLog) -> None:
        self.real = log
        self.log = GroupLog()
        self.orders: TableSchema = self.log.schema(ORDERS)
        self.log.schema(OTHER)
        self.stored = 0

    def store(self) -> CapturedLog:
        for entry in self.log.entries[self.stored :]:
            self.real.log.append(entry.payload, headers=dict(entry.headers))
        self.stored = self.log.last
        return self

    def insert(self, *keys: int) -> int:
        work: list[Work] = [[(self.orders, INSERT, (key, None, None))] for key in keys]
        return self.log.group(*work)

    def large(self, *keys: int, parts: int) -> None:
        """A transaction in parts of one row; the last part is left out if there are more parts than keys."""
        for index, key in enumerate(keys):
            self.log.part(index, [(self.orders, INSERT, (key, None, None))], last=index == parts - 1)

    def rows(self, **options: object) -> list[Row]:
        return self.real.frame(None, changes="public.orders", **options).orderBy("_glsn", "_seq").collect()

    def keys(self, **options: object) -> list[int]:
        return [row.id for row in self.rows(**options)]


@pytest.fixture
def captured(log: SparkLog) -> CapturedLog:
    return CapturedLog(log)


def test_changes_are_rows_with_their_kind_place_and_time(captured: CapturedLog) -> None:
    orders, log = captured.orders, captured.log
    log.chunk(orders, 0, [(1, Decimal("3.50"), "a")])
    log.group(
        [(orders, INSERT, (2, None, "b")), (OTHER, INSERT, (9,))],
        [
            (orders, NEW, (2, Decimal("1.00"), None), b"\x04"),
            (orders, OLD, (1, None, None)),
            (orders, NEW, (5, None, "c")),
        ],
    )
    log.group([(OTHER, INSERT, (10,))])
    log.part(0, [(orders, DELETE, (2, None, None))])
    log.part(1, [(orders, TRUNCATE, ())], last=True)
    found = captured.store().rows()
    first, second, third = (MOMENT + dt.timedelta(microseconds=each) for each in (10, 20, 40))
    assert [tuple(row) for row in found] == [
        ("read", 5, 0, None, None, None, 1, Decimal("3.50"), "a"),
        ("insert", 6, 0, 1, first, None, 2, None, "b"),
        ("update_postimage", 6, 2, 2, second, ["note"], 2, Decimal("1.00"), None),
        ("update_preimage", 6, 3, 2, second, None, 1, None, None),
        ("update_postimage", 6, 4, 2, second, None, 5, None, "c"),
        ("delete", 8, 0, 4, third, None, 2, None, None),
        ("truncate", 9, 0, 4, third, None, None, None, None),
    ]
    names = ["_kind", "_glsn", "_seq", "_tx", "_commit_time", "_unchanged", "id", "total", "note"]
    assert list(found[0].asDict()) == names
    narrow = captured.real.frame("id BIGINT, _kind STRING", changes="orders").where("_kind = 'delete'").collect()
    assert [tuple(row) for row in narrow] == [(2, "delete")]


def test_a_range_may_begin_and_be_cut_anywhere(captured: CapturedLog) -> None:
    captured.insert(1, 2)
    captured.large(3, 4, 5, parts=3)
    captured.log.catalog()
    captured.large(6, parts=2)  # interrupted: it comes again
    captured.log.mark()
    captured.large(6, 7, parts=2)
    captured.insert(8)
    captured.large(9, 10, parts=3)  # not finished
    captured.store()
    for parts in (1, 2, 5, captured.log.last):
        assert captured.keys(partitions=parts) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert captured.keys(startingOffset=7) == [4, 5, 6, 7, 8]
    assert captured.keys(startingOffset=9, endingOffset=11) == []
    assert captured.keys(startingOffset=12, endingOffset=12) == [6]


def test_the_columns_are_those_of_the_newest_version_up_to_the_end(captured: CapturedLog) -> None:
    captured.insert(1)
    wide = (
        SourceColumn("id", "BIGINT", 1),
        SourceColumn("remark", "VARCHAR", 3),  # renamed; total was dropped
        SourceColumn("tags", "VARCHAR[]", 4),
        SourceColumn("at", "TIME", 5),
    )
    changes = (SchemaChange.DROPPED, SchemaChange.RENAMED, SchemaChange.ADDED)
    before = captured.log.last
    newer = captured.log.schema(changed(captured.orders, *changes, columns=wide))
    captured.log.group([(newer, INSERT, (2, "r", ["x", None], 1_000_000))])
    captured.store()
    assert [tuple(row)[6:] for row in captured.rows()] == [
        (1, None, None, None),
        (2, "r", ["x", None], "00:00:01.000000"),
    ]
    assert [tuple(row)[6:] for row in captured.rows(endingOffset=before)] == [(1, None, None)]


def test_types_that_spark_lacks_have_the_next_wider_one(log: SparkLog) -> None:
    captured = CapturedLog(log)
    kinds = {
        "a UTINYINT": 255, "b USMALLINT": 65535, "c UINTEGER": 2**32 - 1, "d UBIGINT": 2**64 - 1,
        "e TIMESTAMP_NS": 1_500,
        "f TIMESTAMP": 1, "g BLOB": b"\xff", "h DATE": 1, "i JSON": "{}", "j BOOLEAN": True, "k FLOAT": 0.5,
        "l DECIMAL(38,10)": Decimal("1.5"), "m INTEGER[]": [1], "n TIMESTAMP WITH TIME ZONE": 1,
    }  # fmt: skip
    odd = captured.log.schema(schema_of(3, f"id BIGINT, {', '.join(kinds)}", name="odd"))
    captured.log.group([(odd, INSERT, (1, *kinds.values()))])
    captured.store()
    [row] = log.frame(None, changes="public.odd").collect()
    moment = EPOCH + dt.timedelta(microseconds=1)
    assert tuple(row)[7:] == (
        255, 65535, 2**32 - 1, Decimal(2**64 - 1), moment, moment, bytearray(b"\xff"), dt.date(1970, 1, 2), "{}", True,
        0.5, Decimal("1.5"), [1], moment,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"changes": "public.absent"}, "has no table public.absent at position 5; it has public.orders, public.other"),
        ({"changes": "public.orders", "endingOffset": 2}, "has no table public.orders at position 2; it has none"),
        (
            {"changes": "orders", "schema": "id INT"},
            "the changes of public.orders have no column id INT; choose from: _k",
        ),
    ],
)
def test_what_is_not_there_is_an_error_in_one_line(captured: CapturedLog, options: dict[str, Any], text: str) -> None:
    captured.insert(1)
    captured.store()
    schema = options.pop("schema", None)
    with pytest.raises(PySparkException, match=text):
        captured.real.frame(schema, **options).collect()


def test_a_log_of_other_entries_has_no_changes(log: SparkLog) -> None:
    log.append(b"text")
    with pytest.raises(PySparkException, match="entry 1 is not of a captured database"):
        log.frame(None, changes="orders").collect()


def test_entries_whose_catalog_was_trimmed_are_an_error_or_passed_over(captured: CapturedLog) -> None:
    captured.insert(1)
    captured.insert(2)
    captured.log.catalog()
    captured.insert(3)
    captured.store()
    assert captured.real.log.trim(5) == 5
    with pytest.raises(PySparkException, match="entry 6 needs a catalog that was trimmed away"):
        captured.keys()
    assert captured.keys(failOnTrim="false") == [3]
    assert captured.keys(startingOffset=7) == [3]


# ------------------------------------------------------------------------------------------------------------- streams


class ChangeStream:
    """A streaming query that keeps the keys of each batch."""

    def __init__(self, captured: CapturedLog, checkpoint: Path, *, follow: bool = False, **options: object) -> None:
        self.batches: list[list[int]] = []
        frame = captured.real.stream(changes="public.orders", **options)
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query = (writer if follow else writer.trigger(availableNow=True)).start()
        if not follow:
            assert self.query.awaitTermination(QUERY_S)

    def _take(self, rows: DataFrame, _: int) -> None:
        self.batches.append([row.id for row in rows.orderBy("_glsn", "_seq").collect()])


def test_batches_of_a_stream_end_where_transactions_end(captured: CapturedLog, tmp_path: Path) -> None:
    captured.insert(1)
    captured.large(2, 3, 4, 5, 6, parts=5)
    captured.insert(7)
    captured.insert(8)
    captured.large(9, 10, parts=3)  # not finished
    captured.store()
    stream = ChangeStream(captured, tmp_path, maxEntriesPerTrigger=2)
    assert [keys for keys in stream.batches if keys] == [[1], [2, 3, 4, 5, 6], [7, 8]]
    captured.log.part(2, [(captured.orders, INSERT, (11, None, None))], last=True)
    captured.store()
    again = ChangeStream(captured, tmp_path, maxEntriesPerTrigger=2, partitions=2)
    assert [keys for keys in again.batches if keys] == [[9, 10, 11]]


def test_a_stream_follows_the_table_and_not_the_others(captured: CapturedLog, tmp_path: Path) -> None:
    captured.store()
    stream = ChangeStream(captured, tmp_path, follow=True)
    try:
        captured.insert(1)
        captured.log.group([(OTHER, INSERT, (5,))])
        captured.large(2, parts=2)
        captured.store()
        wait_until(lambda: [1] in stream.batches or stream.query.exception() is not None, QUERY_S)
        captured.log.part(1, [(captured.orders, INSERT, (3, None, None))], last=True)
        captured.store()
        wait_until(lambda: [2, 3] in stream.batches or stream.query.exception() is not None, QUERY_S)
        assert [keys for keys in stream.batches if keys] == [[1], [2, 3]], stream.query.exception()
    finally:
        stream.query.stop()


def test_every_end_of_a_batch_splits_no_transaction(captured: CapturedLog) -> None:
    captured.insert(1)
    captured.large(*range(40), parts=40)
    captured.insert(2)
    captured.large(*range(3), parts=4)
    captured.log.mark()
    captured.log.catalog()
    captured.large(*range(20), parts=21)  # not finished
    captured.store()
    log, tail = captured.real.log, captured.log.last + 1
    ends = {6, 46, 47, 51, 52}  # exclusive: after groups, transactions, the mark and the catalog
    for first in (5, *sorted(ends)):
        for end in range(first + 1, tail + 1):
            found = transaction_end(log, first, end, tail)
            within = [each for each in ends if first < each <= end]
            later = [each for each in ends if each > end]
            assert found == (max(within) if within else min(later, default=first))
