"""Walk-throughs of the coordinator's duties and of an operator's: finish, repair, replace, rebuild, create."""

from __future__ import annotations

from functools import partial

from trunkline.check.monitors.upkeep import BlockedWithdrawn, DutiesEnd
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios import cluster
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    CHAIN2,
    CHAIN3,
    LOG,
    administrator,
    appender,
    appends,
    broadcast_log,
    chain_log,
    clock,
    coordinator,
    reader,
    writer,
)
from trunkline.core.calls import CreateLog, DeleteRequested, SealRequested, TrimRequested
from trunkline.core.effects import Record
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.projection import (
    AddJoiner,
    EndSegment,
    MarkRepaired,
    Opening,
    Owner,
    Projection,
    RaiseTrim,
    Seat,
    Settings,
    apply,
)
from trunkline.core.storage import FramesDamaged
from trunkline.core.streams import FrameWritten, StreamEnding, StreamSealing

NODES = "n1 n2 n3"
PAIR = chain_log(CHAIN2, "n1 n2", sequencer="n3")
VALUE = Frame(1, 1, FrameKind.DATA, "old#1", 1, 100)
NEXT = Opening(((Seat("n1", 1), Seat("n3", 1)),), Owner("n3", 1))


scenario = partial(cluster.scenario, finishing=True)


def _ended(*, repaired: bool, survivors: str = "n1 n2") -> Projection:
    """Segment 0 held one entry and has ended; segment 1 is open on n1 and n3."""
    group = tuple(member for member in PAIR.last.groups[0] if member.node in survivors.split())
    ended = apply(PAIR, EndSegment(0, 2, (group,), NEXT))
    return apply(ended, MarkRepaired(0)) if repaired else ended


def _kept(stream: str, *, ended: bool = False) -> tuple[Record, ...]:
    """A stream of segment 0 with its one entry, sealed, and perhaps finalized."""
    key = (LOG, stream)
    end: tuple[Record, ...] = (StreamEnding(key, 2),) if ended else ()
    return (FrameWritten(key, VALUE), StreamSealing(key), *end)


def _half_written() -> tuple[Projection, dict[str, tuple[Record, ...]]]:
    """Segment 0 ended at 4: position 1 is on the head alone, 2 is a hole, 3 is on both."""
    first, third = VALUE, Frame(3, 1, FrameKind.DATA, "old#1", 3, 101)
    head, tail = (LOG, "1.0.0"), (LOG, "1.0.1")
    records: dict[str, tuple[Record, ...]] = {
        "n1": (FrameWritten(head, first), FrameWritten(head, third), StreamSealing(head)),
        "n2": (FrameWritten(tail, third), StreamSealing(tail)),
    }
    return apply(PAIR, EndSegment(0, 4, PAIR.last.groups, NEXT)), records


def finish_segment() -> Scenario:
    log, records = _half_written()
    return scenario(
        "finish-segment",
        "the coordinator finalizes and repairs an ended segment although messages are lost",
        log,
        coordinator(),
        faults=Faults(loss=2),
        lossy="n1 n2",
        sometimes=("StreamFinalized", "Projected", "ValueCarried", "HoleFilled"),
        records=records,
    )


def finalize() -> Scenario:
    """Nothing needs repair, so nobody but the coordinator tells the nodes of the end."""
    return scenario(
        "finalize",
        "the coordinator tells every member of an ended segment its end, although messages are lost",
        _ended(repaired=False),
        coordinator(),
        faults=Faults(loss=2),
        lossy="n1 n2",
        sometimes=("StreamFinalized", "Projected"),
        records={"n1": _kept("1.0.0"), "n2": _kept("1.0.1")},
    )


def repair_race() -> Scenario:
    log, records = _half_written()
    return scenario(
        "repair-race",
        "a coordinator and a reader repair the same positions of an ended segment at once",
        log,
        coordinator(),
        reader("r", log),
        faults=Faults(early_timer=2),
        sometimes=("StreamFinalized", "ValueCarried", "HoleFilled", "EntriesRead"),
        records=records,
    )


def sequencer_replaced() -> Scenario:
    return scenario(
        "sequencer-replaced",
        "the coordinator ends the segment of a sequencer whose lease ran out, beside a client that appends",
        PAIR,
        coordinator(),
        clock("n3"),
        appender("c1", PAIR, *appends(1)),
        faults=Faults(crash=1),
        crashable="n3",
        sometimes=("LeaseLost", "Projected", "Committed"),
    )


def dead_member() -> Scenario:
    return scenario(
        "dead-member",
        "a member of an ended, unrepaired segment dies and is removed, so that repair and a reader can finish",
        _ended(repaired=False),
        coordinator(),
        reader("r", _ended(repaired=False)),
        clock("n2"),
        faults=Faults(crash=1),
        crashable="n2",
        stays_down="n2",
        sometimes=("MemberRemoved", "Projected", "EntriesRead"),
        records={"n1": _kept("1.0.0"), "n2": _kept("1.0.1")},
    )


