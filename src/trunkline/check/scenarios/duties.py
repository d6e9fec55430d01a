"""Scenarios of the coordinator's duties and of an operator's: finish, repair, replace, rebuild, create."""

from __future__ import annotations

from functools import partial

from trunkline.check.monitors.upkeep import BlockedWithdrawn, DutiesEnd
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios import cluster
from trunkline.check.scenarios.cluster import (
    BROADCAST2,
    CHAIN1,
    CHAIN2,
    CHAIN3,
    LOG,
    administrator,
    appender,
    appends,
    chain_log,
    clock,
    coordinator,
    reader,
    writer,
)
from trunkline.check.scenarios.segments import BROADCAST, CHAIN, ended, entry, half_written, sealed
from trunkline.core.calls import CreateLog, DeleteRequested, SealRequested, TrimRequested
from trunkline.core.projection import AddJoiner, RaiseTrim, Seat, apply
from trunkline.core.storage import FramesDamaged

scenario = partial(cluster.scenario, finishing=True)


def finish_segment() -> Scenario:
    log, records = half_written()
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
    """Nothing needs repair, so only the coordinator sends the end to the nodes."""
    return scenario(
        "finalize",
        "the coordinator finalizes every member of an ended segment although messages are lost",
        ended(CHAIN, 2, "n1 n3"),
        coordinator(),
        faults=Faults(loss=2),
        lossy="n1 n2",
        sometimes=("StreamFinalized", "Projected"),
        records={"n1": sealed("1.0.0", 1), "n2": sealed("1.0.1", 1)},
    )


def repair_race() -> Scenario:
    log, records = half_written()
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
        "the coordinator ends the segment of a sequencer whose lease expired, while a client appends",
        CHAIN,
        coordinator(),
        clock("n3"),
        appender("c1", CHAIN, *appends(1)),
        faults=Faults(crash=1),
        crashable="n3",
        sometimes=("LeaseLost", "Projected", "Committed"),
    )


def dead_member() -> Scenario:
    return scenario(
        "dead-member",
        "a member of an ended, unrepaired segment fails and is removed, so that repair and a reader can finish",
        ended(CHAIN, 2, "n1 n3"),
        coordinator(),
        reader("r", ended(CHAIN, 2, "n1 n3")),
        clock("n2"),
        faults=Faults(crash=1),
        crashable="n2",
        stays_down="n2",
        sometimes=("MemberRemoved", "Projected", "EntriesRead"),
        records={"n1": sealed("1.0.0", 1), "n2": sealed("1.0.1", 1)},
    )


def rebuild() -> Scenario:
    log = ended(CHAIN, 2, "n1 n3", survivors="n1", repaired=True)
    return scenario(
        "rebuild",
        "a repaired segment with one replica left is copied to another node, which may crash and restart",
        log,
        coordinator(),
        faults=Faults(crash=1, restart=1),
        crashable="n2 n3 coordinator",
        sometimes=("MemberRebuilt", "Projected"),
        records={"n1": sealed("1.0.0", 1, end=2)},
    )


def scrub() -> Scenario:
    """A running node finds that it lost an entry of a finished segment."""
    return scenario(
        "scrub",
        "a running node finds damage in a finished segment; the coordinator replaces the stream",
        ended(CHAIN, 2, "n1 n3", repaired=True),
        coordinator(),
        faults=Faults(crash=1, restart=1, duplicate=1),
        crashable="n2",
        lossy="n2",
        sometimes=("StreamDamaged", "MemberRemoved", "MemberRebuilt"),
        records={"n1": sealed("1.0.0", 1, end=2), "n2": sealed("1.0.1", 1, end=2)},
        scrubs={"n2": FramesDamaged((LOG, "1.0.1"), (entry(1),))},
    )


