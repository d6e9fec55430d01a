"""Ownership by place: rule C9 of ``delivery/control/contract.py``, and the rules of ``place_shares.py``."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Mapping

import psycopg
import pytest

from contract.control_place import LONG_MS, Place, acquire, names
from trunkline.delivery.control.contract import Holdings
from trunkline.delivery.control.place_shares import HeldPlace, moves_of, surplus_of
from trunkline.delivery.control.store import ControlStore

ROUNDS_MAX = 40  # of two or three deliverers; far fewer are needed


def configured(store: ControlStore, **sizes: int) -> dict[str, str]:
    """Places with so many destinations each; those of place ``alone`` share none. Returns the place of each."""
    places = {f"{place}{n}": place for place, size in sizes.items() for n in range(size)}
    shared = {name: place for name, place in places.items() if place != "alone"}
    store.configurations.configure("p", "d1", dict.fromkeys(places, "x"), shared)
    return places


def owners(store: ControlStore) -> dict[str, set[str | None]]:
    """The owners of each place; its name is that of its destinations without their numbers."""
    found: dict[str, set[str | None]] = {}
    for record in store.destinations("p"):
        if record.configured:
            found.setdefault(record.name.rstrip("0123456789"), set()).add(record.owner)
    return found


def turn(store: ControlStore, deliverer: str) -> Holdings:
    """One round of a deliverer: as ``deliverer/leases.py`` does."""
    share = store.ownerships.renew("p", deliverer, LONG_MS)
    if share.held > share.quota:
        store.ownerships.release("p", deliverer, store.ownerships.surplus("p", deliverer))
    return acquire(store, deliverer)


def settle(store: ControlStore, *deliverers: str) -> dict[str, int]:
    """Rounds of all deliverers until nothing moves; what each holds then."""
    before: list[list[str]] = []
    for _ in range(ROUNDS_MAX):
        now = [names(turn(store, each)) for each in deliverers]
        if now == before:
            return dict(zip(deliverers, map(len, now), strict=True))
        before = now
    raise AssertionError("ownership keeps moving")


@pytest.mark.parametrize(
    ("sizes", "loads"),
    [
        ({"red": 5, "green": 3, "blue": 2}, {"a": 5, "b": 5}),
        ({"red": 6, "green": 2, "blue": 2}, {"a": 6, "b": 4}),
        ({"red": 4, "green": 4, "blue": 2}, {"a": 6, "b": 4}),
        ({"red": 8, "green": 1, "blue": 1}, {"a": 8, "b": 2}),
        ({"red": 10}, {"a": 10, "b": 0}),
        ({"red": 4, "green": 1, "alone": 5}, {"a": 5, "b": 5}),
    ],
    ids=str,
)
def test_c9_a_deliverer_that_joins_gets_whole_places(
    store: ControlStore, sizes: dict[str, int], loads: dict[str, int]
) -> None:
    configured(store, **sizes)
    assert len(acquire(store, "a").ownerships) == sum(sizes.values())
    assert settle(store, "a", "b") == loads
    assert all(len(held) == 1 and None not in held for place, held in owners(store).items() if place != "alone")


def test_c9_two_deliverers_that_start_together_share_three_places(store: ControlStore) -> None:
    configured(store, red=5, green=3, blue=2)
    for name in "ab":
        store.ownerships.renew("p", name, LONG_MS)
    assert names(acquire(store, "b")) == [f"red{n}" for n in range(5)]
    assert len(acquire(store, "a").ownerships) == 5
    assert owners(store) == {"red": {"b"}, "green": {"a"}, "blue": {"a"}}


def test_c9_the_places_of_a_deliverer_that_leaves_move_as_a_whole(store: ControlStore) -> None:
    configured(store, red=5, green=3, blue=2)
    settle(store, "a", "b")
    gone = owners(store)["red"].pop()
    assert gone is not None
    store.ownerships.leave("p", gone)
    [stays] = {"a", "b"} - {gone}
    assert settle(store, stays, "c") == {stays: 5, "c": 5}
    assert owners(store) == {"red": {"c"}, "green": {stays}, "blue": {stays}}


def test_c9_a_destination_that_was_released_goes_back_to_the_owner_of_its_place(store: ControlStore) -> None:
    configured(store, red=3, green=3)
    settle(store, "a", "b")
    [owner] = owners(store)["red"]
    assert owner is not None
    store.ownerships.release("p", owner, ["red1"])
    [other] = {"a", "b"} - {owner}
    assert "red1" not in names(acquire(store, other))
    assert "red1" in names(acquire(store, owner))


def test_c9_a_new_destination_of_a_place_goes_to_its_owner_whatever_its_share(store: ControlStore) -> None:
    configured(store, red=4, green=4)
    settle(store, "a", "b")
    [owner] = owners(store)["red"]
    found = {f"red{n}": (f"v{n}", "x") for n in range(4, 6)}
    store.configurations.discover("p", "d1", found, dict.fromkeys(found, "red"))
    settle(store, "a", "b")
    assert owners(store)["red"] == {owner}


def test_c9_one_whose_place_changed_follows_it(store: ControlStore) -> None:
    places = configured(store, red=2, green=2)
    settle(store, "a", "b")
    before = store.configurations.revision("p")
    store.configurations.configure("p", "d1", dict.fromkeys(places, "x"), places)
    assert store.configurations.revision("p") == before
    store.configurations.configure("p", "d1", dict.fromkeys(places, "x"), {**places, "green0": "red"})
    assert store.configurations.revision("p") > before
    settle(store, "a", "b")
    held = {record.name: record.owner for record in store.destinations("p")}
    assert held["green0"] == held["red0"] == held["red1"] != held["green1"]


def test_c9_a_configuration_without_places_leaves_them_as_they_are(store: ControlStore) -> None:
    places = configured(store, red=4, green=4)
    store.configurations.configure("p", "d1", dict.fromkeys(places, "x"))
    settle(store, "a", "b")
    assert all(len(held) == 1 for held in owners(store).values())


def test_c9_a_store_of_an_older_release_gets_places_and_puts_together_what_it_had_split(
    control_place: Place, store: ControlStore
) -> None:
    """Its owners took single destinations, and go on under the new program."""
    places = {**{f"red{n}": "red" for n in range(4)}, **{f"green{n}": "green" for n in range(4)}}
    store.configurations.configure("p", "d1", dict.fromkeys(places, "x"))
    for name in "ab":
        store.ownerships.renew("p", name, LONG_MS)
    for name in "ab":
        acquire(store, name)
    store.ownerships.release("p", "b", ["red0"])
    store.ownerships.release("p", "a", ["green0"])
    store.close()
    drop = "ALTER TABLE _trunkline_destinations DROP COLUMN place"
    if control_place.address.startswith("sqlite:"):
        connection = sqlite3.connect(control_place.address.removeprefix("sqlite:"))
        connection.execute(drop)
        connection.close()
    else:
        with psycopg.connect(control_place.address.removeprefix("postgres:"), autocommit=True) as server:
            server.execute(drop)
    upgraded = control_place.open()
    assert sorted(map(len, [names(acquire(upgraded, name)) for name in "ab"])) == [4, 4]  # nothing is lost
    upgraded.configurations.configure("p", "d1", dict.fromkeys(places, "x"), places)
    assert settle(upgraded, "a", "b") == {"a": 4, "b": 4}
    assert all(len(held) == 1 for held in owners(upgraded).values())
    upgraded.close()


def test_c9_places_that_are_split_come_together_and_nothing_stays_without_an_owner(store: ControlStore) -> None:
    """Owners at random, as programs without places leave them."""
    chance = random.Random(14)
    for round_ in range(6):
        sizes = {f"place{chr(97 + n)}": chance.randint(1, 5) for n in range(chance.randint(1, 4))}
        places = {f"{place}{n}": place for place, size in sizes.items() for n in range(size)}
        digest = f"r{round_}"
        store.configurations.configure("p", "d1", {}, {})
        store.configurations.configure("p", digest, dict.fromkeys(places, f"x{round_}"), {})  # without places
        deliverers = ("a", "b", "c")
        for each in deliverers:
            store.ownerships.renew("p", each, LONG_MS)
        for each in chance.sample(deliverers, 3):
            store.ownerships.acquire("p", each, digest, LONG_MS)
        store.configurations.configure("p", "d1", dict.fromkeys(places, f"x{round_}"), places)
        assert sum(settle(store, *deliverers).values()) == len(places)
        assert all(len(held) == 1 for held in owners(store).values())


def test_c9_calls_stay_fast_with_ten_thousand_places(store: ControlStore) -> None:
    configured(store, **{f"place{n}x": 1 for n in range(10_000)})
    began = time.monotonic()
    assert len(acquire(store, "a").ownerships) == 10_000
    acquire(store, "b")
    assert len(store.ownerships.surplus("p", "a")) == 5_000
    took = time.monotonic() - began
    assert took < 20, f"{took:.1f} s"


# -------------------------------------------------------------------------------------------------- the rules alone


def held(place: str, free: int = 0, **of: int) -> HeldPlace:
    return HeldPlace(place, of, free)


def test_g1_who_has_most_of_a_place_keeps_it() -> None:
    split = [held("p", 1, a=2, b=3), held("q", 0, a=1, b=1)]
    loads = {"a": 3, "b": 4}
    assert moves_of("a", split, loads, 4) == (("p",), ())
    assert moves_of("b", split, loads, 4) == (("q",), ("p",))


@pytest.mark.parametrize(
    ("loads", "taken"),
    [
        ({"a": 0, "b": 0}, ("large", "small")),
        ({"a": 3, "b": 0}, ("small",)),
        ({"a": 5, "b": 6}, ("small",)),
        ({"a": 6, "b": 5}, ()),
    ],
)
def test_g2_a_free_place_is_taken_if_there_is_room_or_no_other_holds_less(
    loads: Mapping[str, int], taken: tuple[str, ...]
) -> None:
    assert (
        moves_of("a", [held("large", 4), held("small", 2)], loads, 6 if sum(loads.values()) < 5 else 5).taken == taken
    )


def test_g3_a_surplus_is_given_up_in_whole_places_and_only_if_it_does_not_come_back() -> None:
    assert surplus_of("a", {"p": 8}, {"a": 10, "b": 0}, 5) == ((), 2)
    assert surplus_of("a", {"p": 4, "q": 4}, {"a": 8, "b": 2}, 5) == (("p",), 0)
    assert surplus_of("a", {"p": 4, "q": 2}, {"a": 6, "b": 4}, 5) == ((), 0)
    assert surplus_of("a", {"p": 5, "q": 3, "r": 2}, {"a": 10, "b": 0}, 5) == (("p",), 0)
    assert surplus_of("a", {"p": 5}, {"a": 5}, 5) == ((), 0)


@pytest.mark.parametrize("seed", range(20))
def test_moves_come_to_rest_whatever_the_sizes(seed: int) -> None:
    """Deliverers act one after another in any order, as transactions of the store do."""
    chance = random.Random(seed)
    sizes = {f"p{n}": chance.choice((1, 1, 2, 3, 8, 20)) for n in range(chance.randint(1, 12))}
    deliverers = [f"d{n}" for n in range(chance.randint(1, 4))]
    owner = {place: chance.choice(["", *deliverers]) for place in sizes}
    quota = -(-sum(sizes.values()) // len(deliverers))

    def loads() -> dict[str, int]:
        return {each: sum(sizes[place] for place in sizes if owner[place] == each) for each in deliverers}

    for _ in range(ROUNDS_MAX):
        before = dict(owner)
        for each in chance.sample(deliverers, len(deliverers)):
            mine = {place: sizes[place] for place in sizes if owner[place] == each}
            for place in surplus_of(each, mine, loads(), quota).places:
                owner[place] = ""
            known = [
                HeldPlace(p, {owner[p]: size} if owner[p] else {}, 0 if owner[p] else size) for p, size in sizes.items()
            ]
            for place in moves_of(each, known, loads(), quota).taken:
                owner[place] = each
        if owner == before:
            break
    assert owner == before
    assert "" not in owner.values()
    assert max(loads().values()) - min(loads().values()) <= max(sizes.values())
