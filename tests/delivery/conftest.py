"""What the tests of delivery share, because each of them takes a while to start: Spark, and a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from postgres_server import PostgresServer
from trunkline.delivery.session import spark_session, stop_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session(master="local[2]", name="tests")
    try:
        yield session
    finally:
        stop_session(session)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests; each makes a database of its own."""
    with PostgresServer() as server:
        yield server
