"""The logs that most scenarios begin with, and segments of them that have ended."""

from __future__ import annotations

from trunkline.check.scenarios.cluster import BROADCAST2, CHAIN2, LOG, broadcast_log, chain_log, seats
from trunkline.core.effects import Record
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.projection import EndSegment, MarkRepaired, Opening, Owner, Projection, apply
from trunkline.core.streams import FrameWritten, StreamEnding, StreamSealing

CHAIN = chain_log(CHAIN2, "n1 n2", sequencer="n3")
BROADCAST = broadcast_log(BROADCAST2, "n1 n2", owner="w1")


def ended(
    view: Projection,
    end: int,
    *groups: str,
    owner: str = "n3",
    survivors: str = "n1 n2 n3",
    repaired: bool = False,
) -> Projection:
    """The open segment ends, and the next one opens on these groups."""
    index = view.last.index
    kept = tuple(tuple(m for m in group if m.node in survivors.split()) for group in view.last.groups)
    after = apply(view, EndSegment(index, end, kept, Opening(seats(groups), Owner(owner, 1))))
    return apply(after, MarkRepaired(index)) if repaired else after


def entry(glsn: int, count: int = 1) -> Frame:
    """A batch of a client that has left."""
    return Frame(glsn, count, FrameKind.DATA, "old#1", glsn, 100 + glsn)


def stored(stream: str, *positions: int) -> tuple[FrameWritten, ...]:
    """Entries at these positions of a stream."""
    return tuple(FrameWritten((LOG, stream), entry(glsn)) for glsn in positions)


def sealed(stream: str, *positions: int, end: int | None = None) -> tuple[Record, ...]:
    """A sealed stream with entries at these positions; with an ``end`` it is finalized."""
    key = (LOG, stream)
    return (*stored(stream, *positions), StreamSealing(key), *((StreamEnding(key, end),) if end is not None else ()))


def half_written() -> tuple[Projection, dict[str, tuple[Record, ...]]]:
    """Segment 0 ended at 4: position 1 is on the head alone, 2 is a hole, 3 is on both replicas."""
    return ended(CHAIN, 4, "n1 n3"), {"n1": sealed("1.0.0", 1, 3), "n2": sealed("1.0.1", 3)}
