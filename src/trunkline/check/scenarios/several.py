"""Walk-throughs with more than one of everything: batches in an answer, spans in a copy, logs, groups, copies of a
message, operators; and with timers that fire while messages are on their way.
"""

from __future__ import annotations

from dataclasses import replace

from trunkline.check.scenario import Faults, FreeTimer, MessageDrop, OperationEnd, Scenario
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    CHAIN2,
    LOG,
    administrator,
    appender,
    appends,
    broadcast_log,
    chain_log,
    clock,
    coordinator,
    full,
    reader,
    scenario,
    tail_finder,
    writer,
)
from trunkline.core.calls import TrimRequested
from trunkline.core.effects import Record
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.projection import (
    EndSegment,
    MarkRepaired,
    Opening,
    Owner,
    Policy,
    Projection,
    Seat,
    Settings,
    apply,
)
from trunkline.core.streams import FrameWritten, StreamEnding, StreamSealing

PAIR = chain_log(CHAIN2, "n1 n2", sequencer="n3")
BROADCAST = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
STRIPED = chain_log(Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=1), "n1 n2", "n2 n3", sequencer="n1")
NEXT = Opening(((Seat("n1", 1), Seat("n3", 1)),), Owner("n3", 1))


def _ended(end: int, survivors: str = "n1 n2", *, repaired: bool = True) -> Projection:
    """Segment 0 has ended; segment 1 is open on n1 and n3."""
    group = tuple(member for member in PAIR.last.groups[0] if member.node in survivors.split())
    ended = apply(PAIR, EndSegment(0, end, (group,), NEXT))
    return apply(ended, MarkRepaired(0)) if repaired else ended


def _kept(stream: str, end: int, *frames: Frame) -> tuple[Record, ...]:
    """A finalized stream of segment 0."""
    key = (LOG, stream)
    return (*(FrameWritten(key, frame) for frame in frames), StreamSealing(key), StreamEnding(key, end))


# ---------------------------------------------------------------------------------------------------- sizes above one


def read_several() -> Scenario:
    """A reader asks for three batches; a node sends two at most, and tells new ones as they come."""
    clients = (
        appender("c1", PAIR, *appends(1, 2, 3)),
        reader("r", PAIR, read_limit=3, push=True, until=3),
    )
    return scenario(
        "read-several",
        "an answer holds several batches, and fewer than were asked for",
        PAIR,
        *clients,
        answer_max=2,
        sometimes=("Committed", "EntriesRead", "SubscriptionEnded"),
    )


def copy_of_several_spans() -> Scenario:
    """Three batches, one of them across the border of two spans, are copied one by one and compared span by span."""
    frames = [Frame(1 + 2 * n, 2, FrameKind.DATA, "old#1", n + 1, 100 + n) for n in range(3)]
    end = frames[-1].next
    return scenario(
        "copy-of-several-spans",
        "a segment longer than two spans is copied to another node, one batch in an answer",
        _ended(end, "n1"),
        coordinator(span=3),
        answer_max=1,
        finishing=True,
        faults=Faults(loss=1),
        lossy="n2",
        sometimes=("MemberRebuilt", "FrameStored"),
        records={"n1": _kept("1.0.0", end, *frames)},
    )


def batches_across_a_roll() -> Scenario:
    """Batches of two entries: counts of entries and of batches differ at the end of the segment."""
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
    """A striped segment loses its sequencer; the coordinator finishes both groups of it."""
    return scenario(
        "two-groups",
        "a segment of two groups is ended, repaired and finalized by a coordinator",
        STRIPED,
        appender("c1", STRIPED, *appends(1, 2)),
        coordinator(),
        clock("n1"),
        finishing=True,
        sometimes=("Committed", "Projected", "StreamFinalized"),
    )


# ------------------------------------------------------------------------------------------------- several of a kind


def two_logs() -> Scenario:
    """Both logs have a stream of the same name on the same node, and are ordered by the same process."""
    other = chain_log(CHAIN2, "n1 n2", sequencer="n3", log="other")
    clients = (
        appender("c1", PAIR, *appends(1)),
        appender("c2", other, *appends(2, log="other")),
        reader("r1", PAIR, until=1),
        reader("r2", other, until=1),
    )
    return scenario(
        "two-logs",
        "two logs live on the same nodes, with streams of the same names",
        PAIR,
        *clients,
        beside=(other,),
        sometimes=("Committed", "EntriesRead", "SubscriptionEnded"),
    )


