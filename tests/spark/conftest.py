"""What the tests of the Spark source and sink share: one cluster, and a log for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from local_cluster import RunningCluster, local_cluster
from spark.spark_log import SparkLog
from trunkline import sync

NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def handle(cluster: RunningCluster) -> Iterator[sync.Cluster]:
    with sync.connect(cluster.connect) as opened:
        yield opened


@pytest.fixture
def log(spark: SparkSession, cluster: RunningCluster, handle: sync.Cluster) -> SparkLog:
    """A log that no other test uses."""
    return SparkLog(spark, cluster.connect, handle.log(f"log-{next(NUMBERS)}", create=True))


@pytest.fixture
def another(spark: SparkSession, cluster: RunningCluster, handle: sync.Cluster) -> SparkLog:
    return SparkLog(spark, cluster.connect, handle.log(f"log-{next(NUMBERS)}", create=True))
