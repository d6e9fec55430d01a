"""Scenarios of a chain log's clients: several at once, and clients that fail."""

from __future__ import annotations

from dataclasses import replace

from trunkline.check.scenario import Faults, FreeTimer, NetworkCut, Scenario
from trunkline.check.scenarios.chain import NODES
from trunkline.check.scenarios.cluster import (
    CHAIN2,
    administrator,
    appender,
    appends,
    bursting_appender,
    chain_log,
    full,
    full_at_first,
    on_nodes,
    peeker,
    reader,
    scenario,
    tail_finder,
)
from trunkline.check.scenarios.segments import CHAIN, ended
from trunkline.core.calls import AppendRequested, SealRequested
from trunkline.core.projection import Policy, Settings
from trunkline.core.streams import StreamSealing

STRIPED = chain_log(Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=2), "n1 n2", "n2 n1", sequencer="n3")


def append() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), appender("c2", CHAIN, *appends(2)), reader("r", CHAIN))
    return scenario("append", "two clients append, one reads, nothing fails", CHAIN, *clients)


def read() -> Scenario:
    built = scenario(
        "read",
        "two readers see the same two entries",
        CHAIN,
        appender("c1", CHAIN, *appends(1, 2)),
        reader("r1", CHAIN, until=2),
        reader("r2", CHAIN, until=2),
        sometimes=("SubscriptionEnded", "EntriesRead"),
    )
    return replace(built, symmetric=(("r1", "r2"),))


def append_order() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1, 2)), appender("c2", CHAIN, *appends(3)))
    return scenario(
        "append-order",
        "an append that begins after another one ended gets a higher position",
        CHAIN,
        *clients,
        sometimes=("Committed",),
    )


def pipelined_append() -> Scenario:
    clients = (bursting_appender("c1", CHAIN, *appends(1, 2)), reader("r", CHAIN))
    return scenario(
        "pipelined-append",
        "one client with two appends in flight, one crash",
        CHAIN,
        *clients,
        faults=Faults(crash=1),
        crashable=NODES,
        sometimes=("Committed", "FollowedSegment"),
    )


def conditional_append() -> Scenario:
    """Both accept position 1 only."""
    return scenario(
        "conditional-append",
        "two clients append on the condition that they get position 1: at most one does",
        CHAIN,
        appender("c1", CHAIN, AppendRequested(1, "log", 1, 1, expect=1)),
        appender("c2", CHAIN, AppendRequested(1, "log", 1, 2, expect=1)),
        reader("r", CHAIN),
        faults=Faults(crash=1),
        crashable="n1 n2",
        sometimes=("Appended", "AppendRefused"),
    )


def _client_death(name: str, summary: str, seen: str) -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), appender("c2", CHAIN, *appends(2)), reader("r", CHAIN))
    return scenario(
        name, summary, CHAIN, *clients, faults=Faults(crash=1), crashable="c1", sometimes=("EntriesRead", seen)
    )


def client_death_before_head() -> Scenario:
    summary = "a client dies with a granted position; a reader fills it"
    return _client_death("client-death-before-head", summary, "HoleFilled")


def client_death_after_head() -> Scenario:
    summary = "a client dies after the head stored its entry; a reader completes the write"
    return _client_death("client-death-after-head", summary, "ValueCarried")


def client_restart() -> Scenario:
    """Each process restarts its seqs: late answers to the previous process must be ignored."""
    clients = (appender("c1", CHAIN, *appends(1, 2)), appender("c2", CHAIN, *appends(3)))
    return scenario(
        "client-restart",
        "a client restarts while answers to its previous process are in flight",
        CHAIN,
        *clients,
        faults=Faults(crash=1, restart=1),
        crashable="c1",
        sometimes=("Committed",),
    )


def client_without_storage() -> Scenario:
    """c1 reaches the sequencer and the metadata, but no storage: it wastes one grant at a time, and others continue."""
    cut = NetworkCut("c1-storage", tuple(pair for n in ("n1", "n2") for pair in (("c1", n), (n, "c1"))))
    return scenario(
        "client-without-storage",
        "a client reaches the sequencer but no storage; others fill its positions",
        CHAIN,
        appender("c1", CHAIN, *appends(1, 2), in_flight_max=1),
        appender("c2", CHAIN, *appends(3)),
        reader("r", CHAIN),
        faults=Faults(cut=1),
        sometimes=("HoleFilled", "Committed"),
        cuts=(cut,),
    )


def late_writer() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), reader("r", CHAIN))
    return scenario(
        "late-writer",
        "a reader fills a hole while the write of a slow client is in flight",
        CHAIN,
        *clients,
        faults=Faults(early_timer=2),
        sometimes=("HoleFilled", "Committed"),
    )


def unused_grants() -> Scenario:
    """Batches of two: a lost head leaves positions that the client must fill."""
    clients = (appender("c1", CHAIN, *appends(1, count=2)), appender("c2", CHAIN, *appends(2)), reader("r", CHAIN))
    return scenario(
        "unused-grants",
        "a batch of two loses its first position to a fill; the rest of its grant is filled at once",
        CHAIN,
        *clients,
        faults=Faults(early_timer=2),
        sometimes=("HoleFilled", "Committed"),
    )


