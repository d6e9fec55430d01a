"""Walk-throughs of a broadcast log: one fenced writer, exact boundaries, takeovers, and readers that follow."""

from __future__ import annotations

from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
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

NODES = "n1 n2 n3"
PAIR = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
TRIPLE = broadcast_log(BROADCAST3, "n1 n2 n3", owner="w1")


def broadcast_append() -> Scenario:
    clients = (bursting_writer("w1", PAIR, *appends(1, 2)), reader("r", PAIR))
    return scenario("broadcast-append", "one writer, pipelined, and a reader bounded by the LAC", PAIR, *clients)


def roll() -> Scenario:
    clients = (writer("w1", PAIR, *appends(1, 2)), reader("r", PAIR))
    return scenario(
        "roll",
        "a replica dies; the owner ends its segment at its exact count and goes on in the next",
        PAIR,
        *clients,
        faults=Faults(crash=1, early_timer=1),
        crashable="n1 n2",
        sometimes=("Committed", "Projected", "FollowedSegment"),
    )


def takeover() -> Scenario:
    """The main scenario: another writer takes the log while its owner is alive, with one crash and one loss."""
    clients = (
        writer("w1", PAIR, *appends(1)),
        writer("w2", PAIR, *appends(2, takeover=True)),
        reader("r", PAIR),
    )
    return scenario(
        "takeover",
        "2 replicas of 3 nodes, an owner and a taker with one append each, a reader, one crash and one loss",
        PAIR,
        *clients,
        faults=Faults(crash=1, loss=1),
        crashable="n1 n2 w1",
        lossy="n1 n2",
        sometimes=("Committed", "EntriesRead", "Projected", "StreamSealed"),
    )


def two_takeovers() -> Scenario:
    clients = (
        writer("w1", PAIR, *appends(1)),
        writer("w2", PAIR, *appends(2, takeover=True)),
        writer("w3", PAIR, *appends(3, takeover=True)),
    )
    return scenario(
        "two-takeovers",
        "two writers take the log from its owner at once",
        PAIR,
        *clients,
        sometimes=("Committed", "Projected", "AppendRefused"),
    )


def follow_segments() -> Scenario:
    clients = (writer("w1", TRIPLE, *appends(1, 2, 3)), reader("r1", TRIPLE), reader("r2", TRIPLE, push=True))
    return scenario(
        "follow-segments",
        "two consumers follow a log of three replicas across segments while nodes fail",
        TRIPLE,
        *clients,
        nodes="n1 n2 n3 n4",
        faults=Faults(crash=2, restart=1, early_timer=1),
        crashable="n1 n2 n3",
        sometimes=("FollowedSegment", "EntriesRead", "Committed"),
    )


def pipelined_roll() -> Scenario:
    """Several batches in flight when the roll happens, so that some are acknowledged late."""
    clients = (bursting_writer("w1", PAIR, *appends(1, 2)), reader("r", PAIR))
    return scenario(
        "pipelined-roll",
        "the owner rolls with two batches in flight and a lost answer",
        PAIR,
        *clients,
        faults=Faults(loss=1, early_timer=1, duplicate=1),
        lossy="n1 n2 meta",
        sometimes=("Committed", "Projected"),
    )


def broadcast_tail() -> Scenario:
    clients = (writer("w1", PAIR, *appends(1, 2)), tail_finder("t", calls=2))
    return scenario(
        "broadcast-tail",
        "tail calls wait until the owner has released what they saw",
        PAIR,
        *clients,
        faults=Faults(early_timer=1),
        sometimes=("Completed", "Committed"),
    )


def broadcast_tail_faults() -> Scenario:
    clients = (writer("w1", PAIR, *appends(1)), tail_finder("t"))
    return scenario(
        "broadcast-tail-faults",
        "a tail call finds another member when one is dead, or came back without its LAC",
        PAIR,
        *clients,
        faults=Faults(crash=1, restart=1),
        crashable="n2",
        sometimes=("TailIs", "Committed"),
    )


def reader_beside_takeover() -> Scenario:
    """The owner is dead. A reader that meets the taker's seal must not keep the taker from the log."""
    clients = (writer("w2", PAIR, *appends(2, takeover=True)), reader("r", PAIR, push=True))
    return scenario(
        "reader-beside-takeover",
        "a reader meets the seal of a takeover and leaves the taker its chance",
        PAIR,
        *clients,
        faults=Faults(early_timer=1),
        sometimes=("Appended", "Projected"),
    )


def abandoned_log() -> Scenario:
    """The owner's lease runs out, whether it is dead or not: a writer that keeps one may take the log unasked."""
    clients = (
        writer("w1", PAIR, *appends(1)),
        writer("w2", PAIR, *appends(2, 3)),
        clock("w1"),
    )
    return scenario(
        "abandoned-log",
        "the owner's lease runs out, and another writer takes the log without being asked to",
        PAIR,
        *clients,
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
