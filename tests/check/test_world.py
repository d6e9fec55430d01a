"""What may happen in a world, and what may not. Each world here is small enough to list all of its runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toy_world import (
    Chooser,
    Never,
    Note,
    Quiet,
    Reporter,
    Saw,
    Sender,
    Story,
    Ticker,
    enabled,
    main,
    pair,
    process,
    reachable,
    run,
    scenario,
    stories,
)
from trunkline.check.scenario import Boot, Faults, NetworkCut
from trunkline.check.search import explore
from trunkline.check.world import World
from trunkline.core.effects import (
    SELF,
    Address,
    Announce,
    CancelTimer,
    Complete,
    Effects,
    Message,
    Send,
)

# The network


def test_a_bag_delivers_in_any_order() -> None:
    assert stories(World(pair())) == {"('b saw 1', 'b saw 2')", "('b saw 2', 'b saw 1')"}


def test_a_fifo_network_delivers_in_the_order_of_sending() -> None:
    assert stories(World(pair(fifo=True))) == {"('b saw 1', 'b saw 2')"}


def test_a_message_that_is_sent_twice_is_in_flight_once() -> None:
    class Stutterer(Sender):
        def on_start(self) -> Effects:
            return [Send(main("b"), Note(1)), Send(main("b"), Note(1))]

    assert stories(World(scenario(process("a", Stutterer), process("b", Reporter)))) == {"('b saw 1',)"}


def test_loss_takes_as_many_messages_as_its_budget() -> None:
    found = stories(World(pair(fifo=True, faults=Faults(loss=1))))
    assert found == {"('b saw 1', 'b saw 2')", "('b saw 1',)", "('b saw 2',)"}


def test_only_messages_of_lossy_processes_are_lost() -> None:
    spared = scenario(process("a", Sender), process("b", Reporter), process("c", Reporter), lossy=("c",))
    assert stories(World(replace(spared, fifo=True, faults=Faults(loss=2)))) == {"('b saw 1', 'b saw 2')"}


def test_a_duplicate_arrives_twice() -> None:
    found = stories(World(pair(fifo=True, faults=Faults(duplicate=1))))
    assert found == {
        "('b saw 1', 'b saw 2')",
        "('b saw 1', 'b saw 1', 'b saw 2')",
        "('b saw 1', 'b saw 2', 'b saw 2')",
    }


def test_a_cut_blocks_messages_until_it_ends() -> None:
    world = World(pair(cuts=(NetworkCut("apart", (("a", "b"),)),), faults=Faults(cut=1)))
    cut = run(world, "cut apart")
    assert enabled(world, cut) == ["heal"]
    healed = run(world, "cut apart", "heal")
    assert [line for line in enabled(world, healed) if line.startswith("deliver")] == [
        "deliver a.main>b.main Note(value=1)",
        "deliver a.main>b.main Note(value=2)",
    ]
    assert "cut apart" not in enabled(world, healed)


def test_a_message_that_its_target_ignores_is_not_in_flight() -> None:
    class Choosy(Reporter):
        def __init__(self, boot: Boot) -> None:
            self.done = False

        def on_message(self, source: Address, message: Message) -> Effects:
            self.done = True
            return super().on_message(source, message)

        def ignores(self, source: Address, message: Message) -> bool:
            return self.done

    world = World(scenario(process("a", Sender), process("b", Choosy)))
    assert stories(world) == {"('b saw 1',)", "('b saw 2',)"}
    assert len(reachable(world)) == 3


def test_an_answer_that_its_target_ignores_is_not_in_flight() -> None:
    class Deaf(Sender):
        def ignores(self, source: Address, message: Message) -> bool:
            return True

    class Answering(Reporter):
        def on_message(self, source: Address, message: Message) -> Effects:
            return [Send(source, Note(7))]

    world = World(scenario(process("a", Deaf), process("b", Answering)))
    assert all(sent.target == "b" for state in reachable(world) for sent in world.describe(state).network)


# Time


def test_a_timer_waits_until_no_message_can_arrive() -> None:
    ticking = scenario(process("a", Sender), process("b", Ticker), fifo=True)
    assert stories(World(ticking)) == {"('b saw 1', 'b saw 2', 'b saw 9')"}


def test_an_early_timer_costs_its_budget() -> None:
    ticking = scenario(process("a", Sender), process("b", Ticker), fifo=True, faults=Faults(early_timer=1))
    world = World(ticking)
    assert "early_timer b.main tick" in enabled(world, world.initial())
    assert stories(world) == {
        "('b saw 1', 'b saw 2', 'b saw 9')",
        "('b saw 1', 'b saw 9', 'b saw 2')",
        "('b saw 9', 'b saw 1', 'b saw 2')",
    }


def test_timers_fire_while_a_cut_blocks_messages() -> None:
    ticking = scenario(process("a", Sender), process("b", Ticker), cuts=(NetworkCut("apart", (("a", "b"),)),))
    world = World(replace(ticking, faults=Faults(cut=1)))
    assert "timer b.main tick" in enabled(world, run(world, "cut apart"))


def test_a_cancelled_timer_does_not_fire() -> None:
    class Calm(Ticker):
        def on_message(self, source: Address, message: Message) -> Effects:
            return [CancelTimer("tick")]

    assert stories(World(scenario(process("a", Sender), process("b", Calm)))) == {"()"}


# Operations, choices, messages inside a process


class Worker(Quiet):
    def __init__(self, boot: Boot) -> None:
        self.done = 0

    def on_message(self, source: Address, message: Message) -> Effects:
        self.done += 1
        return [Complete(self.done, Saw(self.done))]


def test_eager_operations_follow_one_another_at_once() -> None:
    world = World(scenario(process("a", Worker, 1, 2)))
    assert len(reachable(world)) == 1
    assert stories(world) == {"('a began 1', 'a ended 1', 'a began 2', 'a ended 2')"}


def test_lazy_operations_begin_at_any_moment() -> None:
    world = World(scenario(process("a", Worker, 1, 2), eager_operations=False))
    assert enabled(world, world.initial()) == ["operate a"]
    assert len(reachable(world)) == 3


def test_every_option_of_a_choice_is_tried() -> None:
    world = World(scenario(process("a", Chooser, 1), eager_operations=False))
    assert enabled(world, world.initial()) == [f"operate[{choice}] a" for choice in ("0", "1", "2,0", "2,1")]
    assert stories(world) == {f"('a began 1', 'a saw {value}')" for value in (1, 2, 7, 8)}
    assert ("Chooser", "which", 2) in world.choices_seen


def test_a_choice_in_the_first_step_is_tried_as_well() -> None:
    world = World(scenario(process("a", Chooser, 1)))
    assert stories(world) == {f"('a began 1', 'a saw {value}')" for value in (1, 2, 7, 8)}


def test_only_the_first_option_is_tried_without_every_choice() -> None:
    assert stories(World(scenario(process("a", Chooser, 1), every_choice=False))) == {"('a began 1', 'a saw 1')"}


def test_a_message_to_its_own_process_arrives_within_the_step_after_all_effects() -> None:
    class Talker(Reporter):
        def on_message(self, source: Address, message: Message) -> Effects:
            if source.role == "application":
                return [Send(Address(SELF, "main"), Note(2)), Send(main("a"), Note(3)), Announce(Saw(1))]
            assert source == main("a")
            return super().on_message(source, message)

    world = World(scenario(process("a", Talker, 1)))
    assert stories(world) == {"('a began 1', 'a saw 1', 'a saw 2', 'a saw 3')"}


# Findings


def test_an_assertion_in_a_role_is_a_finding() -> None:
    class Broken(Reporter):
        def on_message(self, source: Address, message: Message) -> Effects:
            assert message == Note(1), "only ones, please"
            return []

    found = explore(World(scenario(process("a", Sender), process("b", Broken))))
    assert found.finding is not None
    assert found.finding.monitor == "RoleError"
    assert "AssertionError: only ones, please" in found.finding.text
    assert [action.text() for action in found.actions] == ["deliver a.main>b.main Note(value=2)"]


def test_a_message_to_a_role_or_process_that_does_not_exist_is_a_finding() -> None:
    class Lost(Sender):
        def on_start(self) -> Effects:
            return [Send(Address("b", "absent"), Note(1))]

    class Astray(Sender):
        def on_start(self) -> Effects:
            return [Send(main("z"), Note(1))]

    for role, words in ((Lost, "no role 'absent'"), (Astray, "unknown process 'z'")):
        found = explore(World(scenario(process("a", role), process("b", Reporter)))).finding
        assert found is not None
        assert found.monitor == "RoleError"
        assert words in found.text


def test_a_state_that_violates_a_property_has_no_successors() -> None:
    world = World(pair(monitors=(Never("b saw 2"),)))
    state = run(world, "deliver a.main>b.main Note(value=2)")
    found = world.violation(state)
    assert found is not None
    assert (found.monitor, found.text) == ("Never", "b saw 2 happened")
    assert world.expand(state) == []


def test_a_fault_budget_that_applies_to_nothing_is_refused() -> None:
    for faults in (Faults(crash=1), Faults(power_cut=1), Faults(cut=1)):
        with pytest.raises(ValueError, match="nothing it applies to"):
            World(pair(faults=faults))
    with pytest.raises(ValueError, match="no such process: z"):
        World(pair(crashable=("z",)))


def test_a_role_cannot_change_a_value_of_another_state() -> None:
    class Collector(Reporter):
        def __init__(self, boot: Boot) -> None:
            self.values: list[int] = []
            self.by_value: dict[int, set[int]] = {}

        def on_message(self, source: Address, message: Message) -> Effects:
            assert isinstance(message, Note)
            self.values.append(message.value)
            self.by_value.setdefault(0, set()).add(message.value)
            assert len(self.values) == len(self.by_value[0])
            return [Announce(Saw(int("".join(map(str, self.values)))))]

    world = World(scenario(process("a", Sender), process("b", Collector), monitors=(Story(),)))
    assert stories(world) == {"('b saw 1', 'b saw 12')", "('b saw 2', 'b saw 21')"}
