"""A log read as a stream."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from local_cluster import RunningCluster
from spark.spark_log import Following, SparkLog


def test_a_restart_from_the_checkpoint_goes_on_exactly_there(log: SparkLog, tmp_path: Path) -> None:
    log.append(b"1", b"2", b"3")
    assert Following(log.stream(), tmp_path).payloads == [b"1", b"2", b"3"]
    log.append(b"4", b"5")
    assert Following(log.stream(), tmp_path).payloads == [b"4", b"5"]
    assert Following(log.stream(), tmp_path).payloads == []


def test_a_trigger_takes_at_most_so_many_entries(log: SparkLog, tmp_path: Path) -> None:
    log.append(*(b"%d" % number for number in range(10)))
    following = Following(log.stream(maxEntriesPerTrigger=4, partitions=2), tmp_path)
    assert following.sizes == [4, 4, 2]
    assert following.payloads == [b"%d" % number for number in range(10)]


def test_a_stream_starts_at_its_starting_offset(log: SparkLog, tmp_path: Path) -> None:
    log.append(b"1", b"2", b"3")
    assert Following(log.stream(startingOffset=3), tmp_path / "a").payloads == [b"3"]
    assert Following(log.stream(startingOffset="latest"), tmp_path / "b").payloads == []
    log.append(b"4")
    assert Following(log.stream(startingOffset="latest"), tmp_path / "b").payloads == [b"4"], "the checkpoint counts"


def test_a_stream_follows_the_log_through_reconfiguration_and_the_death_of_a_node(
    log: SparkLog, cluster: RunningCluster, tmp_path: Path
) -> None:
    log.append(b"1")
    following = Following(log.stream(), tmp_path, available_now=False)
    try:
        following.until(b"1")
        log.log.reopen()
        log.append(b"2", b"3")
        following.until(b"1", b"2", b"3")
        cluster.signal("node2", signal.SIGKILL)
        log.append(b"4")
        following.until(b"1", b"2", b"3", b"4")
    finally:
        following.query.stop()


def test_what_was_trimmed_below_the_checkpoint_is_an_error_or_passed_over(log: SparkLog, tmp_path: Path) -> None:
    log.append(b"1")
    Following(log.stream(), tmp_path)
    for payload in (b"2", b"3", b"4"):
        log.append(payload)
    assert log.log.trim(3) == 3
    with pytest.raises(StreamingQueryException, match=r"positions 2 to 3 of log .* were trimmed away"):
        Following(log.stream(), tmp_path)
    assert Following(log.stream(failOnTrim="false"), tmp_path).payloads == [b"4"]
