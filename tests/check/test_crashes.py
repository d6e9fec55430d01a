"""Crashes, restarts, disks: what a process keeps and what it loses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toy_world import (
    Image,
    Mark,
    Reporter,
    Saw,
    Writer,
    enabled,
    main,
    pair,
    process,
    run,
    scenario,
    stories,
)
from trunkline.check.scenario import Faults, ObservedEvent, ProcessEnded, Violation
from trunkline.check.search import explore
from trunkline.check.world import World
from trunkline.core.effects import (
    Address,
    Announce,
    Complete,
    Effects,
    Message,
    Persist,
    Send,
)


class AckedIsKept:
    """What was announced is found by every later start: 105 before 999, where 5 was announced before."""

    name = "AckedIsKept"

    def initial(self) -> tuple[bool, bool]:
        return (False, False)  # announced, found by the present start

    def observe(self, state: tuple[bool, bool], observed: ObservedEvent) -> tuple[bool, bool]:
        announced, found = state
        if isinstance(observed.event, ProcessEnded):
            return (announced, False)
        if observed.event == Saw(999) and announced and not found:
            raise Violation("an announced value was lost")
        return (announced or observed.event == Saw(5), found or observed.event in (Saw(5), Saw(105)))

    def hot(self, state: tuple[bool, bool]) -> str:
        return ""


class StartsAgain(Writer):
    """After what it found it announces 999, so that a monitor knows that there is no more."""

    def on_start(self) -> Effects:
        return [*super().on_start(), Announce(Saw(999))]


class StartsAgainHasty(StartsAgain):
    def on_message(self, source: Address, message: Message) -> Effects:
        return list(reversed(super().on_message(source, message)))


@pytest.mark.parametrize(("role", "finding"), [(StartsAgain, None), (StartsAgainHasty, "AckedIsKept")])
def test_a_crash_between_effects_catches_the_wrong_order_only(role: type[Writer], finding: str | None) -> None:
    crashing = scenario(
        process("a", role, 5),
        monitors=(AckedIsKept(),),
        eager_operations=False,
        crashable=("a",),
        faults=Faults(crash=1, restart=1),
    )
    found = explore(World(crashing)).finding
    assert (found.monitor if found else None) == finding


def test_a_crash_inside_a_step_keeps_the_effects_carried_out_before() -> None:
    crashing = scenario(process("a", Writer, 5), eager_operations=False, crashable=("a",), faults=Faults(crash=1))
    world = World(crashing)
    assert [line for line in enabled(world, world.initial()) if line.startswith("crash")] == [
        "crash a",
        "crash_in a 1 operate a",
        "crash_in a 2 operate a",
    ]
    early, late = (world.describe(run(world, f"crash_in a {k} operate a")).processes[0].disk for k in (1, 2))
    assert (dict(early)["synced"], dict(late)["synced"]) == ("()", "(5,)")


def test_a_restart_reads_the_disk_and_a_wipe_gives_a_new_incarnation() -> None:
    faults = Faults(crash=2, restart=1, wipe=1)
    world = World(scenario(process("a", Writer, 5), crashable=("a",), faults=faults))
    restarted = world.describe(run(world, "crash a", "restart a"))
    assert dict(restarted.monitors)["Story"] == "('a began 1', 'a saw 5', 'a crash', 'a saw 105')"
    assert (restarted.processes[0].incarnation, restarted.processes[0].start) == (1, 2)
    wiped = world.describe(run(world, "crash a", "wipe a"))
    assert dict(wiped.monitors)["Story"] == "('a began 1', 'a saw 5', 'a crash', 'a wipe')"
    assert (wiped.processes[0].incarnation, wiped.processes[0].start) == (2, 2)
    assert dict(wiped.processes[0].disk)["synced"] == "()"


def test_a_process_that_is_not_up_at_the_beginning_starts_by_a_restart() -> None:
    world = World(scenario(process("a", Writer, 5, up=False), faults=Faults(restart=1)))
    assert not world.describe(world.initial()).processes[0].up
    assert stories(world) == {"('a began 1', 'a saw 5')"}


def test_messages_to_a_process_that_cannot_restart_are_removed() -> None:
    crashing = pair(crashable=("b",), faults=Faults(crash=1))
    world = World(crashing)
    assert world.describe(run(world, "crash b")).network == ()
    world = World(replace(crashing, faults=Faults(crash=1, restart=1)))
    assert len(world.describe(run(world, "crash b")).network) == 2
    world = World(replace(crashing, faults=Faults(crash=1, restart=1), stays_down=("b",)))
    assert world.describe(run(world, "crash b")).network == ()
    assert enabled(world, run(world, "crash b")) == []


def test_group_commit_withholds_what_follows_a_write_until_the_sync() -> None:
    class Echo(Writer):
        def on_message(self, source: Address, message: Message) -> Effects:
            return [*super().on_message(source, message), Send(main("b"), message), Complete(1, Saw(0))]

    world = World(scenario(process("a", Echo, 5), process("b", Reporter), atomic_disk=False))
    before = world.describe(world.initial())
    assert dict(before.monitors)["Story"] == "('a began 1',)"
    assert before.network == ()
    assert enabled(world, world.initial()) == ["sync a"]
    after = world.describe(run(world, "sync a"))
    assert dict(after.monitors)["Story"] == "('a began 1', 'a saw 5', 'a ended 1')"
    assert [sent.label for sent in after.network] == ["Note 5"]


def test_a_crash_drops_withheld_effects_and_keeps_the_write() -> None:
    world = World(
        scenario(process("a", Writer, 5), atomic_disk=False, crashable=("a",), faults=Faults(crash=1, restart=1))
    )
    state = world.describe(run(world, "crash a", "restart a"))
    assert dict(state.monitors)["Story"] == "('a began 1', 'a crash')"
    assert dict(state.processes[0].disk)["unsynced"] == "(5,)"
    synced = world.describe(run(world, "crash a", "restart a", "sync a"))
    assert dict(synced.monitors)["Story"] == "('a began 1', 'a crash', 'a saw 105')"


def test_a_power_cut_loses_every_subset_of_what_was_not_synced() -> None:
    class Twice(Writer):
        def on_message(self, source: Address, message: Message) -> Effects:
            return [Persist(Mark(1)), Persist(Mark(2))]

    world = World(scenario(process("a", Twice, 5), atomic_disk=False, power_domain=("a",), faults=Faults(power_cut=1)))
    lines = [line for line in enabled(world, world.initial()) if line.startswith("power_cut")]
    assert lines == [f"power_cut a: kept {kept}" for kept in ("()", "(1,)", "(2,)", "(1, 2)")]
    disks = [dict(world.describe(run(world, line)).processes[0].disk) for line in lines]
    assert [disk["synced"] for disk in disks] == ["()", "(1,)", "(2,)", "(1, 2)"]
    assert [line for line in enabled(world, run(world, "sync a")) if line.startswith("power_cut")] == [
        "power_cut a: kept ()"
    ]


def test_rot_spoils_one_synced_value_of_a_process_that_is_down() -> None:
    world = World(scenario(process("a", Writer, 5), crashable=("a",), faults=Faults(crash=1, restart=1, rot=1)))
    assert not any(line.startswith("rot") for line in enabled(world, world.initial()))
    state = world.describe(run(world, "crash a", "rot a value 0", "restart a"))
    assert dict(state.monitors)["Story"] == "('a began 1', 'a saw 5', 'a crash', 'a saw 100')"


def test_the_first_image_of_a_disk_is_the_one_of_the_scenario() -> None:
    found = replace(process("a", Writer), image=Image((4,)))
    assert stories(World(scenario(found))) == {"('a saw 104',)"}
