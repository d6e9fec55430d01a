"""Mutants of clients: appenders, writers, readers, reconfigurers."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import ANY_CHANGE, TRUSTING_REGISTER, patch
from trunkline.core import reconfigurer as reconfiguring
from trunkline.core.administrator import Administrator
from trunkline.core.appender import Appender, Attempt, AttemptState
from trunkline.core.calls import TrimRequested
from trunkline.core.effects import SELF, Address, Announce, CancelTimer, Complete, Effects, Message, Send, SetTimer
from trunkline.core.events import Appended, Committed, OutcomeUnknown, TailIs
from trunkline.core.filler import Filling
from trunkline.core.messages import (
    Finalize,
    Next,
    NodeInfo,
    Peek,
    Peeked,
    Reason,
    Sealed,
    Stored,
    descriptor_of,
)
from trunkline.core.projection import EndSegment, Group, Member, Opening, Policy, Projection, Segment, apply
from trunkline.core.reader import Reader, ReaderState
from trunkline.core.reconfigurer import Reconfigurer
from trunkline.core.siblings import EndOpenSegment, OpenClosedLog
from trunkline.core.tail import TailFinder, TailState
from trunkline.core.writer import Writer, WriterState

_voters = reconfiguring._voters
_choose = Reconfigurer._choose
_on_projection = Reconfigurer._on_projection
_filling = Filling.__init__
_writer_message = Writer.on_message
_tail_message = TailFinder.on_message
_on_granted = Appender._on_granted
_appender_rejected = Appender._on_rejected
_reconsider = Appender._reconsider
_on_unwritten = Reader._on_unwritten
_on_frames = Reader._on_frames
_on_trim_view = Administrator._on_trim_view


def _read_from_head(self: Reader, segment: Segment) -> Member:
    return segment.serving(segment.group_of(self.next))[0]


def _fill_from_tail(self: Filling, projection: Projection, segment: Segment, glsn: int, end: int) -> None:
    _filling(self, projection, segment, glsn, end)
    self.group = self.group[::-1]


def _fill_without_peek(self: Reader, answer: Peeked) -> Effects:
    self.state = ReaderState.HOLE
    return [SetTimer("wait", self.config.timing.fill_after_ms)]


def _leave_segment_early(self: Reader, answer: Any) -> Effects:
    segment = self._current()
    if segment.end is not None and not segment.repaired:
        self.next = segment.end
        return self._advance()
    return _on_unwritten(self, answer)


def _ignore_until(self: Reader, frames: Any) -> Effects:
    request = self.request
    assert request is not None
    self.request = replace(request, until=None)
    effects = _on_frames(self, frames)
    self.request = request
    return effects


def _reverse_survivors(group: Group, answers: Any) -> Group:
    return _voters(group, answers)[::-1]


def _reopen_closed_log(self: Reconfigurer) -> Effects:
    """A client that meets a seal reopens the log, even if an operator closed it."""
    role, job = self.jobs[0]
    view = self.view
    if isinstance(job, EndOpenSegment) and job.reopen and view is not None and not view.last.is_open:
        self.jobs[0] = (role, OpenClosedLog(self.config.log))
    return _on_projection(self)


def _finalize_before_swap(self: Reconfigurer, view: Projection, job: EndOpenSegment) -> Effects:
    answers = self.answers
    ends = [a.next for a in answers.values() if isinstance(a, Sealed)]
    early: Effects = [
        Send(Address(m.node, "storage"), Finalize(descriptor_of(view, view.last, m), min(ends)))
        for m in view.last.members()
        if m.stream in answers and ends
    ]
    return [*early, *_choose(self, view, job)]


def _end_at_largest(view: Projection, job: Any, answers: Any, opening: Opening | None) -> Projection:
    if job.end is not None:
        return apply(view, EndSegment(job.segment, job.end, view.last.groups, opening))
    survivors = tuple(_voters(group, answers) for group in view.last.groups)
    end = max(answers[member.stream].next for group in survivors for member in group)
    return apply(view, EndSegment(job.segment, end, survivors, opening))


def _claim_without_seal(self: Writer, view: Projection, nodes: tuple[NodeInfo, ...]) -> Effects:
    self.state = WriterState.CLAIMING
    job = EndOpenSegment(self.config.log, view.last.index, owner=self.config.me, end=view.last.base)
    return [Send(Address(SELF, "reconfigurer"), job)]


def _end_unconditionally(self: Reconfigurer, job: EndOpenSegment, view: Projection) -> Effects:
    return self._choose(view, job)


def _acknowledge_while_rolling(self: Writer, source: Address, message: Message) -> Effects:
    if isinstance(message, Stored) and self.state is WriterState.ROLLING:
        return self._on_stored(message.stream, message.frame)
    return _writer_message(self, source, message)


def _reuse_grant(self: Appender, attempt: Attempt, *, just_read: bool = False) -> Effects:
    """Ask for two positions, use one, and keep the other for the next append."""
    assert self.view is not None
    last, kept = self.view.last, getattr(self, "kept", None)
    self.seq += 1
    attempt.state, attempt.seq, attempt.first, attempt.segment = AttemptState.ASKING, self.seq, None, last
    self.operations[self.seq] = attempt.request.operation
    if kept is not None and kept[0] == last.index:
        self.kept = None  # type: ignore[attr-defined]
        attempt.first, attempt.at = kept[1], 0
        return self._write(attempt)
    ask = Next(self.config.log, last, self.config.writer, attempt.seq, 2, None)
    return [Send(Address(last.owner.process, "sequencer"), ask), self._suspect_later(attempt)]


def _remember_grant(self: Appender, attempt: Attempt, granted: Any) -> Effects:
    self.kept = (granted.segment, granted.first + 1)  # type: ignore[attr-defined]
    return _on_granted(self, attempt, granted)


def _commit_if_head_unsealed(self: Appender, attempt: Attempt, reason: Reason) -> Effects:
    """The head accepted the write, so the segment counts as open."""
    if reason is Reason.SEALED and attempt.at > 0:
        assert attempt.first is not None
        return self._committed(attempt)
    return _appender_rejected(self, attempt, reason)


def _retry_trimmed(self: Appender, attempt: Attempt, view: Projection) -> Effects:
    segment = view.segment(attempt.segment.index) if attempt.segment is not None else None
    if attempt.first is not None and (attempt.first <= view.trim or segment is None):
        return self._again(attempt, just_read=True)
    return _reconsider(self, attempt, view)


def _retry_unsettled(self: Appender, attempt: Attempt, view: Projection) -> Effects:
    """After a reconfiguration, append again at once without settling the old position."""
    segment = view.segment(attempt.segment.index) if attempt.segment is not None else None
    if segment is not None and segment.is_open:
        return _reconsider(self, attempt, view)
    return self._ask(attempt, just_read=True)


def _commit_at_head(self: Appender, attempt: Attempt) -> Effects:
    assert attempt.first is not None
    event = Committed(self.config.log, self._segment(attempt).index, None, attempt.frame(self.config.writer))
    return [Announce(event), *self._complete(attempt, Appended(attempt.first))]


def _peek_for_tail(self: TailFinder, projection: Projection | None) -> Effects:
    assert projection is not None
    self.view, self.state = projection, TailState.ASKING
    last = projection.last
    assert last.policy is Policy.CHAIN
    return [
        Send(Address(last.owner.process, "sequencer"), Peek(self.config.log, last)),
        SetTimer("wait", self.config.timing.suspect_after_ms),
    ]


def _return_peek_as_tail(self: TailFinder, source: Address, message: Message) -> Effects:
    if isinstance(message, Peeked) and self.state is TailState.ASKING:
        self.state = TailState.IDLE
        return [CancelTimer("wait"), Complete(self.operation, TailIs(message.next))]
    return _tail_message(self, source, message)


def _unknown_after_reconfiguration(self: Appender, attempt: Attempt, view: Projection) -> Effects:
    if attempt.first is not None and attempt.segment is not None and view.last.index > attempt.segment.index:
        return self._complete(attempt, OutcomeUnknown(attempt.first))
    return _reconsider(self, attempt, view)


def _trim_unsettled(self: Administrator, view: Projection | None, task: TrimRequested) -> Effects:
    assert view is not None
    self.point = self.reached = task.point
    return _on_trim_view(self, view, task)


CLIENT_MUTANTS = (
    Mutant(
        "unknown-without-need",
        "an append that meets a reconfiguration returns an unknown outcome",
        "chain",
        patch((Appender, "_reconsider", _unknown_after_reconfiguration)),
        "NoLostAck",
        "breadth",
        50_000,
        breaks=("appender A4",),
    ),
    Mutant(
        "trim-unsettled",
        "a log is trimmed although positions below the point are unsettled",
        "trim-beyond-tail",
        patch((Administrator, "_on_trim_view", _trim_unsettled)),
        "TotalOrder",
        "breadth",
        5_000,
        breaks=("administrator B2", "projection P7"),
    ),
    Mutant(
        "reads-past-until",
        "a read with an end returns all entries of an answer, and a trim deletes what was read",
        "trim-several-batches",
        patch((Reader, "_on_frames", _ignore_until)),
        "TrimAsked",
        "breadth",
        50_000,
        breaks=("reader D8",),
    ),
    Mutant(
        "value-from-head",
        "a reader of an open chain asks the head",
        "chain",
        patch((Reader, "_member", _read_from_head)),
        "ReadCommitted",
        "breadth",
        1_000,
        breaks=("reader D2",),
    ),
    Mutant(
        "fill-from-tail",
        "a hole is filled from the tail to the head",
        "late-writer",
        patch((Filling, "__init__", _fill_from_tail)),
        ("TotalOrder", "ReadCommitted", "CommitDurability"),
        "breadth",
        80_000,
        breaks=("filler F1",),
    ),
    Mutant(
        "fill-past-peek",
        "a reader fills positions that were never granted",
        "append",
        patch((Reader, "_on_peeked", _fill_without_peek)),
        "SingleOwner",
        "breadth",
        5_000,
        breaks=("reader D4",),
    ),
    Mutant(
        "reader-leaves-at-node-tail",
        "a reader leaves an ended segment where one member has no more entries",
        "repair-race",
        patch((Reader, "_on_unwritten", _leave_segment_early)),
        "Completeness",
        "breadth",
        1_000,
        breaks=("reader D5",),
    ),
    Mutant(
        "survivors-reordered",
        "survivors of an ended segment change their order",
        "chain",
        patch((reconfiguring, "_voters", _reverse_survivors), ANY_CHANGE, TRUSTING_REGISTER),
        "BoundaryWrittenOnce",
        "breadth",
        10_000,
        breaks=("reconfigurer R4", "projection P3"),
    ),
    Mutant(
        "closed-log-reopened",
        "a client that meets a seal reopens a log that an operator closed",
        "seal-and-reopen",
        patch((Reconfigurer, "_on_projection", _reopen_closed_log)),
        "BoundaryWrittenOnce",
        "breadth",
        200_000,
        breaks=("reconfigurer R7", "administrator B4"),
    ),
    Mutant(
        "repair-before-swap",
        "streams are finalized before the metadata store has the boundary",
        "chain",
        patch((Reconfigurer, "_choose", _finalize_before_swap)),
        ("BoundaryWrittenOnce", "RoleError"),
        "breadth",
        10_000,
        breaks=("reconfigurer R1",),
    ),
    Mutant(
        "broadcast-end-largest",
        "a broadcast segment ends at the largest count instead of the smallest",
        "takeover",
        patch((reconfiguring, "_ending", _end_at_largest)),
        ("ReadCommitted", "CommitDurability", "NoLostAck"),
        "breadth",
        60_000,
        breaks=("reconfigurer R3",),
    ),
    Mutant(
        "unconditional-takeover",
        "a writer takes a log without sealing, at the boundary of its projection",
        "takeover",
        patch((Writer, "_claim_from", _claim_without_seal), (Reconfigurer, "_end", _end_unconditionally)),
        ("NoLostAck", "SingleOwner", "CommitDurability"),
        "breadth",
        10_000,
        breaks=("reconfigurer R6",),
    ),
    Mutant(
        "roll-without-freezing",
        "the owner keeps acknowledging while it rolls",
        "roll",
        patch((Writer, "on_message", _acknowledge_while_rolling)),
        ("NoLostAck", "CommitDurability"),
        "breadth",
        30_000,
        breaks=("writer W2",),
    ),
    Mutant(
        "grant-kept",
        "a grant is used for an append that begins later",
        "append-order",
        patch((Appender, "_ask", _reuse_grant), (Appender, "_on_granted", _remember_grant)),
        "RealTimeOrder",
        "breadth",
        1_000,
        breaks=("appender A6",),
    ),
    Mutant(
        "unsealed-on-one-node",
        "one unsealed member counts as proof that the segment is open",
        "two-reconfigurers",
        patch((Appender, "_on_rejected", _commit_if_head_unsealed)),
        ("CommitDurability", "NoLostAck"),
        "breadth",
        10_000,
        breaks=("appender A1",),
    ),
    Mutant(
        "trimmed-is-not-committed",
        "a trimmed position counts as not committed",
        "trim-and-end",
        patch((Appender, "_reconsider", _retry_trimmed)),
        "NoLostAck",
        "breadth",
        200_000,
        breaks=("appender A5",),
    ),
    Mutant(
        "append-again-unsettled",
        "after a reconfiguration the batch is appended again without settling its old position",
        "chain",
        patch((Appender, "_reconsider", _retry_unsettled)),
        ("NoLostAck",),
        "breadth",
        100_000,
        breaks=("appender A3",),
    ),
    Mutant(
        "acknowledged-at-head",
        "an append counts as committed when the head has it",
        "chain",
        patch((Appender, "_on_stored", _commit_at_head)),
        "CommitDurability",
        "breadth",
        1_000,
        breaks=("appender A1",),
    ),
    Mutant(
        "peek-taken-as-tail",
        "the sequencer's next position is returned as the tail",
        "tail",
        patch((TailFinder, "_on_projection", _peek_for_tail), (TailFinder, "on_message", _return_peek_as_tail)),
        "RealTimeOrder",
        "breadth",
        150_000,
        breaks=("tail T2",),
    ),
)
