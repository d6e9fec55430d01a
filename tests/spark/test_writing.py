"""Rows appended to a log, and rows that were appended twice."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import trunkline
from spark.spark_log import QUERY_S, SparkLog
from trunkline.client.dedupe import Repeats, row_headers
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(f.col("id").cast("string").alias("payload"))


def rows_of(entries: list[Any]) -> list[tuple[int, int, int]]:
    """Batch, partition and index of entries that Spark appended."""
    found = [entry.headers for entry in entries]
    return [(int(each["batch"]), int(each["partition"]), int(each["index"])) for each in found]


def test_a_write_appends_every_row_once_and_each_partition_in_order(spark: SparkSession, log: SparkLog) -> None:
    log.write(numbers(spark, 1000, 3))
    entries = log.entries()
    assert sorted(int(entry.payload) for entry in entries) == list(range(1000))
    for partition in range(3):
        mine = [entry for entry in entries if entry.headers["partition"] == b"%d" % partition]
        assert [index for _, _, index in rows_of(mine)] == list(range(len(mine)))
        assert [int(entry.payload) for entry in mine] == sorted(int(entry.payload) for entry in mine)
    assert len({entry.headers["query"] for entry in entries}) == 1


def test_rows_are_written_with_their_headers_and_read_back(spark: SparkSession, log: SparkLog) -> None:
    rows = spark.createDataFrame(
        [(b"a", {"source": b"shop", "index": b"mine"}), (b"", None)], "payload BINARY, headers MAP<STRING,BINARY>"
    )
    log.write(rows.coalesce(1), queryName="nightly")
    first, second = log.entries()
    assert (first.payload, second.payload) == (b"a", b"")
    assert first.headers == {"source": b"shop", **row_headers("nightly", 0, 0, 0)}, "the four names are ours"
    assert second.headers == row_headers("nightly", 0, 0, 1)


def test_a_write_that_is_made_again_under_its_name_is_dropped_by_dedupe(spark: SparkSession, log: SparkLog) -> None:
    for _ in range(2):
        log.write(numbers(spark, 10), queryName="nightly")
    log.write(numbers(spark, 10), queryName="another")
    log.append(b"not from spark")
    log.append(b"not from spark")
    assert len(log.entries()) == 32
    assert len(log.entries(dedupe=True)) == 22
    assert asyncio.run(without_repeats(log)) == [entry.glsn for entry in log.entries(dedupe=True)]


async def without_repeats(log: SparkLog) -> list[int]:
    """What the library with ``await`` gives."""
    async with trunkline.connect(log.connect) as cluster:
        opened = await cluster.log(log.name)
        return [entry.glsn async for entry in opened.subscribe(to_tail=True, dedupe=True)]


def test_a_stream_writes_each_batch_under_its_id_and_repeats_are_dropped(
    log: SparkLog, another: SparkLog, tmp_path: Path
) -> None:
    log.append(*(b"%d" % number for number in range(6)))
    copy(log, another, tmp_path)
    log.append(b"6", b"7")
    copy(log, another, tmp_path)
    assert rows_of(another.entries()) == [(0, 0, index) for index in range(6)] + [(1, 0, 0), (1, 0, 1)]
    for file in (tmp_path / "commits").glob("*1*"):  # as if it had died before it noted the end of batch 1
        file.unlink()
    copy(log, another, tmp_path)
    assert [entry.payload for entry in another.entries()][-4:] == [b"6", b"7", b"6", b"7"]
    assert [entry.payload for entry in another.entries(dedupe=True)] == [b"%d" % number for number in range(8)]
    shutil.rmtree(tmp_path)
    copy(log, another, tmp_path)
    assert len(another.entries(dedupe=True)) == 16, "another checkpoint is another stream"


def copy(source: SparkLog, target: SparkLog, checkpoint: Path) -> None:
    rows = source.stream().select("payload")
    writer = rows.writeStream.format("trunkline").options(**target.options()).queryName("copy")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_S)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("SELECT 1 AS payload", "rows to append need a column payload, BINARY or STRING"),
        ("SELECT 'a' AS payload, 1 AS key", "entries have no column key"),
        ("SELECT 'a' AS payload, map('k', 1) AS headers", "the column headers must be MAP<STRING,BINARY>"),
        ("SELECT CAST(NULL AS STRING) AS payload", "a row has no payload"),
    ],
)
def test_rows_that_are_no_entries_are_refused(spark: SparkSession, log: SparkLog, rows: str, message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        log.write(spark.sql(rows))
    assert log.entries() == []


def test_a_log_is_not_overwritten(spark: SparkSession, log: SparkLog) -> None:
    with pytest.raises(PySparkException, match="a log only takes appends"):
        numbers(spark, 1).write.format("trunkline").options(**log.options()).mode("overwrite").save()


def row(query: str, batch: int, partition: int, index: int) -> Entry:
    return Entry(1, b"", encoded_headers=encode_headers(row_headers(query, batch, partition, index)))


def test_a_row_at_or_below_the_newest_of_its_query_and_partition_is_a_repeat() -> None:
    repeats = Repeats()
    new = [("q", 0, 0, 0), ("q", 0, 0, 1), ("q", 0, 1, 0), ("q", 1, 0, 0), ("r", 0, 0, 0)]
    assert not any(repeats.is_repeat(row(*each)) for each in new)
    assert all(repeats.is_repeat(row(*each)) for each in [*new, ("q", 0, 0, 5)])
    assert not repeats.is_repeat(Entry(1, b""))
    assert not repeats.is_repeat(Entry(1, b"", encoded_headers=encode_headers({"query": b"q", "batch": b"first"})))


def test_what_is_remembered_of_rows_is_bounded_and_the_longest_silent_goes_first() -> None:
    repeats = Repeats(partitions_max=2)
    for partition in (0, 1, 0, 2):
        repeats.is_repeat(row("q", 0, partition, 0))
    assert len(repeats) == 2
    assert repeats.is_repeat(row("q", 0, 0, 0))
    assert not repeats.is_repeat(row("q", 0, 1, 0)), "it was forgotten"


def test_h1_headers_beyond_the_limits_of_a_log_are_refused(spark: SparkSession, log: SparkLog) -> None:
    rows = spark.range(1).select(
        f.lit("payload").alias("payload"), f.create_map(f.lit("n" * 257), f.lit(b"x")).alias("headers")
    )
    with pytest.raises(PySparkException, match="the name of a header must have 1 to 256 characters"):
        log.write(rows)
    assert log.entries() == []