def stale_client() -> Scenario:
    """Segment 0 ended without n2; one client does not know."""
    newer = ended(CHAIN, 1, "n1 n3", survivors="n1")
    clients = (appender("c1", CHAIN, *appends(1)), appender("c2", newer, *appends(2)), reader("r", CHAIN))
    return scenario(
        "stale-client",
        "a client and a reader with a stale projection meet a log that has moved on",
        newer,
        *clients,
        faults=Faults(early_timer=1),
        sometimes=("Committed", "FollowedSegment"),
        records={"n1": (StreamSealing(("log", "1.0.0")),)},
    )


def full_disks() -> Scenario:
    built = scenario(
        "full-disks",
        "every disk is full: the position is settled as a hole before the append is refused",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        faults=Faults(duplicate=1),
        lossy="c1",
        sometimes=("AppendRefused", "HoleFilled"),
    )
    return on_nodes(built, NODES, full)


def space_returns() -> Scenario:
    """A doubled write reaches the head when it has space again: a refused append must not appear."""
    both = chain_log(CHAIN2, "n1 n2", sequencer="n2")
    built = scenario(
        "space-returns",
        "both disks are full at first and have space later, while a copy of the write is in flight",
        both,
        appender("c1", both, *appends(1)),
        reader("r", both),
        nodes="n1 n2",
        faults=Faults(duplicate=1),
        lossy="c1",
        free_timers=(FreeTimer("n1", "disk"),),
        sometimes=("AppendRefused", "HoleFilled"),
    )
    return on_nodes(built, "n1 n2", full_at_first)


def full_head() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), reader("r", CHAIN))
    built = scenario(
        "full-head",
        "the head's disk is full: the append moves to nodes that have space",
        CHAIN,
        *clients,
        faults=Faults(duplicate=1),
        lossy="c1",
        sometimes=("Appended", "Projected"),
    )
    return on_nodes(built, "n1", full)


def large_batch() -> Scenario:
    return scenario(
        "large-batch",
        "a batch larger than a stripe unit is refused and affects no other append",
        STRIPED,
        appender("c1", STRIPED, *appends(1, count=3)),
        appender("c2", STRIPED, *appends(2)),
        sometimes=("AppendRefused", "Appended"),
    )


def striping() -> Scenario:
    return scenario(
        "striping",
        "two groups, batches of one and two entries, one crash",
        STRIPED,
        appender("c1", STRIPED, *appends(1, 2)),
        appender("c2", STRIPED, *appends(3, count=2)),
        reader("r", STRIPED),
        faults=Faults(crash=1),
        crashable="n1 n2",
        sometimes=("HoleFilled", "Committed", "FollowedSegment"),
    )


def striping_readers() -> Scenario:
    """Readers that begin at different stripe units must agree on what a batch covers."""
    return scenario(
        "striping-readers",
        "two groups, a batch that must not cross a stripe unit, readers from different positions",
        STRIPED,
        appender("c1", STRIPED, *appends(1)),
        appender("c2", STRIPED, *appends(2, count=2)),
        reader("r1", STRIPED),
        reader("r2", STRIPED, start_at=3),
        sometimes=("HoleFilled", "Committed", "EntriesRead"),
    )


def tail() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1, 2)), appender("c2", CHAIN, *appends(3)), tail_finder("t", calls=2))
    return scenario(
        "tail",
        "tail calls during appends never go back and never miss an acknowledged entry",
        CHAIN,
        *clients,
        faults=Faults(crash=1),
        crashable="n1 n3",
        sometimes=("Completed", "Committed"),
    )


def peek() -> Scenario:
    clients = (appender("c1", CHAIN, *appends(1)), peeker("p"))
    return scenario(
        "peek",
        "a peek during an append completes even if the sequencer fails: its segment is ended",
        CHAIN,
        *clients,
        faults=Faults(crash=1),
        crashable="n1 n3",
        sometimes=("PeekIs", "Committed", "Projected"),
    )


def seal_and_reopen() -> Scenario:
    admin = administrator("a", SealRequested(1, "log"), SealRequested(2, "log", reopen=True))
    clients = (appender("c1", CHAIN, *appends(1, 2)), admin, reader("r", CHAIN))
    return scenario(
        "seal-and-reopen",
        "an operator closes the log and reopens it while a client appends",
        CHAIN,
        *clients,
        faults=Faults(early_timer=1),
        sometimes=("Projected", "ReopenRequested", "SegmentEnded"),
    )


CLIENT_SCENARIOS = (
    append,
    read,
    append_order,
    pipelined_append,
    conditional_append,
    client_death_before_head,
    client_death_after_head,
    client_restart,
    client_without_storage,
    late_writer,
    unused_grants,
    stale_client,
    full_disks,
    space_returns,
    full_head,
    large_batch,
    striping,
    striping_readers,
    tail,
    peek,
    seal_and_reopen,
)
