"""Walk-throughs of a chain log's clients: what they do beside each other, and what becomes of those that fail."""

from __future__ import annotations

from dataclasses import replace

from trunkline.check.scenario import Faults, FreeTimer, NetworkCut, Scenario
from trunkline.check.scenarios.chain import NODES, PAIR
from trunkline.check.scenarios.cluster import (
    CHAIN2,
    administrator,
    appender,
    appends,
    bursting_appender,
    chain_log,
    full,
    full_at_first,
    peeker,
    reader,
    scenario,
    tail_finder,
)
from trunkline.core.calls import AppendRequested, SealRequested
from trunkline.core.projection import EndSegment, Opening, Owner, Policy, Seat, Settings, apply
from trunkline.core.streams import StreamSealing


def append() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", PAIR, *appends(2)), reader("r", PAIR))
    return scenario("append", "two clients append, one reads, nothing fails", PAIR, *clients)


def read() -> Scenario:
    clients = (
        appender("c1", PAIR, *appends(1, 2)),
        reader("r1", PAIR, until=2),
        reader("r2", PAIR, until=2),
    )
    made = scenario(
        "read", "two readers see the same two entries", PAIR, *clients, sometimes=("SubscriptionEnded", "EntriesRead")
    )
    return replace(made, symmetric=(("r1", "r2"),))


def append_order() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1, 2)), appender("c2", PAIR, *appends(3)))
    return scenario(
        "append-order",
        "what is appended after another append ended comes after it",
        PAIR,
        *clients,
        sometimes=("Committed",),
    )


def pipelined_append() -> Scenario:
    clients = (bursting_appender("c1", PAIR, *appends(1, 2)), reader("r", PAIR))
    return scenario(
        "pipelined-append",
        "one client with two appends in flight, one crash",
        PAIR,
        *clients,
        faults=Faults(crash=1),
        crashable=NODES,
        sometimes=("Committed", "FollowedSegment"),
    )


def conditional_append() -> Scenario:
    """Both want position 1, and nothing else."""
    request = AppendRequested(1, "log", 1, 1, expect=1)
    clients = (appender("c1", PAIR, request), appender("c2", PAIR, AppendRequested(1, "log", 1, 2, expect=1)))
    return scenario(
        "conditional-append",
        "two clients append on the condition that they get position 1: at most one does",
        PAIR,
        *clients,
        reader("r", PAIR),
        faults=Faults(crash=1),
        crashable="n1 n2",
        sometimes=("Appended", "AppendRefused"),
    )


def _client_death(name: str, summary: str, seen: str) -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", PAIR, *appends(2)), reader("r", PAIR))
    return scenario(
        name, summary, PAIR, *clients, faults=Faults(crash=1), crashable="c1", sometimes=("EntriesRead", seen)
    )


def client_death_before_head() -> Scenario:
    return _client_death(
        "client-death-before-head", "a client dies with a granted position; a reader fills it", "HoleFilled"
    )


def client_death_after_head() -> Scenario:
    return _client_death(
        "client-death-after-head", "a client dies after the head has its entry; a reader carries it on", "ValueCarried"
    )


def client_restart() -> Scenario:
    """Seqs begin anew with every process: late answers to the process before must not be taken."""
    clients = (appender("c1", PAIR, *appends(1, 2)), appender("c2", PAIR, *appends(3)))
    return scenario(
        "client-restart",
        "a client restarts while answers to its earlier process are on the way",
        PAIR,
        *clients,
        faults=Faults(crash=1, restart=1),
        crashable="c1",
        sometimes=("Committed",),
    )


def client_without_storage() -> Scenario:
    """c1 reaches the sequencer and the metadata, but no storage: it may burn one grant at a time, and others go on."""
    cut = NetworkCut("c1-storage", tuple(pair for n in ("n1", "n2") for pair in (("c1", n), (n, "c1"))))
    clients = (
        appender("c1", PAIR, *appends(1, 2), in_flight_max=1),
        appender("c2", PAIR, *appends(3)),
        reader("r", PAIR),
    )
    return scenario(
        "client-without-storage",
        "a client that reaches the sequencer but no storage; others fill its positions",
        PAIR,
        *clients,
        faults=Faults(cut=1),
        sometimes=("HoleFilled", "Committed"),
        cuts=(cut,),
    )


def late_writer() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), reader("r", PAIR))
    return scenario(
        "late-writer",
        "a reader fills a hole while its slow writer is still on the way",
        PAIR,
        *clients,
        faults=Faults(early_timer=2),
        sometimes=("HoleFilled", "Committed"),
    )


def unused_grants() -> Scenario:
    """Batches of two, so that a lost head leaves positions behind which the client must fill."""
    clients = (appender("c1", PAIR, *appends(1, count=2)), appender("c2", PAIR, *appends(2)), reader("r", PAIR))
    return scenario(
        "unused-grants",
        "a batch of two loses its first position to a fill; the rest of its grant is filled at once",
        PAIR,
        *clients,
        faults=Faults(early_timer=2),
        sometimes=("HoleFilled", "Committed"),
    )


