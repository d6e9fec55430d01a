"""Desired states and unrouted rows, as every control store keeps them."""

from __future__ import annotations

import pytest

from contract.control_place import Place, acquire, configured
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.control.contract import UNROUTED_VALUES_MAX, NoControlStore, UnroutedCounts, UnroutedSummary
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.errors import ConfigError


def test_desired_states_reach_the_owner(control_place: Place, store: ControlStore) -> None:
    configured(store, 3)
    acquire(store, "a")
    operator = control_place.open()
    assert operator.desired_states.set("p", ["t0", "t1"], "draining") == ("t0", "t1")
    operator.desired_states.request_reseed("p", ["t2"])
    operator.close()
    assert [(grant.desired_state, grant.reseed) for grant in acquire(store, "a").ownerships] == [
        ("draining", 0),
        ("draining", 0),
        ("active", 1),
    ]
    assert store.desired_states.set("p", ["t0", "t1"], "active", instead_of="paused") == ()
    assert store.desired_states.set("p", ["t0"], "paused", instead_of="draining") == ("t0",)


def test_a_request_to_seed_again_that_came_meanwhile_stays(store: ControlStore) -> None:
    configured(store, 1)
    store.desired_states.request_reseed("p", ["t0"])
    [grant] = acquire(store, "a").ownerships
    store.desired_states.request_reseed("p", ["t0"])
    store.desired_states.reseeded("p", "t0", grant.token, grant.reseed)
    [grant] = acquire(store, "a").ownerships
    assert grant.reseed == 2
    store.desired_states.reseeded("p", "t0", grant.token + 1, 2)  # not the owner's token
    assert acquire(store, "a").ownerships[0].reseed == 2
    store.desired_states.reseeded("p", "t0", grant.token, 2)
    assert acquire(store, "a").ownerships[0].reseed == 0


def test_a_request_to_discard_a_history_holds_until_a_seed_is_done(store: ControlStore) -> None:
    configured(store, 2)
    store.desired_states.request_reseed("p", ["t0"], discards=True)
    store.desired_states.request_reseed("p", ["t0", "t1"])
    first, other = acquire(store, "a").ownerships
    assert [(each.reseed, each.insists, each.discards) for each in (first, other)] == [
        (2, True, True),
        (1, True, False),
    ]
    store.desired_states.reseeded("p", "t0", first.token, first.reseed)
    store.desired_states.request_reseed("p", ["t0"])
    [again, _] = acquire(store, "a").ownerships
    assert (again.reseed, again.discards) == (3, False)


def test_an_unknown_destination_is_named_and_nothing_changes(store: ControlStore) -> None:
    store.configurations.configure("p", "d1", {"acme": "x", "globex": "x"})
    with pytest.raises(ConfigError, match="no destination 'acne'; did you mean 'acme'"):
        store.desired_states.set("p", ["globex", "acne"], "paused")
    with pytest.raises(ConfigError, match="acne"):
        store.desired_states.request_reseed("p", ["globex", "acne"])
    assert {(record.desired_state, record.reseed) for record in store.destinations("p")} == {("active", 0)}


def test_a_destination_whose_owner_died_is_still_retired(store: ControlStore) -> None:
    configured(store, 1)
    store.desired_states.set("p", ["t0"], "retired")
    [grant] = acquire(store, "a").ownerships
    store.desired_states.retired("p", "t0", grant.token)
    assert acquire(store, "a").ownerships == ()
    assert acquire(store, "a").share.free == 0
    [record] = store.destinations("p")
    assert (record.desired_state, record.retired, record.owner, record.token) == ("retired", True, None, 1)


def test_a_desired_state_that_changed_during_retirement_is_kept(store: ControlStore) -> None:
    configured(store, 1)
    store.desired_states.set("p", ["t0"], "retired")
    acquire(store, "a")
    store.desired_states.set("p", ["t0"], "active")
    store.desired_states.retired("p", "t0", 1)
    [grant] = acquire(store, "a").ownerships
    assert (grant.token, grant.desired_state) == (2, "active")


def test_rows_of_a_window_are_counted_once(store: ControlStore) -> None:
    configured(store, 1)
    first = UnroutedCounts({"x": 2, "": 1, "x ": 5}, nulls=3)
    assert store.unrouted.add("p", Window(0, 10), first) == 10
    assert store.unrouted.add("p", Window(0, 10), first) == 10  # said twice
    assert store.unrouted.add("p", Window(5, 20), first) == 10  # not from where the counts end
    assert store.unrouted.add("p", Window(10, 20), UnroutedCounts({"x": 1, "y": 1}, nulls=1, others=4)) == 20
    through, counted = store.unrouted.counts("p")
    assert through == 20
    assert counted == UnroutedCounts({"": 1, "x": 3, "x ": 5, "y": 1}, nulls=4, others=4)
    assert counted.rows == 18


def test_a_summary_has_the_sum_and_the_most_frequent_values(control_place: Place, store: ControlStore) -> None:
    reader = open_control_store(control_place.address, create=False)
    for _ in range(2):
        with pytest.raises(NoControlStore):
            reader.pipelines()
    configured(store, 1)
    store.configurations.configure("other", "d1", {})
    store.unrouted.add("p", Window(0, 7), UnroutedCounts({"a": 5, "b": 1, "c": 9}, nulls=6, others=2))
    assert reader.pipelines() == ("other", "p")
    assert reader.unrouted.summary("p", 3) == UnroutedSummary(23, 7, (("c", 9), (None, 6), ("a", 5)))
    assert reader.unrouted.summary("other", 3) == UnroutedSummary(0, 0, ())
    reader.close()


def test_odd_and_long_values_are_counted_apart(store: ControlStore) -> None:
    configured(store, 1)
    values = {"a\0b": 1, "'": 1, '"': 1, "\\": 1, "ü☂": 1, "x" * 5000 + "1": 1, "x" * 5000 + "2": 1}
    store.unrouted.add("p", Window(0, 1), UnroutedCounts(values))
    assert list(store.unrouted.counts("p")[1].values.values()) == [1] * len(values)


def test_more_values_than_there_is_room_for_are_counted_together(store: ControlStore) -> None:
    configured(store, 1)
    store.unrouted.add("p", Window(0, 1), UnroutedCounts({f"v{n}": 1 for n in range(UNROUTED_VALUES_MAX - 1)}))
    store.unrouted.add("p", Window(1, 2), UnroutedCounts({"v0": 1, "w1": 1, "w2": 1, "w3": 1}))
    _, counted = store.unrouted.counts("p")
    assert len(counted.values) == UNROUTED_VALUES_MAX
    assert (counted.values["v0"], counted.others, counted.rows) == (2, 2, UNROUTED_VALUES_MAX + 3)
