"""PostgreSQL -> capture -> log -> Spark -> DuckLake, Delta and PostgreSQL tables, as processes that a test may harm."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

import trunkline.sync
from delivery.task_pipelines import opened_rows, standing_at
from local_cluster import PROGRAM, RunningCluster, local_cluster, wait_until
from postgres_server import PostgresServer
from trunkline.delivery.config import Pipeline, load_pipeline
from trunkline.errors import TrunklineError

TENANTS = {"acme": "ducklake", "bolt": "delta", "cargo": "postgres"}
TABLE = """CREATE TABLE orders (id bigint PRIMARY KEY, tenant text, amount numeric(12,2), doc jsonb, tags text[],
    at timestamptz, raw bytea, ref uuid, note text)"""
ROW = """({id}, {tenant}, {id} * 1.25, '{{"n": {id}, "text": "a \\"b\\""}}', ARRAY['x', NULL, '{id}'],
    '2026-01-01 00:00:00+02'::timestamptz + {id} * interval '1 minute', '\\xff00', md5('{id}')::uuid, NULL)"""
PIPELINE = """
pipeline: orders
source: {{type: log, log: orders, connect: "{connect}"}}
routing: {{column: tenant}}
key: [id]
destinations:
  - {{name: acme, type: ducklake, catalog: "sqlite:acme.sqlite", data_path: acme, table: orders}}
  - {{name: bolt, type: delta, path: bolt}}
  - {{name: cargo, type: postgres, dsn: "{dsn}", table: delivered}}
flush: {{interval_ms: 200}}
retry: {{first_ms: 100, most_ms: 1000}}
reading: {{poll_ms: 50}}
control: {{store: sqlite:control.db, lease_ms: 2000}}
spark: {{master: "local[2]"}}
listen: none
"""
PATIENCE_S = 120.0


class Business:
    """A table of a PostgreSQL server that changes."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.dsn = dsn
        self._chance = random.Random(seed)
        self._next = 1
        self.run(TABLE)
        self.run("ALTER TABLE orders REPLICA IDENTITY FULL")

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as connection:  # one transaction
            for statement in statements:
                connection.execute(statement.encode())

    def change(self) -> None:
        """One transaction of several statements."""
        made = [self._statement() for _ in range(self._chance.randrange(1, 4))]
        self.run(self._insert(self._chance.randrange(1, 6)), *made)

    def truncate(self) -> None:
        self.run("TRUNCATE orders", self._insert(5))

    def _insert(self, count: int) -> str:
        rows = []
        for _ in range(count):
            tenant = self._chance.choice(["'acme'", "'bolt'", "'cargo'", "'unrouted'", "NULL"])
            rows.append(ROW.format(id=self._next, tenant=tenant))
            self._next += 1
        return f"INSERT INTO orders VALUES {', '.join(rows)}"

    def _statement(self) -> str:
        at = self._chance.randrange(self._next) + 1
        tenant = self._chance.choice(list(TENANTS))
        return self._chance.choice(
            [
                f"UPDATE orders SET note = 'n{at}', doc = doc || '{{\"more\": {at}}}' WHERE id % 5 = {at % 5}",
                f"UPDATE orders SET tenant = '{tenant}' WHERE id BETWEEN {at} AND {at + 3}",
                f"UPDATE orders SET id = id + 1000000 WHERE id = {at}",
                f"DELETE FROM orders WHERE id BETWEEN {at} AND {at + 1}",
            ]
        )

    def rows(self, tenant: str) -> list[dict[str, Any]]:
        query = "SELECT id, tenant, amount, doc::text AS doc, tags, at, raw, ref::text AS ref, note FROM orders"
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.execute(f"{query} WHERE tenant = %s".encode(), [tenant]).fetchall()


class Running:
    """The capture and the deliverer, as a user runs them; each is started again whenever it was killed."""

    def __init__(self, cluster: RunningCluster, dsn: str, file: Path) -> None:
        self._commands = {
            "capture": ["capture", "orders", "--connect", cluster.connect, "--postgres", dsn, "--table", "orders"],
            "deliver": ["deliver", "run", str(file)],
        }
        self._folder = file.parent
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*PROGRAM, *self._commands[name]], stdout=log, stderr=log, start_new_session=True
            )

    def restart(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()
        self.start(name)

    def assert_well(self) -> None:
        for name, process in self._running.items():
            assert process.poll() is None, (name, (self._folder / f"{name}.log").read_text()[-3000:])

    def close(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def started(tmp_path: Path) -> Iterator[tuple[Business, Running, RunningCluster, PostgresServer, Pipeline]]:
    with (
        local_cluster(tmp_path / "cluster") as cluster,
        PostgresServer(settings={"wal_level": "logical"}) as server,
    ):
        business = Business(server.create_database("shop"), seed=5)
        folder = tmp_path / "pipeline"
        folder.mkdir()
        file = folder / "pipeline.yaml"
        file.write_text(PIPELINE.format(connect=cluster.connect, dsn=server.create_database("delivered")))
        business.change()
        with closing(Running(cluster, business.dsn, file)) as running:
            running.start("capture")
            wait_until(lambda: is_captured(cluster), PATIENCE_S)  # a deliverer of an empty log ends, and says why
            running.start("deliver")
            yield business, running, cluster, server, load_pipeline(file)


def is_captured(cluster: RunningCluster) -> bool:
    """Whether there is more than the mark of the capture."""
    with trunkline.sync.connect(cluster.connect) as client:
        return "orders" in client.logs() and client.log("orders").tail() > 2


def equal(business: Business, pipeline: Pipeline) -> bool:
    return all(held(pipeline, tenant) == comparable(business.rows(tenant)) for tenant in TENANTS)


def held(pipeline: Pipeline, tenant: str) -> list[str] | None:
    """``None`` where nothing was delivered yet, or it cannot be read now."""
    address = next(each.address for each in pipeline.destinations if each.name == tenant)
    try:
        if standing_at(address) is None:
            return None
        with opened_rows(address) as (_, batches):
            return comparable([row for batch in batches for row in batch.to_pylist()])
    except TrunklineError:
        return None


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted((name, _plain(value)) for name, value in row.items())) for row in rows)


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value
