"""The coordinator: does, for one log, whatever is due, one duty at a time.

States
    idle --tick--> viewing --projection--> (decide) --duty--> working --done--> viewing ...
                                              |--nothing due--> idle
    working --no answer in time, or failed--> idle (it is looked at anew at the next tick)

Rules
 C1  It decides from what it has just read (``next_duty``), so two coordinators, or one that restarted, do no harm.
 C2  Every duty is repeated until it is seen done: nothing is sent once and forgotten.
 C3  A stream is dropped only after its id has left the projection.
 C4  It is never on the append path.
 C5  A member is removed only after another one of its group has said, when asked for this, that it is intact.
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
    TrimMembers,
    next_duty,
)
from trunkline.core.effects import SELF, Address, Announce, CancelTimer, Effects, Message, Send, SetTimer
from trunkline.core.events import MemberRebuilt, MemberRemoved
from trunkline.core.messages import (
    ChangeProjection,
    Drop,
    Dropped,
    EndOpenSegment,
    Finalize,
    Finalized,
    NodeInfo,
    Reason,
    Refresh,
    Rejected,
    Target,
    Trim,
    TrimDone,
    ViewChanged,
    descriptor_of,
    target_of,
)
from trunkline.core.projection import (
    AddJoiner,
    AdmitJoiner,
    Change,
    ForgetSegment,
    MarkRepaired,
    Member,
    Projection,
    RemoveMember,
    Segment,
    apply,
)
from trunkline.core.rebuild import MemberCopy
from trunkline.core.repair import SegmentRepair


class CoordinatorConfig(Struct, frozen=True):
    log: str
    tick_ms: int = 500  # too small: idle work; too big: a dead node is replaced late
    duty_ms: int = 5000  # a duty without an answer for this long is looked at anew


class Coordinator:
    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        self.state = "idle"
        self.view: Projection | None = None
        self.nodes: tuple[NodeInfo, ...] = ()
        self.done = Done()
        self.duty: Duty | None = None
        self.procedure: SegmentRepair | MemberCopy | None = None
        self.leftovers: list[tuple[str, Target]] = []  # streams to drop, and where

    @property
    def phase(self) -> str:
        return type(self.duty).__name__ if self.duty is not None else self.state

    def on_start(self) -> Effects:
        return [SetTimer("tick", self.config.tick_ms)]

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a coordinator asks for no choice, yet {key} was made")

    def on_timer(self, key: str) -> Effects:
        self.done.blocked = -1
        return self._look()

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case ViewChanged(_, projection, nodes) if self.procedure is None:
                self._remember_leavers(self.view, projection)
                self.view, self.nodes = projection, nodes
                return self._on_view()
            case ViewChanged():
                return []  # an answer to an earlier look: the procedure goes on from what it began with
            case Finalized(stream, intact) if self.procedure is None:
                (self.done.finalized if intact else self.done.damaged).add(stream)
                return self._on_witness(stream, intact=intact) or self._check_members()
            case TrimDone(stream, point):
                self.done.trimmed[stream] = max(point, self.done.trimmed.get(stream, 0))
                return self._check_members()
            case Dropped(stream):
                self.leftovers = [kept for kept in self.leftovers if kept[1].stream != stream]
                return []
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
        self.state, self.duty, self.procedure = "viewing", None, None
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
            self.state, self.done.blocked = "idle", -1
            return [*self._drop_leftovers(), SetTimer("tick", self.config.tick_ms)]
        assert self.view is not None
        self.state = "working"
        return [*self._begin(self.duty, self.view), SetTimer("tick", self.config.duty_ms)]

    def _begin(self, duty: Duty, view: Projection) -> Effects:
        match duty:
            case EndTheSegment(index, suspects):
                job = EndOpenSegment(self.config.log, index, suspects)
                return [Send(Address(SELF, "reconfigurer"), job)]
            case RemoveDeadMember(_, _, witnesses) if not witnesses:
                return self._remove(duty)
            case FinalizeMembers(index, members) | RemoveDeadMember(index, _, members):
                segment = self._segment(view, index)
                assert segment.end is not None
                return [Send(_storage(m), Finalize(descriptor_of(view, segment, m), segment.end)) for m in members]
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
        return [*effects, *self._check_procedure()]

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

    def _remember_leavers(self, before: Projection | None, after: Projection | None) -> None:
        """Streams that have left the projection, for whatever reason, are to be dropped (C3)."""
        if before is None or after is None:
            return
        named = {member.stream for segment in after.segments for member in segment.members()}
        for segment in before.segments:
            for member in segment.members():
                leftover = (member.node, target_of(before, segment, member))
                if member.stream not in named and leftover not in self.leftovers:
                    self.leftovers.append(leftover)

    def _drop_leftovers(self) -> Effects:
        """On nodes that are there; the others are asked when they come back."""
        live = {(info.node, info.incarnation) for info in self.nodes if info.live}
        return [
            Send(Address(node, "storage"), Drop(target))
            for node, target in self.leftovers
            if (node, target.incarnation) in live
        ]


def _storage(member: Member) -> Address:
    return Address(member.node, "storage")
