"""The coordinator: performs whatever is due for one log, one duty at a time.

States
    idle --tick, CheckNow, a wait is over--> viewing --projection--> (decide) --duty--> working --done--> viewing ...
                                                                        |--nothing due--> idle
                                                                        |--nothing due, ever--> over
    working --no answer in time, or failed--> idle (checked again at the next tick)
    A log with nothing due rests: its next tick is late. A host that sees a change sends CheckNow.

Rules
 C1  It decides from what it has just read (``next_duty``), so two coordinators, or a restarted one, do no harm.
 C2  Every duty is repeated until it is known to be done: nothing is sent once and forgotten.
 C3  A stream is dropped only after its id has left the projection. The nodes list the streams to drop, so a restart
     forgets none; they are asked again if the map changed more than once between two checks.
 C4  It is never on the append path.
 C5  A serving member is removed only after another serving member of its group, which stays, has confirmed that it is
     intact: for this removal, and since the projection that is changed. A joiner has not served, and needs no witness.
 C6  The answer of a node about its streams holds until it restarts or finds damage; then it is asked again. Answers to
     earlier questions do not count.
 C7  An open segment is made wider only after it was stable for some time: a lease outlives its node.
 C8  A long procedure is restarted only after silence, never because it takes long.
 C9  An absent node gets some time to come back before its repaired segments are copied elsewhere. The time starts with
     the first check that shows it absent, and ends when it is back; each absence has its own.
 C10 A node with a lease that does not answer is passed over, longer each time, until it answers. A segment whose repair
     or copy failed comes after all other duties. So neither delays other duties.
 C11 A joiner whose node has no space, or is passed over, gives its place to another node if there is one.
 C12 A check takes a bounded time: of a long map it examines a part, and the next check continues there. It rests only
     after a full round without a change.
 C13 The duties of a deleted log are over when no node that may come back can hold a stream of it.
 C14 A log is blocked if the last decision found that its open segment must be ended and cannot be. Each change of this
     is announced.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.duties import (
    ASKED_MAX,
    AddMember,
    CopyToJoiner,
    Duty,
    DutyMemory,
    EndTheSegment,
    FinalizeMembers,
    ForgetTheSegments,
    RemoveJoiner,
    RemoveServingMember,
    RepairSegment,
    TidyNode,
    TrimMembers,
    is_over,
    left_members,
    left_streams,
    next_duty,
)
from trunkline.core.effects import SELF, Address, Announce, CancelTimer, Effects, Message, Send, SetTimer
from trunkline.core.events import DutiesOver, LogBlocked, LogUnblocked, MemberRebuilt, MemberRemoved
from trunkline.core.messages import (
    Drop,
    Dropped,
    Finalize,
    Finalized,
    Inventoried,
    Inventory,
    NodeInfo,
    Reason,
    Rejected,
    StreamTarget,
    Trim,
    TrimDone,
    descriptor_of,
    target_of,
)
from trunkline.core.patience import Patience, PatienceConfig
from trunkline.core.projection import (
    AddJoiner,
    AdmitJoiner,
    Change,
    ForgetSegment,
    Group,
    MarkRepaired,
    Member,
    Projection,
    RemoveMember,
    Segment,
    apply,
)
from trunkline.core.rebuild import MemberCopy
from trunkline.core.repair import SegmentRepair
from trunkline.core.siblings import ChangeProjection, CheckNow, EndOpenSegment, Refresh, ViewChanged


class CoordinatorState(enum.Enum):
    IDLE = "idle"
    VIEWING = "viewing"
    WORKING = "working"
    OVER = "over"


class DutiesConfig(Struct, frozen=True):
    log: str
    first_check_ms: int = 500  # after a start
    tick_ms: int = 500  # after a failure. Too small: idle work; too big: a slow retry
    rest_ms: int = 30_000  # with nothing due. Too small: idle work; too big: a missed notification is made up for late
    widen_ms: int = 10_000  # too small: a failed node becomes a member again; too big: less redundancy for longer
    absent_ms: int = 30_000  # too small: a restart causes copies; too big: fewer copies for longer
    duty_ms: int = 5000  # without an answer for this long the duty is checked again
    silences_max: int = 4  # a node is passed over for up to 2 ** this times duty_ms. Bigger: its return is noticed late
    full_ms: int = 60_000  # too small: a full node is tried in vain; too big: its free space is noticed late
    examined_max: int = 1000  # segments in a check. Too small: a long map takes many checks; too big: long checks
    span: int = 4096  # positions in a comparison or copy. Too small: more round trips; too big: memory


class Coordinator:
    def __init__(self, config: DutiesConfig) -> None:
        self.config = config
        self.state = CoordinatorState.IDLE
        self.view: Projection | None = None
        self.nodes: tuple[NodeInfo, ...] = ()
        self.done = DutyMemory(config.examined_max)
        self.patience = Patience(
            PatienceConfig(
                config.log, config.widen_ms, config.absent_ms, config.duty_ms, config.silences_max, config.full_ms
            ),
            self.done,
        )
        self.blocked = -1  # the segment that was announced as blocked (C14)
        self.check_again = False  # something changed since the check whose duty is in progress
        self.question = 0  # only answers with this number count (C5, C6)
        self.questioned = 0  # the epoch at its last increment
        self.duty: Duty | None = None
        self.procedure: SegmentRepair | MemberCopy | None = None
        self.asked: set[str] = set()  # streams whose answers the duty waits for
        self.unasked = 0  # streams to drop after those
        self.answered: set[str] = set()  # nodes that answered since the duty began

    @property
    def phase(self) -> str:
        return type(self.duty).__name__ if self.duty is not None else self.state.value

    @property
    def is_busy(self) -> bool:
        """Whether it performs a short duty. A copy or a repair may take long."""
        return self.state in (CoordinatorState.VIEWING, CoordinatorState.WORKING) and self.procedure is None

    def on_start(self) -> Effects:
        return [SetTimer("tick", self.config.first_check_ms)]

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a coordinator makes no choice, but {key} was chosen")

    def on_timer(self, key: str) -> Effects:
        if self.state is CoordinatorState.OVER:
            return []
        if key == "tick":
            silent = self._silent_nodes() if self.state is CoordinatorState.WORKING else ()
            passed_over = self.patience.pass_over_silent(silent)
            self.done.blocked = -1
            return [*passed_over, *self._check()]
        self.done.begin_round(self.view)
        return [*self.patience.on_timer(key), *self._check_soon()]

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case _ if self.state is CoordinatorState.OVER:
                return []
            case CheckNow():
                return self._check_soon()
            case ViewChanged(_, projection, nodes) if self.procedure is None:
                return self._on_view(projection, nodes)
            case ViewChanged():
                return []  # an answer to an earlier check: the procedure keeps its own view
        return [*self._note_answer(source), *self._on_answer(source, message)]

    def _note_answer(self, source: Address) -> Effects:
        """A node that answers, even an earlier question, is not passed over any more (C10)."""
        if source.role != "storage":
            return []
        if self.state is CoordinatorState.WORKING:
            self.answered.add(source.process)
        back = self.patience.on_answer(source.process)
        return [*back, *self._check_soon()] if back else []

    def _on_answer(self, source: Address, message: Message) -> Effects:
        match message:
            case Finalized(stream, intact, nonce) if nonce == self.question:
                self._learn(stream, intact=intact)
                if self.procedure is None:
                    return self._on_witness(stream, intact=intact)
            case TrimDone(stream, point):
                self.done.trimmed[stream] = max(point, self.done.trimmed.get(stream, 0))
                return self._on_answered(stream)
            case Inventoried(_, streams):
                return self._on_inventory(source, streams)
            case Dropped(stream):
                return self._on_answered(stream)
            case Rejected(stream, _, reason):
                return self._on_rejected(source, message, stream, reason)
        return self._on_procedure_message(message)

    # --------------------------------------------------------------------------------------------------------- deciding

    def _check(self) -> Effects:
        self.state, self.duty, self.procedure, self.check_again = CoordinatorState.VIEWING, None, None, False
        self.asked, self.answered, self.unasked = set(), set(), 0
        return [CancelTimer("tick"), Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]

    def _check_soon(self) -> Effects:
        """Something has changed: check now, or before the next rest."""
        if self.state is CoordinatorState.IDLE:
            self.done.blocked = -1
            return self._check()
        self.check_again = True
        return []

    def _on_view(self, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
        if view is not None and self.view is not None and view.epoch == self.view.epoch:
            view = self.view  # unchanged
        if view is not self.view or nodes != self.nodes:
            self.done.begin_round(view)
        effects = self._doubt(view, nodes)
        self.view, self.nodes = view, nodes
        if isinstance(self.duty, EndTheSegment) and view is not None and view.last.is_open:
            self.done.blocked = view.last.index if view.last.index == self.duty.segment else -1
        return [*effects, *self.patience.on_view(view, nodes), *self._decide()]

    def _decide(self) -> Effects:
        self.duty = next_duty(self.view, self.nodes, self.done) if self.view is not None else None
        if self.duty is None:
            return self._check() if self.check_again else [*self._announce_blocked(), *self._rest()]
        assert self.view is not None
        self.state, self.asked, self.answered, self.unasked = CoordinatorState.WORKING, set(), set(), 0
        news = [] if isinstance(self.duty, EndTheSegment) else self._announce_blocked()
        return [*news, *self._begin(self.duty, self.view), SetTimer("tick", self.config.duty_ms)]

    def _announce_blocked(self) -> Effects:
        if self.blocked == self.done.blocked:  # C14
            return []
        self.blocked = self.done.blocked
        blocked = self.blocked >= 0
        return [Announce(LogBlocked(self.config.log, self.blocked) if blocked else LogUnblocked(self.config.log))]

    def _rest(self) -> Effects:
        """Until a change. Only what failed, is blocked or was not examined is due without one (C10, C12)."""
        if self.view is not None and is_over(self.view, self.nodes, self.done):  # C13
            self.state = CoordinatorState.OVER
            return [CancelTimer("tick"), Announce(DutiesOver(self.config.log))]
        soon = self.done.blocked >= 0 or self.done.failed or self.done.unseen  # it may resolve without a notification
        self.state, self.done.failed = CoordinatorState.IDLE, set()
        return [SetTimer("tick", self.config.tick_ms if soon else self.config.rest_ms)]

    def _begin(self, duty: Duty, view: Projection) -> Effects:
        match duty:
            case EndTheSegment(index, suspects):
                job = EndOpenSegment(self.config.log, index, suspects)
                return [Send(Address(SELF, "reconfigurer"), job)]
            case RemoveJoiner(index, stream):
                return self._remove(index, stream)
            case RemoveServingMember(index, _, witnesses):
                if self.questioned != view.epoch:  # an answer from before this projection does not count (C5)
                    self.question, self.questioned = self.question + 1, view.epoch
                return self._finalize(view, index, witnesses)
            case FinalizeMembers(segments):
                return [effect for index, members in segments for effect in self._finalize(view, index, members)]
            case RepairSegment(index):
                return self._run(SegmentRepair(view, self._segment(view, index), self.config.span))
            case CopyToJoiner(index, joiner, source):
                segment = self._segment(view, index)
                return self._run(MemberCopy(view, segment, source, joiner, self.config.span))
            case AddMember(index, group, seat):
                return self._change(AddJoiner(index, group, seat))
            case TrimMembers(index, members):
                segment = self._segment(view, index)
                self.asked = {member.stream for member in members}
                return [Send(_storage(m), Trim(target_of(view, segment, m), view.trim)) for m in members]
            case ForgetTheSegments(indexes):
                return self._change(ForgetSegment(indexes[0], indexes[1:]))
            case TidyNode(node):
                return [Send(Address(node, "storage"), Inventory(self.config.log))]

    def _finalize(self, view: Projection, index: int, members: Group) -> Effects:
        segment = self._segment(view, index)
        assert segment.end is not None
        self.asked.update(member.stream for member in members)
        asks = [(m, Finalize(descriptor_of(view, segment, m), segment.end, self.question)) for m in members]
        return [Send(_storage(member), ask) for member, ask in asks]

    def _segment(self, view: Projection, index: int) -> Segment:
        segment = view.segment(index)
        assert segment is not None
        return segment

    def _change(self, change: Change) -> Effects:
        assert self.view is not None
        job = ChangeProjection(self.view.epoch, apply(self.view, change))
        return [Send(Address(SELF, "reconfigurer"), job)]

    # --------------------------------------------------------------------------------------------------------- working

    def _learn(self, stream: str, *, intact: bool) -> None:
        if intact and stream not in self.done.damaged:
            self.done.finalized.add(stream)
        else:
            self.done.found_damaged(stream)

    def _on_witness(self, stream: str, *, intact: bool) -> Effects:
        """A member has answered; the removal of another may wait for it (C5)."""
        duty = self.duty
        if not isinstance(duty, RemoveServingMember) or stream not in self.asked:
            return self._on_answered(stream)
        if not intact:
            return self._check()
        self.asked = set()  # one witness is enough
        return self._remove(duty.segment, duty.stream)

    def _remove(self, index: int, stream: str) -> Effects:
        return [Announce(MemberRemoved(self.config.log, index, stream)), *self._change(RemoveMember(index, stream))]

    def _on_answered(self, stream: str) -> Effects:
        """A duty for several streams is done when all have answered (C2: otherwise it is due again)."""
        if stream not in self.asked or self.procedure is not None:
            return []  # a late answer, perhaps of another node
        self.asked.discard(stream)
        if self.asked:
            return []
        if isinstance(self.duty, TidyNode) and not self.unasked:
            return self._tidied(self.duty.node)
        return self._check()

    def _on_rejected(self, source: Address, message: Message, stream: str, reason: Reason) -> Effects:
        if reason is Reason.CORRUPT:
            self.done.found_damaged(stream)
        if self.procedure is not None:
            return self._on_procedure_message(message)
        if stream not in self.asked:
            return []
        match self.duty:
            case TrimMembers() if self.view is not None:
                self.done.trimmed[stream] = self.view.trim  # it has nothing to trim
            case FinalizeMembers() | RemoveServingMember() if reason is Reason.NO_SPACE:
                return [*self.patience.pass_over_full(source.process), *self._on_answered(stream)]
            case FinalizeMembers() | RemoveServingMember():
                self.done.found_damaged(stream)  # it never becomes what the projection says
        return self._on_answered(stream)

    def _silent_nodes(self) -> tuple[str, ...]:
        """Nodes that the duty asked and that did not answer (C10)."""
        if self.procedure is not None:
            return self.procedure.silent_nodes()
        members: Group = ()
        match self.duty:
            case FinalizeMembers(segments):
                members = tuple(member for _, group in segments for member in group)
            case RemoveServingMember(_, _, group) | TrimMembers(_, group):
                members = group
            case TidyNode(node):
                return () if node in self.answered else (node,)
        nodes = (m.node for m in members if m.stream in self.asked and m.node not in self.answered)
        return tuple(dict.fromkeys(nodes))

    def _run(self, procedure: SegmentRepair | MemberCopy) -> Effects:
        self.procedure = procedure
        return [*procedure.start(), *self._check_procedure()]

    def _on_procedure_message(self, message: Message) -> Effects:
        if self.procedure is None:
            return []
        effects = self.procedure.on_message(message)
        effects += self._check_procedure()
        if self.procedure is not None:  # it continues: only silence restarts it (C8)
            effects.append(SetTimer("tick", self.config.duty_ms))
        return effects

    def _check_procedure(self) -> Effects:
        procedure, duty = self.procedure, self.duty
        if procedure is None or not (procedure.finished or procedure.failed):
            return []
        assert isinstance(duty, RepairSegment | CopyToJoiner)
        self.procedure = None
        if procedure.failed:
            self.done.failed.add(duty.segment)
            no_space = isinstance(procedure, MemberCopy) and procedure.no_space  # C11
            full = self.patience.pass_over_full(duty.joiner.node) if no_space and isinstance(duty, CopyToJoiner) else []
            return [*full, *self._check()]
        if isinstance(duty, RepairSegment):
            return self._change(MarkRepaired(duty.segment))
        event = Announce(MemberRebuilt(self.config.log, duty.segment, duty.joiner.stream))
        return [event, *self._change(AdmitJoiner(duty.segment, duty.joiner.stream))]

    def _doubt(self, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
        """Forget the answers of nodes that have restarted, found damage or lost a stream since (C3, C6)."""
        if self.view is None or view is None:
            return []
        for member in left_members(self.view, view) if view is not self.view else ():
            self.done.forget(member.stream)
            self.done.tidied.discard(member.node)
        if view.epoch > self.view.epoch + 1:  # neither view may name a stream that came and left
            self.done.tidied.clear()
        known = {info.node: (info.start, info.damaged) for info in self.nodes}
        changed = [n for n in nodes if known.get(n.node, (n.start, n.damaged)) != (n.start, n.damaged)]
        effects: Effects = []
        for info in changed:
            restarted = known[info.node][0] != info.start
            self._doubt_node(view, info, restarted=restarted)
            effects += self.patience.on_restart(info.node) if restarted else []
        self.question += 1 if changed else 0
        return effects

    def _doubt_node(self, view: Projection, info: NodeInfo, *, restarted: bool) -> None:
        groups = [group for segment in view.segments for group in segment.groups]
        self.done.finalized.difference_update([m.stream for group in groups for m in group if m.node == info.node])
        if restarted:
            self.done.tidied.discard(info.node)
        elif view.last.is_open and any(member.node == info.node for member in view.last.members()):
            self.done.harmed = (view.last.index, info.node)  # an open segment cannot be asked, so it is ended

    def _on_inventory(self, source: Address, streams: tuple[StreamTarget, ...]) -> Effects:
        if not isinstance(self.duty, TidyNode) or source.process != self.duty.node or self.view is None or self.asked:
            return []
        left = left_streams(self.view, streams)  # C3
        asked, self.unasked = left[:ASKED_MAX], len(left[ASKED_MAX:])
        self.asked = {target.stream for target in asked}
        return [Send(source, Drop(target)) for target in asked] if asked else self._tidied(source.process)

    def _tidied(self, node: str) -> Effects:
        self.done.tidied.add(node)
        return self._decide()


def _storage(member: Member) -> Address:
    return Address(member.node, "storage")
