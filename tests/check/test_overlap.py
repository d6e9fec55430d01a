"""Options of scenarios: free timers, copies of messages, drops, and operations that wait for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toy_world import (
    Never,
    Note,
    Reporter,
    Sender,
    Story,
    Ticker,
    Writer,
    enabled,
    main,
    pair,
    process,
    run,
    scenario,
    stories,
)
from trunkline.check.action_file import ActionFile, parse_action_file
from trunkline.check.actions import parse
from trunkline.check.heal import Healer
from trunkline.check.random_search import search
from trunkline.check.replay import replay_file
from trunkline.check.scenario import (
    Faults,
    FreeTimer,
    MessageDrop,
    ObservedEvent,
    Operation,
    OperationEnd,
    ProcessSpec,
    Scenario,
    Violation,
)
from trunkline.check.search import explore
from trunkline.check.shrink import Failure, shrink
from trunkline.check.world import World
from trunkline.core.effects import Address, Complete, Effects, Message, Send, SetTimer


class Restless(Ticker):
    """Sets its timer again whenever it fires."""

    def on_timer(self, key: str) -> Effects:
        return [*super().on_timer(key), SetTimer("tick", 10)]


def ticking(**options: object) -> Scenario:
    return replace(scenario(process("a", Sender), process("b", Ticker), fifo=True), **options)  # type: ignore[arg-type]


# Free timers


def test_a_free_timer_fires_while_messages_are_in_flight_and_costs_no_early_timer() -> None:
    world = World(ticking(free_timers=(FreeTimer("b", "main", "tick"),)))
    assert "free_timer b.main tick" in enabled(world, world.initial())
    assert stories(world) == {
        "('b saw 1', 'b saw 2', 'b saw 9')",
        "('b saw 1', 'b saw 9', 'b saw 2')",
        "('b saw 9', 'b saw 1', 'b saw 2')",
    }


def test_a_timer_that_matches_no_pattern_waits() -> None:
    world = World(ticking(free_timers=(FreeTimer("b", "main", "to*"), FreeTimer("a"))))
    assert stories(world) == {"('b saw 1', 'b saw 2', 'b saw 9')"}


def test_a_free_timer_is_free_as_often_as_its_count() -> None:
    restless = scenario(process("a", Sender), process("b", Restless), free_timers=(FreeTimer("*", count=2),))
    world = World(restless)
    twice = run(world, "free_timer b.main tick", "free_timer b.main tick")
    assert not [line for line in enabled(world, twice) if "timer" in line]
    assert run(world, "free_timer b.main tick") != run(world, "free_timer b.main tick", "free_timer b.main tick")


def test_a_free_timer_costs_nothing_when_nothing_else_can_happen() -> None:
    world = World(ticking(free_timers=(FreeTimer("b"),)))
    idle = run(world, "deliver a.main>b.main Note(value=1)", "deliver a.main>b.main Note(value=2)")
    assert enabled(world, idle) == ["timer b.main tick"]
    fired = run(
        world, "deliver a.main>b.main Note(value=1)", "deliver a.main>b.main Note(value=2)", "timer b.main tick"
    )
    assert dict(world.describe(fired).budgets) == {"free timers": "1"}


def test_the_remaining_count_is_part_of_a_state() -> None:
    """Two states that differ in nothing else are two, or a search would cut short what the second can still do."""

    class Silent(Restless):
        def on_timer(self, key: str) -> Effects:
            return [SetTimer("tick", 10)]

    world = World(scenario(process("a", Sender), process("b", Silent), free_timers=(FreeTimer("b", count=3),)))
    assert len({run(world, *["free_timer b.main tick"] * times) for times in range(4)}) == 4


def test_a_process_may_crash_inside_the_step_of_a_free_timer() -> None:
    class Persisting(Writer):
        def on_start(self) -> Effects:
            return [SetTimer("tick", 10)]

        def on_timer(self, key: str) -> Effects:
            return self.on_message(main("b"), Note(7))

    world = World(
        scenario(
            process("a", Sender),
            process("b", Persisting),
            free_timers=(FreeTimer("b"),),
            crashable=("b",),
            faults=Faults(crash=1),
        )
    )
    crashed = run(world, "crash_in b 1 free_timer b.main tick")
    assert dict(world.describe(crashed).budgets) == {}


def test_free_timers_end_with_the_faults() -> None:
    world = World(ticking(free_timers=(FreeTimer("b"),)))
    healed = world.heal_state(world.initial())
    assert enabled(world, healed) == ["deliver a.main>b.main Note(value=1)"]


def test_random_schedules_fire_free_timers() -> None:
    class NotFirst(Story):
        def observe(self, state: tuple[str, ...], observed: ObservedEvent) -> tuple[str, ...]:
            after = super().observe(state, observed)
            if after == ("b saw 9",):
                raise Violation("the timer did not wait")
            return after

    found = search(World(ticking(free_timers=(FreeTimer("b"),), monitors=(NotFirst(),))), 40, 0, "random")
    assert found.walk is not None
    assert found.walk.actions[-1].text() == "free_timer b.main tick"


# Operations that wait for others


class Worker(Reporter):
    """Ends each of its operations when its timer fires."""

    def __init__(self, boot: object) -> None:
        self.begun = 0

    def on_message(self, source: Address, message: Message) -> Effects:
        self.begun += 1
        return [SetTimer("work", 10)]

    def on_timer(self, key: str) -> Effects:
        return [Complete(self.begun, Note(self.begun))]  # type: ignore[arg-type]


def waiting(name: str, *after: OperationEnd) -> ProcessSpec:
    spec = process(name, Worker)
    return replace(spec, operations=(Operation("main", Note(5), after=after),))


def test_an_operation_begins_only_after_the_one_that_it_waits_for_has_ended() -> None:
    world = World(scenario(process("a", Worker, 1, 2), waiting("b", OperationEnd("a", 1))))
    found = stories(world)
    assert all(story.index("a ended 1") < story.index("b began 1") for story in found)
    assert any(story.index("b began 1") < story.index("a ended 2") for story in found)
    assert all("b ended 1" in story for story in found)


def test_an_operation_may_wait_for_several_others() -> None:
    world = World(
        scenario(
            process("a", Worker, 1), process("c", Worker, 1), waiting("b", OperationEnd("a", 1), OperationEnd("c", 1))
        )
    )
    for story in stories(world):
        assert max(story.index("a ended 1"), story.index("c ended 1")) < story.index("b began 1")


def test_an_operation_that_waits_forever_never_begins() -> None:
    world = World(scenario(process("a", Worker, 1), waiting("b", OperationEnd("a", 2))))
    assert stories(world) == {"('a began 1', 'a ended 1')"}


def test_an_operation_that_waits_begins_in_the_fair_phase_as_well() -> None:
    story = Story(rest=lambda story: "b ended 1" in story)
    world = World(scenario(process("a", Worker, 1), waiting("b", OperationEnd("a", 1)), monitors=(story,)))
    assert Healer(world).heal(world.initial(), 20).finding is None


def test_an_operation_cannot_wait_for_an_unknown_process() -> None:
    with pytest.raises(ValueError, match="no such process: z"):
        World(scenario(process("a", Worker, 1), waiting("b", OperationEnd("z", 1))))


# Copies, and messages that are given up


class Stutterer(Sender):
    def on_start(self) -> Effects:
        return [Send(main("b"), Note(1)), Send(main("b"), Note(1))]


@pytest.mark.parametrize("fifo", [False, True])
def test_two_identical_messages_are_both_delivered(*, fifo: bool) -> None:
    world = World(scenario(process("a", Stutterer), process("b", Reporter), copies=2, fifo=fifo))
    assert len(world.describe(world.initial()).network) == 2
    assert stories(world) == {"('b saw 1', 'b saw 1')"}


def test_no_more_copies_are_in_flight_than_the_scenario_allows() -> None:
    class Thrice(Sender):
        def on_start(self) -> Effects:
            return [Send(main("b"), Note(1))] * 3

    assert stories(World(scenario(process("a", Thrice), process("b", Reporter), copies=2))) == {
        "('b saw 1', 'b saw 1')"
    }


def test_one_copy_may_be_lost_alone() -> None:
    world = World(scenario(process("a", Stutterer), process("b", Reporter), copies=2, faults=Faults(loss=1)))
    assert stories(world) == {"('b saw 1', 'b saw 1')", "('b saw 1',)"}


def test_a_host_drops_only_messages_that_match_and_only_as_often_as_allowed() -> None:
    world = World(pair(fifo=True, drops=(MessageDrop("a", "b", "Note"),)))
    assert stories(world) == {"('b saw 1', 'b saw 2')", "('b saw 1',)", "('b saw 2',)"}
    assert stories(World(pair(fifo=True, drops=(MessageDrop("a", "b", "Other"),)))) == {"('b saw 1', 'b saw 2')"}
    assert stories(World(pair(fifo=True, drops=(MessageDrop("b", "a"),)))) == {"('b saw 1', 'b saw 2')"}


def test_drops_end_with_the_faults() -> None:
    world = World(pair(drops=(MessageDrop("a", "b", count=2),)))
    healed = world.heal_state(world.initial())
    assert not [line for line in enabled(world, healed) if line.startswith("drop")]


@pytest.mark.parametrize("options", [{"drops": (MessageDrop("a", "z"),)}, {"free_timers": (FreeTimer("z*"),)}])
def test_a_pattern_that_matches_no_process_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no process matches z"):
        World(pair(**options))


def test_a_count_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="counts must be 1 or more"):
        World(pair(drops=(MessageDrop("a", "b", count=0),)))


# Files and shrinking


def test_such_a_run_is_shrunk_and_replayed_from_its_file() -> None:
    toy = replace(
        scenario(process("a", Stutterer), process("b", Ticker), waiting("c"), monitors=(Never("b saw 9"),)),
        free_timers=(FreeTimer("b"),),
        drops=(MessageDrop("a", "b"),),
        copies=2,
    )
    world = World(toy)
    lines = ("drop a.main>b.main Note(value=1)", "free_timer b.main tick")
    file = ActionFile("toy", lines)
    assert parse_action_file(file.text()) == file
    replayed = replay_file(world, file)
    assert replayed.finding is not None
    failure = Failure(world, tuple(parse(line) for line in lines), replayed.finding)
    assert [each.text() for each in shrink(toy, failure).failure.actions] == ["free_timer b.main tick"]
    assert explore(World(toy)).finding is not None
