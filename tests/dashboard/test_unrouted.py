"""Unrouted rows, as the dashboard reads them from a control store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dashboard.running_dashboard import FilledStore
from postgres_server import PostgresServer
from trunkline.dashboard.stores import VALUE_CHARACTERS_MAX, StoreWatch
from trunkline.dashboard.views import ShownUnrouted as Shown
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.control.contract import UnroutedCounts


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledStore]:
    if request.param == "sqlite":
        filled = FilledStore(tmp_path_factory.mktemp("store") / "control.db", ("acme",))
        yield filled
        filled.close()
        return
    with PostgresServer() as server:
        filled = FilledStore(server.create_database("control"), ("acme",))
        yield filled
        filled.close()


def content_at(store: FilledStore) -> dict[str, Shown | None]:
    async def run() -> dict[str, Shown | None]:
        watch = StoreWatch(0, store.address)
        content = await watch.read()
        await watch.close()
        assert content.store.error == ""
        return {pipeline.name: pipeline.unrouted for pipeline in content.store.pipelines}

    return asyncio.run(run())


def test_the_rows_of_a_pipeline_are_added_up_and_the_most_frequent_values_are_named(store: FilledStore) -> None:
    store.store.configurations.configure("other", "d1", {"x": "x"})
    assert content_at(store) == {"other": None, "tenants": None}
    long = "l" * 100
    store.store.unrouted.add(
        "tenants", Window(0, 7), UnroutedCounts({"hooli": 5, "rare": 1, long: 9}, nulls=6, others=2)
    )
    values = (("l" * VALUE_CHARACTERS_MAX + "…", 9), (None, 6), ("hooli", 5))
    assert content_at(store) == {"other": None, "tenants": Shown(23, 7, values)}
    store.store.unrouted.add("tenants", Window(7, 9), UnroutedCounts({"hooli": 100}))
    after = content_at(store)["tenants"]
    assert after is not None
    assert (after.rows, after.through, after.values[0]) == (123, 9, ("hooli", 105))
