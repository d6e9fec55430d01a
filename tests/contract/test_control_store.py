"""What every control store promises: rules C1 to C8 of ``delivery/control/contract.py``.

Desired states and counted rows are in ``test_desired_states.py``; what happens when a store cannot be used, in
``test_control_store_failures.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import pytest
from msgspec.structs import replace

from contract.control_place import LONG_MS, Place, acquire, configured, names, take_and_give, tokens
from trunkline.core.delivery_messages import Emptied
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.control.contract import (
    ERROR_CHARACTERS_MAX,
    NOTHING_EMPTY,
    Ownership,
    Reported,
    Status,
    UnroutedCounts,
)
from trunkline.delivery.control.store import ControlStore
from trunkline.errors import ConfigError, TrunklineError

SHORT_MS: Final = 40
WAIT_S: Final = 20.0
ROUNDS: Final = 15
ODD_VALUES: Final = {"odd1": ("a\0b%00", "x"), "odd2": ("\x01escaped:%25", "x"), "odd3": ("%00'\\", "x")}


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


# ---------------------------------------------------------------------------------------------------- C1 owners, tokens


def test_c1_a_destination_has_one_owner_and_its_token_grows_with_each(store: ControlStore) -> None:
    configured(store, 3)
    assert tokens(acquire(store, "a")) == {"t0": 1, "t1": 1, "t2": 1}
    assert tokens(acquire(store, "a")) == {"t0": 1, "t1": 1, "t2": 1}  # the same owner
    assert acquire(store, "b").ownerships == ()
    store.ownerships.release("p", "a", ["t1", "t2", "gone"])
    assert tokens(acquire(store, "b")) == {"t1": 2, "t2": 2}
    store.ownerships.release("p", "a", ["t1"])  # not its own any more
    assert names(acquire(store, "b")) == ["t1", "t2"]
    store.ownerships.leave("p", "b")
    assert tokens(acquire(store, "a")) == {"t0": 1, "t1": 3, "t2": 3}


def test_c1_tokens_outlive_retirement_and_removal_from_the_configuration(store: ControlStore) -> None:
    configured(store, 2)
    [first, second] = acquire(store, "a").ownerships
    store.desired_states.set("p", ["t0"], "retired")
    assert acquire(store, "a").ownerships[0] == replace(first, desired_state="retired")
    store.desired_states.retired("p", "t0", first.token)
    assert names(acquire(store, "a")) == ["t1"]
    assert store.desired_states.set("p", ["t0"], "active") == ("t0",)
    assert tokens(acquire(store, "a")) == {"t0": 2, "t1": second.token}
    store.configurations.configure("p", "d1b", {"t1": "x"})
    assert names(store.ownerships.acquire("p", "a", "d1b", LONG_MS)) == ["t1"]
    configured(store, 2)
    assert tokens(acquire(store, "a")) == {"t0": 3, "t1": 1}


def test_c1_a_token_can_be_raised_above_what_a_destination_has_seen(store: ControlStore) -> None:
    configured(store, 2)
    acquire(store, "a")
    store.ownerships.raise_tokens("p", {"t0": 41, "t1": 0, "unknown": 7})
    store.ownerships.raise_tokens("p", {"t0": 41})
    assert tokens(acquire(store, "a")) == {"t0": 42, "t1": 1}


def test_c1_processes_that_race_never_own_one_destination_under_one_token(
    control_place: Place, store: ControlStore
) -> None:
    configured(store, 30)
    taken = take_and_give(control_place, processes=3, rounds=ROUNDS)
    assert len(taken) == len(set(taken)) > 30


# ------------------------------------------------------------------------------------------------ C2, C3 leases, shares


def test_c2_destinations_move_when_a_deliverer_dies(store: ControlStore) -> None:
    configured(store, 4)
    acquire(store, "dies", SHORT_MS)
    eventually(lambda: len(acquire(store, "lives").ownerships) == 4)
    assert set(tokens(acquire(store, "lives")).values()) == {2}
    assert [each.name for each in store.deliverers("p")] == ["lives"]


def test_c2_destinations_that_no_other_took_are_still_held_after_a_late_renewal(store: ControlStore) -> None:
    configured(store, 4)
    before = acquire(store, "late", SHORT_MS)
    eventually(lambda: not store.deliverers("p")[0].live)
    assert [record.owner for record in store.destinations("p")] == [None] * 4
    assert store.ownerships.renew("p", "late", LONG_MS).held == 4
    assert acquire(store, "late").ownerships == before.ownerships


def test_c2_a_late_deliverer_learns_what_others_took(store: ControlStore) -> None:
    configured(store, 4)
    before = acquire(store, "late", SHORT_MS).share
    eventually(lambda: acquire(store, "other").share.held == 4)
    share = store.ownerships.renew("p", "late", LONG_MS)
    assert share.revision > before.revision
    assert (share.held, share.quota, share.free) == (0, 2, 0)
    assert acquire(store, "late").ownerships == ()


def test_c3_a_deliverer_that_joins_gets_its_share_when_others_give_theirs_up(store: ControlStore) -> None:
    configured(store, 10)
    assert acquire(store, "a").share.held == 10
    joined = acquire(store, "b").share
    assert (joined.deliverers, joined.quota, joined.held, joined.free) == (2, 5, 0, 0)
    share = store.ownerships.renew("p", "a", LONG_MS)
    assert (share.quota, share.held) == (5, 10)
    store.ownerships.release("p", "a", names(acquire(store, "a"))[share.quota :])
    assert store.ownerships.renew("p", "b", LONG_MS).free == 5
    assert len(acquire(store, "b").ownerships) == 5
    assert len(acquire(store, "a").ownerships) == 5


def test_c3_shares_are_rounded_up_so_that_none_is_left_over(store: ControlStore) -> None:
    configured(store, 7)
    for name in "abc":
        store.ownerships.renew("p", name, LONG_MS)
    assert [len(acquire(store, name).ownerships) for name in "abc"] == [3, 3, 1]
    assert store.ownerships.renew("p", "a", LONG_MS).free == 0


def test_c3_pipelines_do_not_share(store: ControlStore) -> None:
    configured(store, 2)
    store.configurations.configure("q", "e", {"t0": "y"})
    assert names(acquire(store, "a")) == ["t0", "t1"]
    assert names(store.ownerships.acquire("q", "a", "e", LONG_MS)) == ["t0"]
    store.ownerships.leave("q", "a")
    assert names(acquire(store, "a")) == ["t0", "t1"]


# --------------------------------------------------------------------------------------------------------- C4, C5 notes


def test_c4_notes_count_only_with_the_token_of_the_present_grant(store: ControlStore) -> None:
    configured(store, 2)
    old = tokens(acquire(store, "a"))
    store.ownerships.leave("p", "a")
    mine = tokens(acquire(store, "b"))
    seen = Status(state="idle", position=7, flushed_at_ms=1, rows=2, error="no \0 here")
    for held, counted in ((old, 0), (mine, 2)):
        assert (
            store.statistics.record_empty("p", 20, [Emptied(name, token, 5) for name, token in held.items()]) == counted
        )
        store.statistics.report("p", [Reported(name, token, seen) for name, token in held.items()])
        expected = Window(5, 20) if counted else NOTHING_EMPTY
        assert [grant.empty for grant in acquire(store, "b").ownerships] == [expected] * 2
        [one, _] = store.destinations("p")
        assert one.status == (replace(seen, error="no � here") if counted else None)
    store.desired_states.set("p", ["t0"], "retired")
    store.desired_states.retired("p", "t0", old["t0"])
    assert not store.destinations("p")[0].retired
    store.ownerships.leave("p", "b")
    assert store.statistics.record_empty("p", 30, [Emptied("t0", mine["t0"], 5)]) == 0  # no owner: the next may differ


def test_c4_a_long_error_is_cut_off(store: ControlStore) -> None:
    configured(store, 1)
    acquire(store, "a")
    store.statistics.report("p", [Reported("t0", 1, Status(error="x" * (ERROR_CHARACTERS_MAX + 1)))])
    status = store.destinations("p")[0].status
    assert status is not None
    assert len(status.error) == ERROR_CHARACTERS_MAX


def test_c5_a_change_of_routing_forgets_the_empty_window_of_that_destination_only(store: ControlStore) -> None:
    configured(store, 2)
    acquire(store, "a")
    store.statistics.record_empty("p", 20, [Emptied("t0", 1, 5), Emptied("t1", 1, 5)])
    store.configurations.configure("p", "d2", {"t0": "changed", "t1": "x"})
    assert store.statistics.record_empty("p", 30, [Emptied("t0", 1, 5)]) == 0  # read under the old routing
    held = store.ownerships.acquire("p", "a", "d2", LONG_MS)
    assert held.ownerships == (
        Ownership("t0", 2, "active", NOTHING_EMPTY, 1),  # and it is seeded again
        Ownership("t1", 1, "active", Window(5, 20), 0),
    )


def test_c5_a_destination_that_is_back_is_seeded_again_only_if_other_rows_are_its_own(store: ControlStore) -> None:
    store.configurations.configure("p", "d1", {"t0": "x", "t1": "x"})
    store.configurations.configure("p", "d2", {})
    store.configurations.configure("p", "d3", {"t0": "x", "t1": "y"})
    assert [(record.configured, record.reseed) for record in store.destinations("p")] == [(True, 0), (True, 1)]


def test_c5_a_new_seed_and_a_retirement_forget_the_empty_window(store: ControlStore) -> None:
    configured(store, 2)
    acquire(store, "a")
    store.statistics.record_empty("p", 20, [Emptied("t0", 1, 5), Emptied("t1", 1, 5)])
    store.desired_states.request_reseed("p", ["t0"])
    store.desired_states.reseeded("p", "t0", 1, 1)
    store.desired_states.set("p", ["t1"], "retired")
    store.desired_states.retired("p", "t1", 1)
    store.desired_states.set("p", ["t1"], "active")
    assert [grant.empty for grant in acquire(store, "a").ownerships] == [NOTHING_EMPTY] * 2


# ----------------------------------------------------------------------------------------------------- C6 configuration


def test_c6_a_caller_with_an_older_configuration_gets_an_error(store: ControlStore) -> None:
    configured(store, 2)
    acquire(store, "a")
    store.configurations.configure("p", "d2", {"t0": "x", "t9": "x"})
    for call in (
        lambda: store.ownerships.acquire("p", "a", "d1", LONG_MS),
        lambda: store.configurations.discover("p", "d1", {"new": ("new", "x")}),
    ):
        with pytest.raises(ConfigError, match="given another configuration"):
            call()
    assert names(store.ownerships.acquire("p", "b", "d2", LONG_MS)) == ["t9"]  # t0 has an owner, t1 is not configured
    assert [(record.name, record.configured) for record in store.destinations("p")] == [
        ("t0", True),
        ("t1", False),
        ("t9", True),
    ]


def test_c6_configuring_the_same_again_changes_nothing(store: ControlStore) -> None:
    configured(store, 2)
    acquire(store, "a")
    before = store.configurations.revision("p")
    configured(store, 2)
    store.configurations.configure("p", "d1", {})  # a deliverer that knows of fewer, under the same configuration
    assert store.configurations.revision("p") == before
    assert names(acquire(store, "a")) == ["t0", "t1"]


def test_c6_discovered_destinations_are_kept_and_returned(store: ControlStore) -> None:
    configured(store, 1)
    store.configurations.discover("p", "d1", {"new": ("New Value", "x"), "other": ("ü", "x"), **ODD_VALUES})
    before = store.configurations.revision("p")
    store.configurations.discover("p", "d1", {"new": ("New Value", "x")})
    assert store.configurations.revision("p") == before
    record = store.configurations.configure("p", "d2", {"t0": "x"})  # by one who had not heard of them
    odd = {name: value for name, (value, _) in ODD_VALUES.items()}
    assert record.discovered == {"new": "New Value", "other": "ü", **odd}
    assert {name: found.value for found in store.destinations("p") if (name := found.name) in odd} == odd
    store.configurations.discover("p", "d2", {name: (value, "x") for name, value in record.discovered.items()})
    assert names(store.ownerships.acquire("p", "a", "d2", LONG_MS)) == ["new", *ODD_VALUES, "other", "t0"]
    assert store.configurations.record("p") == replace(record, revision=store.configurations.revision("p"))


def test_c6_a_name_has_one_routing_value(store: ControlStore) -> None:
    configured(store, 1)
    store.configurations.discover("p", "d1", {"new": ("one", "x")})
    with pytest.raises(ConfigError, match="'new' belongs to the routing value 'one'"):
        store.configurations.discover("p", "d1", {"another": ("three", "x"), "new": ("two", "x")})
    with pytest.raises(ConfigError, match="'t0' is in the configuration"):
        store.configurations.discover("p", "d1", {"t0": ("two", "x")})
    assert [record.name for record in store.destinations("p")] == ["new", "t0"]


def test_a_pipeline_that_was_never_configured_is_unknown(store: ControlStore) -> None:
    assert store.configurations.record("p") is None
    assert store.configurations.revision("p") == 0
    assert store.destinations("p") == ()
    assert store.unrouted.counts("p") == (0, UnroutedCounts({}))
    for call in (
        lambda: acquire(store, "a"),
        lambda: store.ownerships.renew("p", "a", LONG_MS),
        lambda: store.desired_states.set("p", ["t0"], "paused"),
    ):
        with pytest.raises(ConfigError, match="'p'"):
            call()
    assert store.deliverers("p") == ()


# ------------------------------------------------------------------------------------------------------ C7 the revision


def test_c7_the_revision_grows_with_changes_and_not_with_notes(store: ControlStore) -> None:
    configured(store, 2)
    seen = store.configurations.revision("p")

    def grew() -> bool:
        nonlocal seen
        before, seen = seen, store.configurations.revision("p")
        return seen > before

    for change in (
        lambda: acquire(store, "a"),
        lambda: store.ownerships.renew("p", "b", LONG_MS),
        lambda: store.desired_states.set("p", ["t0"], "paused"),
        lambda: store.desired_states.request_reseed("p", ["t0"]),
        lambda: store.ownerships.release("p", "a", ["t0"]),
        lambda: store.configurations.discover("p", "d1", {"new": ("new", "x")}),
        lambda: store.ownerships.raise_tokens("p", {"t1": 5}),
        lambda: store.ownerships.leave("p", "b"),
    ):
        change()
        assert grew()
    acquire(store, "a")
    assert grew()
    [mine] = [grant for grant in acquire(store, "a").ownerships if grant.name == "t1"]
    for note in (
        lambda: store.ownerships.renew("p", "a", LONG_MS),
        lambda: acquire(store, "a"),
        lambda: store.statistics.record_empty("p", 9, [Emptied("t1", mine.token, 1)]),
        lambda: store.statistics.report("p", [Reported("t1", mine.token, Status(state="idle"))]),
        lambda: store.unrouted.add("p", Window(0, 9), UnroutedCounts({"x": 1})),
        lambda: store.desired_states.set("p", ["t0"], "paused"),
        lambda: store.ownerships.release("p", "a", []),
    ):
        note()
        assert not grew()


def test_calls_stay_fast_with_ten_thousand_destinations(store: ControlStore) -> None:
    configured(store, 10_000)
    held = acquire(store, "a")
    assert held.share.held == 10_000
    emptied = [Emptied(grant.name, grant.token, 1) for grant in held.ownerships[:9_900]]
    took = {}
    calls: dict[str, Callable[[], object]] = {
        "record_empty": lambda: store.statistics.record_empty("p", 5, emptied),
        "renew": lambda: store.ownerships.renew("p", "a", LONG_MS),
        "revision": lambda: store.configurations.revision("p"),
        "report": lambda: store.statistics.report(
            "p", [Reported(each.destination, 1, Status(state="idle")) for each in emptied]
        ),
        "acquire": lambda: acquire(store, "a"),
    }
    for label, call in calls.items():
        began = time.monotonic()
        call()
        took[label] = round((time.monotonic() - began) * 1000)
    print(type(store).__name__, took, "ms")
    assert sum(grant.empty == Window(1, 5) for grant in acquire(store, "a").ownerships) == 9_900
    store.ownerships.leave("p", "a")
    assert acquire(store, "b").share.held == 10_000


def test_threads_may_share_a_store(store: ControlStore) -> None:
    configured(store, 20)
    failures: list[BaseException] = []

    def work(me: str) -> None:
        try:
            for _ in range(ROUNDS):
                held = acquire(store, me)
                store.ownerships.renew("p", me, LONG_MS)
                store.ownerships.release("p", me, names(held))
        except TrunklineError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"thread{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_c8_a_call_that_fails_in_the_middle_leaves_nothing_behind(store: ControlStore) -> None:
    configured(store, 1)
    before = store.configurations.revision("p")
    with pytest.raises(ConfigError):
        store.configurations.discover("p", "d1", {"fresh": ("v", "x"), "t0": ("w", "x")})
    assert store.configurations.revision("p") == before
    assert [record.name for record in store.destinations("p")] == ["t0"]
