"""Walk-throughs of endings: disks that failed in different ways, takeovers with a queue, several groups."""

from __future__ import annotations

from dataclasses import replace

from trunkline.check.disks import NodeFiles, StorageDisk
from trunkline.check.scenario import Faults, ProcessSpec, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    CHAIN2,
    LOG,
    administrator,
    appender,
    appends,
    broadcast_log,
    bursting_writer,
    chain_log,
    scenario,
    writer,
)
from trunkline.core.entries import Frame, Kind
from trunkline.core.messages import SealRequested
from trunkline.core.storage import FramesDamaged
from trunkline.core.streams import FrameWritten

CHAIN = chain_log(CHAIN2, "n1 n2", sequencer="n3")
BROADCAST = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
ENDING = SealRequested(2, LOG, reopen=True)


def _old(stream: str, glsn: int) -> FrameWritten:
    """An entry of a client that is gone."""
    return FrameWritten((LOG, stream), Frame(glsn, 1, Kind.DATA, "c0#1", glsn, 100 + glsn))


def _written(spec: ProcessSpec, *groups: tuple[FrameWritten, ...], synced: int) -> ProcessSpec:
    """The same node; its disk has these groups besides, and as many of them synced."""
    disk, image = StorageDisk(), spec.image
    assert isinstance(image, NodeFiles)
    for number, group in enumerate(groups):
        for record in group:
            image = disk.write(image, record)
        image = disk.sync(image) if number < synced else image
    return replace(spec, image=image)


def _without_goal(built: Scenario) -> Scenario:
    """Where the only right move may be to wait for an operator, no goal can be asked for."""
    return replace(built, monitors=tuple(each for each in built.monitors if each.name != "Progress"))


def rot_of_two_kinds() -> Scenario:
    """One replica knows that it lost an entry, the other may have lost one: together they must not guess."""
    return _without_goal(
        scenario(
            "rot-of-two-kinds",
            "one replica of a chain has lost an entry, the other may have; an ending must not cut what stood there",
            CHAIN,
            appender("c1", CHAIN, *appends(1, 2)),
            administrator("op", ENDING, after=2),
            faults=Faults(crash=1, rot=1, restart=1),
            crashable="n1 n2",
            scrubs={"n1": FramesDamaged((LOG, "1.0.0"), (Frame(1, 1, Kind.DATA, "c1#1", 1, 1),))},
            atomic_disk=False,
            sometimes=("Committed", "StreamDamaged", "StreamRecovered", "ReconfigurationBlocked"),
        )
    )


def rot_and_power_cut() -> Scenario:
    """After a power cut nobody may be certain. What one replica still has is kept: the other may have had it.

    It begins with three entries of a client that is gone: all on the first replica, synced together; on the second one
    the first is synced, the others are not.
    """
    built = scenario(
        "rot-and-power-cut",
        "all replicas of a chain lose power, and a frame of one goes bad besides",
        CHAIN,
        administrator("op", ENDING, after=1),
        appender("c1", CHAIN, *appends(4)),
        faults=Faults(power_cut=1, rot=1, restart=2),
        power_domain="n1 n2",
        granted={"n3": 4},
        atomic_disk=False,
        sometimes=("Committed", "StreamRecovered", "StreamSealed", "EntriesRead"),
    )
    first = tuple(_old("1.0.0", glsn) for glsn in (1, 2, 3))
    second = tuple(_old("1.0.1", glsn) for glsn in (1, 2, 3))
    n1, n2, *others = built.processes
    nodes = (_written(n1, first, synced=1), _written(n2, second[:1], second[1:], synced=1))
    return _without_goal(replace(built, processes=(*nodes, *others)))


def broadcast_rot_and_power_cut() -> Scenario:
    return _without_goal(
        scenario(
            "broadcast-rot-and-power-cut",
            "all replicas of a broadcast log lose power, a frame of one goes bad besides, and another writer takes it",
            BROADCAST,
            bursting_writer("w1", BROADCAST, *appends(1, 2, 3)),
            writer("w2", BROADCAST, *appends(4, takeover=True)),
            faults=Faults(power_cut=1, rot=1, restart=2),
            power_domain="n1 n2",
            atomic_disk=False,
            sometimes=("Committed", "StreamRecovered", "StreamSealed"),
        )
    )


ENDING_SCENARIOS = (rot_of_two_kinds, rot_and_power_cut, broadcast_rot_and_power_cut)
