"""Walk-throughs of holes, more than one at a time: runs that are filled at once, also beside writers that are late.

And of readers that come late themselves: their map is old, and what they are told was true before.
"""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.check.disks import NoDisk
from trunkline.check.scenario import Boot, FreeTimer, OperationEnd, ProcessSpec, Scenario
from trunkline.check.scenarios.cluster import (
    CHAIN2,
    LOG,
    appender,
    appends,
    chain_log,
    peeker,
    reader,
    scenario,
    tail_finder,
)
from trunkline.core.effects import Address, Effects, Message, Record, Send
from trunkline.core.entries import Frame, FrameKind, junk
from trunkline.core.messages import Write, descriptor_of, target_of
from trunkline.core.projection import (
    EndSegment,
    ForgetSegment,
    Opening,
    Owner,
    Policy,
    RaiseTrim,
    RemoveMember,
    Seat,
    Settings,
    apply,
)
from trunkline.core.role import Role
from trunkline.core.streams import FrameWritten, StreamOpened, StreamSealing

PAIR = chain_log(CHAIN2, "n1 n2", sequencer="n3")
STRIPED = Settings(Policy.CHAIN, replicas=2, groups=2, stripe_unit=1)


def run_of_holes() -> Scenario:
    """Positions 1 to 3 were handed out to a writer that died; position 2 is on the head."""
    second = Frame(2, 1, FrameKind.DATA, "old#1", 2, 100)
    return scenario(
        "run-of-holes",
        "a dead writer left three positions, one of them on the head; two readers settle them beside a writer",
        PAIR,
        appender("c1", PAIR, *appends(1)),
        reader("r1", PAIR, until=4),
        reader("r2", PAIR, until=3),
        granted={"n3": 4},
        records={"n1": (FrameWritten((LOG, "1.0.0"), second),)},
        sometimes=("HoleFilled", "ValueCarried", "Committed", "EntriesRead"),
    )


def run_beside_writer() -> Scenario:
    """A reader that does not wait long enough fills a run while the writer of its positions is at work."""
    return scenario(
        "run-beside-writer",
        "a batch of two is on its way while a reader fills its positions",
        PAIR,
        appender("c1", PAIR, *appends(1, count=2)),
        reader("r", PAIR, until=2),
        free_timers=(FreeTimer("r", "reader", count=1),),
        sometimes=("HoleFilled", "Committed", "EntriesRead"),
    )


def striped_run() -> Scenario:
    """Two groups with units of one position: a run of holes belongs to both by turns."""
    log = chain_log(STRIPED, "n1 n2", "n2 n1", sequencer="n3")
    return scenario(
        "striped-run",
        "a dead writer left positions of two groups; a reader settles them beside a writer",
        log,
        appender("c1", log, *appends(1)),
        reader("r", log, until=3),
        granted={"n3": 3},
        records={"n1": (FrameWritten((LOG, "1.1.1"), Frame(2, 1, FrameKind.DATA, "old#1", 2, 100)),), "n2": _second()},
        sometimes=("HoleFilled", "Committed", "EntriesRead"),
    )


def _second() -> tuple[Record, ...]:
    return (FrameWritten((LOG, "1.1.0"), Frame(2, 1, FrameKind.DATA, "old#1", 2, 100)),)


def stale_fill() -> Scenario:
    """Segment 0 ended at 3. Position 1 was on the head of its group alone, and the head was removed while it was away.
    Whoever has the newer map has begun to make it a hole. Now the head is back, for readers with the older map.
    """
    open_log = chain_log(STRIPED, "n1 n2 n3", "n2 n3", sequencer="n3")
    opening = Opening(((Seat("n2", 1),), (Seat("n3", 1),)), Owner("n3", 1))
    old = apply(open_log, EndSegment(0, 3, open_log.last.groups, opening))
    new = apply(old, RemoveMember(0, "1.0.0"))
    first, second = Frame(1, 1, FrameKind.DATA, "old#1", 1, 100), Frame(2, 1, FrameKind.DATA, "old#1", 2, 101)

    def kept(stream: str, *frames: Frame) -> tuple[Record, ...]:
        key = (LOG, stream)
        return (*(FrameWritten(key, frame) for frame in frames), StreamSealing(key))

    return scenario(
        "stale-fill",
        "a reader settles a position by an old map, in which the head is a member that was removed since",
        new,
        reader("r1", old, until=2),
        reader("r2", new, until=2),
        records={
            "n1": (
                StreamOpened(descriptor_of(old, old.segments[0], old.segments[0].groups[0][0])),
                *kept("1.0.0", first),
            ),
            "n2": (*kept("1.0.1", junk(1)), *kept("1.1.0", second)),
            "n3": (*kept("1.0.2"), *kept("1.1.1", second)),
        },
        sometimes=("HoleFilled", "EntriesRead"),
    )


class LateWrite:
    """The write of a client that has gone, still on its way."""

    def __init__(self, to: str, write: Write) -> None:
        self.to = to
        self.write = write

    @property
    def phase(self) -> str:
        return "gone"

    def on_start(self) -> Effects:
        return [Send(Address(self.to, "storage"), self.write)]

    def on_timer(self, key: str) -> Effects:
        raise AssertionError(f"a client that has gone sets no timer, yet {key} fired")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a client that has gone asks for no choice, yet {key} was made")

    def on_message(self, source: Address, message: Message) -> Effects:
        return []


def late_view() -> Scenario:
    """A reader waits at the last member of segment 0, asks for the map, and is pushed a batch before the answer comes.
    Meanwhile the log has gone on without that member, was trimmed, and segment 0 is forgotten.
    """
    head, last = PAIR.last.members()
    first = Frame(1, 1, FrameKind.DATA, "old#1", 1, 100)
    ended = apply(PAIR, EndSegment(0, 2, ((head,),), Opening(((Seat("n1", 1),),), Owner("n1", 1))))
    now = apply(apply(ended, RaiseTrim(1)), ForgetSegment(0))

    def gone(boot: Boot) -> Mapping[str, Role]:
        return {"appender": LateWrite("n2", Write(target_of(PAIR, PAIR.last, last), first))}

    return scenario(
        "late-view",
        "a reader gets a pushed batch and then a map that has forgotten the segment of that batch",
        now,
        ProcessSpec("c1", gone, NoDisk(), None),
        reader("r", PAIR, push=True),
        records={"n2": (StreamOpened(descriptor_of(PAIR, PAIR.last, last)),)},
        free_timers=(FreeTimer("r", "reader", count=2),),
        sometimes=("EntriesRead", "FollowedSegment"),
    )


def tail_of_groups() -> Scenario:
    log = chain_log(STRIPED, "n1", "n2", sequencer="n3")
    return scenario(
        "tail-of-groups",
        "tail calls beside appends to two groups never miss what was acknowledged",
        log,
        appender("c1", log, *appends(1, 2)),
        tail_finder("t", after=(OperationEnd("c1", 2),)),
        sometimes=("Committed", "TailIs"),
    )


def peek_at_closed() -> Scenario:
    """The owner of the last segment has ended with it."""
    closed = apply(PAIR, EndSegment(0, 1, PAIR.last.groups, None))
    return scenario(
        "peek-at-closed",
        "the next position of a closed log, whose sequencer is gone",
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
