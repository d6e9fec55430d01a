"""One control store: rules K2 to K4, and the desired state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from dashboard.running_dashboard import FilledStore
from postgres_server import PostgresServer
from trunkline.dashboard.stores import StoreWatch, shown_address
from trunkline.delivery.control.contract import Status

WAIT_S = 20.0


@pytest.mark.parametrize("is_there", [False, True], ids=["no file", "an empty file"])
def test_k2_a_missing_store_is_an_error_and_is_not_created(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "control.db"
    if is_there:
        path.touch()

    async def run() -> None:
        watch = StoreWatch(0, f"sqlite:{path}")
        assert "`trunkline deliver run` creates it" in (await watch.read()).store.error
        store = await asyncio.to_thread(FilledStore, path, ("acme",))
        content = await watch.read()
        assert (content.store.error, list(content.destinations)) == ("", ["0/tenants/acme"])
        store.close()
        await watch.close()

    asyncio.run(run())


def test_a_store_in_postgres_is_shown_once_it_is_there_and_takes_desired_states() -> None:
    with PostgresServer() as server:
        dsn = server.create_database("control")

        async def run() -> None:
            watch = StoreWatch(0, f"postgres:{dsn}")
            assert "no control store yet" in (await watch.read()).store.error
            with psycopg.connect(dsn) as connection:
                tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
            assert tables == (0,), "looking made something (K2)"
            store = FilledStore(dsn, ("acme",))
            content = await watch.read()
            assert [pipeline.name for pipeline in content.store.pipelines] == ["tenants"]
            assert list(content.destinations) == ["0/tenants/acme"]
            await watch.set_desired_state("tenants", "acme", "paused")
            assert store.desired_state_of("acme") == "paused"
            store.close()
            await watch.close()

        asyncio.run(run())


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("sqlite:a b.db", "sqlite:a b.db"),
        ("postgres:host=db user=u password=secret dbname=d", "postgres: host=db dbname=d"),
        ("postgres:postgresql://u:secret@db:5432/d?password=secret", "postgres: db:5432/d"),
        ("postgres:password='a secret'", "postgres:"),
    ],
)
def test_k4_no_password_is_shown(address: str, words: str) -> None:
    assert shown_address(address) == words


def test_resuming_a_halted_destination_pauses_it_until_its_deliverer_has_seen_it(tmp_path: Path) -> None:
    store = FilledStore(tmp_path / "control.db", ("acme",))
    store.report("acme", Status("halted", 7, error="full"))

    async def run() -> None:
        watch = StoreWatch(0, store.address)
        resuming = asyncio.create_task(watch.set_desired_state("tenants", "acme", "active"))
        async with asyncio.timeout(WAIT_S):
            while store.desired_state_of("acme") != "paused":
                await asyncio.sleep(0.01)
        assert not resuming.done()
        store.report("acme", Status("paused", 7))
        await resuming
        assert store.desired_state_of("acme") == "active"
        store.close()
        await watch.close()

    asyncio.run(run())
