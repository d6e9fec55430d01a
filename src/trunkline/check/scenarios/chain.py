"""Walk-throughs of a chain log: appending, reading, and every failure on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from trunkline.check.monitors import Progress, safety
from trunkline.check.scenario import NO_FAULTS, Cut, Faults, ProcessSpec, Scenario
from trunkline.check.scenarios.cluster import (
    CHAIN2,
    CHAIN3,
    administrator,
    appender,
    appends,
    bursting_appender,
    chain_log,
    coordinator,
    full,
    meta,
    node,
    reader,
    tail_finder,
)
from trunkline.core.effects import Record
from trunkline.core.messages import SealRequested
from trunkline.core.projection import EndSegment, Opening, Owner, Policy, Projection, Seat, Settings, apply
from trunkline.core.streams import StreamSealing

NODES = "n1 n2 n3"
PAIR = chain_log(CHAIN2, "n1 n2", sequencer="n3")
TRIPLE = chain_log(CHAIN3, "n1 n2 n3", sequencer="n1")


def scenario(
    name: str,
    summary: str,
    projection: Projection,
    *clients: ProcessSpec,
    nodes: str = NODES,
    faults: Faults = NO_FAULTS,
    crashable: str = "",
    sometimes: tuple[str, ...] = ("Committed", "EntriesRead"),
    leases: str = "",
    lossy: str = "",
    cuts: tuple[Cut, ...] = (),
    records: Mapping[str, tuple[Record, ...]] = MappingProxyType({}),
    opened: bool = True,
) -> Scenario:
    """A chain log on some nodes with some clients; the log exists already.

    ``records``: what is on a node's disk besides. ``opened=False``: no stream has been made yet.
    """
    streams = projection if opened else None
    storage = tuple(
        node(each, streams, leases=each in leases.split(), records=records.get(each, ())) for each in nodes.split()
    )
    return Scenario(
        name,
        summary,
        (*storage, meta(projection, nodes), *clients),
        (*safety(projection), Progress()),
        faults,
        every_choice=False,
        crashable=tuple(crashable.split()),
        lossy=tuple(lossy.split()),
        sometimes=sometimes,
        cuts=cuts,
    )


def append() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", PAIR, *appends(2)), reader("r", PAIR))
    return scenario("append", "two clients append, one reads, nothing fails", PAIR, *clients)


def read() -> Scenario:
    clients = (
        appender("c1", PAIR, *appends(1, 2)),
        reader("r1", PAIR, until=2),
        reader("r2", PAIR, until=2),
    )
    return scenario(
        "read", "two readers see the same two entries", PAIR, *clients, sometimes=("SubscriptionEnded", "EntriesRead")
    )


def chain() -> Scenario:
    """The main scenario: any node may crash at any point, which ends the segment."""
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", PAIR, *appends(2)), reader("r", PAIR))
    sometimes = ("Committed", "EntriesRead", "Projected", "StreamSealed", "FollowedSegment")
    return scenario(
        "chain",
        "2 replicas of 3 nodes, 2 appending clients, a reader, one crash and the reconfiguration after it",
        PAIR,
        *clients,
        faults=Faults(crash=1),
        crashable=NODES,
        sometimes=sometimes,
    )


def chain_restart() -> Scenario:
    """``chain`` with a node that comes back at any moment: the large run."""
    return replace(
        chain(),
        name="chain-restart",
        summary="the same, and the crashed node may come back with its disk",
        faults=Faults(crash=1, restart=1),
        smaller=(chain,),
    )


def _member_failure(name: str, summary: str, victim: str) -> Scenario:
    clients = (appender("c1", TRIPLE, *appends(1, 2)), reader("r", TRIPLE))
    return scenario(
        name,
        summary,
        TRIPLE,
        *clients,
        nodes="n1 n2 n3 n4",
        faults=Faults(crash=1),
        crashable=victim,
        sometimes=("Committed", "Projected", "EntriesRead"),
    )


def head_failure() -> Scenario:
    return _member_failure(
        "head-failure", "the head of a chain of three (also its sequencer) dies while appending", "n1"
    )


def middle_failure() -> Scenario:
    return _member_failure("middle-failure", "the middle of a chain of three dies while appending", "n2")


def tail_failure() -> Scenario:
    return _member_failure("tail-failure", "the tail of a chain of three dies while appending", "n3")


def two_failures() -> Scenario:
    clients = (appender("c1", TRIPLE, *appends(1, 2)), reader("r", TRIPLE))
    return scenario(
        "two-failures",
        "two of three nodes die; the log goes on with one, and warns",
        TRIPLE,
        *clients,
        faults=Faults(crash=2),
        crashable=NODES,
        sometimes=("NoRedundancy", "Committed"),
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


def two_reconfigurers() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", PAIR, *appends(2)))
    return scenario(
        "two-reconfigurers",
        "two clients end the same segment at once, also without need",
        PAIR,
        *clients,
        faults=Faults(crash=1, early_timer=1),
        crashable="n1 n2",
        sometimes=("Committed", "Projected"),
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


def sequencer_loss() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", PAIR, *appends(2)), reader("r", PAIR))
    return scenario(
        "sequencer-loss",
        "the sequencer dies, and comes back under another start",
        PAIR,
        *clients,
        faults=Faults(crash=1, restart=1),
        crashable="n3",
        sometimes=("Committed", "Projected"),
    )


def partition() -> Scenario:
    """n2 and c2 are cut off together from everybody else; n2's lease runs out, so its answers are not fresh."""
    inside, outside = ("n2", "c2"), ("n1", "n3", "meta", "c1")
    pairs = tuple((a, b) for a in inside for b in outside)
    cut = Cut("n2-c2", pairs + tuple((b, a) for a, b in pairs))
    clients = (appender("c1", PAIR, *appends(1)), reader("c2", PAIR))
    return scenario(
        "partition",
        "a node and a reader are cut off together; the log goes on without them",
        PAIR,
        *clients,
        faults=Faults(cut=1, early_timer=1),
        sometimes=("Committed", "Projected"),
        leases="n2",
        cuts=(cut,),
    )


