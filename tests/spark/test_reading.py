"""A log read as a table."""

from __future__ import annotations

from datetime import UTC

import pytest
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from local_cluster import RunningCluster
from lying_writer import EXPECTED, GARBAGE, POISONED, append_body, append_corrupt_batch, append_poison, body_of, writing
from spark.spark_log import SparkLog
from trunkline import sync
from trunkline.errors import Refused
from trunkline.spark.options import ConnectionOptions, ReadOptions
from trunkline.spark.range_reader import read_range
from trunkline.spark.ranges import PositionRange, partitions

MIB = 1024 * 1024


def test_a_read_gives_what_was_appended_in_all_columns(log: SparkLog) -> None:
    log.append(b"one", b"", b"three")
    log.log.append(b"four", headers={"source": b"shop"})
    rows = log.frame().orderBy("glsn").collect()
    entries = log.entries()
    assert [(row.glsn, bytes(row.payload), row.writer, row.seq) for row in rows] == [
        (entry.glsn, entry.payload, entry.writer, entry.seq) for entry in entries
    ]
    assert [row.headers for row in rows] == [{}, {}, {}, {"source": bytearray(b"shop")}]
    times = [int(row.time.replace(tzinfo=UTC).timestamp() * 1000) for row in rows]
    assert times == [entry.time_ms for entry in entries]


def test_empty_entries_and_large_ones_come_whole(log: SparkLog) -> None:
    payloads = [b"", b"x" * MIB, b"", b"y" * (3 * MIB), b"z"]
    for payload in payloads:
        log.append(payload)
    assert log.payloads(partitions=2) == payloads


def test_holes_are_passed_over_and_cuts_inside_batches_lose_nothing(
    spark: SparkSession, cluster: RunningCluster, handle: sync.Cluster
) -> None:
    striped = SparkLog(spark, cluster.connect, handle.log("striped", create=True, groups=2, stripe_unit=8))
    expected = []
    for number in range(6):
        batch = [b"%d-%d" % (number, each) for each in range(5)]
        first = striped.append(*batch)
        expected += [(first + index, payload) for index, payload in enumerate(batch)]
    assert expected[-1][0] > len(expected), "there is a hole behind each append"
    for parts in (1, 7):
        rows = striped.frame(partitions=parts).orderBy("glsn").collect()
        assert [(row.glsn, bytes(row.payload)) for row in rows] == expected


def test_a_log_without_entries_is_a_table_without_rows(log: SparkLog) -> None:
    assert log.frame().count() == 0


def test_offsets_bound_a_read_on_both_sides(log: SparkLog) -> None:
    log.append(*(b"%d" % number for number in range(1, 11)))
    assert log.payloads(startingOffset=4, endingOffset=6) == [b"4", b"5", b"6"]
    assert log.payloads(startingOffset=9, endingOffset=1000) == [b"9", b"10"], "the tail is the end of all"
    assert log.payloads(startingOffset=50) == []


def test_only_columns_of_the_schema_are_built(log: SparkLog) -> None:
    log.append(b"a", b"b")
    frame = log.frame("payload BINARY, glsn BIGINT")
    assert frame.columns == ["payload", "glsn"]
    assert [(bytes(row.payload), row.glsn) for row in frame.orderBy("glsn").collect()] == [(b"a", 1), (b"b", 2)]
    with pytest.raises(PySparkException, match="a log has no column payload STRING; choose from: glsn BIGINT"):
        log.frame("payload STRING").collect()


def test_a_read_goes_across_segments(log: SparkLog) -> None:
    payloads = []
    for number in range(4):
        payloads += [b"%d-a" % number, b"%d-b" % number]
        log.append(*payloads[-2:])
        log.log.reopen()
    assert log.payloads(partitions=3) == payloads


def test_what_was_trimmed_is_an_error_where_it_was_asked_for(log: SparkLog) -> None:
    for number in range(1, 11):
        log.append(b"%d" % number)
    assert log.log.trim(4) == 4
    assert log.payloads() == [b"%d" % number for number in range(5, 11)]
    assert log.payloads(startingOffset=2, failOnTrim="false")[0] == b"5"
    with pytest.raises(PySparkException, match=r"positions 2 to 4 of log .* were trimmed away before they were read"):
        log.payloads(startingOffset=2)


