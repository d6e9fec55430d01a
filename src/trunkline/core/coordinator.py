"""The coordinator: does, for one log, whatever is due, one duty at a time.

States
    idle --tick, LookNow, patience over--> viewing --projection--> (decide) --duty--> working --done--> viewing ...
                                                                      |--nothing due--> idle
    working --no answer in time, or failed--> idle (it is looked at anew at the next tick)
    A log with nothing due rests: its next tick is far away. Whoever changes something says LookNow.

Rules
 C1  It decides from what it has just read (``next_duty``), so two coordinators, or one that restarted, do no harm.
 C2  Every duty is repeated until it is seen done: nothing is sent once and forgotten.
 C3  A stream is dropped only after its id has left the projection. What is to be dropped is asked of the nodes, so it
     is not forgotten with this process.
 C4  It is never on the append path.
 C5  A member is removed only after another one of its group has said, when asked for this, that it is intact.
 C6  What a node said of its streams holds until it restarts or finds damage; then it is asked again. Answers to
     earlier questions do not count.
 C7  An open segment is made wider only when it has been as it is for some time: a lease outlives its node.
 C8  A long procedure is begun anew only after a silence, never because it takes long.
 C9  A node that went away is given some time to come back before its repaired segments are copied elsewhere. The time
     begins with the first look that shows it away, and ends when it is back; each absence has its own.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.duties import (
    AddMember,
    CopyToJoiner,
    Done,
    Duty,
    EndTheSegment,
    FinalizeMembers,
    ForgetTheSegment,
    RemoveDeadMember,
    RepairSegment,
    TidyNode,
    TrimMembers,
    left_streams,
    next_duty,
)
from trunkline.core.effects import SELF, Address, Announce, CancelTimer, Effects, Message, Send, SetTimer
from trunkline.core.events import MemberRebuilt, MemberRemoved
from trunkline.core.messages import (
    Drop,
    Dropped,
    Finalize,
    Finalized,
    Inventoried,
    Inventory,
    NodeInfo,
    NodeState,
    Reason,
    Rejected,
    Target,
    Trim,
    TrimDone,
    descriptor_of,
    target_of,
)
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
from trunkline.core.siblings import ChangeProjection, EndOpenSegment, LookNow, Refresh, ViewChanged


class CoordinatorConfig(Struct, frozen=True):
    log: str
    tick_ms: int = 500  # after what failed or could not be done. Too small: idle work; too big: it waits for longer
    rest_ms: int = 30_000  # with nothing due. Too small: idle work; too big: what nobody told is noticed late
    widen_ms: int = 10_000  # too small: a node that just failed is taken in again; too big: less redundancy for longer
    absent_ms: int = 30_000  # too small: a restart has its data copied away; too big: fewer copies for longer
    duty_ms: int = 5000  # a duty without an answer for this long is looked at anew


class Coordinator:
    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        self.state = "idle"
        self.view: Projection | None = None
        self.nodes: tuple[NodeInfo, ...] = ()
        self.done = Done()
        self.look_again = False  # something changed since the look whose duty is in work
        self.given_up: set[str] = set()  # nodes that are away and were awaited for long enough
        self.narrow = -1  # the open segment that is to be as it is for some time, if it is narrow
        self.question = 0  # only answers that repeat this number count (C5, C6)
        self.duty: Duty | None = None
        self.procedure: SegmentRepair | MemberCopy | None = None
        self.dropping: set[str] = set()  # streams that the node that is being tidied was asked to drop

    @property
    def phase(self) -> str:
        return type(self.duty).__name__ if self.duty is not None else self.state

    def on_start(self) -> Effects:
        return [SetTimer("tick", self.config.tick_ms)]

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a coordinator asks for no choice, yet {key} was made")

    def on_timer(self, key: str) -> Effects:
        what, _, node = key.partition(" ")
        if what == "tick":
            self.done.blocked = -1
            return self._look()
        if what == "widen":
            self.done.may_widen = True
        elif what == "absent":
            self.done.awaited.discard(node)
            self.given_up.add(node)
        return self._look_soon()

    def _look_soon(self) -> Effects:
        """Something has changed: one that works looks again before it rests."""
        if self.state == "idle":
            self.done.blocked = -1
            return self._look()
        self.look_again = True
        return []

    def _be_patient(self) -> Effects:
        """Begin and end to wait, as the view that was just read shows (C7, C9)."""
        return [*self._await_steadiness(), *self._await_the_absent()]

    def _await_steadiness(self) -> Effects:
        """A segment is made wider only when it has been as it is for some time: a lease outlives its node (C7)."""
        view = self.view
        narrow = view is not None and view.last.is_open and min(map(len, view.last.groups)) < view.settings.replicas
        index = view.last.index if view is not None and narrow else -1
        if index == self.narrow:
            return []
        self.narrow = index
        self.done.may_widen = self.config.widen_ms == 0
        wait = narrow and not self.done.may_widen
        return [SetTimer("widen", self.config.widen_ms) if wait else CancelTimer("widen")]

    def _await_the_absent(self) -> Effects:
        """A node that went away is given some time before its repaired segments are copied elsewhere (C9)."""
        if not self.config.absent_ms:
            return []
        states = (NodeState.RW, NodeState.DRAINING)
        away = [info.node for info in self.nodes if not info.live and info.state in states]
        known = self.done.awaited | self.given_up
        begun = [node for node in away if node not in known]
        over = sorted(self.done.awaited.difference(away))
        self.done.awaited = (self.done.awaited | set(begun)).intersection(away)
        self.given_up.intersection_update(away)
        timers: Effects = [SetTimer(f"absent {node}", self.config.absent_ms) for node in begun]
        return [*timers, *(CancelTimer(f"absent {node}") for node in over)]

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case ViewChanged(_, projection, nodes) if self.procedure is None:
                self._doubt(projection, nodes)
                self.view, self.nodes = projection, nodes
                return [*self._be_patient(), *self._on_view()]
            case ViewChanged():
                return []  # an answer to an earlier look: the procedure goes on from what it began with
            case Finalized(stream, intact, nonce) if self.procedure is None:
                if nonce != self.question:
                    return []
                (self.done.finalized if intact else self.done.damaged).add(stream)
                return self._on_witness(stream, intact=intact) or self._check_members()
            case TrimDone(stream, point):
                self.done.trimmed[stream] = max(point, self.done.trimmed.get(stream, 0))
                return self._check_members()
            case LookNow():
                return self._look_soon()
            case Inventoried(_, streams):
                return self._on_inventory(source, streams)
            case Dropped(stream):
                return self._on_dropped(stream)
            case Rejected(stream, _, Reason.CORRUPT):
                self.done.damaged.add(stream)
            case Rejected(stream, _, Reason.UNKNOWN) if isinstance(self.duty, TrimMembers) and self.view is not None:
                self.done.trimmed[stream] = self.view.trim  # it never held anything
                return self._check_members()
            case Rejected() if self.procedure is None:
                return []  # the next look decides
        return self._on_procedure_message(message)

    # --------------------------------------------------------------------------------------------------------- deciding

    def _look(self) -> Effects:
        self.state, self.duty, self.procedure, self.look_again = "viewing", None, None, False
        return [CancelTimer("tick"), Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]

    def _on_view(self) -> Effects:
        still_open = self.view is not None and self.view.last.is_open
        if isinstance(self.duty, EndTheSegment) and still_open and self.view is not None:
            blocked = self.view.last.index == self.duty.segment
            self.done.blocked = self.view.last.index if blocked else -1
        return self._decide()

    def _decide(self) -> Effects:
        self.duty = next_duty(self.view, self.nodes, self.done) if self.view is not None else None
        if self.duty is None:
            return self._look() if self.look_again else self._rest()
        assert self.view is not None
        self.state = "working"
        return [*self._begin(self.duty, self.view), SetTimer("tick", self.config.duty_ms)]

    def _rest(self) -> Effects:
        self.state = "idle"
        blocked = self.done.blocked >= 0  # it may be over without a sign
        return [SetTimer("tick", self.config.tick_ms if blocked else self.config.rest_ms)]

    def _begin(self, duty: Duty, view: Projection) -> Effects:
        match duty:
            case EndTheSegment(index, suspects):
                job = EndOpenSegment(self.config.log, index, suspects)
                return [Send(Address(SELF, "reconfigurer"), job)]
            case RemoveDeadMember(_, _, witnesses) if not witnesses:
                return self._remove(duty)
            case RemoveDeadMember(index, _, members):
                self.question += 1  # what was said before is no witness (C5)
                return self._finalize(view, index, members)
            case FinalizeMembers(index, members):
                return self._finalize(view, index, members)
            case RepairSegment(index):
                return self._run(SegmentRepair(view, self._segment(view, index)))
            case CopyToJoiner(index, joiner):
                return self._run(self._copy(view, self._segment(view, index), joiner))
            case AddMember(index, group, seat):
                return self._change(AddJoiner(index, group, seat))
            case TrimMembers(index, members):
                segment = self._segment(view, index)
                return [Send(_storage(m), Trim(target_of(view, segment, m), view.trim)) for m in members]
            case ForgetTheSegment(index):
                return self._change(ForgetSegment(index))
            case TidyNode(node):
                self.dropping = set()
                return [Send(Address(node, "storage"), Inventory(self.config.log))]

    def _finalize(self, view: Projection, index: int, members: Group) -> Effects:
        segment = self._segment(view, index)
        assert segment.end is not None
        asks = [(m, Finalize(descriptor_of(view, segment, m), segment.end, self.question)) for m in members]
        return [Send(_storage(member), ask) for member, ask in asks]

    def _copy(self, view: Projection, segment: Segment, joiner: Member) -> MemberCopy:
        group = next(group for group in segment.groups if joiner in group)
        live = {info.node for info in self.nodes if info.live}
        source = next(member for member in segment.serving(group) if member.node in live)
        return MemberCopy(view, segment, source, joiner)

    def _segment(self, view: Projection, index: int) -> Segment:
        segment = view.segment(index)
        assert segment is not None
        return segment

    def _change(self, change: Change) -> Effects:
        assert self.view is not None
        job = ChangeProjection(self.view.epoch, apply(self.view, change))
        return [Send(Address(SELF, "reconfigurer"), job)]

    # --------------------------------------------------------------------------------------------------------- working

    def _on_witness(self, stream: str, *, intact: bool) -> Effects:
        """A member that stays has answered while another waits to be removed (C5)."""
        duty = self.duty
        if not isinstance(duty, RemoveDeadMember) or stream not in [m.stream for m in duty.witnesses]:
            return []
        if not intact:
            return self._look()
        self.duty = RemoveDeadMember(duty.segment, duty.stream)  # one word is enough
        return self._remove(duty)

    def _remove(self, duty: RemoveDeadMember) -> Effects:
        event = Announce(MemberRemoved(self.config.log, duty.segment, duty.stream))
        return [event, *self._change(RemoveMember(duty.segment, duty.stream))]

    def _check_members(self) -> Effects:
        """A duty towards several members is over when all have answered (C2: otherwise it is due again)."""
        match self.duty:
            case FinalizeMembers(_, members):
                known = self.done.finalized | self.done.damaged
                return self._look() if all(m.stream in known for m in members) else []
            case TrimMembers(_, members) if self.view is not None:
                point = self.view.trim
                if all(self.done.trimmed.get(m.stream, 0) >= point for m in members):
                    return self._look()
        return []

    def _run(self, procedure: SegmentRepair | MemberCopy) -> Effects:
        self.procedure = procedure
        return [*procedure.start(), *self._check_procedure()]

    def _on_procedure_message(self, message: Message) -> Effects:
        if self.procedure is None:
            return []
        effects = self.procedure.on_message(message)
        effects += self._check_procedure()
        if self.procedure is not None:  # it goes on: only a silence makes it due anew (C8)
            effects.append(SetTimer("tick", self.config.duty_ms))
        return effects

    def _check_procedure(self) -> Effects:
        procedure, duty = self.procedure, self.duty
        if procedure is None or not (procedure.finished or procedure.failed):
            return []
        self.procedure = None
        if procedure.failed:
            self.state, self.duty = "idle", None
            return [SetTimer("tick", self.config.tick_ms)]
        match duty:
            case RepairSegment(index):
                return self._change(MarkRepaired(index))
            case CopyToJoiner(index, joiner):
                event = Announce(MemberRebuilt(self.config.log, index, joiner.stream))
                return [event, *self._change(AdmitJoiner(index, joiner.stream))]
        raise AssertionError(f"{duty} has no procedure")

    def _doubt(self, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> None:
        """Forget what nodes said that have restarted or found damage since, or that lost a stream (C3, C6)."""
        if self.view is None or view is None:
            return
        named = view.streams()
        self.done.tidied -= {m.node for s in self.view.segments for m in s.members() if m.stream not in named}
        known = {info.node: (info.start, info.damaged) for info in self.nodes}
        changed = [n for n in nodes if known.get(n.node, (n.start, n.damaged)) != (n.start, n.damaged)]
        for info in changed:
            self._doubt_node(view, info, restarted=known[info.node][0] != info.start)
        self.question += 1 if changed else 0

    def _doubt_node(self, view: Projection, info: NodeInfo, *, restarted: bool) -> None:
        members = [member for segment in view.segments for member in segment.members() if member.node == info.node]
        self.done.finalized.difference_update(member.stream for member in members)
        if restarted:
            self.done.tidied.discard(info.node)
        elif view.last.is_open and any(member in members for member in view.last.members()):
            self.done.harmed = (view.last.index, info.node)  # an open segment cannot be asked: it is ended

    def _on_inventory(self, source: Address, streams: tuple[Target, ...]) -> Effects:
        if not isinstance(self.duty, TidyNode) or source.process != self.duty.node or self.view is None:
            return []
        left = left_streams(self.view, streams)  # C3
        self.dropping = {target.stream for target in left}
        return [Send(source, Drop(target)) for target in left] if left else self._tidied(self.duty.node)

    def _on_dropped(self, stream: str) -> Effects:
        if not isinstance(self.duty, TidyNode) or stream not in self.dropping:
            return []  # a late answer, perhaps of another node
        self.dropping.remove(stream)
        return [] if self.dropping else self._tidied(self.duty.node)

    def _tidied(self, node: str) -> Effects:
        self.done.tidied.add(node)
        return self._decide()


def _storage(member: Member) -> Address:
    return Address(member.node, "storage")
