"""Scenarios with more than one of everything: batches in an answer, spans in a copy, logs, groups, copies of a message,
operators; and with timers that fire while messages are in flight.
"""

from __future__ import annotations

from trunkline.check.scenario import Faults, FreeTimer, MessageDrop, OperationEnd, Scenario
from trunkline.check.scenarios.cluster import (
    CHAIN2,
    LOG,
    STRIPED,
    administrator,
    appender,
    appends,
    chain_log,
    clock,
    coordinator,
    full,
    on_nodes,
    reader,
    scenario,
    tail_finder,
    writer,
)
from trunkline.check.scenarios.segments import BROADCAST, CHAIN, ended, entry, sealed
from trunkline.core.calls import TrimRequested
from trunkline.core.streams import FrameWritten, StreamEnding

# ---------------------------------------------------------------------------------------------------- sizes above one


def read_several() -> Scenario:
    """A reader asks for three batches; a node sends at most two, and pushes new ones."""
    return scenario(
        "read-several",
        "an answer holds several batches, but fewer than the reader asked for",
        CHAIN,
        appender("c1", CHAIN, *appends(1, 2, 3)),
        reader("r", CHAIN, read_limit=3, push=True, until=3),
        answer_max=2,
        sometimes=("Committed", "EntriesRead", "SubscriptionEnded"),
    )


def copy_of_several_spans() -> Scenario:
    """Three batches of two entries, one of them across two spans, are copied one by one and compared span by span."""
    key, end = (LOG, "1.0.0"), 7
    return scenario(
        "copy-of-several-spans",
        "a segment longer than two spans is copied to another node, one batch in an answer",
        ended(CHAIN, end, "n1 n3", survivors="n1", repaired=True),
        coordinator(span=3),
        answer_max=1,
        finishing=True,
        faults=Faults(loss=1),
        lossy="n2",
        sometimes=("MemberRebuilt", "FrameStored"),
        records={"n1": (*(FrameWritten(key, entry(glsn, count=2)) for glsn in (1, 3, 5)), StreamEnding(key, end))},
    )


def batches_across_a_roll() -> Scenario:
    """Batches of two entries: the counts of entries and of batches differ at the end of the segment."""
    clients = (writer("w1", BROADCAST, *appends(1, 2, count=2)), reader("r", BROADCAST, read_limit=2))
    return scenario(
        "batches-across-a-roll",
        "the owner of a broadcast log rolls, with batches of two entries",
        BROADCAST,
        *clients,
        faults=Faults(crash=1),
        crashable="n2",
        stays_down="n2",
        sometimes=("Committed", "Projected", "EntriesRead"),
    )


def two_groups() -> Scenario:
    """A striped segment loses its sequencer; the coordinator finishes both groups."""
    log = chain_log(STRIPED, "n1 n2", "n2 n3", sequencer="n1")
    return scenario(
        "two-groups",
        "a coordinator ends, repairs and finalizes a segment of two groups",
        log,
        appender("c1", log, *appends(1, 2)),
        coordinator(),
        clock("n1"),
        finishing=True,
        sometimes=("Committed", "Projected", "StreamFinalized"),
    )


# ------------------------------------------------------------------------------------------------- several of a kind


def two_logs() -> Scenario:
    """Both logs have a stream of the same name on the same node, and the same sequencer."""
    other = chain_log(CHAIN2, "n1 n2", sequencer="n3", log="other")
    return scenario(
        "two-logs",
        "two logs on the same nodes, with streams of the same names",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        appender("c2", other, *appends(2, log="other")),
        reader("r1", CHAIN, until=1),
        reader("r2", other, until=1),
        beside=(other,),
        sometimes=("Committed", "EntriesRead", "SubscriptionEnded"),
    )


def two_trims() -> Scenario:
    """If the lower trim comes later, the trim point does not go back."""
    return scenario(
        "two-trims",
        "two operators trim a log at once, to different points",
        ended(CHAIN, 3, "n1 n3", repaired=True),
        administrator("a1", TrimRequested(1, LOG, 1)),
        administrator("a2", TrimRequested(1, LOG, 2)),
        sometimes=("Projected", "Trimmed"),
        records={"n1": sealed("1.0.0", 1, 2, end=3), "n2": sealed("1.0.1", 1, 2, end=3)},
    )


