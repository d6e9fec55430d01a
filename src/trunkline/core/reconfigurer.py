"""The reconfigurer: the only procedure that ends a segment, and the only role that reads and swaps a projection.

States
    idle --job--> reading --projection--> sealing --answers--> choosing --placement--> swapping
      ^              | ^                     |  blocked             |  none               |  any answer, or none
      +--job is done-+ +---------------------+----------------------+---------------------+
Rules
 R1  Decide before repairing: nothing is cut or filled before the end is in the metadata store.
 R2  Each group needs an answer that counts. A wrong incarnation, a dropped stream and lost data do not count; a certain
     answer does. Uncertain answers count only if all members of their group answered and each is uncertain: a silent
     member may know better, and one that lost data cannot say what an uncertain one may have lost, too.
 R3  The end is the largest over groups of what each group decides. Every committed entry is on every member: of certain
     answers the smallest decides. Of uncertain answers the largest does, as a smaller one may have lost the difference.
 R4  Survivors are the members whose answers counted and that have what their group decided, in their old order.
 R5  After a swap, whatever its answer: read again, and trust only what is read. An answer may belong to an earlier
     proposal for the same epoch; the owner in the projection shows whose segment it is.
 R6  A roll needs no seal: the owner has frozen and gives its exact count, and the same count again if the epoch moved.
     A node that did not answer the owner is not a member of the next segment; one without space may have to be.
 R7  Only an operator reopens a log that an operator closed.
 R8  A job that is not possible now is returned undone, so that it never delays others; the requester retries.
 R9  Without an intact member the whole segment is lost, and only an operator may declare it. Readers see the gap.
 R10 The known projection never moves back. "Unchanged" counts only for the epoch that is known.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.effects import (
    SELF,
    Address,
    Announce,
    CancelTimer,
    Choose,
    Effects,
    Message,
    Send,
    SetTimer,
)
from trunkline.core.events import NoRedundancy, ReconfigurationBlocked
from trunkline.core.messages import Get, Got, NodeInfo, Rejected, Seal, Sealed, Swap, SwapLost, Swapped, descriptor_of
from trunkline.core.placement import eligible, openings, with_space
from trunkline.core.projection import EndSegment, Gap, Group, Opening, Policy, Projection, Reopen, Segment, apply
from trunkline.core.siblings import ChangeProjection, EndOpenSegment, OpenClosedLog, Refresh, ViewChanged

SEGMENTS_PER_MS = 10  # too many: swaps of long maps pile up at a busy register; too few: a lost answer delays longer

Job = Refresh | EndOpenSegment | OpenClosedLog | ChangeProjection


class ReconfigurerState(enum.Enum):
    IDLE = "idle"
    READING = "reading"
    SEALING = "sealing"
    CHOOSING = "choosing"
    SWAPPING = "swapping"


class ReconfigurerConfig(Struct, frozen=True):
    register: Address
    log: str
    retry_ms: int = 500  # too small: a slow register is asked twice; too big: a lost answer delays this long
    seal_wait_ms: int = 300  # too small: slow members are dropped; too big: every fail-over waits this long


class Reconfigurer:
    def __init__(self, config: ReconfigurerConfig) -> None:
        self.config = config
        self.state = ReconfigurerState.IDLE
        self.jobs: list[tuple[str, Job]] = []  # requesting role and job; the first is in progress
        self.view: Projection | None = None
        self.nodes: tuple[NodeInfo, ...] = ()
        self.answers: dict[str, Sealed | Rejected] = {}  # by stream, while sealing

    @property
    def phase(self) -> str:
        return self.state.value

    def on_start(self) -> Effects:
        return []

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Refresh() | EndOpenSegment() | OpenClosedLog() | ChangeProjection():
                return self._on_job(source.role, message)
            case Got() if self.state is ReconfigurerState.READING:
                return self._on_got(message)
            case Sealed(stream) | Rejected(stream) if self.state is ReconfigurerState.SEALING:
                return self._on_seal_answer(stream, message)
            case Swapped() | SwapLost() if self.state is ReconfigurerState.SWAPPING:
                return self._read()  # R5
        return []  # late answers of an earlier round

    def on_timer(self, key: str) -> Effects:
        if self.state is ReconfigurerState.SEALING:
            return self._decide()
        return self._read()

    def on_choice(self, key: str, option: object) -> Effects:
        assert isinstance(option, Opening) and self.view is not None
        return self._swap(_ending(self.view, self._current(), self.answers, option))

    # ---------------------------------------------------------------------------------------------------------- jobs

    def _on_job(self, role: str, job: Job) -> Effects:
        if (role, job) in self.jobs:
            return []
        self.jobs.append((role, job))
        return self._read() if self.state is ReconfigurerState.IDLE else []

    def _known(self) -> int:
        return self.view.epoch if self.view is not None else 0

    def _on_got(self, got: Got) -> Effects:
        """Ignore a late answer to an earlier request (R10)."""
        epoch = got.projection.epoch if got.projection is not None else got.unchanged
        if epoch < self._known() or (got.unchanged and epoch != self._known()):
            return []
        self.view, self.nodes = self.view if got.unchanged else got.projection, got.nodes
        return self._on_projection()

    def _current(self) -> Job:
        return self.jobs[0][1]

    def _read(self) -> Effects:
        self.state, self.answers = ReconfigurerState.READING, {}
        ask = Send(self.config.register, Get(self.config.log, known=self._known()))
        return [ask, SetTimer("wait", self.config.retry_ms)]

    def _finish(self) -> Effects:
        role, job = self.jobs.pop(0)
        effects: Effects = self._warnings() if isinstance(job, EndOpenSegment) else []
        effects.append(Send(Address(SELF, role), ViewChanged(self.config.log, self.view, self.nodes)))
        if self.jobs:
            return [*effects, *self._read()]
        self.state, self.answers = ReconfigurerState.IDLE, {}
        return [CancelTimer("wait"), *effects]

    def _on_projection(self) -> Effects:
        job, view = self._current(), self.view
        match job:
            case EndOpenSegment(_, index) if view is not None and view.last.index < index:
                return [SetTimer("wait", self.config.retry_ms)]  # older than what the requester knows: read again
            case EndOpenSegment(_, index) if view is not None and view.last.index == index and view.last.is_open:
                return self._end(job, view)
            case OpenClosedLog() if view is not None and not view.last.is_open and not view.deleted:
                return self._choose(view, job)
            case ChangeProjection(expected, projection) if (view.epoch if view is not None else 0) == expected:
                return self._swap(projection)
        return self._finish()

    # ----------------------------------------------------------------------------------------------- ending a segment

    def _end(self, job: EndOpenSegment, view: Projection) -> Effects:
        if job.end is not None:  # R6
            return self._choose(view, job) if view.last.owner == job.owner else self._finish()
        if job.reopen and len(eligible(self.nodes, ())) < view.settings.min_replicas:
            return self._blocked(view)  # a seal would only take away what is left
        if job.only_to_spares and self._spares(job.suspects) < min(map(len, view.last.groups)):
            return self._finish()
        self.state = ReconfigurerState.SEALING
        seals: Effects = [
            Send(Address(member.node, "storage"), Seal(descriptor_of(view, view.last, member)))
            for member in view.last.members()
        ]
        return [*seals, SetTimer("wait", self.config.seal_wait_ms)]

    def _on_seal_answer(self, stream: str, answer: Sealed | Rejected) -> Effects:
        assert self.view is not None
        streams = [member.stream for member in self.view.last.members()]
        if stream not in streams:
            return []
        self.answers[stream] = answer
        return self._decide() if len(self.answers) == len(streams) else []

    def _decide(self) -> Effects:
        view, job = self.view, self._current()
        assert view is not None and isinstance(job, EndOpenSegment)
        if not all(_voters(group, self.answers) for group in view.last.groups):  # R2
            return self._blocked(view) if job.declared_end is None else self._choose(view, job)
        return self._choose(view, job)

    def _blocked(self, view: Projection) -> Effects:
        """It is not possible now (R8): announce it, and return the job undone."""
        return [Announce(ReconfigurationBlocked(self.config.log, view.last.index)), *self._finish()]

    def _choose(self, view: Projection, job: EndOpenSegment | OpenClosedLog) -> Effects:
        """Choose the members of the next segment."""
        self.state = ReconfigurerState.CHOOSING
        suspects: tuple[str, ...] = ()
        silent: tuple[str, ...] = ()
        owner = view.last.owner if view.settings.policy is Policy.BROADCAST else None
        if isinstance(job, EndOpenSegment):
            if not job.reopen:
                return self._swap(_ending(view, job, self.answers, None))
            suspects, owner = job.suspects, job.owner or owner
            silent = self._silent(view.last) if job.end is None else () if job.only_to_spares else job.suspects
        preferred = tuple(member.node for member in view.last.members())
        options = openings(
            view.settings, self.nodes, preferred=preferred, silent=silent, suspects=suspects, owner=owner
        )
        return [Choose("opening", options)] if options else self._blocked(view)

    def _spares(self, suspects: tuple[str, ...]) -> int:
        return len(with_space(self.nodes, suspects))

    def _silent(self, segment: Segment) -> tuple[str, ...]:
        return tuple(member.node for member in segment.members() if member.stream not in self.answers)

    def _swap(self, projection: Projection) -> Effects:
        self.state = ReconfigurerState.SWAPPING
        swap = Swap(self.config.log, projection.epoch - 1, projection)
        longer = len(projection.segments) // SEGMENTS_PER_MS  # a long map takes longer to send and store
        return [Send(self.config.register, swap), SetTimer("wait", self.config.retry_ms + longer)]

    def _warnings(self) -> Effects:
        if self.view is None or not self.view.last.is_open:
            return []
        last, wanted = self.view.last, self.view.settings.replicas
        narrowest = min(len(group) for group in last.groups)
        warning = Announce(NoRedundancy(self.config.log, last.index, narrowest, wanted))
        return [warning] if narrowest < wanted else []


def _voters(group: Group, answers: dict[str, Sealed | Rejected]) -> Group:
    """The members whose answers count, in their old order (R2, R4)."""
    answered = [(member, answers.get(member.stream)) for member in group]
    intact = [(member, answer) for member, answer in answered if isinstance(answer, Sealed) and answer.intact]
    certain = tuple(member for member, answer in intact if not answer.uncertain)
    if certain or len(intact) < len(group):
        return certain
    largest = max(answer.next for _, answer in intact)  # R3
    return tuple(member for member, answer in intact if answer.next == largest)


def _ending(view: Projection, job: Job, answers: dict[str, Sealed | Rejected], opening: Opening | None) -> Projection:
    """The projection after this ending (R3, R4, R6)."""
    if isinstance(job, OpenClosedLog):
        assert opening is not None
        return apply(view, Reopen(opening))
    assert isinstance(job, EndOpenSegment)
    if job.end is not None:
        return apply(view, EndSegment(job.segment, job.end, view.last.groups, opening))
    survivors = tuple(_voters(group, answers) for group in view.last.groups)
    if job.declared_end is not None and not all(survivors):  # R9
        end = max(job.declared_end, view.last.base)
        lost = Gap(view.last.base, end)
        return apply(view, EndSegment(job.segment, end, tuple(() for _ in survivors), opening, lost))
    end = max(min(_next_of(answers, member.stream) for member in group) for group in survivors)
    return apply(view, EndSegment(job.segment, end, survivors, opening))


def _next_of(answers: dict[str, Sealed | Rejected], stream: str) -> int:
    answer = answers[stream]
    assert isinstance(answer, Sealed)
    return answer.next
