"""Scenarios of a chain log whose servers fail, one after another and in every order."""

from __future__ import annotations

from dataclasses import replace

from trunkline.check.scenario import Faults, NetworkCut, Scenario
from trunkline.check.scenarios.cluster import (
    CHAIN1,
    CHAIN3,
    appender,
    appends,
    chain_log,
    coordinator,
    reader,
    scenario,
)
from trunkline.check.scenarios.segments import CHAIN

NODES = "n1 n2 n3"
TRIPLE = chain_log(CHAIN3, "n1 n2 n3", sequencer="n1")


def chain() -> Scenario:
    """The main scenario: any node may crash at any point, which ends the segment."""
    clients = (appender("c1", CHAIN, *appends(1)), appender("c2", CHAIN, *appends(2)), reader("r", CHAIN))
    sometimes = ("Committed", "EntriesRead", "Projected", "StreamSealed", "FollowedSegment")
    return scenario(
        "chain",
        "2 replicas of 3 nodes, 2 appending clients, a reader, one crash and the reconfiguration after it",
        CHAIN,
        *clients,
        faults=Faults(crash=1),
        crashable=NODES,
        sometimes=sometimes,
    )


def patient_clients() -> Scenario:
    """A client that meets a seal waits for the client that sealed, then ends the segment itself (A10, D9, C7)."""
    return scenario(
        "patient-clients",
        "a node or the sealing client crashes; the other clients wait, and then end the segment themselves",
        CHAIN,
        appender("c1", CHAIN, *appends(1), seal_checks=1),
        appender("c2", CHAIN, *appends(2), seal_checks=1),
        reader("r", CHAIN, seal_checks=1),
        coordinator(widen_ms=1, absent_ms=1),
        faults=Faults(crash=2),
        crashable="n2 c1",
        sometimes=("Committed", "EntriesRead", "Projected", "StreamSealed"),
    )


def chain_restart() -> Scenario:
    """``chain`` with a node that restarts at any moment: the large run."""
    return replace(
        chain(),
        name="chain-restart",
        summary="the same, and the crashed node may restart with its disk",
        faults=Faults(crash=1, restart=1),
        smaller=(chain,),
    )


def _member_failure(name: str, summary: str, victim: str) -> Scenario:
    return scenario(
        name,
        summary,
        TRIPLE,
        appender("c1", TRIPLE, *appends(1, 2)),
        reader("r", TRIPLE),
        nodes="n1 n2 n3 n4",
        faults=Faults(crash=1),
        crashable=victim,
        sometimes=("Committed", "Projected", "EntriesRead"),
    )


def head_failure() -> Scenario:
    return _member_failure(
        "head-failure", "the head of a chain of three (also the sequencer) fails during appends", "n1"
    )


def middle_failure() -> Scenario:
    return _member_failure("middle-failure", "the middle of a chain of three fails during appends", "n2")


def tail_failure() -> Scenario:
    return _member_failure("tail-failure", "the tail of a chain of three fails during appends", "n3")


def two_failures() -> Scenario:
    clients = (appender("c1", TRIPLE, *appends(1, 2)), reader("r", TRIPLE))
    return scenario(
        "two-failures",
        "two of three nodes fail; the log continues with one, and warns",
        TRIPLE,
        *clients,
        faults=Faults(crash=2),
        crashable=NODES,
        sometimes=("NoRedundancy", "Committed"),
    )


def two_reconfigurers() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), appender("c2", CHAIN, *appends(2)))
    return scenario(
        "two-reconfigurers",
        "two clients end the same segment at once, also needlessly",
        CHAIN,
        *clients,
        faults=Faults(crash=1, early_timer=1),
        crashable="n1 n2",
        sometimes=("Committed", "Projected"),
    )


def sequencer_loss() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), appender("c2", CHAIN, *appends(2)), reader("r", CHAIN))
    return scenario(
        "sequencer-loss",
        "the sequencer fails and restarts as another process",
        CHAIN,
        *clients,
        faults=Faults(crash=1, restart=1),
        crashable="n3",
        sometimes=("Committed", "Projected"),
    )


def partition() -> Scenario:
    """n2 and c2 are cut off from all others: c2 must not report the end of n2 as the end of the log."""
    inside, outside = ("n2", "c2"), ("n1", "n3", "meta", "c1")
    pairs = tuple((a, b) for a in inside for b in outside)
    cut = NetworkCut("n2-c2", pairs + tuple((b, a) for a, b in pairs))
    clients = (appender("c1", CHAIN, *appends(1)), reader("c2", CHAIN, to_tail=True))
    return scenario(
        "partition",
        "a node and a reader are cut off together; the log continues without them",
        CHAIN,
        *clients,
        faults=Faults(cut=1, early_timer=1),
        sometimes=("Committed", "Projected"),
        cuts=(cut,),
    )


