"""Scenarios of a broadcast log: one fenced writer, exact boundaries, take-overs, and readers that follow."""

from __future__ import annotations

from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST3,
    appends,
    broadcast_log,
    bursting_writer,
    clock,
    reader,
    scenario,
    tail_finder,
    writer,
)
from trunkline.check.scenarios.segments import BROADCAST

TRIPLE = broadcast_log(BROADCAST3, "n1 n2 n3", owner="w1")


def broadcast_append() -> Scenario:
    clients = (bursting_writer("w1", BROADCAST, *appends(1, 2)), reader("r", BROADCAST))
    return scenario("broadcast-append", "one writer, pipelined, and a reader bounded by the LAC", BROADCAST, *clients)


def roll() -> Scenario:
    return scenario(
        "roll",
        "a replica fails; the owner ends its segment at its exact count and continues in the next",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        reader("r", BROADCAST),
        faults=Faults(crash=1, early_timer=1),
        crashable="n1 n2",
        sometimes=("Committed", "Projected", "FollowedSegment"),
    )


def takeover() -> Scenario:
    """The main scenario: a second writer takes the log from a live owner, with one crash and one loss."""
    return scenario(
        "takeover",
        "2 replicas of 3 nodes, an owner and a taker with one append each, a reader, one crash and one loss",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        writer("w2", BROADCAST, *appends(2, takeover=True)),
        reader("r", BROADCAST),
        faults=Faults(crash=1, loss=1),
        crashable="n1 n2 w1",
        lossy="n1 n2",
        sometimes=("Committed", "EntriesRead", "Projected", "StreamSealed"),
    )


def two_takeovers() -> Scenario:
    return scenario(
        "two-takeovers",
        "two writers take the log from its owner at the same time",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        writer("w2", BROADCAST, *appends(2, takeover=True)),
        writer("w3", BROADCAST, *appends(3, takeover=True)),
        sometimes=("Committed", "Projected", "AppendRefused"),
    )


def follow_segments() -> Scenario:
    return scenario(
        "follow-segments",
        "two readers follow a log of three replicas across segments while nodes fail",
        TRIPLE,
        writer("w1", TRIPLE, *appends(1, 2, 3)),
        reader("r1", TRIPLE),
        reader("r2", TRIPLE, push=True),
        nodes="n1 n2 n3 n4",
        faults=Faults(crash=2, restart=1, early_timer=1),
        crashable="n1 n2 n3",
        sometimes=("FollowedSegment", "EntriesRead", "Committed"),
    )


def pipelined_roll() -> Scenario:
    """Several batches are in flight during the roll, so that some are acknowledged late."""
    return scenario(
        "pipelined-roll",
        "the owner rolls with two batches in flight and a lost answer",
        BROADCAST,
        bursting_writer("w1", BROADCAST, *appends(1, 2)),
        reader("r", BROADCAST),
        faults=Faults(loss=1, early_timer=1, duplicate=1),
        lossy="n1 n2 meta",
        sometimes=("Committed", "Projected"),
    )


def broadcast_tail() -> Scenario:
    return scenario(
        "broadcast-tail",
        "tail calls wait until the owner has released what they saw",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        tail_finder("t", calls=2),
        faults=Faults(early_timer=1),
        sometimes=("Completed", "Committed"),
    )


def broadcast_tail_faults() -> Scenario:
    return scenario(
        "broadcast-tail-faults",
        "a tail call finds another member when one is down, or restarted without its LAC",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        tail_finder("t"),
        faults=Faults(crash=1, restart=1),
        crashable="n2",
        sometimes=("TailIs", "Committed"),
    )


def reader_beside_takeover() -> Scenario:
    """The owner is down. A reader that meets the taker's seal must not keep the taker from the log."""
    return scenario(
        "reader-beside-takeover",
        "a reader meets the seal of a take-over and leaves the segment to the taker",
        BROADCAST,
        writer("w2", BROADCAST, *appends(2, takeover=True)),
        reader("r", BROADCAST, push=True),
        faults=Faults(early_timer=1),
        sometimes=("Appended", "Projected"),
    )


def abandoned_log() -> Scenario:
    """The owner's lease expires, whether it is alive or not: a writer with a lease may take the log unasked."""
    return scenario(
        "abandoned-log",
        "the owner's lease expires, and another writer takes the log without asking for a take-over",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        writer("w2", BROADCAST, *appends(2, 3)),
        clock("w1"),
        writers="w1 w2",
        faults=Faults(early_timer=1),
        sometimes=("LeaseLost", "Projected", "Committed", "AppendRefused"),
    )


BROADCAST_SCENARIOS = (
    broadcast_append,
    roll,
    pipelined_roll,
    takeover,
    two_takeovers,
    follow_segments,
    broadcast_tail,
    broadcast_tail_faults,
    reader_beside_takeover,
    abandoned_log,
)