def two_trims() -> Scenario:
    """The one that trims less comes later: the trim point does not go back."""
    log = _ended(3)
    frames = [Frame(glsn, 1, FrameKind.DATA, "old#1", glsn, 100 + glsn) for glsn in (1, 2)]
    return scenario(
        "two-trims",
        "two operators trim a log at once, to different points",
        log,
        administrator("a1", TrimRequested(1, LOG, 1)),
        administrator("a2", TrimRequested(1, LOG, 2)),
        sometimes=("Projected", "Trimmed"),
        records={"n1": _kept("1.0.0", 3, *frames), "n2": _kept("1.0.1", 3, *frames)},
    )


def doubled_requests() -> Scenario:
    """A coordinator that looks again before the answers have come has two of each question and answer in flight."""
    frame = Frame(1, 1, FrameKind.DATA, "old#1", 1, 100)
    return scenario(
        "doubled-requests",
        "a coordinator repeats its questions while the first ones are on their way: all of them arrive",
        _ended(2, repaired=False),
        coordinator(),
        copies=2,
        free_timers=(FreeTimer("coordinator", "coordinator", "tick", 2),),
        finishing=True,
        sometimes=("StreamFinalized", "Projected"),
        records={"n1": _kept("1.0.0", 2, frame)[:2], "n2": _kept("1.0.1", 2, frame)[:2]},
    )


# -------------------------------------------------------------------------------------- time, and what hosts give up


def ticks_beside_messages() -> Scenario:
    """The coordinator ticks, and the lease of a live member runs out, at any moment of an append."""
    return scenario(
        "ticks-beside-messages",
        "a coordinator looks and a lease runs out while a client appends",
        PAIR,
        appender("c1", PAIR, *appends(1)),
        coordinator(),
        clock("n2"),
        free_timers=(FreeTimer("coordinator", "coordinator", "tick", 2), FreeTimer("clock")),
        finishing=True,
        sometimes=("Committed", "LeaseLost", "Projected"),
    )


def rationed_register() -> Scenario:
    """The metadata service gives answers up, and a node's host gives up what a client does not read."""
    return scenario(
        "rationed-register",
        "questions to the register and answers of a member are given up while the sequencer is replaced",
        PAIR,
        appender("c1", PAIR, *appends(1)),
        coordinator(),
        clock("n3"),
        drops=(MessageDrop("*", "meta", "Get", 2), MessageDrop("n2", "c1")),
        finishing=True,
        sometimes=("Committed", "LeaseLost", "Projected"),
    )


def seal_comes_late() -> Scenario:
    """Whoever ends the segment gives up waiting while its seals are on their way: then they arrive all the same."""
    made = scenario(
        "seal-comes-late",
        "every disk is full, and the seals that were given up arrive while the position is being settled",
        PAIR,
        appender("c1", PAIR, *appends(1)),
        free_timers=(FreeTimer("c1", "reconfigurer"),),
        sometimes=("AppendRefused", "StreamSealed"),
    )
    return replace(made, processes=tuple(full(p) if p.name.startswith("n") else p for p in made.processes))


def all_leases_lost() -> Scenario:
    """The leases of both members of an ended segment run out at any moment: nobody may be removed as the last one."""
    frame = Frame(1, 1, FrameKind.DATA, "old#1", 1, 100)
    return scenario(
        "all-leases-lost",
        "the leases of all members run out, and none of them is dead",
        _ended(2),
        coordinator(),
        clock("n1 n2"),
        free_timers=(FreeTimer("clock", count=2),),
        sometimes=("LeaseLost",),
        records={"n1": _kept("1.0.0", 2, frame), "n2": _kept("1.0.1", 2, frame)},
    )


def known_to_others() -> Scenario:
    """What one client was told, others know when they begin: an append, a tail and a read come after it."""
    told = (OperationEnd("w1", 1),)
    return scenario(
        "known-to-others",
        "a tail and a read that begin after an acknowledgement are behind it",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1, 2)),
        tail_finder("t", after=told),
        reader("r", BROADCAST, to_tail=True, after=told),
        sometimes=("Committed", "TailIs", "SubscriptionEnded"),
    )


def read_to_tail() -> Scenario:
    """The member that is read, or the sequencer, crashes and comes back between the append and the read."""
    return scenario(
        "read-to-tail",
        "a read to the tail of a chain begins after an acknowledgement, and nodes come back as it asks",
        PAIR,
        appender("c1", PAIR, *appends(1)),
        reader("r", PAIR, to_tail=True, after=(OperationEnd("c1", 1),)),
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
