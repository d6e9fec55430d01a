"""Mutants of readers, fillers, and clients that ask for the tail or the next position."""

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


def _read_trimmed(self: Reader) -> Effects:
    """Positions below the known trim point are read from nodes."""
    if self.view is None or self.next > self.view.trim or self.view.segment_of(self.next) is None:
        return _advance(self)
    segment = self.view.segment_of(self.next)
    assert segment is not None
    self.segment = segment.index
    return self._read(self.view, segment)


def _stay_at_member(self: Reader) -> None:
    """An unreachable member is asked again and again."""


def _fill_past_peek(self: Reader, answer: Peeked) -> Effects:
    if self.next >= answer.next:
        return self._at_tail(push=True)
    self.state, self.waited = ReaderState.HOLE, answer.next + 1
    return [SetTimer("wait", self.config.timing.fill_after_ms)]


def _trust_end_of_nodes(self: Reader, *, push: bool) -> Effects:
    assert self.request is not None
    return self._done() if self.request.to_tail else self._wait(push=push)


def _wait_for_release(self: Reader, segment: Segment) -> Effects:
    self._turn()
    return self._wait(push=False)


def _ignore_late_projection(self: Reader, projection: Projection | None) -> Effects:
    if self.state not in (ReaderState.VIEWING, ReaderState.ENDING):
        if projection is not None and (self.view is None or projection.epoch > self.view.epoch):
            self.view = projection
        return []
    return _on_view(self, projection)


def _settle_at_head(self: Filler, filling: Filling) -> Effects:
    """A value on the head counts as settled."""
    return self._done(filling, _settled(filling), None)


def _fill_whole_run(self: Filler, filling: Filling, reached: int) -> Effects:
    """A run counts as JUNK to its end, although the head holds an entry in it."""
    return _on_run(self, filling, filling.end)


def _return_run_of_head(self: Filler, filling: Filling, reached: int) -> Effects:
    """The run of the head is returned although another member holds something else."""
    return self._next_member(filling) if filling.at else _on_run(self, filling, reached)


def _return_value_of_head(self: Filler, filling: Filling, value: Frame) -> Effects:
    filling.frame = filling.frame or value
    return self._next_member(filling)


def _stop_at_unknown_end(self: Filler, filling: Filling, reason: Reason) -> Effects:
    if reason is Reason.END_UNKNOWN:
        return self._done(filling, (), reason)
    return _refused(self, filling, reason)


def _ignore_stripe_units(segment: Segment, glsn: int) -> int:
    return glsn + fillers.RUN_MAX


def _offer_junk(self: Filler, filling: Filling) -> Effects:
    if not filling.segment.repaired:
        return _filler_write(self, filling)
    filling.preparing = False
    target = target_of(filling.projection, filling.segment, filling.member)
    return self._ask(filling, Write(target, filling.offer(), repair=True))


def _reuse_projection(self: TailFinder) -> Effects:
    """The projection is read once; later calls use it again."""
    if self.view is None:
        self.state = TailState.VIEWING
        ask = Send(self.config.register, Get(self.config.log, self.operation))
        return [ask, SetTimer("wait", self.config.timing.suspect_after_ms)]
    return self._on_projection(self.view)


def _ask_first_group(self: TailFinder, projection: Projection) -> list[Member]:
    return _members(self, projection)[:1]


def _count_unreleased(self: TailFinder, stream: str, written: int, lac: int) -> Effects:
    assert self.view is not None
    return _on_found(self, stream, written, max(lac, written - 1))


def _ask_same_member(self: TailFinder) -> Effects:
    return self._later()


def _ask_closed_log(self: Peeker, projection: Projection | None) -> Effects:
    if projection is not None and not projection.deleted and projection.last.end is not None:
        self.view, self.state = projection, PeekerState.ASKING
        return [self._ask(projection), SetTimer("wait", self.config.timing.suspect_after_ms)]
    return _peek_view(self, projection)


def _ask_same_again(self: Peeker, reason: Reason | None = None) -> Effects:
    return self._refresh()