def doubled_requests() -> Scenario:
    """A coordinator that polls again before the answers arrive has two of each request and answer in flight."""
    return scenario(
        "doubled-requests",
        "a coordinator repeats its requests while the first ones are in flight: all of them arrive",
        ended(CHAIN, 2, "n1 n3"),
        coordinator(),
        copies=2,
        free_timers=(FreeTimer("coordinator", "coordinator", "tick", 2),),
        finishing=True,
        sometimes=("StreamFinalized", "Projected"),
        records={"n1": sealed("1.0.0", 1), "n2": sealed("1.0.1", 1)},
    )


# ---------------------------------------------------------------------------------------- time, and dropped messages


def ticks_beside_messages() -> Scenario:
    """The coordinator ticks, and the lease of a live member expires, at any moment of an append."""
    return scenario(
        "ticks-beside-messages",
        "a coordinator polls and a lease expires while a client appends",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        coordinator(),
        clock("n2"),
        free_timers=(FreeTimer("coordinator", "coordinator", "tick", 2), FreeTimer("clock")),
        finishing=True,
        sometimes=("Committed", "LeaseLost", "Projected"),
    )


def rationed_register() -> Scenario:
    """The metadata service drops requests, and a node's host drops answers that a client does not read."""
    return scenario(
        "rationed-register",
        "requests to the register and answers of a member are dropped while the sequencer is replaced",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        coordinator(),
        clock("n3"),
        drops=(MessageDrop("*", "meta", "Get", 2), MessageDrop("n2", "c1")),
        finishing=True,
        sometimes=("Committed", "LeaseLost", "Projected"),
    )


def seal_comes_late() -> Scenario:
    """The client that ends the segment stops waiting while its seals are in flight; they arrive later."""
    built = scenario(
        "seal-comes-late",
        "every disk is full, and late seals arrive while the position is being settled",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        free_timers=(FreeTimer("c1", "reconfigurer"),),
        sometimes=("AppendRefused", "StreamSealed"),
    )
    return on_nodes(built, "n1 n2 n3", full)


def all_leases_lost() -> Scenario:
    """The leases of both members of an ended segment expire at any moment: the last member is never removed."""
    return scenario(
        "all-leases-lost",
        "the leases of all members expire although all are alive",
        ended(CHAIN, 2, "n1 n3", repaired=True),
        coordinator(),
        clock("n1 n2"),
        free_timers=(FreeTimer("clock", count=2),),
        sometimes=("LeaseLost",),
        records={"n1": sealed("1.0.0", 1, end=2), "n2": sealed("1.0.1", 1, end=2)},
    )


def known_to_others() -> Scenario:
    """A tail call and a read that begin after an acknowledgement see its entry."""
    acknowledged = (OperationEnd("w1", 1),)
    return scenario(
        "known-to-others",
        "a tail call and a read that begin after an acknowledgement see its entry",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        tail_finder("t", after=acknowledged),
        reader("r", BROADCAST, to_tail=True, after=acknowledged),
        sometimes=("Committed", "TailIs", "SubscriptionEnded"),
    )


def read_to_tail() -> Scenario:
    """The member that is read, or the sequencer, crashes and restarts between the append and the read."""
    return scenario(
        "read-to-tail",
        "a read to the tail of a chain begins after an acknowledgement while nodes restart",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        reader("r", CHAIN, to_tail=True, after=(OperationEnd("c1", 1),)),
        faults=Faults(crash=1, restart=1),
        crashable="n2 n3",
        sometimes=("Committed", "EntriesRead", "SubscriptionEnded"),
    )


SEVERAL_SCENARIOS = (
    read_several,
    copy_of_several_spans,
    batches_across_a_roll,
    two_groups,
    two_logs,
    two_trims,
    doubled_requests,
    ticks_beside_messages,
    rationed_register,
    seal_comes_late,
    all_leases_lost,
    known_to_others,
    read_to_tail,
)
