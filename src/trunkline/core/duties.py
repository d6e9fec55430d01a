"""What the coordinator should do next for a log: a pure function of projection, registry and what was done already.

The order is that of urgency: keep the log writable, make what has ended safe, make it wide again, tidy up.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.placement import eligible
from trunkline.core.projection import Group, Member, Policy, Projection, Seat, Segment


class EndTheSegment(Struct, frozen=True):
    """The open segment has a dead member or a dead sequencer, or could be wider."""

    segment: int
    suspects: tuple[str, ...]


class RemoveDeadMember(Struct, frozen=True):
    """A member of an ended segment is away for good, or lost data. A rebuild under a new stream id takes its place.

    One of the ``witnesses`` must say first, when asked for this, that it is intact: never remove the last one that is.
    A joiner needs no witness.
    """

    segment: int
    stream: str
    witnesses: Group = ()


class FinalizeMembers(Struct, frozen=True):
    segment: int
    members: Group


class RepairSegment(Struct, frozen=True):
    segment: int


class CopyToJoiner(Struct, frozen=True):
    segment: int
    joiner: Member


class AddMember(Struct, frozen=True):
    segment: int
    group: int
    seat: Seat


class TrimMembers(Struct, frozen=True):
    segment: int
    members: Group


class ForgetTheSegment(Struct, frozen=True):
    segment: int


Duty = (
    EndTheSegment
    | RemoveDeadMember
    | FinalizeMembers
    | RepairSegment
    | CopyToJoiner
    | AddMember
    | TrimMembers
    | ForgetTheSegment
)


class Done:
    """What this coordinator has seen done. Volatile: after a restart it is done once more, which is harmless."""

    def __init__(self) -> None:
        self.finalized: set[str] = set()  # streams that know their end; they said that they are intact
        self.blocked = -1  # the open segment, if it could not be ended at the last try
        self.trimmed: dict[str, int] = {}
        self.damaged: set[str] = set()  # streams that said that they lost data


def next_duty(view: Projection, nodes: tuple[NodeInfo, ...], done: Done) -> Duty | None:
    """The most urgent duty that can be done now, or None."""
    alive = {info.node: info for info in nodes if info.live and info.state is not NodeState.GONE}

    def lives(member: Member) -> bool:
        info = alive.get(member.node)
        here = info is not None and info.incarnation == member.incarnation
        return here and member.stream not in done.damaged

    can_end = view.last.is_open and view.last.index != done.blocked
    duty: Duty | None = _open_segment_duty(view, nodes, alive) if can_end else None
    if duty is not None:
        return duty
    for segment in view.segments:
        if segment.end is None:
            continue
        duty = _ended_segment_duty(view, segment, [m for m in segment.members() if lives(m)], nodes, done)
        if duty is not None:
            return duty
    return _trim_duty(view, [m for s in view.segments for m in s.members() if lives(m)], done)


def _open_segment_duty(
    view: Projection, nodes: tuple[NodeInfo, ...], alive: dict[str, NodeInfo]
) -> EndTheSegment | None:
    last = view.last
    if last.policy is Policy.BROADCAST:
        return None  # its owner rolls it, with the exact boundary
    suspects = [
        m.node for m in last.members() if (info := alive.get(m.node)) is None or info.incarnation != m.incarnation
    ]
    draining = [
        i.node for i in nodes if i.state is NodeState.DRAINING and any(m.node == i.node for m in last.members())
    ]
    owner = alive.get(last.owner.process)
    if owner is None or owner.start != last.owner.start:
        suspects.append(last.owner.process)
    width = min(len(group) for group in last.groups)
    could_be = min(view.settings.replicas, len(eligible(nodes, ())))
    if could_be < width:
        draining = []  # nobody would take its place
    if suspects or draining or width < could_be:
        return EndTheSegment(last.index, tuple(dict.fromkeys((*suspects, *draining))))
    return None


def _ended_segment_duty(
    view: Projection, segment: Segment, living: list[Member], nodes: tuple[NodeInfo, ...], done: Done
) -> Duty | None:
    unfinished = tuple(m for m in living if m.stream not in done.finalized)
    if unfinished:
        return FinalizeMembers(segment.index, unfinished)
    for group in segment.groups:
        others = tuple(m for m in segment.serving(group) if m in living)
        for member in group:
            if member not in living and (others or member.joining):
                return RemoveDeadMember(segment.index, member.stream, () if member.joining else others)
    if not segment.repaired:
        everyone = all(member in living for member in segment.members())
        return RepairSegment(segment.index) if everyone else None
    return _width_duty(view, segment, living, nodes)


def _width_duty(
    view: Projection, segment: Segment, living: list[Member], nodes: tuple[NodeInfo, ...]
) -> CopyToJoiner | AddMember | None:
    if segment.end is not None and segment.end <= view.trim + 1:
        return None  # nothing left to copy
    for index, group in enumerate(segment.groups):
        if not any(member in living for member in segment.serving(group)):
            continue  # nobody to copy from
        joiner = next((m for m in group if m.joining), None)
        if joiner is not None:
            return CopyToJoiner(segment.index, joiner)
        if len(group) < view.settings.replicas:
            used = tuple(member.node for member in group)
            spare = eligible(nodes, used)
            if spare:
                return AddMember(segment.index, index, Seat(spare[0].node, spare[0].incarnation))
    return None


def _trim_duty(view: Projection, living: list[Member], done: Done) -> TrimMembers | ForgetTheSegment | None:
    oldest = view.segments[0]
    if oldest.end is not None and oldest.end <= view.trim + 1 and len(view.segments) > 1:
        return ForgetTheSegment(oldest.index)
    for segment in view.segments:
        if segment.base > view.trim:
            break
        behind = tuple(m for m in segment.members() if m in living and done.trimmed.get(m.stream, 0) < view.trim)
        if behind:
            return TrimMembers(segment.index, behind)
    return None
