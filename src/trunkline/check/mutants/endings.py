"""Known bugs of whoever ends segments: the writer of a broadcast log, the reconfigurer, the administrator."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import TRUSTING_REGISTER, patch
from trunkline.core import projection as projections
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


def _one_is_enough(self: Writer, stream: str, frame: Frame) -> Effects:
    sending = self._sending(frame)
    if sending is None:
        return []
    sending.missing.clear()
    return self._commit_ready()


def _sent_again_below_the_end(self: Writer, view: Projection) -> Effects:
    """Whoever goes on in a segment of its own sends everything again that was in flight."""
    ended = view.segment(self.segment)
    if view.last.owner != self.config.me or not view.last.is_open or (ended is not None and ended.is_open):
        return _settle(self, view)
    self.queue.extendleft(sending.request for sending in reversed(self.in_flight))
    self.in_flight.clear()
    return self._own(view)


def _refused_and_sent_again(self: Writer, view: Projection) -> Effects:
    pending = [replace(sending.request, takeover=True) for sending in self.in_flight]
    effects = _settle(self, view)
    lost = {e.operation for e in effects if isinstance(e, Complete) and isinstance(e.result, AppendRefused)}
    self.queue.extendleft(request for request in reversed(pending) if request.operation in lost)
    return [*effects, *self._pump()]


def _owner_by_name(self: Writer, config: WriterConfig, view: Projection | None = None) -> None:
    """The owner is the process, whichever start of it runs."""
    _writer(self, replace(config, me=Owner(config.me.process, 1)), view)


def _released_at_once(self: Writer, member: Member, frame: Frame) -> Send:
    assert self.view is not None
    target = target_of(self.view, self._current(), member)
    return Send(Address(member.node, "storage"), Append(target, self.config.me, frame, frame.next - 1))


def _refused_unsettled(self: Writer, stream: str, reason: Reason, point: int) -> Effects:
    if reason is not Reason.NO_SPACE or not self.in_flight:
        return _writer_rejected(self, stream, reason, point)
    pending, self.in_flight = self.in_flight, deque()
    refused = AppendRefused("no space")
    return [CancelTimer("ack"), *(Complete(each.request.operation, refused) for each in pending)]


def _intact(group: Group, answers: Any) -> list[tuple[Member, Sealed]]:
    told = [(member, answers.get(member.stream)) for member in group]
    return [(member, answer) for member, answer in told if isinstance(answer, Sealed) and answer.intact]


def _uncertain_beside_the_lost(group: Group, answers: Any) -> Group:
    """Uncertain answers count where nobody is certain, whatever the others have lost."""
    intact = _intact(group, answers)
    certain = tuple(member for member, answer in intact if not answer.uncertain)
    everybody = all(member.stream in answers for member in group)
    return certain if certain or not everybody else tuple(member for member, _ in intact)


def _smallest_of_the_uncertain(group: Group, answers: Any) -> Group:
    intact = _intact(group, answers)
    certain = tuple(member for member, answer in intact if not answer.uncertain)
    return certain if certain or len(intact) < len(group) else tuple(member for member, _ in intact)


def _remembers_proposal(self: Reconfigurer, projection: Projection) -> Effects:
    self.proposed = projection  # type: ignore[attr-defined]
    return _swap(self, projection)


def _believes_the_answer(self: Reconfigurer, source: Address, message: Message) -> Effects:
    if isinstance(message, Swapped | SwapLost) and self.state is ReconfigurerState.SWAPPING:
        self.view = self.proposed  # type: ignore[attr-defined]
        return self._on_projection()
    return _message(self, source, message)


def _keeps_trying(self: Reconfigurer, view: Projection) -> Effects:
    return [Announce(ReconfigurationBlocked(self.config.log, view.last.index)), *self._read()]


def _declares_by_itself(self: Reconfigurer) -> Effects:
    role, job = self.jobs[0]
    assert isinstance(job, EndOpenSegment)
    assert self.view is not None
    if job.declared_end is None:
        self.jobs[0] = (role, replace(job, declared_end=self.view.last.base))
    return _decide(self)


def _creates_anew(
    self: Administrator, view: Projection | None, nodes: tuple[NodeInfo, ...], settings: Settings
) -> Effects:
    """A log that exists is made again."""
    self.made_over = view.epoch if view is not None and self.state is AdministratorState.VIEWING else 0  # type: ignore[attr-defined]
    return _on_create_view(self, None if self.state is AdministratorState.VIEWING else view, nodes, settings)


def _over_what_is_there(self: Administrator, key: str, option: object) -> Effects:
    assert isinstance(option, Opening)
    self.state = AdministratorState.CHANGING
    assert self.task is not None
    epoch = self.made_over  # type: ignore[attr-defined]
    first = create(self.config.cluster, self.config.log, self.task.settings, option)  # type: ignore[union-attr]
    return [Send(Address(SELF, "reconfigurer"), ChangeProjection(epoch, replace(first, epoch=epoch + 1)))]


def _trims_nodes_only(self: Administrator, view: Projection | None, task: TrimRequested) -> Effects:
    """The nodes are told, and the map is not changed."""
    if view is None or self.point is None:
        return _on_trim_view(self, view, task)
    trims: Effects = [
        Send(Address(member.node, "storage"), Trim(target_of(view, segment, member), self.point))
        for segment in view.segments
        for member in segment.members()
    ]
    return [*trims, *self._done(Trimmed(self.point))]


def _deletes_what_is_open(self: Administrator, view: Projection | None) -> Effects:
    assert view is not None
    self.state = AdministratorState.CHANGING
    return [Send(Address(SELF, "reconfigurer"), ChangeProjection(view.epoch, apply(view, DeleteLog())))]


def _allow(holds: bool, otherwise: str) -> None:
    """Every change is legal."""


ENDING_MUTANTS = (
    Mutant(
        "broadcast-one-is-enough",
        "a batch counts as committed when one member has it",
        "broadcast-batches",
        patch((Writer, "_on_stored", _one_is_enough)),
        "CommitDurability",
        "breadth",
        2_000,
        ("writer W1",),
    ),
    Mutant(
        "sent-again-below-the-end",
        "after a roll everything is sent again that was in flight, also what is below the end",
        "pipelined-roll",
        patch((Writer, "_settle", _sent_again_below_the_end)),
        "NoLostAck",
        "pct",
        60,
        ("writer W3",),
    ),
    Mutant(
        "refused-and-sent-again",
        "what was not committed is refused, and sent again all the same",
        "queued-takeovers",
        patch((Writer, "_settle", _refused_and_sent_again)),
        ("NoLostAck", "RoleError"),
        "swarm",
        30,
        ("writer W4",),
    ),
    Mutant(
        "owner-by-name",
        "a writer that was restarted takes the log of its earlier process for its own",
        "owner-restarts",
        patch((Writer, "__init__", _owner_by_name)),
        ("NoLostAck", "SingleOwner", "TotalOrder"),
        "breadth",
        20_000,
        ("writer W5",),
    ),
    Mutant(
        "released-at-once",
        "a batch is released to readers with itself, before it is committed",
        "broadcast-batches",
        patch((Writer, "_append", _released_at_once)),
        "ReadCommitted",
        "breadth",
        5_000,
        ("writer W6",),
    ),
    Mutant(
        "broadcast-full-unsettled",
        "a writer refuses a batch that found no space without ending its segment",
        "broadcast-full",
        patch((Writer, "_on_rejected", _refused_unsettled)),
        "NoLostAck",
        "breadth",
        60_000,
        ("writer W7",),
    ),
    Mutant(
        "uncertain-beside-the-lost",
        "an uncertain answer counts beside one that lost data",
        "rot-of-two-kinds",
        patch((reconfiguring, "_voters", _uncertain_beside_the_lost)),
        ("TotalOrder", "NoLostAck"),
        "random",
        300,
        ("reconfigurer R2",),
    ),
    Mutant(
        "smallest-of-the-uncertain",
        "where nobody is certain, the smallest answer decides",
        "rot-and-power-cut",
        patch((reconfiguring, "_voters", _smallest_of_the_uncertain)),
        ("TotalOrder", "NoLostAck"),
        "pct",
        1_000,
        ("reconfigurer R3",),
    ),
    Mutant(
        "swap-believed",
        "whoever got an answer to a swap believes its own proposal, and does not read what is there",
        "two-takeovers",
        patch((Reconfigurer, "_swap", _remembers_proposal), (Reconfigurer, "on_message", _believes_the_answer)),
        ("SingleOwner", "NoLostAck", "CommitDurability", "TotalOrder"),
        "swarm",
        20,
        ("reconfigurer R5",),
    ),
    Mutant(
        "blocked-job-kept",
        "an ending that is blocked is tried until it works, and everything else waits",
        "blocked-ending",
        patch((Reconfigurer, "_blocked", _keeps_trying)),
        "Progress",
        "swarm",
        20,
        ("reconfigurer R8",),
    ),
    Mutant(
        "loss-declared-unasked",
        "a segment without an intact member is given up without an operator's word",
        "only-replica-fails",
        patch((Reconfigurer, "_decide", _declares_by_itself)),
        "NoLostAck",
        "breadth",
        60_000,
        ("reconfigurer R9",),
    ),
    Mutant(
        "created-over",
        "a log that exists is created anew",
        "create-race",
        patch(
            (Administrator, "_on_create_view", _creates_anew),
            (Administrator, "on_choice", _over_what_is_there),
            TRUSTING_REGISTER,
        ),
        ("BoundaryWrittenOnce", "SingleOwner", "RoleError"),
        "breadth",
        5_000,
        ("administrator B1",),
    ),
    Mutant(
        "trims-nodes-only",
        "nodes are told to trim, and the map is not",
        "trim",
        patch((Administrator, "_on_trim_view", _trims_nodes_only)),
        ("Progress", "Completeness", "RoleError"),
        "swarm",
        20,
        ("administrator B3",),
    ),
    Mutant(
        "deleted-while-open",
        "a log is deleted without having been closed",
        "delete",
        patch((Administrator, "_on_delete_view", _deletes_what_is_open), (projections, "_require", _allow)),
        ("NoLostAck", "BoundaryWrittenOnce", "Progress"),
        "swarm",
        20,
        ("administrator B5",),
    ),
)

UNSEEN = {
    "appender A12": "how long silence is waited for is a matter of time, which the checker does not have",
    "writer W8": "from when silence counts is a matter of time, which the checker does not have",
    "administrator B6": "an operator who is refused may ask again: how often this is done for it breaks no promise",
}
