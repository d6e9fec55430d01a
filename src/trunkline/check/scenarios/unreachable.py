"""Scenarios of readers that first ask a member which is down, or that have an old projection."""

from __future__ import annotations

from dataclasses import replace

from trunkline.check.scenario import Faults, Operation, OperationEnd, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    LOG,
    appender,
    appends,
    broadcast_log,
    peeker,
    reader,
    scenario,
    tail_finder,
)
from trunkline.check.scenarios.segments import CHAIN, ended, sealed, stored
from trunkline.core.calls import TailRequested

ABANDONED = broadcast_log(BROADCAST2, "n1 n2", owner="w")


def dead_replica() -> Scenario:
    """The owner has rolled away from n1, which fails for good and is still a member."""
    log = ended(ABANDONED, 2, "n2", owner="w")
    return scenario(
        "dead-replica",
        "the replica that a reader asks first fails for good; it reads another one",
        log,
        reader("r", log, until=1),
        nodes="n1 n2",
        records={"n1": sealed("1.0.0", 1, end=2), "n2": sealed("1.0.1", 1, end=2)},
        faults=Faults(crash=1),
        crashable="n1",
        stays_down="n1",
        sometimes=("EntriesRead",),
    )


def tail_without_replica() -> Scenario:
    """n1 is asked first and is down. n2 never learned what its owner released, and the owner is down as well."""
    return scenario(
        "tail-without-replica",
        "the replicas that are asked for the tail are down or do not know it: the segment is ended",
        ABANDONED,
        tail_finder("t"),
        nodes="n1 n2",
        dead="n1",
        records={"n2": stored("1.0.1", 1)},
        sometimes=("TailIs", "Projected"),
    )


def peek_without_replica() -> Scenario:
    return scenario(
        "peek-without-replica",
        "the replica that is asked for the next position is down; another one is asked",
        ABANDONED,
        peeker("p"),
        nodes="n1 n2",
        dead="n1",
        records={"n2": stored("1.0.1", 1)},
        sometimes=("PeekIs",),
    )


def tail_after_failover() -> Scenario:
    """The second call begins after an append to the next segment was acknowledged."""
    finder = tail_finder("t")
    calls = (*finder.operations, Operation("tail", TailRequested(2, LOG), (OperationEnd("c1", 1),)))
    return scenario(
        "tail-after-failover",
        "a tail call, a fail-over, an append, and a tail call that must see both",
        CHAIN,
        replace(finder, operations=calls),
        appender("c1", CHAIN, *appends(1), after=(OperationEnd("t", 1),)),
        faults=Faults(crash=1),
        crashable="n1",
        sometimes=("TailIs", "Projected", "Committed"),
    )


UNREACHABLE_SCENARIOS = (dead_replica, tail_without_replica, peek_without_replica, tail_after_failover)