def rebuild() -> Scenario:
    log = _ended(repaired=True, survivors="n1")
    return scenario(
        "rebuild",
        "a repaired segment with one replica left is copied to another node, while that may crash and come back",
        log,
        coordinator(),
        faults=Faults(crash=1, restart=1),
        crashable="n2 n3 coordinator",
        sometimes=("MemberRebuilt", "Projected"),
        records={"n1": _kept("1.0.0", ended=True)},
    )


def scrub() -> Scenario:
    """A running node finds that it lost an entry of a segment that the coordinator took for finished."""
    return scenario(
        "scrub",
        "a node finds damage in a finished segment while everybody runs; the coordinator replaces the stream",
        _ended(repaired=True),
        coordinator(),
        faults=Faults(crash=1, restart=1, duplicate=1),
        crashable="n2",
        lossy="n2",
        sometimes=("StreamDamaged", "MemberRemoved", "MemberRebuilt"),
        records={"n1": _kept("1.0.0", ended=True), "n2": _kept("1.0.1", ended=True)},
        scrubs={"n2": FramesDamaged((LOG, "1.0.1"), (VALUE,))},
    )


def abandoned_joiner() -> Scenario:
    log = apply(_ended(repaired=True, survivors="n1"), AddJoiner(0, 0, Seat("n4", 1)))
    return scenario(
        "abandoned-joiner",
        "a joiner whose node died is removed, and another node takes its place",
        log,
        coordinator(),
        nodes="n1 n2 n3 n4",
        dead="n4",
        faults=Faults(loss=1),
        lossy="n1 n2",
        sometimes=("MemberRemoved", "MemberRebuilt"),
        records={"n1": _kept("1.0.0", ended=True)},
    )


def widen() -> Scenario:
    log = chain_log(CHAIN3, "n1 n2", sequencer="n1")
    return scenario(
        "widen",
        "a log with too few replicas gets a wider segment when a node is there",
        log,
        coordinator(),
        appender("c1", log, *appends(1)),
        sometimes=("Projected", "Committed"),
    )


def draining() -> Scenario:
    return scenario(
        "draining",
        "a node that is being drained leaves the open segment, and takes no part in the next",
        PAIR,
        coordinator(),
        appender("c1", PAIR, *appends(1, 2)),
        draining="n2",
        sometimes=("Projected", "Committed"),
    )


def blocked_ending() -> Scenario:
    """The open segment's only member is gone, so it cannot be ended; older segments are finished all the same."""
    _, records = _half_written()
    log = apply(PAIR, EndSegment(0, 4, PAIR.last.groups, Opening(((Seat("n3", 1),),), Owner("n1", 1))))
    return scenario(
        "blocked-ending",
        "an ending that is blocked for ever keeps the coordinator from nothing else",
        log,
        coordinator(),
        dead="n3",
        sometimes=("ReconfigurationBlocked", "StreamFinalized", "ValueCarried"),
        records=records,
    )


def declared_loss() -> Scenario:
    """The only replica is gone for good. Once an operator has said so, the log goes on, and readers see the gap."""
    log = chain_log(Settings(CHAIN2.policy, replicas=1), "n3", sequencer="n1")
    return scenario(
        "declared-loss",
        "the last replica of a segment is gone; an operator declares it lost and the log goes on",
        log,
        administrator("a", SealRequested(1, LOG, reopen=True, declared_end=5)),
        appender("c1", log, *appends(1, 2)),
        reader("r", log),
        dead="n3",
        sometimes=("ReconfigurationBlocked", "PositionsSkipped", "Committed"),
        finishing=False,
    )


def blocked_resolved() -> Scenario:
    """The only replica is lost: the coordinator announces that the log is blocked, until an operator gives it up."""
    log = chain_log(Settings(CHAIN2.policy, replicas=1), "n3", sequencer="n1")
    return scenario(
        "blocked-resolved",
        "a log is announced as blocked for as long as it is",
        log,
        administrator("a", SealRequested(1, LOG, reopen=True, declared_end=5)),
        coordinator(),
        dead="n3",
        sometimes=("LogBlocked", "LogUnblocked"),
        monitors=(BlockedWithdrawn(),),
    )


def two_coordinators() -> Scenario:
    return scenario(
        "two-coordinators",
        "two coordinators do the same duties at once, on an old and a new view",
        _ended(repaired=False),
        coordinator("k1"),
        coordinator("k2"),
        clock("n2"),
        faults=Faults(early_timer=2),
        sometimes=("StreamFinalized", "MemberRemoved"),
        records={"n1": _kept("1.0.0"), "n2": _kept("1.0.1")},
    )


def first_writer() -> Scenario:
    return scenario(
        "first-writer",
        "a new broadcast log is nobody's: its first writer takes it without being asked to",
        None,
        administrator("a", CreateLog(1, LOG, BROADCAST2)),
        writer("w1", None, *appends(1)),
        reader("r", None),
        sometimes=("Created", "Appended", "AppendRefused"),
        finishing=False,
    )


