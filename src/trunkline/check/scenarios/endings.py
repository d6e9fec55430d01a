"""Scenarios of ending segments: disks that failed in different ways, take-overs with a queue, several groups."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from trunkline.check.disks import NodeFiles, StorageDisk
from trunkline.check.scenario import Faults, NetworkCut, ProcessSpec, Scenario
from trunkline.check.scenarios.cluster import (
    CHAIN1,
    LOG,
    STRIPED,
    appender,
    appends,
    bursting_appender,
    bursting_writer,
    chain_log,
    full,
    on_nodes,
    reader,
    scenario,
    tail_finder,
    writer,
)
from trunkline.check.scenarios.segments import BROADCAST, CHAIN, entry, stored
from trunkline.core.calls import AppendRequested
from trunkline.core.storage import FramesDamaged
from trunkline.core.streams import FrameWritten


def _written(spec: ProcessSpec, *groups: tuple[FrameWritten, ...], synced: int) -> ProcessSpec:
    """The same node; its disk also has these groups of frames, the first ``synced`` of them synced."""
    disk, image = StorageDisk(), spec.image
    assert isinstance(image, NodeFiles)
    for number, group in enumerate(groups):
        for record in group:
            image = disk.write(image, record)
        image = disk.sync(image) if number < synced else image
    return replace(spec, image=image)


def _without_goal(built: Scenario) -> Scenario:
    """Drop the goal: the only correct action may be to wait for an operator."""
    return replace(built, monitors=tuple(each for each in built.monitors if each.name != "Progress"))


def rot_of_two_kinds() -> Scenario:
    """One replica has lost an entry, the other may have lost one: together they must not guess.

    It begins with two entries of a client that has left; the first replica finds that it lost the first entry.
    """
    return _without_goal(
        scenario(
            "rot-of-two-kinds",
            "one replica of a chain has lost an entry, the other may have; the end must not cut it",
            CHAIN,
            reader("r", CHAIN, until=2),
            appender("c1", CHAIN, *appends(3)),
            faults=Faults(crash=1, rot=1, restart=1),
            crashable="n2",
            records={"n1": stored("1.0.0", 1, 2), "n2": stored("1.0.1", 1, 2)},
            scrubs={"n1": FramesDamaged((LOG, "1.0.0"), (entry(1),))},
            granted={"n3": 3},
            atomic_disk=False,
            sometimes=("Committed", "StreamRecovered", "EntriesRead", "ReconfigurationBlocked"),
        )
    )


def rot_and_power_cut() -> Scenario:
    """After a power cut no replica may be certain. What one of them still has is kept: the other may have had it.

    It begins with three entries of a client that has left: all on the first replica, synced together; on the second
    one only the first is synced.
    """
    built = scenario(
        "rot-and-power-cut",
        "all replicas of a chain lose power, and a frame of one rots",
        CHAIN,
        reader("r", CHAIN, until=1),
        appender("c1", CHAIN, *appends(4)),
        faults=Faults(power_cut=1, rot=1, restart=2),
        power_domain="n1 n2",
        granted={"n3": 4},
        atomic_disk=False,
        sometimes=("Committed", "StreamRecovered", "StreamSealed", "EntriesRead"),
    )
    n1, n2, *others = built.processes
    nodes = (
        _written(n1, stored("1.0.0", 1, 2, 3), synced=1),
        _written(n2, stored("1.0.1", 1), stored("1.0.1", 2, 3), synced=1),
    )
    return _without_goal(replace(built, processes=(*nodes, *others)))


def broadcast_rot_and_power_cut() -> Scenario:
    return _without_goal(
        scenario(
            "broadcast-rot-and-power-cut",
            "all replicas of a broadcast log lose power, a frame of one rots, and another writer takes the log",
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
    """A batch is committed and read as a whole."""
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
    """The owner cannot reach one live replica, which may become reachable at any moment."""
    built = scenario(
        "roll-unreachable",
        "the owner has two batches in flight and cannot reach a replica; it continues without it",
        BROADCAST,
        bursting_writer("w1", BROADCAST, *appends(1, 2, count=2)),
        faults=Faults(cut=1),
        cuts=(NetworkCut("w1-n2", (("w1", "n2"), ("n2", "w1"))),),
        sometimes=("Committed", "Projected"),
    )
    return replace(built, fifo=True)


def queued_takeovers() -> Scenario:
    """An owner with a queue of appends, one of which asks for a take-over."""
    first, second = appends(1, 2)
    built = scenario(
        "queued-takeovers",
        "an owner loses its log with appends in flight, and takes it back with the append that asks for a take-over",
        BROADCAST,
        bursting_writer("w1", BROADCAST, first, structs.replace(second, takeover=True)),
        writer("w2", BROADCAST, *appends(3, takeover=True)),
        sometimes=("Committed", "Projected", "AppendRefused"),
    )
    return replace(built, fifo=True)


def later_clients() -> Scenario:
    """An operation that begins after another client got its answer sees what that answer reports."""
    built = scenario(
        "later-clients",
        "an append, a take-over and a tail call that may each begin after the others have ended",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        writer("w2", BROADCAST, *appends(2, takeover=True)),
        tail_finder("t"),
        sometimes=("Committed", "Projected", "TailIs"),
    )
    return replace(built, eager_operations=False)


def two_groups_ending() -> Scenario:
    """Each group has its own replicas; the end covers what is committed in both."""
    log = chain_log(STRIPED, "n1 n2", "n2 n1", sequencer="n3")
    return scenario(
        "two-groups-ending",
        "a segment of two groups ends while a client writes to both; each group decides alone",
        log,
        bursting_appender("c1", log, *appends(1, 2)),
        faults=Faults(crash=1),
        crashable="n2",
        sometimes=("Committed", "Projected", "StreamSealed"),
    )


def owner_restarts() -> Scenario:
    """A writer is another owner after a restart: it does not know what its previous process sent."""
    return scenario(
        "owner-restarts",
        "the owner of a broadcast log restarts and appends again",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        faults=Faults(crash=1, restart=1),
        crashable="w1",
        sometimes=("Committed", "AppendRefused"),
    )


def broadcast_full() -> Scenario:
    """A batch that one replica stored and another has no space for is refused only after its segment has ended."""
    built = scenario(
        "broadcast-full",
        "a replica has no space and then fails; the batch on the other one is settled before the append is refused",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        reader("r", BROADCAST),
        nodes="n1 n2",
        faults=Faults(crash=1),
        crashable="n2",
        sometimes=("Projected", "AppendRefused", "EntriesRead"),
    )
    return on_nodes(built, "n2", full)


def only_replica_fails() -> Scenario:
    """No other process knows what the segment holds: the log waits for its only replica."""
    log = chain_log(CHAIN1, "n1", sequencer="n2")
    return scenario(
        "only-replica-fails",
        "the only replica of a segment fails and restarts; nothing is given up meanwhile",
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
