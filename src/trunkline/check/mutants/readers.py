"""Known bugs of whoever reads: readers, fillers, and those who ask for the tail or the next position."""

from __future__ import annotations

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.core import filler as fillers
from trunkline.core.effects import Effects, Send, SetTimer
from trunkline.core.entries import Frame
from trunkline.core.filler import Filler, Filling
from trunkline.core.messages import Get, Peeked, Reason, Write, target_of
from trunkline.core.peek import Peeker, PeekerState
from trunkline.core.projection import Member, Projection, Segment
from trunkline.core.reader import Reader, ReaderState
from trunkline.core.tail import TailFinder, TailState

_advance = Reader._advance
_on_view = Reader._on_view
_peek_view = Peeker._on_view
_filler_write = Filler._write
_refused = Filler._refused
_on_run = Filler._on_run
_members = TailFinder._members
_settled = fillers._settled
_on_found = TailFinder._on_found


def _reads_trimmed(self: Reader) -> Effects:
    """Where a trim is known, the nodes are asked all the same."""
    if self.view is None or self.next > self.view.trim or self.view.segment_of(self.next) is None:
        return _advance(self)
    segment = self.view.segment_of(self.next)
    assert segment is not None
    self.segment = segment.index
    return self._read(self.view, segment)


def _stays(self: Reader) -> None:
    """A member that is away is asked again and again."""


def _fills_ahead(self: Reader, answer: Peeked) -> Effects:
    if self.next >= answer.next:
        return self._at_tail(push=True)
    self.state, self.waited = ReaderState.HOLE, answer.next + 1
    return [SetTimer("wait", self.config.timing.fill_after_ms)]


def _believes_nodes(self: Reader, *, push: bool) -> Effects:
    assert self.request is not None
    return self._done() if self.request.to_tail else self._wait(push=push)


def _waits_for_release(self: Reader, segment: Segment) -> Effects:
    self._turn()
    return self._wait(push=False)


def _late_view_ignored(self: Reader, projection: Projection | None) -> Effects:
    if self.state not in (ReaderState.VIEWING, ReaderState.ENDING):
        if projection is not None and (self.view is None or projection.epoch > self.view.epoch):
            self.view = projection
        return []
    return _on_view(self, projection)


def _head_settles(self: Filler, filling: Filling) -> Effects:
    """What the head has decided counts at once."""
    return self._done(filling, _settled(filling), None)


def _entries_overrun(self: Filler, filling: Filling, reached: int) -> Effects:
    """A run is JUNK to its end, whatever stood in its way at the head."""
    return _on_run(self, filling, filling.end)


def _first_word(self: Filler, filling: Filling, reached: int) -> Effects:
    """What the head has said is returned, although a member holds something else."""
    return self._next_member(filling) if filling.at else _on_run(self, filling, reached)


def _first_value(self: Filler, filling: Filling, value: Frame) -> Effects:
    filling.frame = filling.frame or value
    return self._next_member(filling)


def _end_not_told(self: Filler, filling: Filling, reason: Reason) -> Effects:
    if reason is Reason.END_UNKNOWN:
        return self._done(filling, (), reason)
    return _refused(self, filling, reason)


def _no_units(segment: Segment, glsn: int) -> int:
    return glsn + fillers.RUN_MAX


def _offers_junk(self: Filler, filling: Filling) -> Effects:
    if not filling.segment.repaired:
        return _filler_write(self, filling)
    filling.preparing = False
    target = target_of(filling.projection, filling.segment, filling.member)
    return self._ask(filling, Write(target, filling.offer(), repair=True))


def _remembers_view(self: TailFinder) -> Effects:
    """The projection is read once; later calls begin with what was read then."""
    if self.view is None:
        self.state = TailState.VIEWING
        ask = Send(self.config.register, Get(self.config.log, self.operation))
        return [ask, SetTimer("wait", self.config.timing.suspect_after_ms)]
    return self._on_projection(self.view)


def _first_group(self: TailFinder, projection: Projection) -> list[Member]:
    return _members(self, projection)[:1]


def _unreleased_too(self: TailFinder, stream: str, written: int, lac: int) -> Effects:
    assert self.view is not None
    return _on_found(self, stream, written, max(lac, written - 1))


def _asks_the_same(self: TailFinder) -> Effects:
    return self._later()


def _asks_closed(self: Peeker, projection: Projection | None) -> Effects:
    if projection is not None and not projection.deleted and projection.last.end is not None:
        self.view, self.state = projection, PeekerState.ASKING
        return [self._ask(projection), SetTimer("wait", self.config.timing.suspect_after_ms)]
    return _peek_view(self, projection)


def _never_ends(self: Peeker) -> Effects:
    return self._refresh()


def _first_member_only(self: Peeker, reason: Reason) -> Effects:
    return self._refresh()