def forget() -> Scenario:
    """Segment 0 is trimmed away: it leaves the projection, and its streams are dropped for ever."""
    log = _ended(repaired=True)
    late = _ended(repaired=True)
    return scenario(
        "forget",
        "a trimmed segment is forgotten and its streams are dropped, under a late reader",
        log,
        administrator("a", TrimRequested(1, LOG, 1)),
        coordinator(),
        reader("r", late),
        faults=Faults(duplicate=1, early_timer=2),
        lossy="n1",
        sometimes=("Projected", "EntriesRead", "PositionsSkipped"),
        records={"n1": _kept("1.0.0", ended=True), "n2": _kept("1.0.1", ended=True)},
    )


def dropped_streams() -> Scenario:
    """A client that slept since segment 0 was open finds its streams gone, and may not make them again."""
    log = _ended(repaired=True)
    return scenario(
        "dropped-streams",
        "a client that slept for long meets streams that were dropped",
        log,
        administrator("a", TrimRequested(1, LOG, 1)),
        coordinator(),
        appender("c1", PAIR, *appends(1)),
        faults=Faults(early_timer=2),
        sometimes=("Projected", "Committed"),
        records={"n1": _kept("1.0.0", ended=True), "n2": _kept("1.0.1", ended=True)},
        granted={"n3": 2},
    )


def leftovers() -> Scenario:
    """Segment 0 is trimmed away. Whoever coordinates must find out what is left of it, and spare what is new."""
    log = apply(_ended(repaired=True), RaiseTrim(1))
    return scenario(
        "leftovers",
        "the coordinator dies between forgetting a segment and dropping its streams, while a client ends another",
        log,
        coordinator(),
        appender("c1", log, *appends(1)),
        faults=Faults(crash=1, restart=1, early_timer=2),
        crashable="coordinator",
        sometimes=("Projected", "StreamDropped", "Committed"),
        records={"n1": _kept("1.0.0", ended=True), "n2": _kept("1.0.1", ended=True)},
        tidy=True,
    )


def delete() -> Scenario:
    return scenario(
        "delete",
        "a log is deleted while it is appended to and read; afterwards nothing is left of it",
        PAIR,
        administrator("a", DeleteRequested(1, LOG), CreateLog(2, LOG, CHAIN2)),
        appender("c1", PAIR, *appends(1)),
        reader("r", PAIR),
        coordinator(),
        faults=Faults(early_timer=1),
        sometimes=("Deleted", "CreateRefused", "AppendRefused", "RequestRefused", "EntriesRead", "DutiesOver"),
        tidy=True,
        monitors=(DutiesEnd(PAIR),),
    )


def delete_absent() -> Scenario:
    return scenario(
        "delete-absent",
        "a log is deleted while a node with a copy is absent: its duties go on, for the node may come back",
        PAIR,
        administrator("a", DeleteRequested(1, LOG)),
        coordinator(),
        dead="n2",
        faults=Faults(early_timer=1),
        sometimes=("Deleted", "StreamDropped"),
        tidy=True,
        monitors=(DutiesEnd(PAIR, absent=("n2",)),),
    )


def create() -> Scenario:
    return scenario(
        "create",
        "a log is created on registered nodes, written and read by clients that begin with nothing",
        None,
        administrator("a", CreateLog(1, LOG, CHAIN2)),
        appender("c1", None, *appends(1)),
        reader("r", None),
        sometimes=("Projected", "Completed"),
        finishing=False,
    )


def create_race() -> Scenario:
    other = Settings(CHAIN2.policy, replicas=3)
    return scenario(
        "create-race",
        "two operators create the log with different settings: one wins, the other is told",
        None,
        administrator("a1", CreateLog(1, LOG, CHAIN2)),
        administrator("a2", CreateLog(1, LOG, other)),
        administrator("a3", CreateLog(1, LOG, CHAIN2)),
        faults=Faults(loss=1),
        lossy="meta",
        sometimes=("Projected", "Created", "CreateRefused"),
        finishing=False,
    )


def broadcast_finish() -> Scenario:
    log = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
    return scenario(
        "broadcast-finish",
        "segments of a broadcast log are finalized by the coordinator after a roll and a takeover",
        log,
        writer("w1", log, *appends(1)),
        writer("w2", log, *appends(2, takeover=True)),
        coordinator(),
        faults=Faults(early_timer=2),
        sometimes=("StreamFinalized", "Committed"),
    )


def broadcast_dead_member() -> Scenario:
    log = broadcast_log(BROADCAST2, "n1 n2", owner="w1")
    return scenario(
        "broadcast-dead-member",
        "a broadcast segment with a dead member is ended for its owner, who goes on in the next",
        log,
        writer("w1", log, *appends(1)),
        coordinator(),
        dead="n2",
        faults=Faults(early_timer=1),
        sometimes=("Projected", "Committed", "MemberRebuilt"),
    )


DUTIES_SCENARIOS = (
    create,
    create_race,
    finalize,
    finish_segment,
    repair_race,
    sequencer_replaced,
    dead_member,
    rebuild,
    scrub,
    abandoned_joiner,
    widen,
    draining,
    blocked_ending,
    declared_loss,
    blocked_resolved,
    two_coordinators,
    first_writer,
    forget,
    dropped_streams,
    leftovers,
    delete,
    delete_absent,
    broadcast_finish,
    broadcast_dead_member,
)