def stale_client() -> Scenario:
    """Segment 0 ended without n2; one client has not heard of it."""
    segment = PAIR.last
    survivors = ((segment.groups[0][0],),)
    opening = Opening(((Seat("n1", 1), Seat("n3", 1)),), Owner("n3", 1))
    newer = apply(PAIR, EndSegment(0, 1, survivors, opening))
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", newer, *appends(2)), reader("r", PAIR))
    return scenario(
        "stale-client",
        "a client and a reader with a stale projection meet a log that moved on",
        newer,
        *clients,
        faults=Faults(early_timer=1),
        sometimes=("Committed", "FollowedSegment"),
        records={"n1": (StreamSealing(("log", "1.0.0")),)},
    )


def full_disks() -> Scenario:
    made = scenario(
        "full-disks",
        "every disk is full: the position is given up for certain, and only then the append is refused",
        PAIR,
        appender("c1", PAIR, *appends(1)),
        faults=Faults(duplicate=1),
        lossy="c1",
        sometimes=("AppendRefused", "HoleFilled"),
    )
    nodes = NODES.split()
    return replace(made, processes=tuple(full(p) if p.name in nodes else p for p in made.processes))


def space_returns() -> Scenario:
    """A doubled write reaches the head when it has space again: what was refused must not appear by that."""
    both = chain_log(CHAIN2, "n1 n2", sequencer="n2")
    made = scenario(
        "space-returns",
        "both disks are full until they have space again, and a copy of the write is still on its way",
        both,
        appender("c1", both, *appends(1)),
        reader("r", both),
        nodes="n1 n2",
        faults=Faults(duplicate=1),
        lossy="c1",
        free_timers=(FreeTimer("n1", "disk"),),
        sometimes=("AppendRefused", "HoleFilled"),
    )
    nodes = ("n1", "n2")
    return replace(made, processes=tuple(full_at_first(p) if p.name in nodes else p for p in made.processes))


def full_head() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), reader("r", PAIR))
    made = scenario(
        "full-head",
        "the head's disk is full: the append moves to nodes that have space",
        PAIR,
        *clients,
        faults=Faults(duplicate=1),
        lossy="c1",
        sometimes=("Appended", "Projected"),
    )
    return replace(made, processes=tuple(full(p) if p.name == "n1" else p for p in made.processes))


def large_batch() -> Scenario:
    settings = Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=2)
    log = chain_log(settings, "n1 n2", "n2 n1", sequencer="n3")
    return scenario(
        "large-batch",
        "a batch larger than a stripe unit is refused, and hurts nobody",
        log,
        appender("c1", log, *appends(1, count=3)),
        appender("c2", log, *appends(2)),
        sometimes=("AppendRefused", "Appended"),
    )


def striping() -> Scenario:
    settings = Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=2)
    log = chain_log(settings, "n1 n2", "n2 n1", sequencer="n3")
    clients = (appender("c1", log, *appends(1, 2)), appender("c2", log, *appends(3, count=2)), reader("r", log))
    return scenario(
        "striping",
        "two groups, batches of one and two entries, one crash",
        log,
        *clients,
        faults=Faults(crash=1),
        crashable="n1 n2",
        sometimes=("HoleFilled", "Committed", "FollowedSegment"),
    )


def striping_readers() -> Scenario:
    """Readers that begin at different stripe units must agree on what a batch covers."""
    settings = Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=2)
    log = chain_log(settings, "n1 n2", "n2 n1", sequencer="n3")
    clients = (
        appender("c1", log, *appends(1)),
        appender("c2", log, *appends(2, count=2)),
        reader("r1", log),
        reader("r2", log, start_at=3),
    )
    return scenario(
        "striping-readers",
        "two groups, a batch that must not cross a stripe unit, readers from different positions",
        log,
        *clients,
        sometimes=("HoleFilled", "Committed", "EntriesRead"),
    )


def tail() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1, 2)), appender("c2", PAIR, *appends(3)), tail_finder("t", calls=2))
    return scenario(
        "tail",
        "tail calls beside appends never go back and never miss what was acknowledged",
        PAIR,
        *clients,
        faults=Faults(crash=1),
        crashable="n1 n3",
        sometimes=("Completed", "Committed"),
    )


def peek() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), peeker("p"))
    return scenario(
        "peek",
        "a peek beside an append ends, also when the sequencer dies: its segment is ended",
        PAIR,
        *clients,
        faults=Faults(crash=1),
        crashable="n1 n3",
        sometimes=("PeekIs", "Committed", "Projected"),
    )


def seal_and_reopen() -> Scenario:
    admin = administrator("a", SealRequested(1, "log"), SealRequested(2, "log", reopen=True))
    clients = (appender("c1", PAIR, *appends(1, 2)), admin, reader("r", PAIR))
    return scenario(
        "seal-and-reopen",
        "an operator makes the log read-only and opens it again while a client appends",
        PAIR,
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
