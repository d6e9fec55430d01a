"""A destination with another name and other rows in the same edit of the file holds the rows of the new file."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from delivery.lake_shop import Shop
from trunkline.core.delivery_messages import SourceAt
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.config.digests import pipeline_digest
from trunkline.delivery.config.tree import DiscoverConfig, Pipeline
from trunkline.delivery.deliverer.discovery import Discovery
from trunkline.errors import Unreachable


def renamed(pipeline: Pipeline, name: str, *values: str) -> Pipeline:
    (destination,) = pipeline.destinations
    return replace(pipeline, destinations=(replace(destination, name=name, values=values),))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    found = Shop(tmp_path)
    found.lake.run("INSERT INTO lake.customers VALUES (2, 'beta', 'bob@example.org')")
    return found


def test_a_renamed_destination_with_other_values_has_their_rows_and_no_others(shop: Shop) -> None:
    before = shop.pipeline()
    assert shop.run(before) == ""
    after = renamed(before, "tenants", "beta")
    assert shop.run(after) == ""
    assert ("ann@" in shop.held(after, "tenants"), "bob@" in shop.held(after, "tenants")) == (False, True)
    assert shop.run(before) == ""
    assert ("ann@" in shop.held(before), "bob@" in shop.held(before)) == (True, False), "and under its first name"


def test_a_destination_that_is_only_renamed_goes_on_without_a_seed(shop: Shop) -> None:
    before = shop.pipeline()
    assert shop.run(before) == ""
    assert shop.run(renamed(before, "tenant", "acme")) == ""
    with shop.store() as store:
        assert {each.name: each.reseed for each in store.destinations("shop")} == {"acme": 0, "tenant": 0}
        assert store.configurations.digests("shop")["tenant"] == store.configurations.digests("shop")["acme"]


def discovering(pipeline: Pipeline, folder: str) -> Pipeline:
    (destination,) = pipeline.destinations
    template = replace(destination, name="", values=(), address=DeltaAddress(f"{folder}/{{value}}/{{table}}"))
    return replace(pipeline, discover=DiscoverConfig(template=template))


def test_discovered_destinations_go_on_after_a_change_of_the_file(shop: Shop, tmp_path: Path) -> None:
    before = discovering(shop.pipeline(), str(tmp_path))
    assert shop.run(before).strip() == ""
    shop.lake.run("INSERT INTO lake.customers VALUES (3, 'beta', 'cy@example.org')")
    changed = discovering(renamed(shop.pipeline(), "first", "acme"), str(tmp_path))
    assert shop.run(changed).strip() == ""
    with shop.store() as store:
        found = {each.name: (each.configured, each.reseed) for each in store.destinations("shop")}
    assert found == {"acme": (False, 0), "beta": (True, 0), "first": (True, 0)}


def test_a_search_for_new_values_whose_result_was_not_stored_is_repeated(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = discovering(shop.pipeline(), str(tmp_path))
    with shop.store() as store:
        store.configurations.configure("shop", pipeline_digest(pipeline), {})
        discovery, at, stored = Discovery(pipeline, store), SourceAt(1, 1), store.configurations.discover

        def lost(*_: object) -> None:
            raise Unreachable("the store")

        monkeypatch.setattr(store.configurations, "discover", lost)
        with pytest.raises(Unreachable):
            discovery.search(at, lambda _: {"beta": 1})
        monkeypatch.setattr(store.configurations, "discover", stored)
        assert [each.name for each in discovery.search(at, lambda _: {"beta": 1})] == ["beta"]
        assert discovery.search(at, lambda _: {"beta": 1}) == []


@pytest.mark.parametrize("kind", ["delta", "ducklake"])
def test_destinations_that_exchange_their_names_hold_their_rows_or_halt(shop: Shop, tmp_path: Path, kind: str) -> None:
    two = shop.pipeline("a", "b")
    a, b = two.destinations
    if kind == "ducklake":
        lake = LakeAddress(f"sqlite:{tmp_path}/target.sqlite", "{table}", data_path=f"{tmp_path}/target")
        a, b = (replace(each, address=replace(lake, table=f"{each.name}_{{table}}")) for each in (a, b))
    first = replace(two, destinations=(a, replace(b, values=("beta",))))
    assert shop.run(first).strip() == ""
    swapped = tuple(replace(each, name=name) for each, name in zip(first.destinations, "ba", strict=True))
    after = replace(two, destinations=swapped)
    said = shop.run(after)
    if kind == "ducklake":
        assert "belongs to shop/b; choose another table for shop/a" in said
    else:
        assert (said.strip(), "bob@" in shop.held(after, "a"), "ann@" in shop.held(after, "b")) == ("", True, True)