READING_MUTANTS = (
    Mutant(
        "trim-unknown-to-reader",
        "a reader asks nodes for what it knows to be trimmed",
        "trim",
        patch((Reader, "_advance", _reads_trimmed)),
        "Progress",
        "swarm",
        300,
        ("reader D1",),
    ),
    Mutant(
        "reads-one-replica",
        "a reader asks a member that is away again and again",
        "dead-replica",
        patch((Reader, "_turn", _stays)),
        "Progress",
        "breadth",
        1_000,
        ("reader D3",),
    ),
    Mutant(
        "run-past-peek",
        "a run of holes is filled farther than positions were handed out",
        "run-beside-writer",
        patch((Reader, "_on_peeked", _fills_ahead)),
        "SingleOwner",
        "breadth",
        10_000,
        ("reader D4",),
    ),
    Mutant(
        "end-believed-of-nodes",
        "a read to the tail ends where a member and a sequencer know of no more",
        "stale-end-chain",
        patch((Reader, "_at_tail", _believes_nodes)),
        "FreshTail",
        "breadth",
        5_000,
        ("reader D6",),
    ),
    Mutant(
        "end-believed-of-a-replica",
        "a read to the tail of a broadcast log ends where one replica has no more",
        "stale-end-broadcast",
        patch((Reader, "_at_tail", _believes_nodes)),
        "FreshTail",
        "breadth",
        5_000,
        ("reader D6",),
    ),
    Mutant(
        "release-awaited-for-ever",
        "a reader waits for a release that nobody will send",
        "broadcast-power-cut",
        patch((Reader, "_on_unreleased", _waits_for_release)),
        "Progress",
        "swarm",
        300,
        ("reader D7",),
    ),
    Mutant(
        "late-view-not-followed",
        "a reader keeps reading a segment that its newest map has forgotten",
        "late-view",
        patch((Reader, "_on_view", _late_view_ignored)),
        "RoleError",
        "breadth",
        20_000,
        ("reader D11",),
    ),
    Mutant(
        "run-over-entries",
        "a run counts as JUNK to its end, although the head has an entry in it",
        "run-of-holes",
        patch((Filler, "_on_run", _entries_overrun)),
        ("TotalOrder", "ReadCommitted"),
        "breadth",
        5_000,
        ("filler F1",),
    ),
    Mutant(
        "fill-by-an-old-map",
        "what the head says is returned, although a member further down holds something else",
        "stale-fill",
        patch((Filler, "_on_member_value", _first_value), (Filler, "_on_run", _first_word)),
        ("TotalOrder", "ReadCommitted"),
        "breadth",
        5_000,
        ("filler F2",),
    ),
    Mutant(
        "settled-at-head",
        "a position counts as settled when the head has its value",
        "client-death-after-head",
        patch((Filler, "_next_member", _head_settles)),
        "ReadCommitted",
        "breadth",
        5_000,
        ("filler F3",),
    ),
    Mutant(
        "end-not-told",
        "a filler gives up at a member that does not know the end yet",
        "stale-fill",
        patch((Filler, "_refused", _end_not_told)),
        "Progress",
        "breadth",
        5_000,
        ("filler F4",),
    ),
    Mutant(
        "run-across-stripe-units",
        "a run of holes goes on into the stripe unit of another group",
        "striped-run",
        patch((fillers, "_unit_end", _no_units)),
        ("TotalOrder", "ReadCommitted"),
        "breadth",
        5_000,
        ("filler F6",),
    ),
    Mutant(
        "tail-by-an-old-map",
        "the tail is looked for in the segment that was open at an earlier call",
        "tail-after-failover",
        patch((TailFinder, "_refresh", _remembers_view)),
        "RealTimeOrder",
        "breadth",
        5_000,
        ("tail T1",),
    ),
    Mutant(
        "tail-of-one-group",
        "the tail is asked of the first group alone",
        "tail-of-groups",
        patch((TailFinder, "_members", _first_group)),
        "RealTimeOrder",
        "breadth",
        5_000,
        ("tail T2",),
    ),
    Mutant(
        "tail-before-release",
        "what a replica has counts as the tail before its owner has released it",
        "broadcast-tail",
        patch((TailFinder, "_on_found", _unreleased_too)),
        "RealTimeOrder",
        "breadth",
        100_000,
        ("tail T3",),
    ),
    Mutant(
        "tail-of-one-replica",
        "a replica that cannot tell the tail is asked again and again",
        "tail-without-replica",
        patch((TailFinder, "_on_unreachable", _asks_the_same)),
        "Progress",
        "breadth",
        1_000,
        ("tail T4",),
    ),
    Mutant(
        "closed-log-asked",
        "the next position of a closed log is asked of its last owner",
        "peek-at-closed",
        patch((Peeker, "_on_view", _asks_closed)),
        "Progress",
        "breadth",
        5_000,
        ("peek X1",),
    ),
    Mutant(
        "silent-owner-kept",
        "a peek asks a silent owner again and again",
        "peek",
        patch((Peeker, "_end", _never_ends)),
        "Progress",
        "breadth",
        5_000,
        ("peek X2",),
    ),
    Mutant(
        "peek-of-one-replica",
        "a peek asks a replica that is gone again and again",
        "peek-without-replica",
        patch((Peeker, "_on_unreachable", _first_member_only)),
        "Progress",
        "breadth",
        1_000,
        ("peek X3",),
    ),
)

UNSEEN = {
    "reader D9": "patience with whoever sealed is a matter of time, which the checker does not have: impatience costs "
    "segments, never an entry",
    "reader D10": "goals are judged when the metadata is back, and then a reader that was deaf gets its entries, too",
    "reader D12": "what the member that is read holds is committed, and what is committed lies below every end: only "
    "an operator who declares a loss that was none makes an answer that goes past one, and then no history is right",
    "reader D13": "segments that are ended without need break no promise; how many there are is a matter of resources",
    "filler F5": "members of a repaired segment hold its values, or know that they lost them and then refuse: JUNK "
    "that is offered never finds a place",
}
