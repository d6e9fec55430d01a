"""Scenarios of upkeep: copies are kept, rebuilt and freed while nodes are down, silent or full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from trunkline.check.monitors.upkeep import LastCopy, PatienceKept, RepairedAlike, Upkeep
from trunkline.check.scenario import Boot, Faults, ProcessSpec, Scenario
from trunkline.check.scenarios import cluster
from trunkline.check.scenarios.cluster import (
    CHAIN1,
    LOG,
    STRIPED,
    appender,
    appends,
    chain_log,
    clock,
    coordinator,
    on_nodes,
    reader,
)
from trunkline.check.scenarios.segments import CHAIN, ended, entry, sealed
from trunkline.core.effects import Address, Effects, Send
from trunkline.core.entries import FrameKind
from trunkline.core.messages import Reason, Rejected, Write
from trunkline.core.projection import RaiseTrim, apply
from trunkline.core.role import Role
from trunkline.core.storage import FramesDamaged, StorageNode
from trunkline.core.streams import Stream

scenario = partial(cluster.scenario, finishing=True)


def drain_beside_dead() -> Scenario:
    """One copy is required. It is on n2, so n1 may leave; but n2 is down for a while."""
    log = ended(chain_log(CHAIN1, "n1 n2", sequencer="n3"), 2, "n3", repaired=True)
    built = scenario(
        "drain-beside-dead",
        "a node is drained while the only other node with a copy is down and may restart",
        log,
        coordinator(absent_ms=1),
        draining="n1",
        dead="n2",
        faults=Faults(restart=1),
        sometimes=("NodeGivenUp", "MemberRemoved"),
        records={"n1": sealed("1.0.0", 1, end=2), "n2": sealed("1.0.1", 1, end=2)},
    )
    return replace(built, stays_down=())


def restart_in_time() -> Scenario:
    """Segment 0 is on n1 and n2; n3 could hold a copy."""
    log = ended(CHAIN, 2, "n1 n3", repaired=True)
    return scenario(
        "restart-in-time",
        "a node loses its lease and returns: in time it keeps its places; later, copies are rebuilt",
        log,
        coordinator(absent_ms=1),
        clock("n2"),
        faults=Faults(crash=1, restart=1, early_timer=1),
        crashable="n2",
        sometimes=("LeaseLost", "NodeGivenUp", "MemberRemoved", "MemberRebuilt"),
        records={"n1": sealed("1.0.0", 1, end=2), "n2": sealed("1.0.1", 1, end=2)},
        monitors=(PatienceKept(log), Upkeep(log, width=2)),
    )


def witness_away() -> Scenario:
    """Segment 0 is on n3 and unrepaired; segment 1 is on n1, whose lease outlives it, and on n2, which is dead."""
    first = ended(chain_log(CHAIN1, "n3", sequencer="n3"), 2, "n1 n2")
    log = ended(first, 3, "n3", repaired=True)
    return scenario(
        "witness-away",
        "a member is dead, and the witness for its removal fails after it reported that it is intact",
        log,
        coordinator(),
        dead="n2",
        faults=Faults(crash=1, restart=1),
        crashable="n1",
        sometimes=("MemberRemoved",),
        records={"n1": sealed("2.0.0", 2, end=3), "n2": sealed("2.0.1", 2, end=3), "n3": sealed("1.0.0", 1)},
    )


def silent_node() -> Scenario:
    """Segment 0 is on n1 and n2, segment 1 on n1 and n3. When n2 stops, its lease is still valid."""
    log = ended(ended(CHAIN, 2, "n1 n3"), 3, "n1 n3")
    return cluster.scenario(
        "silent-node",
        "a node with a valid lease that does not answer does not delay the coordinator's other duties",
        log,
        coordinator(),
        faults=Faults(crash=1),
        crashable="n2",
        stays_down="n2",
        sometimes=("StreamFinalized", "ValueCarried", "Projected"),
        records={
            "n1": sealed("1.0.0", 1) + sealed("2.0.0", 2),
            "n2": sealed("1.0.1", 1),
            "n3": sealed("2.0.1"),
        },
        monitors=(LastCopy(log), RepairedAlike(log), Upkeep(log, repaired=(1,))),
    )


def silent_joiner() -> Scenario:
    """Segment 0 has one copy left; of the nodes that could hold another, n2 never answers."""
    log = ended(CHAIN, 2, "n1 n3", survivors="n1", repaired=True)
    return cluster.scenario(
        "silent-joiner",
        "a joiner whose node has a lease but never answers is replaced by another",
        log,
        coordinator(),
        nodes="n1 n2 n3",
        silent="n2",
        sometimes=("MemberRemoved", "MemberRebuilt"),
        records={"n1": sealed("1.0.0", 1, end=2)},
        monitors=(LastCopy(log, ("n2",)), Upkeep(log, width=2)),
    )


def rebuild_spans() -> Scenario:
    log = ended(CHAIN, 4, "n1 n3", survivors="n1", repaired=True)
    return scenario(
        "rebuild-spans",
        "a segment is copied position by position, while messages are lost and doubled",
        log,
        coordinator(span=1),
        faults=Faults(loss=1, duplicate=1),
        lossy="n2",
        sometimes=("MemberRebuilt",),
        records={"n1": sealed("1.0.0", 1, 2, 3, end=4)},
        monitors=(Upkeep(log, width=2),),
    )


def repair_spans() -> Scenario:
    """Position 1 is on the head alone, 2 is a hole, 3 is on both, 4 is on the head alone."""
    log = ended(CHAIN, 5, "n1 n3")
    return scenario(
        "repair-spans",
        "a segment is repaired two positions at a time, while messages are lost and doubled",
        log,
        coordinator(span=2),
        faults=Faults(loss=1, duplicate=1),
        lossy="n2",
        sometimes=("ValueCarried", "HoleFilled"),
        records={"n1": sealed("1.0.0", 1, 3, 4), "n2": sealed("1.0.1", 3)},
        monitors=(Upkeep(log, width=2),),
    )


def groups_restored() -> Scenario:
    """Positions 1 and 3 are on n1 and n2, positions 2 and 4 on n2 and n3. 1 is on its head alone, 2 is a hole."""
    log = ended(chain_log(STRIPED, "n1 n2", "n2 n3", sequencer="n3"), 5, "n2 n3", "n3 n2")
    return scenario(
        "groups-restored",
        "a segment of two groups is repaired and rebuilt when a member of one group fails",
        log,
        coordinator(span=3),
        clock("n1"),
        faults=Faults(crash=1),
        crashable="n1",
        stays_down="n1",
        sometimes=("ValueCarried", "HoleFilled", "MemberRemoved", "MemberRebuilt"),
        records={
            "n1": sealed("1.0.0", 1, 3),
            "n2": sealed("1.0.1", 3) + sealed("1.1.0", 4),
            "n3": sealed("1.1.1", 4),
        },
        monitors=(Upkeep(log, width=2),),
    )


def trim_groups() -> Scenario:
    """Segment 0 is trimmed, segment 1 in part. Both have two groups, and position 5 is on its head alone."""
    first = ended(chain_log(STRIPED, "n1 n2", "n2 n3", sequencer="n3"), 3, "n1 n2", "n2 n3", repaired=True)
    log = apply(ended(first, 7, "n2 n3", "n3 n2"), RaiseTrim(3))
    return scenario(
        "trim-groups",
        "one segment of two groups is trimmed, another in part: what is left is repaired, the rest is freed",
        log,
        coordinator(span=2),
        faults=Faults(loss=1),
        lossy="n2",
        sometimes=("StreamTrimmed", "StreamDropped", "ValueCarried", "HoleFilled"),
        records={
            "n1": sealed("1.0.0", 1, end=3) + sealed("2.0.0", 3, 5),
            "n2": sealed("1.0.1", 1, end=3) + sealed("1.1.0", 2, end=3) + sealed("2.0.1", 3) + sealed("2.1.0", 4),
            "n3": sealed("1.1.1", 2, end=3) + sealed("2.1.1", 4),
        },
        monitors=(Upkeep(log, width=2, freed=True),),
        tidy=True,
    )


class NoRoomForCopies(StorageNode):
    """A node whose disk has no space left for a copy."""

    def _on_write(self, source: Address, stream: Stream, message: Write) -> Effects:
        if message.repair and message.frame.kind is FrameKind.DATA:
            return [Send(source, Rejected(stream.id, message.frame.first, Reason.NO_SPACE))]
        return super()._on_write(source, stream, message)


def without_room(spec: ProcessSpec) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        node = NoRoomForCopies(cluster.CLUSTER, boot.process, boot.incarnation, boot.durable)
        return {**spec.start(boot), "storage": node}

    return replace(spec, start=start)


def full_joiner() -> Scenario:
    """Segment 0 is on n1 and n2, which fails. Of the nodes that could hold a copy, n3 has no space and n4 has."""
    log = ended(CHAIN, 3, "n1 n4", repaired=True)
    built = scenario(
        "full-joiner",
        "a node refuses a copy for lack of space: another node takes it",
        log,
        coordinator(),
        clock("n2"),
        nodes="n1 n2 n3 n4",
        faults=Faults(crash=1, duplicate=1),
        crashable="n2",
        lossy="n3",
        stays_down="n2",
        sometimes=("MemberRemoved", "MemberRebuilt"),
        records={"n1": sealed("1.0.0", 1, 2, end=3), "n2": sealed("1.0.1", 1, 2, end=3)},
        monitors=(Upkeep(log, width=2),),
    )
    return on_nodes(built, "n3", without_room)


def empty_segments() -> Scenario:
    """Segments 1 and 2 are empty: they leave the projection while a client takes segment 1 for the open one."""
    known = ended(CHAIN, 2, "n1 n3", repaired=True)
    log = ended(ended(known, 2, "n1 n3"), 2, "n1 n3")
    return scenario(
        "empty-segments",
        "empty segments leave the projection while clients sleep in one of them",
        log,
        coordinator(),
        appender("c1", known, *appends(1)),
        reader("r", known),
        faults=Faults(early_timer=1),
        sometimes=("Committed", "EntriesRead", "StreamDropped"),
        records={
            "n1": sealed("1.0.0", 1, end=2) + sealed("2.0.0") + sealed("4.0.0"),
            "n2": sealed("1.0.1", 1, end=2),
            "n3": sealed("2.0.1") + sealed("4.0.1"),
        },
        monitors=(Upkeep(log, segments_max=3),),
        tidy=True,
    )


def long_map() -> Scenario:
    """A poll examines one segment of three. All must be finished, and position 2 is on its head alone."""
    log = ended(ended(ended(CHAIN, 2, "n1 n2"), 3, "n1 n2"), 4, "n1 n3")
    return scenario(
        "long-map",
        "a long projection is examined a part at a time, and all of it in the end",
        log,
        coordinator(examined_max=1),
        faults=Faults(loss=1),
        lossy="n2",
        sometimes=("StreamFinalized", "ValueCarried"),
        records={
            "n1": sealed("1.0.0", 1) + sealed("2.0.0", 2) + sealed("3.0.0", 3),
            "n2": sealed("1.0.1", 1) + sealed("2.0.1") + sealed("3.0.1", 3),
        },
        monitors=(Upkeep(log, width=2),),
    )


def long_map_scrub() -> Scenario:
    """A poll examines one segment of three; at some moment n2 finds that it lost its entries of segment 1."""
    log = ended(ended(CHAIN, 2, "n1 n2", repaired=True), 3, "n1 n3", repaired=True)
    return scenario(
        "long-map-scrub",
        "damage in the middle of a long projection, examined a part at a time, is found and repaired",
        log,
        coordinator(examined_max=1),
        sometimes=("StreamDamaged", "MemberRemoved", "MemberRebuilt"),
        records={
            "n1": sealed("1.0.0", 1, end=2) + sealed("2.0.0", 2, end=3),
            "n2": sealed("1.0.1", 1, end=2) + sealed("2.0.1", 2, end=3),
        },
        scrubs={"n2": FramesDamaged((LOG, "2.0.1"), (entry(2),))},
        monitors=(Upkeep(log, width=2),),
    )


UPKEEP_SCENARIOS = (
    drain_beside_dead,
    restart_in_time,
    witness_away,
    silent_node,
    silent_joiner,
    rebuild_spans,
    repair_spans,
    groups_restored,
    trim_groups,
    full_joiner,
    empty_segments,
    long_map,
    long_map_scrub,
)
