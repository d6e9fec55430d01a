"""Mutants of roles that end segments: the writer of a broadcast log, the reconfigurer, the administrator."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import ANY_CHANGE, TRUSTING_REGISTER, patch
from trunkline.core import reconfigurer as reconfiguring
from trunkline.core.administrator import Administrator, AdministratorState
from trunkline.core.calls import TrimRequested
from trunkline.core.effects import SELF, Address, Announce, CancelTimer, Complete, Effects, Message, Send
from trunkline.core.entries import Frame
from trunkline.core.events import AppendRefused, ReconfigurationBlocked, Trimmed
from trunkline.core.messages import (
    Append,
    NodeInfo,
    Reason,
    Sealed,
    SwapLost,
    Swapped,
    Trim,
    target_of,
)
from trunkline.core.projection import DeleteLog, Group, Member, Opening, Owner, Projection, Settings, apply, create
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerState
from trunkline.core.siblings import ChangeProjection, EndOpenSegment
from trunkline.core.writer import Writer, WriterConfig

_writer = Writer.__init__
_settle = Writer._settle
_writer_rejected = Writer._on_rejected
_message = Reconfigurer.on_message
_swap = Reconfigurer._swap
_decide = Reconfigurer._decide
_on_create_view = Administrator._on_create_view
_on_trim_view = Administrator._on_trim_view


def _commit_on_one_member(self: Writer, stream: str, frame: Frame) -> Effects:
    sending = self._sending(frame)
    if sending is None:
        return []
    sending.missing.clear()
    return self._commit_ready()


def _resend_all_in_flight(self: Writer, view: Projection) -> Effects:
    """A writer that continues in a segment of its own sends again all that was in flight."""
    ended = view.segment(self.segment)
    if view.last.owner != self.config.me or not view.last.is_open or (ended is not None and ended.is_open):
        return _settle(self, view)
    self.queue.extendleft(sending.request for sending in reversed(self.in_flight))
    self.in_flight.clear()
    return self._own(view)


def _refuse_and_resend(self: Writer, view: Projection) -> Effects:
    pending = [replace(sending.request, takeover=True) for sending in self.in_flight]
    effects = _settle(self, view)
    lost = {e.operation for e in effects if isinstance(e, Complete) and isinstance(e.result, AppendRefused)}
    self.queue.extendleft(request for request in reversed(pending) if request.operation in lost)
    return [*effects, *self._pump()]


def _ignore_start_of_owner(self: Writer, config: WriterConfig, view: Projection | None = None) -> None:
    """Every start of a process counts as the same owner."""
    _writer(self, replace(config, me=Owner(config.me.process, 1)), view)


def _release_uncommitted(self: Writer, member: Member, frame: Frame) -> Send:
    assert self.view is not None
    target = target_of(self.view, self._current(), member)
    return Send(Address(member.node, "storage"), Append(target, self.config.me, frame, frame.next - 1))


def _refuse_before_settled(self: Writer, stream: str, reason: Reason, point: int) -> Effects:
    if reason is not Reason.NO_SPACE or not self.in_flight:
        return _writer_rejected(self, stream, reason, point)
    pending, self.in_flight = self.in_flight, deque()
    refused = AppendRefused("no space")
    return [CancelTimer("ack"), *(Complete(each.request.operation, refused) for each in pending)]


def _intact_answers(group: Group, answers: Any) -> list[tuple[Member, Sealed]]:
    found = [(member, answers.get(member.stream)) for member in group]
    return [(member, answer) for member, answer in found if isinstance(answer, Sealed) and answer.intact]


def _count_uncertain_beside_lost(group: Group, answers: Any) -> Group:
    """Uncertain answers count where no member is certain, even if others lost data."""
    intact = _intact_answers(group, answers)
    certain = tuple(member for member, answer in intact if not answer.uncertain)
    all_answered = all(member.stream in answers for member in group)
    return certain if certain or not all_answered else tuple(member for member, _ in intact)


def _count_all_uncertain(group: Group, answers: Any) -> Group:
    intact = _intact_answers(group, answers)
    certain = tuple(member for member, answer in intact if not answer.uncertain)
    return certain if certain or len(intact) < len(group) else tuple(member for member, _ in intact)


def _remember_proposal(self: Reconfigurer, projection: Projection) -> Effects:
    self.proposed = projection  # type: ignore[attr-defined]
    return _swap(self, projection)


def _trust_swap_answer(self: Reconfigurer, source: Address, message: Message) -> Effects:
    if isinstance(message, Swapped | SwapLost) and self.state is ReconfigurerState.SWAPPING:
        self.view = self.proposed  # type: ignore[attr-defined]
        return self._on_projection()
    return _message(self, source, message)


def _retry_blocked_ending(self: Reconfigurer, view: Projection) -> Effects:
    return [Announce(ReconfigurationBlocked(self.config.log, view.last.index)), *self._read()]


def _declare_loss_unasked(self: Reconfigurer) -> Effects:
    role, job = self.jobs[0]
    assert isinstance(job, EndOpenSegment)
    assert self.view is not None
    if job.declared_end is None:
        self.jobs[0] = (role, replace(job, declared_end=self.view.last.base))
    return _decide(self)


def _create_again(
    self: Administrator, view: Projection | None, nodes: tuple[NodeInfo, ...], settings: Settings
) -> Effects:
    """A log that exists is created again."""
    self.made_over = view.epoch if view is not None and self.state is AdministratorState.VIEWING else 0  # type: ignore[attr-defined]
    return _on_create_view(self, None if self.state is AdministratorState.VIEWING else view, nodes, settings)


def _replace_projection(self: Administrator, key: str, option: object) -> Effects:
    assert isinstance(option, Opening)
    self.state = AdministratorState.CHANGING
    assert self.task is not None
    epoch = self.made_over  # type: ignore[attr-defined]
    first = create(self.config.cluster, self.config.log, self.task.settings, option)  # type: ignore[union-attr]
    return [Send(Address(SELF, "reconfigurer"), ChangeProjection(epoch, replace(first, epoch=epoch + 1)))]


def _trim_nodes_only(self: Administrator, view: Projection | None, task: TrimRequested) -> Effects:
    """The nodes trim, but the projection does not change."""
    if view is None or self.point is None:
        return _on_trim_view(self, view, task)
    trims: Effects = [
        Send(Address(member.node, "storage"), Trim(target_of(view, segment, member), self.point))
        for segment in view.segments
        for member in segment.members()
    ]
    return [*trims, *self._done(Trimmed(self.point))]


def delete_open_log(self: Administrator, view: Projection | None) -> Effects:
    assert view is not None
    self.state = AdministratorState.CHANGING
    return [Send(Address(SELF, "reconfigurer"), ChangeProjection(view.epoch, apply(view, DeleteLog())))]


ENDING_MUTANTS = (
    Mutant(
        "broadcast-one-is-enough",
        "a batch counts as committed when one member has it",
        "broadcast-batches",
        patch((Writer, "_on_stored", _commit_on_one_member)),
        "CommitDurability",
        "breadth",
        2_000,
        ("writer W1",),
    ),
    Mutant(
        "sent-again-below-the-end",
        "after a roll all batches that were in flight are sent again, even those below the end",
        "pipelined-roll",
        patch((Writer, "_settle", _resend_all_in_flight)),
        "NoLostAck",
        "pct",
        60,
        ("writer W3",),
    ),
    Mutant(
        "refused-and-sent-again",
        "uncommitted batches are refused and also sent again",
        "queued-takeovers",
        patch((Writer, "_settle", _refuse_and_resend)),
        ("NoLostAck", "RoleError"),
        "swarm",
        30,
        ("writer W4",),
    ),
    Mutant(
        "owner-by-name",
        "a restarted writer counts as the owner that its previous process was",
        "owner-restarts",
        patch((Writer, "__init__", _ignore_start_of_owner)),
        ("NoLostAck", "SingleOwner", "TotalOrder"),
        "breadth",
        20_000,
        ("writer W5",),
    ),
    Mutant(
        "released-at-once",
        "a batch is released to readers before it is committed",
        "broadcast-batches",
        patch((Writer, "_append", _release_uncommitted)),
        "ReadCommitted",
        "breadth",
        5_000,
        ("writer W6",),
    ),
    Mutant(
        "broadcast-full-unsettled",
        "a writer refuses a batch for lack of space without ending its segment",
        "broadcast-full",
        patch((Writer, "_on_rejected", _refuse_before_settled)),
        "NoLostAck",
        "breadth",
        60_000,
        ("writer W7",),
    ),
    Mutant(
        "uncertain-beside-the-lost",
        "an uncertain answer counts although another member lost data",
        "rot-of-two-kinds",
        patch((reconfiguring, "_voters", _count_uncertain_beside_lost)),
        ("TotalOrder", "NoLostAck"),
        "random",
        300,
        ("reconfigurer R2",),
    ),
    Mutant(
        "smallest-of-the-uncertain",
        "where no member is certain, the smallest answer decides",
        "rot-and-power-cut",
        patch((reconfiguring, "_voters", _count_all_uncertain)),
        ("TotalOrder", "NoLostAck"),
        "pct",
        1_000,
        ("reconfigurer R3",),
    ),
    Mutant(
        "swap-trusted",
        "a reconfigurer that gets any answer to its swap assumes that its proposal was accepted",
        "two-takeovers",
        patch((Reconfigurer, "_swap", _remember_proposal), (Reconfigurer, "on_message", _trust_swap_answer)),
        ("SingleOwner", "NoLostAck", "CommitDurability", "TotalOrder"),
        "swarm",
        20,
        ("reconfigurer R5",),
    ),
    Mutant(
        "blocked-job-kept",
        "a blocked ending is retried forever, and all other jobs wait",
        "blocked-ending",
        patch((Reconfigurer, "_blocked", _retry_blocked_ending)),
        "Progress",
        "swarm",
        20,
        ("reconfigurer R8",),
    ),
    Mutant(
        "loss-declared-unasked",
        "the loss of a segment without an intact member is declared without an operator",
        "only-replica-fails",
        patch((Reconfigurer, "_decide", _declare_loss_unasked)),
        "NoLostAck",
        "breadth",
        60_000,
        ("reconfigurer R9",),
    ),
    Mutant(
        "created-over",
        "a log that exists is created again",
        "create-race",
        patch(
            (Administrator, "_on_create_view", _create_again),
            (Administrator, "on_choice", _replace_projection),
            TRUSTING_REGISTER,
        ),
        ("BoundaryWrittenOnce", "SingleOwner", "RoleError"),
        "breadth",
        5_000,
        ("administrator B1",),
    ),
    Mutant(
        "trims-nodes-only",
        "nodes trim, but the projection does not change",
        "trim",
        patch((Administrator, "_on_trim_view", _trim_nodes_only)),
        ("Progress", "Completeness", "RoleError"),
        "swarm",
        20,
        ("administrator B3",),
    ),
    Mutant(
        "deleted-while-open",
        "a log is deleted without being closed",
        "delete",
        patch((Administrator, "_on_delete_view", delete_open_log), ANY_CHANGE),
        ("NoLostAck", "BoundaryWrittenOnce", "Progress"),
        "swarm",
        20,
        ("administrator B5",),
    ),
)

UNSEEN = {
    "appender A12": "how long a client waits for an answer is a matter of time, which the checker does not model",
    "writer W8": "when a member counts as silent is a matter of time, which the checker does not model",
    "administrator B6": "an operator may repeat a refused request: the number of automatic retries breaks no promise",
}
