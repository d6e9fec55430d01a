"""The cost of a check of a long map, counted in calls and not in time; and that all of the map is examined (C12)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from msgspec.structs import replace

from core.driver import messages, storage
from core.long_maps import ME, NODES, acquainted, check, long_map
from trunkline.core.coordinator import Coordinator, CoordinatorState, DutiesConfig
from trunkline.core.duties import ASKED_MAX
from trunkline.core.effects import Effects, SetTimer
from trunkline.core.messages import Finalize, Finalized, Inventoried, Inventory, NodeInfo
from trunkline.core.projection import EndSegment, Opening, Owner, Projection, Seat, apply
from trunkline.core.siblings import ChangeProjection, CheckNow, Refresh

SMALL, LARGE = long_map(2_000), long_map(20_000)


def calls_of(action: Callable[[], object]) -> int:
    """How many functions an action calls, Python's own included."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def restarted(node: str) -> tuple[NodeInfo, ...]:
    return tuple(replace(info, start=2) if info.node == node else info for info in NODES)


def ended(view: Projection) -> Projection:
    opening = Opening((tuple(Seat(f"n{number}", 1) for number in range(3)),), Owner("n0", 1))
    return apply(view, EndSegment(view.last.index, view.last.base + 3, view.last.groups, opening))


def test_c12_a_first_and_a_steady_check_cost_the_same_for_any_length_of_the_map() -> None:
    def first(view: Projection) -> int:
        role = Coordinator(DutiesConfig("log"))
        return calls_of(lambda: check(role, view))

    def steady(view: Projection) -> int:
        role = acquainted(view)
        return calls_of(lambda: check(role, view))

    assert first(LARGE) < first(SMALL) + 1_000
    assert steady(LARGE) < steady(SMALL) + 1_000  # the newest are another part than where it goes on


def test_c12_a_check_after_a_change_is_linear_with_a_small_cost_per_segment() -> None:
    def changed(view: Projection, after: Projection) -> int:
        role = acquainted(view)
        return calls_of(lambda: check(role, after))

    assert changed(LARGE, ended(LARGE)) - changed(SMALL, ended(SMALL)) < 2 * 18_000

    def doubting(view: Projection) -> int:
        role = acquainted(view)
        return calls_of(lambda: check(role, view, restarted("n1")))

    assert doubting(LARGE) - doubting(SMALL) < 2 * 18_000


def rests_for(effects: Effects) -> int:
    return next(e.after_ms for e in reversed(effects) if isinstance(e, SetTimer) and e.key == "tick")


def test_c12_a_coordinator_goes_around_a_long_map_before_it_rests() -> None:
    view = long_map(2_500)
    role = acquainted(view)
    role.on_message(ME, CheckNow())
    rests = [rests_for(check(role, view))]
    while rests[-1] != role.config.rest_ms:
        role.on_timer("tick")
        rests.append(rests_for(check(role, view)))
    assert len(rests) == 2  # the third: ``acquainted`` made one
    role.on_timer("tick")
    assert rests_for(check(role, view)) == role.config.rest_ms  # nothing has changed: no other round
    role.on_timer("tick")
    assert rests_for(check(role, view, (*NODES[:4], replace(NODES[4], damaged=0, zone="z")))) == role.config.tick_ms


def test_c12_what_ended_just_now_is_seen_to_at_once() -> None:
    view = long_map(2_500)
    role = acquainted(view)
    after = ended(view)
    check(role, after)
    assert role.phase == "RepairSegment"


def test_c12_after_a_restart_the_members_of_many_segments_are_asked_at_once_and_each_is_asked_once() -> None:
    view = long_map(2_500)
    role = acquainted(view)
    asked: list[str] = []
    duties = 0
    effects = check(role, view, restarted("n1"))
    for _ in range(100):
        asks = [message for message in messages(effects) if isinstance(message, Finalize)]
        assert len(asks) <= ASKED_MAX + 2
        asked += [ask.descriptor.target.stream for ask in asks]
        duties += bool(asks)
        for ask in asks:
            stream = ask.descriptor.target.stream
            effects = role.on_message(storage("n1"), Finalized(stream, nonce=role.question))
        if Inventory("log") in messages(effects):
            effects = role.on_message(storage("n1"), Inventoried("log", ()))
            continue
        if role.state is CoordinatorState.IDLE:
            if rests_for(effects) == role.config.rest_ms:
                break
            effects = role.on_timer("tick")
        assert messages(effects) == [Refresh("log")]
        effects = check(role, view, restarted("n1"))
    members = [m.stream for s in view.segments[:-1] for m in s.members() if m.node == "n1"]
    assert sorted(asked) == sorted(members)
    assert duties < len(members) / ASKED_MAX + 4


def test_p9_the_empty_segments_of_a_long_map_leave_it_together() -> None:
    """A client with a bad link made a thousand segments, and wrote nothing."""
    view = long_map(1)
    opening = Opening((tuple(Seat(f"n{number}", 1) for number in range(3)),), Owner("n0", 1))
    for _ in range(1_000):
        view = apply(view, EndSegment(view.last.index, view.last.base, view.last.groups, opening))
    role = acquainted(view)
    role.on_message(ME, CheckNow())
    [change] = messages(check(role, view))
    assert isinstance(change, ChangeProjection)
    assert len(change.projection.segments) < 10
