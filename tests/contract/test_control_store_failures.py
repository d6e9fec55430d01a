"""Errors of a control store that cannot be used: rule C8 of ``delivery/control/contract.py``."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest

from contract.control_place import LONG_MS
from postgres_server import PostgresServer
from trunkline.delivery.control.contract import Holdings
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.errors import ConfigError, StorageError, Unreachable


def configured(store: ControlStore) -> None:
    store.configurations.configure("p", "d1", {"t0": "x"})


def acquire(store: ControlStore, deliverer: str) -> Holdings:
    return store.ownerships.acquire("p", deliverer, "d1", LONG_MS)


def test_c8_a_store_that_comes_back_goes_on() -> None:
    with PostgresServer() as server:
        store = open_control_store(f"postgres:{server.dsn()}")
        configured(store)
        acquire(store, "a")
        server.kill()
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
            store.ownerships.renew("p", "a", LONG_MS)
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
            store.destinations("p")
        server.restart()
        assert store.ownerships.renew("p", "a", LONG_MS).held == 1
        server.kill()
        server.restart()
        assert store.ownerships.renew("p", "a", LONG_MS).held == 1  # a connection lost while idle does not matter
        store.close()


@pytest.mark.parametrize(
    ("change", "named"),
    [("dbname=nowhere", "nowhere"), ("user=stranger password=wrong", "stranger"), ("user=unknown", "unknown")],
    ids=["database", "password", "user"],
)
def test_c8_a_wrong_address_is_a_configuration_error(postgres: PostgresServer, change: str, named: str) -> None:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS stranger")
        connection.execute("CREATE ROLE stranger LOGIN PASSWORD 'right'")
    store = open_control_store(f"postgres:{postgres.dsn()} {change}")
    with pytest.raises(ConfigError, match=named) as refused:
        store.configurations.revision("p")
    assert "wrong" not in str(refused.value)
    store.close()


def test_c8_a_file_that_is_not_ours_or_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    foreign = sqlite3.connect(tmp_path / "foreign.db")
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    (tmp_path / "text.db").write_text("this is not a database, but a text that is as long as one" * 20)
    (tmp_path / "folder").mkdir()
    for name, why in {
        "foreign.db": "another program",
        "text.db": "not a database",
        "folder": "unable to open",
        "missing/control.db": "does not exist; create it",
    }.items():
        store = open_control_store(f"sqlite:{tmp_path / name}")
        with pytest.raises(ConfigError, match=why):
            store.configurations.revision("p")
        store.close()
    with pytest.raises(ConfigError, match="not a valid control store"):
        open_control_store("etcd:somewhere")


def test_c8_a_damaged_file_has_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    store = open_control_store(f"sqlite:{path}")
    store.configurations.configure("p", "d1", {f"t{n}": "x" for n in range(500)})
    store.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xaa" * (len(content) - 4096)
    path.write_bytes(content)
    store = open_control_store(f"sqlite:{path}")
    with pytest.raises(StorageError, match=r"control\.db"):
        store.destinations("p")
    store.close()


def test_c8_a_locked_file_is_waited_for_and_then_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.delivery.control.sqlite.BUSY_MS", 100)
    path = tmp_path / "control.db"
    store = open_control_store(f"sqlite:{path}")
    configured(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unreachable, match="locked"):
        acquire(store, "a")
    assert store.configurations.revision("p") == 1  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    assert acquire(store, "a").share.held == 1
    store.close()
