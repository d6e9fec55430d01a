"""Walk-throughs of disks that fill up while others count on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trunkline.check.monitors.kept import EndsKept
from trunkline.check.monitors.space import CopiesMade, KeepsRoom, RoomChanged
from trunkline.check.scenario import Boot, Faults, Monitor, ProcessSpec, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    REGISTER,
    appender,
    appends,
    broadcast_log,
    chain_log,
    coordinator,
    writer,
)
from trunkline.check.scenarios.duties import _ended, _half_written, _kept, scenario
from trunkline.core.effects import SELF, Address, Announce, Effects, Message, Send, SetTimer
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import NodeInfo, Space
from trunkline.core.projection import Policy, Projection, Settings
from trunkline.core.role import Role
from trunkline.core.siblings import SpaceReported
from trunkline.core.storage import SpaceChanged

STREAMS2 = Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=1)


class FillingDisk:
    """The host of a node whose disk has, at one moment after the other, room for something else."""

    def __init__(self, *spaces: Space, at_once: bool = False) -> None:
        self.spaces = spaces
        self.at_once = at_once

    @property
    def phase(self) -> str:
        return self.spaces[0].name if self.spaces else "settled"

    def on_start(self) -> Effects:
        return self.on_timer("room") if self.at_once else [SetTimer("room", 3000)]

    def on_timer(self, key: str) -> Effects:
        space, self.spaces = self.spaces[0], self.spaces[1:]
        told: Effects = [
            Announce(RoomChanged(space)),
            Send(Address(SELF, "storage"), SpaceChanged(space)),
            Send(Address(SELF, "lease"), SpaceReported(min(space, Space.FULL))),
        ]
        return [*told, SetTimer("room", 3000)] if self.spaces else told

    def on_message(self, source: Address, message: Message) -> Effects:
        raise AssertionError(f"a host takes no message, yet {message} came")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a host asks for no choice, yet {key} was made")


class KnownLease(LeaseKeeper):
    """Of a node whose first start the registry knows: it registers when there is news."""

    def on_start(self) -> Effects:
        return []


def filling(spec: ProcessSpec, *spaces: Space) -> ProcessSpec:
    """The same node on a disk that fills up in its first life, and is as it was at the end in later ones."""

    def start(boot: Boot) -> Mapping[str, Role]:
        if boot.start > 1:
            return {**spec.start(boot), "filling": FillingDisk(spaces[-1], at_once=True)}
        lease = KnownLease(NodeInfo(boot.process, boot.incarnation, boot.start), REGISTER, retry_ms=1000)
        return {**spec.start(boot), "lease": lease, "filling": FillingDisk(*spaces)}

    return replace(spec, start=start)


def _filled(made: Scenario, spaces: Mapping[str, tuple[Space, ...]], *monitors: Monitor) -> Scenario:
    processes = tuple(filling(p, *spaces[p.name]) if p.name in spaces else p for p in made.processes)
    return replace(made, processes=processes, monitors=(*made.monitors, *monitors))


def _chain(nodes: str) -> Projection:
    return chain_log(Settings(Policy.CHAIN, replicas=2), nodes, sequencer="n3")


def filling_joiner() -> Scenario:
    """n2 is the first to be chosen. Its disk becomes tight before, in the middle of, or after the copy."""
    log = _ended(repaired=True, survivors="n1")
    made = scenario(
        "filling-joiner",
        "a joiner's disk becomes tight in the middle of a copy: it is given up, and another node gets it",
        log,
        coordinator(),
        faults=Faults(early_timer=2),
        sometimes=("MemberRebuilt", "MemberRemoved", "RoomChanged"),
        records={"n1": _kept("1.0.0", ended=True)},
    )
    return _filled(made, {"n2": (Space.ROOMY, Space.TIGHT)}, KeepsRoom(log), CopiesMade(log, 2))


def filling_member() -> Scenario:
    log = _chain("n1 n2")
    made = scenario(
        "filling-member",
        "a member's disk becomes full, then exhausted, under appends: they move to nodes with room",
        log,
        appender("c1", log, *appends(1, 2)),
        faults=Faults(early_timer=2),
        sometimes=("Committed", "RoomChanged", "Projected"),
        finishing=False,
    )
    return _filled(made, {"n1": (Space.FULL, Space.EXHAUSTED)}, KeepsRoom(log))


def filling_writer() -> Scenario:
    log = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
    made = scenario(
        "filling-writer",
        "a member's disk becomes full under a broadcast writer: it rolls to nodes with room",
        log,
        writer("w1", log, *appends(1, 2)),
        coordinator(),
        faults=Faults(early_timer=1),
        sometimes=("Committed", "RoomChanged", "Projected"),
    )
    return _filled(made, {"n1": (Space.FULL,)}, KeepsRoom(log))


def exhausted_repair() -> Scenario:
    """Segment 0 ended at 4, position 1 is on the head alone, 2 is a hole. Each waits until n2 has room again."""
    log, records = _half_written()
    made = scenario(
        "exhausted-repair",
        "a member without any room stores nothing while a segment is repaired; the repair waits for it",
        log,
        coordinator(),
        faults=Faults(early_timer=2),
        sometimes=("RoomChanged", "ValueCarried", "HoleFilled", "StreamFinalized"),
        records=records,
    )
    return _filled(made, {"n2": (Space.EXHAUSTED, Space.FULL)}, KeepsRoom(log))


def filling_groups() -> Scenario:
    """Both nodes keep a stream of each group."""
    log = chain_log(STREAMS2, "n1 n2", "n2 n1", sequencer="n3")
    made = scenario(
        "filling-groups",
        "a node with two streams of a log, the head of one and the tail of the other, becomes full",
        log,
        appender("c1", log, *appends(1, 2)),
        faults=Faults(early_timer=1),
        sometimes=("Committed", "RoomChanged", "Projected"),
        finishing=False,
    )
    return _filled(made, {"n1": (Space.FULL, Space.EXHAUSTED)}, KeepsRoom(log))


def finalize_restart() -> Scenario:
    """No space is short here: what a restart must find again is more than frames."""
    made = scenario(
        "finalize-restart",
        "members of an ended segment are told the end, while they crash and come back",
        _ended(repaired=False),
        coordinator(),
        faults=Faults(crash=1, restart=1),
        crashable="n1 n2",
        sometimes=("StreamFinalized", "StreamRecovered", "Projected"),
        records={"n1": _kept("1.0.0"), "n2": _kept("1.0.1")},
    )
    return _filled(made, {}, EndsKept())


def broadcast_rot_below_mark() -> Scenario:
    """The second frame vouches for the first. A stream that lost that one must not say that it never had it."""
    log = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
    return scenario(
        "broadcast-rot-below-mark",
        "of two frames of a broadcast replica one goes bad; a takeover must not cut what was acknowledged",
        log,
        writer("w1", log, *appends(1, 2)),
        writer("w2", log, *appends(3, takeover=True)),
        faults=Faults(crash=1, rot=1, restart=1),
        crashable="n1",
        sometimes=("Committed", "StreamRecovered", "StreamSealed"),
        finishing=False,
    )


SPACE_SCENARIOS = (
    filling_joiner,
    filling_member,
    filling_writer,
    exhausted_repair,
    filling_groups,
    finalize_restart,
    broadcast_rot_below_mark,
)
