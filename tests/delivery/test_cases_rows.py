"""What can happen to a row in one window, each case by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delivery.pipe import Pipe, make_sites
from delivery.pipe_sources import LakeSource
from postgres_server import PostgresServer


@pytest.fixture(scope="module")
def shop(spark: SparkSession, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipe[str]]:
    folder = tmp_path_factory.mktemp("shop")
    pipe = Pipe(spark, LakeSource(folder), make_sites(folder, postgres))
    yield pipe
    pipe.close()


def test_insert_update_and_delete_in_one_window_leave_nothing(shop: Pipe[str]) -> None:
    reports = shop.deliver(
        "INSERT INTO lake.orders VALUES (1, 'acme', 'a', 1)",
        "UPDATE lake.orders SET item = 'b' WHERE id = 1",
        "DELETE FROM lake.orders WHERE id = 1",
    )


def test_b(shop: Pipe[str]) -> None:
    reports = shop.deliver(
        "INSERT INTO lake.orders SELECT i, 'acme', 'a', 1 FROM range(100) r(i)",
        "UPDATE lake.orders SET item = 'b' WHERE id = 1",
        "DELETE FROM lake.orders WHERE id = 5",
    )
def test_c(shop: Pipe[str]) -> None:
    reports = shop.deliver(
        "UPDATE lake.orders SET item = 'b' WHERE id = 2",
        "DELETE FROM lake.orders WHERE id = 6",
    )