def test_what_is_trimmed_after_planning_is_an_error_of_the_task_or_passed_over(
    cluster: RunningCluster, handle: sync.Cluster
) -> None:
    log = handle.log("trimmed-late", create=True)
    for number in range(1, 7):
        log.append(b"%d" % number)
    assert log.trim(3) == 3
    strict = ReadOptions(ConnectionOptions(cluster.connect, log.name))
    planned, schema = PositionRange(2, 6), StructType().add("payload", "binary")
    with pytest.raises(Refused, match="positions 2 to 3 of log trimmed-late were trimmed away before they were read"):
        list(read_range(strict, schema, planned))
    found = list(read_range(replace(strict, fail_on_trim=False), schema, planned))
    assert [value for batch in found for value in batch.column(0).to_pylist()] == [b"4", b"5"]
    assert list(read_range(replace(strict, fail_on_trim=False), schema, PositionRange(1, 3))) == []


def test_the_tasks_of_a_job_begin_with_different_replicas() -> None:
    assert [(part.first, part.end, part.replica) for part in partitions(1, 10, 3)] == [(1, 4, 0), (4, 7, 1), (7, 10, 2)]


def test_entries_that_were_declared_lost_fail_the_query_with_the_position_to_go_on_from(
    spark: SparkSession, cluster: RunningCluster, handle: sync.Cluster
) -> None:
    lossy = SparkLog(spark, cluster.connect, handle.log("lossy", create=True, replicas=1))
    lossy.append(b"1", b"2")
    (member,) = handle.describe("lossy").last.groups[0]
    cluster.pause(member.node)
    try:
        lossy.log.declare_lost(5)
    finally:
        cluster.resume(member.node)
    assert handle.log("lossy").append(b"5") == 5
    with pytest.raises(PySparkException, match="positions 1 to 4 were declared lost; read from 5 on"):
        lossy.payloads()
    assert lossy.payloads(startingOffset=5) == [b"5"]


def test_sql_reads_a_log_through_a_view(log: SparkLog) -> None:
    log.append(b"a", b"b", b"c")
    log.frame("glsn BIGINT, payload BINARY").createOrReplaceTempView("entries")
    found = log.spark.sql("SELECT max(glsn) AS last, count(*) AS count FROM entries WHERE glsn > 1").collect()
    assert [(row.last, row["count"]) for row in found] == [(3, 2)]


def test_a_poisoned_log_is_read_and_headers_that_are_none_are_null(log: SparkLog, cluster: RunningCluster) -> None:
    writing(cluster.connect, log.name, append_poison, create=False)
    rows = log.frame().orderBy("glsn").collect()
    assert [bytes(row.payload) for row in rows] == [entry.payload for entry in log.entries()]
    found = [None if row.headers is None else {name: bytes(row.headers[name]) for name in row.headers} for row in rows]
    assert found == [*EXPECTED[:2], *([None] * len(GARBAGE)), EXPECTED[-1]]
    assert len(rows) == len(POISONED)


def test_a_clock_that_says_nonsense_gives_no_time(log: SparkLog, cluster: RunningCluster) -> None:
    body = body_of(None, 2)
    body[16:24] = (2**63 - 1).to_bytes(8, "little")
    writing(cluster.connect, log.name, lambda opened: append_body(opened, bytes(body), 2), create=False)
    log.append(b"sane")
    assert [row.time is None for row in log.frame().orderBy("glsn").collect()] == [True, True, False]


def test_a_corrupt_batch_fails_the_read_that_meets_it_and_no_other(log: SparkLog, cluster: RunningCluster) -> None:
    writing(cluster.connect, log.name, append_corrupt_batch, create=False)
    log.append(b"behind")
    with pytest.raises(PySparkException, match="read on from 4"):
        log.payloads()
    assert log.payloads(startingOffset=4) == [b"behind"]