def abandoned_joiner() -> Scenario:
    log = apply(ended(CHAIN, 2, "n1 n3", survivors="n1", repaired=True), AddJoiner(0, 0, Seat("n4", 1)))
    return scenario(
        "abandoned-joiner",
        "a joiner whose node failed is removed, and another node takes its place",
        log,
        coordinator(),
        nodes="n1 n2 n3 n4",
        dead="n4",
        faults=Faults(loss=1),
        lossy="n1 n2",
        sometimes=("MemberRemoved", "MemberRebuilt"),
        records={"n1": sealed("1.0.0", 1, end=2)},
    )


def widen() -> Scenario:
    log = chain_log(CHAIN3, "n1 n2", sequencer="n1")
    return scenario(
        "widen",
        "a log with too few replicas gets a wider segment when a node is available",
        log,
        coordinator(),
        appender("c1", log, *appends(1)),
        sometimes=("Projected", "Committed"),
    )


def draining() -> Scenario:
    return scenario(
        "draining",
        "a draining node leaves the open segment and is not in the next",
        CHAIN,
        coordinator(),
        appender("c1", CHAIN, *appends(1, 2)),
        draining="n2",
        sometimes=("Projected", "Committed"),
    )


def blocked_ending() -> Scenario:
    """The open segment's only member is down, so it cannot end; older segments are still finished."""
    _, records = half_written()
    return scenario(
        "blocked-ending",
        "an ending that is blocked forever does not delay the coordinator's other duties",
        ended(CHAIN, 4, "n3", owner="n1"),
        coordinator(),
        dead="n3",
        sometimes=("ReconfigurationBlocked", "StreamFinalized", "ValueCarried"),
        records=records,
    )


def declared_loss() -> Scenario:
    """The only replica is lost. Once an operator declares the loss, the log continues and readers see the gap."""
    log = chain_log(CHAIN1, "n3", sequencer="n1")
    return scenario(
        "declared-loss",
        "the last replica of a segment is lost; an operator declares the loss and the log continues",
        log,
        administrator("a", SealRequested(1, LOG, reopen=True, declared_end=5)),
        appender("c1", log, *appends(1, 2)),
        reader("r", log),
        dead="n3",
        sometimes=("ReconfigurationBlocked", "PositionsSkipped", "Committed"),
        finishing=False,
    )


def blocked_resolved() -> Scenario:
    """The only replica is lost: the coordinator announces the log as blocked until an operator declares the loss."""
    log = chain_log(CHAIN1, "n3", sequencer="n1")
    return scenario(
        "blocked-resolved",
        "a log is announced as blocked while it is blocked",
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
        "two coordinators perform the same duties at once, with an old and a new projection",
        ended(CHAIN, 2, "n1 n3"),
        coordinator("k1"),
        coordinator("k2"),
        clock("n2"),
        faults=Faults(early_timer=2),
        sometimes=("StreamFinalized", "MemberRemoved"),
        records={"n1": sealed("1.0.0", 1), "n2": sealed("1.0.1", 1)},
    )


def first_writer() -> Scenario:
    return scenario(
        "first-writer",
        "a new broadcast log has no owner: its first writer takes it without asking for a take-over",
        None,
        administrator("a", CreateLog(1, LOG, BROADCAST2)),
        writer("w1", None, *appends(1)),
        reader("r", None),
        sometimes=("Created", "Appended", "AppendRefused"),
        finishing=False,
    )


def forget() -> Scenario:
    """Segment 0 is trimmed: it leaves the projection, and its streams are dropped for good."""
    log = ended(CHAIN, 2, "n1 n3", repaired=True)
    return scenario(
        "forget",
        "a trimmed segment is forgotten and its streams are dropped while a slow reader reads it",
        log,
        administrator("a", TrimRequested(1, LOG, 1)),
        coordinator(),
        reader("r", log),
        faults=Faults(duplicate=1, early_timer=2),
        lossy="n1",
        sometimes=("Projected", "EntriesRead", "PositionsSkipped"),
        records={"n1": sealed("1.0.0", 1, end=2), "n2": sealed("1.0.1", 1, end=2)},
    )


