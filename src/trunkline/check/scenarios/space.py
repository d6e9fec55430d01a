"""Scenarios of disks that fill up while they are in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trunkline.check.monitors.kept import EndsKept
from trunkline.check.monitors.space import CopiesMade, KeepsRoom, RoomChanged
from trunkline.check.scenario import Boot, Faults, ProcessSpec, Scenario
from trunkline.check.scenarios.cluster import (
    REGISTER,
    STRIPED,
    appender,
    appends,
    chain_log,
    coordinator,
    on_nodes,
    writer,
)
from trunkline.check.scenarios.duties import scenario
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.check.scenarios.segments import BROADCAST, CHAIN, ended, half_written, sealed
from trunkline.core.effects import SELF, Address, Announce, Effects, Send, SetTimer
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import NodeInfo, Space
from trunkline.core.role import Role
from trunkline.core.siblings import SpaceReported
from trunkline.core.storage import SpaceChanged


class FillingDisk(PassiveRole):
    """The host of a node whose free space changes step by step, each time at any moment."""

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
        effects: Effects = [
            Announce(RoomChanged(space)),
            Send(Address(SELF, "storage"), SpaceChanged(space)),
            Send(Address(SELF, "lease"), SpaceReported(min(space, Space.FULL))),
        ]
        return [*effects, SetTimer("room", 3000)] if self.spaces else effects


class KnownLease(LeaseKeeper):
    """The lease of a node whose first start the registry already knows: it registers only changes."""

    def on_start(self) -> Effects:
        return []


def filling(spec: ProcessSpec, *spaces: Space) -> ProcessSpec:
    """The same node; its disk fills up under its first process, and has the last of these spaces after a restart."""

    def start(boot: Boot) -> Mapping[str, Role]:
        if boot.start > 1:
            return {**spec.start(boot), "filling": FillingDisk(spaces[-1], at_once=True)}
        lease = KnownLease(NodeInfo(boot.process, boot.incarnation, boot.start), REGISTER, retry_ms=1000)
        return {**spec.start(boot), "lease": lease, "filling": FillingDisk(*spaces)}

    return replace(spec, start=start)


def _filled(built: Scenario, node: str, *spaces: Space) -> Scenario:
    """The same scenario; the disk of one node fills up."""
    return on_nodes(built, node, lambda spec: filling(spec, *spaces))


def filling_joiner() -> Scenario:
    """n2 is chosen first. Its disk becomes tight before, during or after the copy."""
    log = ended(CHAIN, 2, "n1 n3", survivors="n1", repaired=True)
    built = scenario(
        "filling-joiner",
        "a joiner's disk becomes tight during a copy: another node takes its place",
        log,
        coordinator(),
        faults=Faults(early_timer=2),
        sometimes=("MemberRebuilt", "MemberRemoved", "RoomChanged"),
        records={"n1": sealed("1.0.0", 1, end=2)},
        monitors=(KeepsRoom(log), CopiesMade(log, 2)),
    )
    return _filled(built, "n2", Space.ROOMY, Space.TIGHT)


def filling_member() -> Scenario:
    built = scenario(
        "filling-member",
        "a member's disk becomes full, then exhausted, during appends: they move to nodes with space",
        CHAIN,
        appender("c1", CHAIN, *appends(1, 2)),
        faults=Faults(early_timer=2),
        sometimes=("Committed", "RoomChanged", "Projected"),
        finishing=False,
        monitors=(KeepsRoom(CHAIN),),
    )
    return _filled(built, "n1", Space.FULL, Space.EXHAUSTED)


def filling_writer() -> Scenario:
    built = scenario(
        "filling-writer",
        "a member's disk becomes full while a broadcast writer appends: it rolls to nodes with space",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        coordinator(),
        faults=Faults(early_timer=1),
        sometimes=("Committed", "RoomChanged", "Projected"),
        monitors=(KeepsRoom(BROADCAST),),
    )
    return _filled(built, "n1", Space.FULL)


def exhausted_repair() -> Scenario:
    """Position 1 is on the head alone, 2 is a hole: repair of both waits until n2 has space again."""
    log, records = half_written()
    built = scenario(
        "exhausted-repair",
        "a member with an exhausted disk stores nothing while a segment is repaired; the repair waits for it",
        log,
        coordinator(),
        faults=Faults(early_timer=2),
        sometimes=("RoomChanged", "ValueCarried", "HoleFilled", "StreamFinalized"),
        records=records,
        monitors=(KeepsRoom(log),),
    )
    return _filled(built, "n2", Space.EXHAUSTED, Space.FULL)


def filling_groups() -> Scenario:
    """Both nodes hold a stream of each group."""
    log = chain_log(STRIPED, "n1 n2", "n2 n1", sequencer="n3")
    built = scenario(
        "filling-groups",
        "the disk of a node with two streams of a log, a head and a tail, becomes full",
        log,
        appender("c1", log, *appends(1, 2)),
        faults=Faults(early_timer=1),
        sometimes=("Committed", "RoomChanged", "Projected"),
        finishing=False,
        monitors=(KeepsRoom(log),),
    )
    return _filled(built, "n1", Space.FULL, Space.EXHAUSTED)


def finalize_restart() -> Scenario:
    """Disks have space here: a restart must recover more than frames."""
    return scenario(
        "finalize-restart",
        "members of an ended segment are finalized while they crash and restart",
        ended(CHAIN, 2, "n1 n3"),
        coordinator(),
        faults=Faults(crash=1, restart=1),
        crashable="n1 n2",
        sometimes=("StreamFinalized", "StreamRecovered", "Projected"),
        records={"n1": sealed("1.0.0", 1), "n2": sealed("1.0.1", 1)},
        monitors=(EndsKept(),),
    )


def broadcast_rot_below_mark() -> Scenario:
    """The second frame proves that the first was synced. A stream that lost the first must report the loss."""
    return scenario(
        "broadcast-rot-below-mark",
        "one of two frames of a broadcast replica rots; a take-over must not cut what was acknowledged",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        writer("w2", BROADCAST, *appends(3, takeover=True)),
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
