"""Scenarios of power cuts and rot: group commit, and the rule by which a stream recovers."""

from __future__ import annotations

from functools import partial

from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios import cluster
from trunkline.check.scenarios.cluster import (
    CHAIN1,
    appender,
    appends,
    bursting_writer,
    chain_log,
    coordinator,
    reader,
    tail_finder,
    writer,
)
from trunkline.check.scenarios.segments import BROADCAST, CHAIN

scenario = partial(cluster.scenario, atomic_disk=False)


def power_cut() -> Scenario:
    return scenario(
        "power-cut",
        "both replicas of a chain lose power at once; any part of the unsynced writes is lost",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        appender("c2", CHAIN, *appends(2)),
        reader("r", CHAIN),
        faults=Faults(power_cut=1, restart=2),
        power_domain="n1 n2",
        sometimes=("Committed", "StreamRecovered", "EntriesRead"),
    )


def power_cut_after_seal() -> Scenario:
    """One replica: if its seal is lost with the power, a late writer commits past the end."""
    log = chain_log(CHAIN1, "n1", sequencer="n2")
    return scenario(
        "power-cut-after-seal",
        "a segment ends while its only replica loses power; the write of a slow client is still in flight",
        log,
        appender("c1", log, *appends(1)),
        appender("c2", log, *appends(2)),
        faults=Faults(power_cut=1, restart=1, early_timer=1),
        sometimes=("Committed", "StreamRecovered", "StreamSealed"),
        power_domain="n1",
    )


def broadcast_power_cut() -> Scenario:
    return scenario(
        "broadcast-power-cut",
        "both replicas of a broadcast log lose power with two batches in flight",
        BROADCAST,
        bursting_writer("w1", BROADCAST, *appends(1, 2)),
        reader("r", BROADCAST),
        faults=Faults(power_cut=1, restart=2),
        power_domain="n1 n2",
        sometimes=("Committed", "StreamRecovered", "EntriesRead"),
    )


def rot() -> Scenario:
    """One replica crashes, one of its synced frames rots, it restarts, and the segment ends."""
    return scenario(
        "rot",
        "a synced frame of a crashed replica rots before the restart; the replica must not vote the entry away",
        CHAIN,
        appender("c1", CHAIN, *appends(1, 2)),
        reader("r", CHAIN),
        coordinator(),
        faults=Faults(crash=1, rot=1, restart=1, early_timer=1),
        crashable="n1 n2",
        sometimes=("Committed", "StreamRecovered", "StreamSealed"),
    )


def broadcast_rot() -> Scenario:
    return scenario(
        "broadcast-rot",
        "a frame of a broadcast replica rots; a take-over must not cut what was acknowledged",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        writer("w2", BROADCAST, *appends(2, takeover=True)),
        faults=Faults(crash=1, rot=1, restart=1),
        crashable="n1 n2",
        sometimes=("Committed", "StreamRecovered", "StreamSealed"),
    )


def roll_rot() -> Scenario:
    """A roll needs no seal, so a replica may lose a frame of an ended segment without knowing it."""
    return scenario(
        "roll-rot",
        "a frame of a broadcast replica rots while the owner rolls; readers must not receive JUNK for it",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        reader("r", BROADCAST),
        faults=Faults(crash=1, rot=1, restart=1),
        crashable="n1 n2",
        sometimes=("Committed", "StreamRecovered", "EntriesRead"),
    )


def tail_after_rot() -> Scenario:
    return scenario(
        "tail-after-rot",
        "a last member that lost its frames does not answer for the tail",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        tail_finder("t", calls=2),
        faults=Faults(crash=1, rot=1, restart=1),
        crashable="n2",
        sometimes=("TailIs", "StreamRecovered"),
    )


DISKS_SCENARIOS = (power_cut, power_cut_after_seal, broadcast_power_cut, rot, broadcast_rot, roll_rot, tail_after_rot)
