"""Repairers of destinations: rule C10 of ``delivery/control/contract.py``."""

from __future__ import annotations

import pytest

from contract.control_place import LONG_MS, acquire, names
from contract.test_control_store_places import configured, settle
from trunkline.delivery.control.store import ControlStore
from trunkline.errors import ConfigError

REPAIRER = "repair:host-1"


def seized(store: ControlStore, *wanted: str) -> dict[str, int]:
    return store.ownerships.seize("p", REPAIRER, "d1", wanted, LONG_MS)


def test_c10_a_repairer_takes_a_destination_and_its_owner_gets_it_back(store: ControlStore) -> None:
    configured(store, alone=4)
    before = {each.name: each.token for each in acquire(store, "a").ownerships}
    assert seized(store, "alone1") == {"alone1": before["alone1"] + 1}
    share = store.ownerships.renew("p", "a", LONG_MS)
    assert (share.deliverers, share.quota, share.held, share.free) == (1, 4, 3, 0)
    assert names(acquire(store, "a")) == ["alone0", "alone2", "alone3"]
    assert seized(store, "alone1") == {"alone1": before["alone1"] + 2}
    store.ownerships.leave("p", REPAIRER)
    assert acquire(store, "a").ownerships[1].token == before["alone1"] + 3


def test_c10_a_place_is_seized_whole_and_no_share_changes(store: ControlStore) -> None:
    configured(store, red=3, green=3)
    assert settle(store, "a", "b") == {"a": 3, "b": 3}
    revision = store.ownerships.renew("p", "a", LONG_MS).revision
    assert list(seized(store, "red1")) == ["red1"]
    assert store.ownerships.renew("p", "a", LONG_MS).revision > revision, "its owner notices"
    held = settle(store, "a", "b")
    assert sorted(held.values()) == [0, 3]
    assert {each.owner for each in store.destinations("p") if each.name.startswith("red")} == {REPAIRER}
    store.ownerships.leave("p", REPAIRER)
    assert settle(store, "a", "b") == {"a": 3, "b": 3}


def test_c10_a_repairer_that_died_holds_nothing_when_its_lease_has_expired(store: ControlStore) -> None:
    configured(store, red=2, alone=1)
    acquire(store, "a")
    store.ownerships.seize("p", REPAIRER, "d1", ["red0", "alone0"], 1)
    while names(acquire(store, "a")) != ["alone0", "red0", "red1"]:
        pass


def test_c10_only_with_the_present_configuration_and_its_destinations(store: ControlStore) -> None:
    configured(store, alone=2)
    with pytest.raises(ConfigError, match="another configuration"):
        store.ownerships.seize("p", REPAIRER, "d2", ["alone0"], LONG_MS)
    with pytest.raises(ConfigError, match="did you mean"):
        seized(store, "alone7")
    store.desired_states.set("p", ["alone0"], "retired")
    [owned] = [each for each in acquire(store, "a").ownerships if each.name == "alone0"]
    store.desired_states.retired("p", "alone0", owned.token)
    assert list(seized(store, "alone0", "alone1")) == ["alone1"]