def _node_returns(name: str, summary: str, faults: Faults) -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1, 2)), reader("r", CHAIN))
    return scenario(
        name,
        summary,
        CHAIN,
        *clients,
        faults=faults,
        crashable="n1 n2",
        sometimes=("Committed", "Projected", "FollowedSegment"),
    )


def node_returns() -> Scenario:
    return _node_returns("node-returns", "a failed node restarts with its disk", Faults(crash=1, restart=1))


def node_returns_wiped() -> Scenario:
    summary = "a failed node returns with an empty disk at its old address"
    return _node_returns("node-returns-wiped", summary, Faults(crash=1, wipe=1))


def subscribe_across() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1, 2)), reader("r", CHAIN, push=True))
    return scenario(
        "subscribe-across",
        "a subscription that waits at a node follows the log across reconfigurations",
        CHAIN,
        *clients,
        faults=Faults(crash=1),
        crashable=NODES,
        sometimes=("FollowedSegment", "EntriesRead"),
    )


def unopened() -> Scenario:
    """One replica without a stream: a seal must create the stream and keep it across a crash."""
    log = chain_log(CHAIN1, "n1", sequencer="n2")
    clients = (appender("c1", log, *appends(1)), appender("c2", log, *appends(2)))
    return scenario(
        "unopened",
        "a segment ends before its only stream exists; the node forgets nothing when it restarts",
        log,
        *clients,
        faults=Faults(crash=1, restart=1, early_timer=1),
        crashable="n1",
        sometimes=("StreamSealed", "Committed"),
        opened=False,
    )


def metadata_restart() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), appender("c2", CHAIN, *appends(2)))
    return scenario(
        "metadata-restart",
        "the metadata register crashes and restarts while two clients end a segment",
        CHAIN,
        *clients,
        faults=Faults(crash=1, restart=1, early_timer=2),
        crashable="meta",
        sometimes=("Projected", "Committed"),
    )


def metadata_away() -> Scenario:
    """A reader waits at the tail while the metadata is down: it still receives new entries (D10)."""
    return scenario(
        "metadata-away",
        "the metadata register is down while entries are appended and pushed to a waiting reader",
        CHAIN,
        appender("c1", CHAIN, *appends(1, 2)),
        reader("r", CHAIN, push=True),
        faults=Faults(crash=1, early_timer=2),
        crashable="meta",
        sometimes=("EntriesRead", "Committed"),
    )


def node_crash_during_creation() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), reader("r", CHAIN))
    return scenario(
        "segment-creation-crash",
        "nodes crash while a new segment is created on them",
        CHAIN,
        *clients,
        faults=Faults(crash=2, restart=1),
        crashable=NODES,
        sometimes=("Projected", "Committed"),
    )


def cascade() -> Scenario:
    """No disk is wiped: after an early time-out a segment may have one member left, and only an operator can declare
    its loss.
    """
    return scenario(
        "cascade",
        "failures one after another, with loss and early time-outs",
        TRIPLE,
        appender("c1", TRIPLE, *appends(1, 2)),
        appender("c2", TRIPLE, *appends(3)),
        reader("r", TRIPLE),
        coordinator(),
        nodes="n1 n2 n3 n4",
        faults=Faults(crash=3, restart=3, loss=1, duplicate=1, early_timer=2),
        crashable="n1 n2 n3 n4 c1",
        sometimes=("Projected", "Committed", "EntriesRead"),
    )


def wiped_head() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), appender("c2", CHAIN, *appends(2)), reader("r", CHAIN))
    return scenario(
        "wiped-head",
        "a client dies with a granted position and the head returns wiped: the hole cannot be filled there",
        CHAIN,
        *clients,
        faults=Faults(crash=2, wipe=1),
        crashable="c1 n1",
        stays_down="c1",
        sometimes=("Projected", "Committed"),
    )


CHAIN_SCENARIOS = (
    chain,
    patient_clients,
    chain_restart,
    head_failure,
    middle_failure,
    tail_failure,
    two_failures,
    two_reconfigurers,
    sequencer_loss,
    partition,
    node_returns,
    node_returns_wiped,
    subscribe_across,
    unopened,
    metadata_restart,
    metadata_away,
    node_crash_during_creation,
    cascade,
    wiped_head,
)
