"""Walk-throughs of readers whose first choice of a member, or of a map, is one that nobody answers for any more."""

from __future__ import annotations

from dataclasses import replace

from trunkline.check.scenario import Faults, Operation, OperationEnd, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    CHAIN2,
    LOG,
    appender,
    appends,
    broadcast_log,
    chain_log,
    peeker,
    reader,
    scenario,
    tail_finder,
)
from trunkline.core.calls import TailRequested
from trunkline.core.effects import Record
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.projection import EndSegment, Opening, Owner, Seat, apply
from trunkline.core.streams import FrameWritten, StreamEnding

OWNED = broadcast_log(BROADCAST2, "n1 n2", owner="w")
PAIR = chain_log(CHAIN2, "n1 n2", sequencer="n3")
FIRST = Frame(1, 1, FrameKind.DATA, "w#1", 1, 100)
STORED: tuple[Record, ...] = (FrameWritten((LOG, "1.0.1"), FIRST),)


def _ended(stream: str) -> tuple[Record, ...]:
    return (FrameWritten((LOG, stream), FIRST), StreamEnding((LOG, stream), 2))


def dead_replica() -> Scenario:
    """The owner has rolled away from n1, which goes for good, and nobody has removed it yet."""
    ended = apply(OWNED, EndSegment(0, 2, OWNED.last.groups, Opening(((Seat("n2", 1),),), Owner("w", 1))))
    return scenario(
        "dead-replica",
        "the replica that a reader begins with is gone for good; it reads another one",
        ended,
        reader("r", ended, until=1),
        nodes="n1 n2",
        records={node: _ended(stream) for node, stream in (("n1", "1.0.0"), ("n2", "1.0.1"))},
        faults=Faults(crash=1),
        crashable="n1",
        stays_down="n1",
        sometimes=("EntriesRead",),
    )


def tail_without_replica() -> Scenario:
    """n1 is asked first, and gone. n2 was never told what its owner has released; the owner is gone as well."""
    return scenario(
        "tail-without-replica",
        "the replicas that are asked for the tail are gone, or cannot tell: the segment is ended",
        OWNED,
        tail_finder("t"),
        nodes="n1 n2",
        dead="n1",
        records={"n2": STORED},
        sometimes=("TailIs", "Projected"),
    )


def peek_without_replica() -> Scenario:
    return scenario(
        "peek-without-replica",
        "the replica that is asked for the next position is gone; another one is asked",
        OWNED,
        peeker("p"),
        nodes="n1 n2",
        dead="n1",
        records={"n2": STORED},
        sometimes=("PeekIs",),
    )


def tail_after_failover() -> Scenario:
    """The second call begins after an append that went to the next segment was acknowledged."""
    finder = tail_finder("t")
    calls = (*finder.operations, Operation("tail", TailRequested(2, LOG), (OperationEnd("c1", 1),)))
    return scenario(
        "tail-after-failover",
        "a tail call, a fail-over, an append, and a tail call that must have heard of both",
        PAIR,
        replace(finder, operations=calls),
        appender("c1", PAIR, *appends(1), after=(OperationEnd("t", 1),)),
        faults=Faults(crash=1),
        crashable="n1",
        sometimes=("TailIs", "Projected", "Committed"),
    )


AWAY_SCENARIOS = (dead_replica, tail_without_replica, peek_without_replica, tail_after_failover)
