"""Walk-throughs of endings: disks that failed in different ways, takeovers with a queue, several groups."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from trunkline.check.disks import NodeFiles, StorageDisk
from trunkline.check.scenario import Faults, NetworkCut, ProcessSpec, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    CHAIN2,
    LOG,
    appender,
    appends,
    broadcast_log,
    bursting_appender,
    bursting_writer,
    chain_log,
    full,
    reader,
    scenario,
    tail_finder,
    writer,
)
from trunkline.core.calls import AppendRequested
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.projection import Policy, Settings
from trunkline.core.storage import FramesDamaged
from trunkline.core.streams import FrameWritten

CHAIN = chain_log(CHAIN2, "n1 n2", sequencer="n3")
BROADCAST = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
STRIPED = chain_log(Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=1), "n1 n2", "n2 n1", sequencer="n3")


def _old(stream: str, glsn: int) -> FrameWritten:
    """An entry of a client that is gone."""
    return FrameWritten((LOG, stream), Frame(glsn, 1, FrameKind.DATA, "c0#1", glsn, 100 + glsn))


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
    """One replica knows that it lost an entry, the other may have lost one: together they must not guess.

    It begins with two entries of a client that is gone; the first replica finds that it lost the first of them.
    """
    return _without_goal(
        scenario(
            "rot-of-two-kinds",
            "one replica of a chain has lost an entry, the other may have; an ending must not cut what stood there",
            CHAIN,
            reader("r", CHAIN, until=2),
            appender("c1", CHAIN, *appends(3)),
            faults=Faults(crash=1, rot=1, restart=1),
            crashable="n2",
            records={"n1": (_old("1.0.0", 1), _old("1.0.0", 2)), "n2": (_old("1.0.1", 1), _old("1.0.1", 2))},
            scrubs={"n1": FramesDamaged((LOG, "1.0.0"), (_old("1.0.0", 1).frame,))},
            granted={"n3": 3},
            atomic_disk=False,
            sometimes=("Committed", "StreamRecovered", "EntriesRead", "ReconfigurationBlocked"),
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
        reader("r", CHAIN, until=1),
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


def broadcast_batches() -> Scenario:
    """A batch is committed and read as one."""
    requests = (*appends(1, count=2), AppendRequested(2, LOG, 3, 2))
    return scenario(
        "broadcast-batches",
        "the owner has two batches of several entries in flight",
        BROADCAST,
        bursting_writer("w1", BROADCAST, *requests),
        reader("r", BROADCAST),
        sometimes=("Committed", "EntriesRead"),
    )


def roll_unreachable() -> Scenario:
    """The owner cannot reach one replica, which lives and may be reached again at any moment."""
    built = scenario(
        "roll-unreachable",
        "the owner has two batches in flight and cannot reach a replica; it goes on without it",
        BROADCAST,
        bursting_writer("w1", BROADCAST, *appends(1, 2, count=2)),
        faults=Faults(cut=1),
        cuts=(NetworkCut("w1 and n2 are parted", (("w1", "n2"), ("n2", "w1"))),),
        sometimes=("Committed", "Projected"),
    )
    return replace(built, fifo=True)


def queued_takeovers() -> Scenario:
    """An owner with a queue of appends, one of which asks for a takeover."""
    first, second = appends(1, 2)
    built = scenario(
        "queued-takeovers",
        "an owner loses its log to another with appends in flight, and takes it back with the one that asks for it",
        BROADCAST,
        bursting_writer("w1", BROADCAST, first, structs.replace(second, takeover=True)),
        writer("w2", BROADCAST, *appends(3, takeover=True)),
        sometimes=("Committed", "Projected", "AppendRefused"),
    )
    return replace(built, fifo=True)


def later_clients() -> Scenario:
    """Whatever begins after another client was answered comes behind what that one was told."""
    built = scenario(
        "later-clients",
        "an append, a takeover and a tail call that may each begin after the others have been answered",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        writer("w2", BROADCAST, *appends(2, takeover=True)),
        tail_finder("t"),
        sometimes=("Committed", "Projected", "TailIs"),
    )
    return replace(built, eager_operations=False)


def two_groups_ending() -> Scenario:
    """Each group has replicas of its own; the end covers what is committed in either."""
    return scenario(
        "two-groups-ending",
        "a segment of two groups is ended while a client writes to both; each group decides for itself",
        STRIPED,
        bursting_appender("c1", STRIPED, *appends(1, 2)),
        faults=Faults(crash=1),
        crashable="n2",
        sometimes=("Committed", "Projected", "StreamSealed"),
    )


def owner_restarts() -> Scenario:
    """Who writes after a restart is another owner: it knows nothing of what its earlier process had sent."""
    return scenario(
        "owner-restarts",
        "the owner of a broadcast log is restarted and appends again",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        faults=Faults(crash=1, restart=1),
        crashable="w1",
        sometimes=("Committed", "AppendRefused"),
    )


def broadcast_full() -> Scenario:
    """A batch that one replica has and another has no space for is not refused before its segment has ended."""
    built = scenario(
        "broadcast-full",
        "a replica has no space and then fails; what the other one has is settled before the append is refused",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        reader("r", BROADCAST),
        nodes="n1 n2",
        faults=Faults(crash=1),
        crashable="n2",
        sometimes=("Projected", "AppendRefused", "EntriesRead"),
    )
    first, second, *others = built.processes
    return replace(built, processes=(first, full(second), *others))


def only_replica_fails() -> Scenario:
    """Nobody can say what the segment holds until its only replica is back: the log waits for it."""
    log = chain_log(Settings(Policy.CHAIN, replicas=1), "n1", sequencer="n2")
    return scenario(
        "only-replica-fails",
        "the only replica of a segment fails and comes back; nothing is given up meanwhile",
        log,
        appender("c1", log, *appends(1, 2)),
        nodes="n1 n2",
        faults=Faults(crash=1, restart=1),
        crashable="n1",
        sometimes=("Committed", "ReconfigurationBlocked"),
    )


ENDING_SCENARIOS = (
    only_replica_fails,
    owner_restarts,
    broadcast_full,
    rot_of_two_kinds,
    rot_and_power_cut,
    broadcast_rot_and_power_cut,
    broadcast_batches,
    roll_unreachable,
    queued_takeovers,
    later_clients,
    two_groups_ending,
)