READING_MUTANTS = (
    Mutant(
        "trim-unknown-to-reader",
        "a reader asks nodes for positions that it knows to be trimmed",
        "trim",
        patch((Reader, "_advance", _read_trimmed)),
        "Progress",
        "swarm",
        300,
        ("reader D1",),
    ),
    Mutant(
        "reads-one-replica",
        "a reader asks an unreachable member again and again",
        "dead-replica",
        patch((Reader, "_turn", _stay_at_member)),
        "Progress",
        "breadth",
        1_000,
        ("reader D3",),
    ),
    Mutant(
        "run-past-peek",
        "a run of holes is filled past the granted positions",
        "run-beside-writer",
        patch((Reader, "_on_peeked", _fill_past_peek)),
        "SingleOwner",
        "breadth",
        10_000,
        ("reader D4",),
    ),
    Mutant(
        "end-trusted-of-nodes",
        "a read to the tail ends where one member and the sequencer have no more",
        "stale-end-chain",
        patch((Reader, "_at_tail", _trust_end_of_nodes)),
        "FreshTail",
        "breadth",
        5_000,
        ("reader D6",),
    ),
    Mutant(
        "end-trusted-of-a-replica",
        "a read to the tail of a broadcast log ends where one replica has no more",
        "stale-end-broadcast",
        patch((Reader, "_at_tail", _trust_end_of_nodes)),
        "FreshTail",
        "breadth",
        5_000,
        ("reader D6",),
    ),
    Mutant(
        "release-awaited-for-ever",
        "a reader waits for a release that never comes",
        "broadcast-power-cut",
        patch((Reader, "_on_unreleased", _wait_for_release)),
        "Progress",
        "swarm",
        300,
        ("reader D7",),
    ),
    Mutant(
        "late-view-not-followed",
        "a reader keeps reading a segment that its newest projection has forgotten",
        "late-view",
        patch((Reader, "_on_view", _ignore_late_projection)),
        "RoleError",
        "breadth",
        20_000,
        ("reader D11",),
    ),
    Mutant(
        "run-over-entries",
        "a run counts as JUNK to its end, although the head has an entry in it",
        "run-of-holes",
        patch((Filler, "_on_run", _fill_whole_run)),
        ("TotalOrder", "ReadCommitted"),
        "breadth",
        5_000,
        ("filler F1",),
    ),
    Mutant(
        "fill-by-an-old-map",
        "the value of the head is returned although a later member holds something else",
        "stale-fill",
        patch((Filler, "_on_member_value", _return_value_of_head), (Filler, "_on_run", _return_run_of_head)),
        ("TotalOrder", "ReadCommitted"),
        "breadth",
        5_000,
        ("filler F2",),
    ),
    Mutant(
        "settled-at-head",
        "a position counts as settled when the head has its value",
        "client-death-after-head",
        patch((Filler, "_next_member", _settle_at_head)),
        "ReadCommitted",
        "breadth",
        5_000,
        ("filler F3",),
    ),
    Mutant(
        "end-not-sent",
        "a filler gives up at a member that does not know the end yet",
        "stale-fill",
        patch((Filler, "_refused", _stop_at_unknown_end)),
        "Progress",
        "breadth",
        5_000,
        ("filler F4",),
    ),
    Mutant(
        "run-across-stripe-units",
        "a run of holes continues into the stripe unit of another group",
        "striped-run",
        patch((fillers, "_unit_end", _ignore_stripe_units)),
        ("TotalOrder", "ReadCommitted"),
        "breadth",
        5_000,
        ("filler F6",),
    ),
    Mutant(
        "tail-by-an-old-map",
        "the tail is read from the segment that was open at an earlier call",
        "tail-after-failover",
        patch((TailFinder, "_refresh", _reuse_projection)),
        "RealTimeOrder",
        "breadth",
        5_000,
        ("tail T1",),
    ),
    Mutant(
        "tail-of-one-group",
        "only the first group is asked for the tail",
        "tail-of-groups",
        patch((TailFinder, "_members", _ask_first_group)),
        "RealTimeOrder",
        "breadth",
        5_000,
        ("tail T2",),
    ),
    Mutant(
        "tail-before-release",
        "entries of a replica count for the tail before their owner has released them",
        "broadcast-tail",
        patch((TailFinder, "_on_found", _count_unreleased)),
        "RealTimeOrder",
        "breadth",
        100_000,
        ("tail T3",),
    ),
    Mutant(
        "tail-of-one-replica",
        "a replica that does not know the tail is asked again and again",
        "tail-without-replica",
        patch((TailFinder, "_on_unreachable", _ask_same_member)),
        "Progress",
        "breadth",
        1_000,
        ("tail T4",),
    ),
    Mutant(
        "closed-log-asked",
        "the last owner of a closed log is asked for the next position",
        "peek-at-closed",
        patch((Peeker, "_on_view", _ask_closed_log)),
        "Progress",
        "breadth",
        5_000,
        ("peek X1",),
    ),
    Mutant(
        "silent-owner-kept",
        "a peek asks a silent owner again and again",
        "peek",
        patch((Peeker, "_end", _ask_same_again)),
        "Progress",
        "breadth",
        5_000,
        ("peek X2",),
    ),
    Mutant(
        "peek-of-one-replica",
        "a peek asks an unreachable replica again and again",
        "peek-without-replica",
        patch((Peeker, "_on_unreachable", _ask_same_again)),
        "Progress",
        "breadth",
        1_000,
        ("peek X3",),
    ),
)

UNSEEN = {
    "reader D9": "waiting for the client that sealed is a matter of time, which the checker does not model: "
    "impatience costs segments, never an entry",
    "reader D10": "goals are judged when the metadata store is back, and then a reader without pushes gets its "
    "entries as well",
    "reader D12": "entries of the member that is read are committed, and committed entries are below every end: an "
    "answer passes an end only if an operator declares a loss that did not happen, and then no history is right",
    "reader D13": "segments that end needlessly break no promise; their number is a matter of resources",
    "filler F5": "members of a repaired segment hold its values, or know that they lost them and refuse: offered "
    "JUNK is never stored",
}
