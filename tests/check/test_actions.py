"""Actions as text, and the views of steps and states."""

from __future__ import annotations

import pytest

from toy_world import (
    Chooser,
    Reporter,
    Saw,
    Sender,
    Ticker,
    Writer,
    enabled,
    main,
    pair,
    process,
    reachable,
    run,
    scenario,
)
from trunkline.check.actions import KINDS, Action, is_fault, parse
from trunkline.check.scenario import Faults, FreeTimer, MessageDrop, NetworkCut
from trunkline.check.world import World
from trunkline.core.effects import (
    Address,
    Complete,
    Effects,
    Message,
    Send,
)


def test_healing_ends_all_faults_and_restarts_are_free() -> None:
    world = World(pair(crashable=("b",), faults=Faults(crash=1, restart=1, loss=3)))
    healed = world.heal_state(run(world, "crash b"))
    assert enabled(world, healed) == ["restart b"]


def test_every_action_parses_back_from_its_text() -> None:
    faults = Faults(loss=1, duplicate=1, crash=1, restart=1, wipe=1, power_cut=1, rot=1, cut=1, early_timer=1)
    world = World(
        scenario(
            process("a", Sender),
            process("b", Ticker),
            process("c", Chooser, 1),
            process("d", Writer, 5),
            monitors=(),
            eager_operations=False,
            atomic_disk=False,
            crashable=("c", "d"),
            power_domain=("d",),
            cuts=(NetworkCut("apart", (("a", "b"),)),),
            faults=faults,
            free_timers=(FreeTimer("b"),),
            drops=(MessageDrop("a", "b"),),
        )
    )
    seen: dict[str, Action] = {}
    for state in reachable(world):
        for action_id, _ in world.expand(state):
            action = world.action(action_id)
            seen.setdefault(action.kind, action)
            assert parse(action.text()) == action
            assert world.is_fault(action_id) == is_fault(action)
    assert set(seen) == KINDS


@pytest.mark.parametrize(
    "line", ["", "dance a", "deliver nonsense", "crash", "crash_in a x crash a", "timer a", "operate[x] a"]
)
def test_a_line_that_is_not_an_action_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(line)


def test_the_order_of_successors_does_not_depend_on_what_was_seen_before() -> None:
    fresh, used = World(pair(faults=Faults(loss=1))), World(pair(faults=Faults(loss=1)))
    run(used, "deliver a.main>b.main Note(value=2)")
    reachable(used)
    line = "deliver a.main>b.main Note(value=1)"
    assert enabled(fresh, run(fresh, line)) == enabled(used, run(used, line))


def test_a_step_is_explained_with_what_it_sent_announced_and_persisted() -> None:
    class Busy(Writer):
        def on_message(self, source: Address, message: Message) -> Effects:
            return [*super().on_message(source, message), Send(main("b"), message), Complete(1, Saw(0))]

    world = World(
        scenario(
            process("a", Busy, 5),
            process("b", Reporter),
            eager_operations=False,
            crashable=("a",),
            faults=Faults(crash=1),
        )
    )
    steps = {
        world.action(action_id).text(): world.explain(world.initial(), action_id, 1)
        for action_id, _ in world.expand(world.initial())
    }
    whole, broken = steps["operate a"], steps["crash_in a 2 operate a"]
    assert (whole.index, whole.kind, whole.process) == (1, "operate", "a")
    assert whole.persisted == ("Mark(value=5)",)
    assert whole.announced == ("Invoked(operation=1, request=Note(value=5))", "Saw(value=5)")
    assert whole.completed == ("operation 1: Saw(value=0)",)
    assert [sent.label for sent in whole.sent] == ["Note 5"]
    assert (broken.persisted, broken.sent, broken.announced[-1]) == (
        ("Mark(value=5)",),
        (),
        "ProcessEnded(kind='crash')",
    )


def test_coverage_names_role_phase_and_event() -> None:
    world = World(pair())
    reachable(world)
    assert ("Reporter", "quiet", "Note") in world.coverage
    assert world.events_seen["Saw"] == 2