def _node_returns(name: str, summary: str, faults: Faults) -> Scenario:
    clients = (appender("c1", PAIR, *appends(1, 2)), reader("r", PAIR))
    return scenario(
        name,
        summary,
        PAIR,
        *clients,
        faults=faults,
        crashable="n1 n2",
        sometimes=("Committed", "Projected", "FollowedSegment"),
    )


def node_returns() -> Scenario:
    return _node_returns("node-returns", "a failed node comes back with its disk", Faults(crash=1, restart=1))


def node_returns_wiped() -> Scenario:
    return _node_returns(
        "node-returns-wiped", "a failed node comes back with an empty disk at its old address", Faults(crash=1, wipe=1)
    )


def subscribe_across() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1, 2)), reader("r", PAIR, push=True))
    return scenario(
        "subscribe-across",
        "a subscription that waits at a node follows the log across reconfigurations",
        PAIR,
        *clients,
        faults=Faults(crash=1),
        crashable=NODES,
        sometimes=("FollowedSegment", "EntriesRead"),
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


def append_order() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1, 2)), appender("c2", PAIR, *appends(3)))
    return scenario(
        "append-order",
        "what is appended after another append ended comes after it",
        PAIR,
        *clients,
        sometimes=("Committed",),
    )


def unopened() -> Scenario:
    """One replica, no stream made yet: a seal must make it, and remember it across a crash."""
    log = chain_log(Settings(Policy.CHAIN, replicas=1), "n1", sequencer="n2")
    clients = (appender("c1", log, *appends(1)), appender("c2", log, *appends(2)))
    return scenario(
        "unopened",
        "a segment is ended before its only stream was made; the node forgets nothing when it restarts",
        log,
        *clients,
        faults=Faults(crash=1, restart=1, early_timer=1),
        crashable="n1",
        sometimes=("StreamSealed", "Committed"),
        opened=False,
    )


def metadata_restart() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", PAIR, *appends(2)))
    return scenario(
        "metadata-restart",
        "the metadata register crashes and comes back while two clients end a segment",
        PAIR,
        *clients,
        faults=Faults(crash=1, restart=1, early_timer=2),
        crashable="meta",
        sometimes=("Projected", "Committed"),
    )


def node_crash_during_creation() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), reader("r", PAIR))
    return scenario(
        "segment-creation-crash",
        "nodes crash while a new segment is being made on them",
        PAIR,
        *clients,
        faults=Faults(crash=2, restart=1),
        crashable=NODES,
        sometimes=("Projected", "Committed"),
    )


def cascade() -> Scenario:
    clients = (
        appender("c1", TRIPLE, *appends(1, 2)),
        appender("c2", TRIPLE, *appends(3)),
        reader("r", TRIPLE),
        coordinator(),
    )
    return scenario(
        "cascade",
        "failures one after another, with loss and early time-outs",
        TRIPLE,
        *clients,
        nodes="n1 n2 n3 n4",
        faults=Faults(crash=3, restart=2, wipe=1, loss=1, duplicate=1, early_timer=2),
        crashable="n1 n2 n3 n4 c1",
        sometimes=("Projected", "Committed", "EntriesRead"),
    )


def client_without_storage() -> Scenario:
    """c1 reaches the sequencer and the metadata, but no storage: it may burn one grant at a time, and others go on."""
    cut = Cut("c1-storage", tuple(pair for n in ("n1", "n2") for pair in (("c1", n), (n, "c1"))))
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


def wiped_head() -> Scenario:
    clients = (appender("c1", PAIR, *appends(1)), appender("c2", PAIR, *appends(2)), reader("r", PAIR))
    made = scenario(
        "wiped-head",
        "a client dies with a granted position and the head comes back wiped: the hole cannot be filled there",
        PAIR,
        *clients,
        faults=Faults(crash=2, wipe=1),
        crashable="c1 n1",
        sometimes=("Projected", "Committed"),
    )
    return replace(made, stays_down=("c1",))


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


CHAIN_SCENARIOS = (
    append,
    read,
    chain,
    chain_restart,
    head_failure,
    middle_failure,
    tail_failure,
    two_failures,
    client_death_before_head,
    client_death_after_head,
    late_writer,
    unused_grants,
    two_reconfigurers,
    stale_client,
    sequencer_loss,
    partition,
    node_returns,
    node_returns_wiped,
    subscribe_across,
    striping,
    striping_readers,
    append_order,
    unopened,
    metadata_restart,
    node_crash_during_creation,
    cascade,
    client_without_storage,
    tail,
    seal_and_reopen,
    pipelined_append,
    client_restart,
    wiped_head,
    full_disks,
    full_head,
    large_batch,
)
