"""A kind of destination of another package, from its installation to `trunkline deliver repair`: the SQLite example.

The package is installed where only these processes look, as on a machine of its users; Spark's workers find it there.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from trunkline.delivery.backends.duckdb_pool import new_duckdb

PATIENCE_S = 240.0  # for Spark on a machine that does other things, too; usually ten seconds
Deliver = Callable[..., "subprocess.CompletedProcess[str]"]

ROUTED = """
pipeline: orders
source: {type: ducklake, catalog: source.ducklake, table: orders}
routing: {column: tenant}
key: [id]
control: {store: "sqlite:control.db"}
spark: {master: "local[2]"}
defaults: {type: sqlite, path: tenants.db, table: "orders_{name}"}
destinations:
  - {name: acme}
  - {name: bolt}
  - {name: log, values: "*", mode: append, path: "copies/{name}.db"}
"""
SET = """
pipeline: shop
source: {type: ducklake, catalog: source.ducklake}
tables: [main.orders, main.items]
key: [id]
control: {store: "sqlite:control-shop.db"}
spark: {master: "local[2]"}
destinations:
  - {name: shop, type: sqlite, path: shop.db}
  - {name: copy, type: sqlite, path: shop.db, table: "copy of {table}"}
"""


@pytest.fixture(scope="module")
def packages(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example, installed by pip from a copy: a build leaves files behind."""
    folder = tmp_path_factory.mktemp("packages")
    source = shutil.copytree(repository / "examples" / "sqlite_destination", folder / "source")
    target = folder / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(target), str(source)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def deliver(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: Path) -> Deliver:
    """Runs a command in an empty directory."""
    monkeypatch.setenv("PYTHONPATH", str(packages))

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trunkline.cli.main", "deliver", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def change_source(folder: Path, *statements: str) -> None:
    with closing(new_duckdb("ducklake")) as connection:
        connection.execute(f"ATTACH 'ducklake:{folder}/source.ducklake' AS lake (DATA_PATH '{folder}/source')")
        for statement in statements:
            connection.execute(statement)


def rows(file: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as sql:
        return sql.execute(f'SELECT * FROM "{table}" ORDER BY id').fetchall()


def test_a_pipeline_delivers_to_sqlite_follows_columns_is_verified_and_repaired(
    deliver: Deliver, tmp_path: Path
) -> None:
    change_source(
        tmp_path,
        "CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, amount DECIMAL(10,2))",
        "INSERT INTO lake.orders VALUES (1, 'acme', 1.5), (2, 'bolt', 2), (3, 'acme', NULL)",
    )
    (tmp_path / "orders.yaml").write_text(ROUTED)
    deliver("validate", "orders.yaml")
    assert not (tmp_path / "tenants.db").exists(), "a validation creates nothing"
    deliver("run", "orders.yaml", "--once")
    assert rows(tmp_path / "tenants.db", "orders_acme") == [(1, "acme", "1.50"), (3, "acme", None)]
    assert rows(tmp_path / "tenants.db", "orders_bolt") == [(2, "bolt", "2.00")]
    change_source(
        tmp_path,
        "UPDATE lake.orders SET amount = 3 WHERE id = 3",
        "DELETE FROM lake.orders WHERE id = 1",
        "ALTER TABLE lake.orders ADD COLUMN note VARCHAR",
        "INSERT INTO lake.orders VALUES (4, 'bolt', 4, 'new')",
    )
    deliver("run", "orders.yaml", "--once")
    assert rows(tmp_path / "tenants.db", "orders_acme") == [(3, "acme", "3.00", None)]
    assert len(rows(tmp_path / "copies" / "log.db", "orders_log")) == 5, "what was updated or deleted stays"
    found = deliver("verify", "orders.yaml").stdout
    assert "acme" in found
    with closing(sqlite3.connect(tmp_path / "tenants.db")) as sql:
        sql.execute("DELETE FROM orders_bolt WHERE id = 4")
        sql.commit()
    assert "1 missing" in deliver("verify", "orders.yaml", "bolt", code=1).stdout
    deliver("repair", "orders.yaml", "bolt")
    assert rows(tmp_path / "tenants.db", "orders_bolt") == [(2, "bolt", "2.00", None), (4, "bolt", "4.00", "new")]
    deliver("verify", "orders.yaml")


def test_a_set_of_tables_is_delivered_to_one_file_and_verified(deliver: Deliver, tmp_path: Path) -> None:
    change_source(
        tmp_path,
        "CREATE TABLE lake.orders (id BIGINT, amount INTEGER)",
        "CREATE TABLE lake.items (id BIGINT, name VARCHAR)",
        "INSERT INTO lake.orders SELECT range, range FROM range(1000)",
        "INSERT INTO lake.items VALUES (1, 'a'), (2, 'b')",
    )
    (tmp_path / "shop.yaml").write_text(SET)
    deliver("run", "shop.yaml", "--once")
    change_source(tmp_path, "DELETE FROM lake.orders WHERE id > 1", "UPDATE lake.items SET name = 'c' WHERE id = 2")
    deliver("run", "shop.yaml", "--once")
    for prefix in ("", "copy of "):
        assert rows(tmp_path / "shop.db", f"{prefix}orders") == [(0, 0), (1, 1)]
        assert rows(tmp_path / "shop.db", f"{prefix}items") == [(1, "a"), (2, "c")]
    deliver("verify", "shop.yaml")


def test_without_the_package_the_type_is_unknown_and_a_mode_that_it_lacks_is_refused(
    deliver: Deliver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders.yaml").write_text(ROUTED.replace("mode: append", "mode: history"))
    refused = deliver("validate", "orders.yaml", code=1)
    assert "type sqlite has no mode history; use mode mirror or append" in refused.stdout + refused.stderr
    monkeypatch.delenv("PYTHONPATH")
    unknown = deliver("validate", "orders.yaml", code=1)
    assert "must be ducklake, delta, iceberg or postgres, it is 'sqlite'" in unknown.stdout + unknown.stderr
