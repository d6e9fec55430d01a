"""What the tests of delivery share, because each of them takes a while to start: Spark, and a PostgreSQL server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from postgres_server import PostgresServer
from trunkline.delivery.java import find_java
from trunkline.delivery.session import SHORT_LIVED, spark_session, stop_session
from trunkline.errors import ConfigError


@pytest.fixture(scope="session")
def java() -> Path:
    """Where Java is. Skips what needs it where it is missing, but fails it in continuous integration."""
    try:
        return find_java()
    except ConfigError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: Path) -> Iterator[SparkSession]:
    """A session for all tests; none of them changes its settings for good."""
    session = spark_session("local[2]", conf=SHORT_LIVED, name="tests")
    try:
        yield session
    finally:
        stop_session(session)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests; each makes a database of its own."""
    with PostgresServer() as server:
        yield server