def dropped_streams() -> Scenario:
    """A client that slept since segment 0 was open must not create its dropped streams again."""
    log = ended(CHAIN, 2, "n1 n3", repaired=True)
    return scenario(
        "dropped-streams",
        "a client that slept for long meets dropped streams",
        log,
        administrator("a", TrimRequested(1, LOG, 1)),
        coordinator(),
        appender("c1", CHAIN, *appends(1)),
        faults=Faults(early_timer=2),
        sometimes=("Projected", "Committed"),
        records={"n1": sealed("1.0.0", 1, end=2), "n2": sealed("1.0.1", 1, end=2)},
        granted={"n3": 2},
    )


def leftovers() -> Scenario:
    """Segment 0 is trimmed. The next coordinator must find its leftovers and spare newer streams."""
    log = apply(ended(CHAIN, 2, "n1 n3", repaired=True), RaiseTrim(1))
    return scenario(
        "leftovers",
        "the coordinator fails between forgetting a segment and dropping its streams, while a client ends another",
        log,
        coordinator(),
        appender("c1", log, *appends(1)),
        faults=Faults(crash=1, restart=1, early_timer=2),
        crashable="coordinator",
        sometimes=("Projected", "StreamDropped", "Committed"),
        records={"n1": sealed("1.0.0", 1, end=2), "n2": sealed("1.0.1", 1, end=2)},
        tidy=True,
    )


def delete() -> Scenario:
    return scenario(
        "delete",
        "a log is deleted while clients append and read; afterwards nothing is left of it",
        CHAIN,
        administrator("a", DeleteRequested(1, LOG), CreateLog(2, LOG, CHAIN2)),
        appender("c1", CHAIN, *appends(1)),
        reader("r", CHAIN),
        coordinator(),
        faults=Faults(early_timer=1),
        sometimes=("Deleted", "CreateRefused", "AppendRefused", "RequestRefused", "EntriesRead", "DutiesOver"),
        tidy=True,
        monitors=(DutiesEnd(CHAIN),),
    )


def delete_absent() -> Scenario:
    return scenario(
        "delete-absent",
        "a log is deleted while a node with a copy is down: its duties continue, as the node may return",
        CHAIN,
        administrator("a", DeleteRequested(1, LOG)),
        coordinator(),
        dead="n2",
        faults=Faults(early_timer=1),
        sometimes=("Deleted", "StreamDropped"),
        tidy=True,
        monitors=(DutiesEnd(CHAIN, absent=("n2",)),),
    )


def create() -> Scenario:
    return scenario(
        "create",
        "a log is created on registered nodes, written and read by clients without a projection",
        None,
        administrator("a", CreateLog(1, LOG, CHAIN2)),
        appender("c1", None, *appends(1)),
        reader("r", None),
        sometimes=("Projected", "Completed"),
        finishing=False,
    )


def create_race() -> Scenario:
    return scenario(
        "create-race",
        "operators create the log with different settings: one wins, the other is refused",
        None,
        administrator("a1", CreateLog(1, LOG, CHAIN2)),
        administrator("a2", CreateLog(1, LOG, CHAIN3)),
        administrator("a3", CreateLog(1, LOG, CHAIN2)),
        faults=Faults(loss=1),
        lossy="meta",
        sometimes=("Projected", "Created", "CreateRefused"),
        finishing=False,
    )


def broadcast_finish() -> Scenario:
    return scenario(
        "broadcast-finish",
        "the coordinator finalizes segments of a broadcast log after a roll and a take-over",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
        writer("w2", BROADCAST, *appends(2, takeover=True)),
        coordinator(),
        faults=Faults(early_timer=2),
        sometimes=("StreamFinalized", "Committed"),
    )


def broadcast_dead_member() -> Scenario:
    return scenario(
        "broadcast-dead-member",
        "a broadcast segment with a dead member is ended for its owner, which continues in the next",
        BROADCAST,
        writer("w1", BROADCAST, *appends(1)),
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
