"""Scenarios of several holes at a time: runs that are filled at once, also while slow clients still write.

And of readers with an old projection, or with answers that are out of date.
"""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.check.disks import NoDisk
from trunkline.check.scenario import Boot, FreeTimer, OperationEnd, ProcessSpec, Scenario
from trunkline.check.scenarios.cluster import (
    LOG,
    STRIPED,
    appender,
    appends,
    chain_log,
    peeker,
    reader,
    scenario,
    tail_finder,
)
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.check.scenarios.segments import CHAIN, ended, entry, sealed, stored
from trunkline.core.effects import Address, Effects, Message, Send
from trunkline.core.entries import junk
from trunkline.core.messages import Write, descriptor_of, target_of
from trunkline.core.projection import EndSegment, ForgetSegment, RaiseTrim, RemoveMember, apply
from trunkline.core.role import Role
from trunkline.core.streams import FrameWritten, StreamOpened, StreamSealing


def run_of_holes() -> Scenario:
    """Positions 1 to 3 were granted to a client that died; position 2 is on the head."""
    return scenario(
        "run-of-holes",
        "a dead client left three positions, one of them on the head; two readers settle them during an append",
        CHAIN,
        appender("c1", CHAIN, *appends(1)),
        reader("r1", CHAIN, until=4),
        reader("r2", CHAIN, until=3),
        granted={"n3": 4},
        records={"n1": stored("1.0.0", 2)},
        sometimes=("HoleFilled", "ValueCarried", "Committed", "EntriesRead"),
    )


def run_beside_writer() -> Scenario:
    """An impatient reader fills a run while the client that got its positions still writes."""
    return scenario(
        "run-beside-writer",
        "a batch of two is in flight while a reader fills its positions",
        CHAIN,
        appender("c1", CHAIN, *appends(1, count=2)),
        reader("r", CHAIN, until=2),
        free_timers=(FreeTimer("r", "reader", count=1),),
        sometimes=("HoleFilled", "Committed", "EntriesRead"),
    )


def striped_run() -> Scenario:
    """Two groups with stripe units of one position: a run of holes alternates between them."""
    log = chain_log(STRIPED, "n1 n2", "n2 n1", sequencer="n3")
    return scenario(
        "striped-run",
        "a dead client left positions of two groups; a reader settles them during an append",
        log,
        appender("c1", log, *appends(1)),
        reader("r", log, until=3),
        granted={"n3": 3},
        records={"n1": stored("1.1.1", 2), "n2": stored("1.1.0", 2)},
        sometimes=("HoleFilled", "Committed", "EntriesRead"),
    )


def stale_fill() -> Scenario:
    """Segment 0 ended at 3. Position 1 was on the head of its group alone, and the head was removed while it was down.
    Clients with the newer projection have begun to fill it. Now the head is back, for readers with the older one.
    """
    open_log = chain_log(STRIPED, "n1 n2 n3", "n2 n3", sequencer="n3")
    old = ended(open_log, 3, "n2", "n3")
    new = apply(old, RemoveMember(0, "1.0.0"))
    head = descriptor_of(old, old.segments[0], old.segments[0].groups[0][0])
    second = (LOG, "1.0.1")
    return scenario(
        "stale-fill",
        "a reader settles a position by an old projection, whose head has been removed since",
        new,
        reader("r1", old, until=2),
        reader("r2", new, until=2),
        records={
            "n1": (StreamOpened(head), *sealed("1.0.0", 1)),
            "n2": (FrameWritten(second, junk(1)), StreamSealing(second), *sealed("1.1.0", 2)),
            "n3": (*sealed("1.0.2"), *sealed("1.1.1", 2)),
        },
        sometimes=("HoleFilled", "EntriesRead"),
    )


class LateWrite(PassiveRole):
    """The write of a client that has left, still in flight."""

    def __init__(self, to: str, write: Write) -> None:
        self.to = to
        self.write = write

    def on_start(self) -> Effects:
        return [Send(Address(self.to, "storage"), self.write)]

    def on_message(self, source: Address, message: Message) -> Effects:
        return []


def late_view() -> Scenario:
    """A reader waits at the last member of segment 0, asks for the projection, and receives a pushed batch first.
    Meanwhile the log has continued without that member, was trimmed, and segment 0 is forgotten.
    """
    last = CHAIN.last.members()[1]
    after = ended(CHAIN, 2, "n1", owner="n1", survivors="n1")
    now = apply(apply(after, RaiseTrim(1)), ForgetSegment(0))

    def start(boot: Boot) -> Mapping[str, Role]:
        return {"appender": LateWrite("n2", Write(target_of(CHAIN, CHAIN.last, last), entry(1)))}

    return scenario(
        "late-view",
        "a reader gets a pushed batch and then a projection that has forgotten the segment of that batch",
        now,
        ProcessSpec("c1", start, NoDisk(), None),
        reader("r", CHAIN, push=True),
        records={"n2": (StreamOpened(descriptor_of(CHAIN, CHAIN.last, last)),)},
        free_timers=(FreeTimer("r", "reader", count=2),),
        sometimes=("EntriesRead", "FollowedSegment"),
    )


def tail_of_groups() -> Scenario:
    log = chain_log(STRIPED, "n1", "n2", sequencer="n3")
    return scenario(
        "tail-of-groups",
        "tail calls during appends to two groups never miss an acknowledged entry",
        log,
        appender("c1", log, *appends(1, 2)),
        tail_finder("t", after=(OperationEnd("c1", 2),)),
        sometimes=("Committed", "TailIs"),
    )


def peek_at_closed() -> Scenario:
    """The owner of the last segment has stopped."""
    closed = apply(CHAIN, EndSegment(0, 1, CHAIN.last.groups, None))
    return scenario(
        "peek-at-closed",
        "the next position of a closed log, whose sequencer is down",
        closed,
        peeker("p"),
        dead="n3",
        sometimes=("PeekIs",),
    )


HOLE_SCENARIOS = (
    run_of_holes,
    run_beside_writer,
    striped_run,
    stale_fill,
    late_view,
    tail_of_groups,
    peek_at_closed,
)
