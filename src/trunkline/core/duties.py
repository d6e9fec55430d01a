"""What the coordinator should do next for a log: a pure function of projection, registry and what was done already.

The order is that of urgency: keep the log writable, make what has ended safe, make it wide again, tidy up.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.messages import NodeInfo, NodeState, Space, Target
from trunkline.core.placement import replacement, with_space
from trunkline.core.projection import Group, Member, Policy, Projection, Seat, Segment, epoch_of

DIGITS_MAX = 19  # of a number in a stream's id


class EndTheSegment(Struct, frozen=True):
    """The open segment has a member that is dead, damaged or being drained, or a sequencer that is, or could be wider.

    A broadcast segment is ended for the same reasons, and keeps its owner: who has something to write rolls away
    first.
    """

    segment: int
    suspects: tuple[str, ...]


class RemoveDeadMember(Struct, frozen=True):
    """A member of an ended segment is away for good, or lost data: a rebuild under a new stream id takes its place. Or
    its node is being drained, and its place has been taken. Or it is a joiner, and its node has no room for it.

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


class TidyNode(Struct, frozen=True):
    """Ask a node which streams of the log it keeps, and have it drop those that have left for ever."""

    node: str


Duty = (
    EndTheSegment
    | RemoveDeadMember
    | FinalizeMembers
    | RepairSegment
    | CopyToJoiner
    | AddMember
    | TrimMembers
    | ForgetTheSegment
    | TidyNode
)


class Done:
    """What this coordinator has seen done. Volatile: after a restart it is done once more, which is harmless."""

    def __init__(self) -> None:
        self.finalized: set[str] = set()  # streams that know their end; they said that they are intact
        self.blocked = -1  # the open segment, if it could not be ended at the last try
        self.trimmed: dict[str, int] = {}
        self.damaged: set[str] = set()  # streams that said that they lost data
        self.harmed: tuple[int, str] | None = None  # an open segment, and its member's node that found damage
        self.awaited: set[str] = set()  # nodes that went away a short while ago and may come back
        self.may_widen = True  # the open segment has been as it is for a while
        self.tidied: set[str] = set()  # nodes that keep no stream that has left the log


def next_duty(view: Projection, nodes: tuple[NodeInfo, ...], done: Done) -> Duty | None:
    """The most urgent duty that can be done now, or None."""
    alive = {i.node: i for i in nodes if i.live and i.state in (NodeState.RW, NodeState.DRAINING)}

    def lives(member: Member) -> bool:
        info = alive.get(member.node)
        here = info is not None and info.incarnation == member.incarnation
        return here and member.stream not in done.damaged

    if view.deleted:
        return _tidy_duty(alive, done)
    can_end = view.last.is_open and view.last.index != done.blocked
    duty: Duty | None = _open_segment_duty(view, nodes, alive, done) if can_end else None
    if duty is not None:
        return duty
    for segment in view.segments:
        if segment.end is None:
            continue
        duty = _ended_segment_duty(view, segment, [m for m in segment.members() if lives(m)], nodes, done)
        if duty is not None:
            return duty
    living = [m for s in view.segments for m in s.members() if lives(m)]
    return _trim_duty(view, living, done) or _tidy_duty(alive, done)


def names_node(view: Projection, node: str) -> bool:
    """Whether the log still needs this node. One that no log needs may be stopped for ever."""
    if view.deleted:
        return False
    orders = view.last.is_open and view.last.policy is Policy.CHAIN and view.last.owner.process == node
    return orders or any(member.node == node for segment in view.segments for member in segment.members())


def left_streams(view: Projection, kept: tuple[Target, ...]) -> tuple[Target, ...]:
    """Those of a node's streams that have left the log for ever.

    A stream is named from the epoch in its id on until it leaves: one that this view is too old to name may be in use.
    Of a stream whose id no projection gave (a client may open any) that cannot be told: it stays.
    """
    named = view.streams()
    ours = (t for t in kept if _is_stream_id(t.stream))
    return tuple(t for t in ours if epoch_of(t.stream) <= view.epoch and t.stream not in named)


def _is_stream_id(stream: str) -> bool:
    """Whether it reads ``epoch.group.member``."""
    parts = stream.split(".")
    return len(parts) == 3 and all(p.isascii() and p.isdigit() and len(p) <= DIGITS_MAX for p in parts)


def _open_segment_duty(
    view: Projection, nodes: tuple[NodeInfo, ...], alive: dict[str, NodeInfo], done: Done
) -> EndTheSegment | None:
    last = view.last
    suspects = [
        m.node for m in last.members() if (info := alive.get(m.node)) is None or info.incarnation != m.incarnation
    ]
    draining = [
        i.node for i in nodes if i.state is NodeState.DRAINING and any(m.node == i.node for m in last.members())
    ]
    if done.harmed is not None and done.harmed[0] == last.index:
        suspects.append(done.harmed[1])
    owner = alive.get(last.owner.process)
    if last.policy is Policy.BROADCAST:
        pass  # its owner is no node
    elif owner is None or owner.start != last.owner.start:
        suspects.append(last.owner.process)
    elif owner.state is NodeState.DRAINING:
        draining.append(owner.node)
    width = min(len(group) for group in last.groups)
    could_be = min(view.settings.replicas, len(with_space(nodes, ())))
    if could_be < width:
        draining = []  # nobody would take its place
    if suspects or draining or (width < could_be and done.may_widen):
        return EndTheSegment(last.index, tuple(dict.fromkeys((*suspects, *draining))))
    return None


def _ended_segment_duty(
    view: Projection, segment: Segment, living: list[Member], nodes: tuple[NodeInfo, ...], done: Done
) -> Duty | None:
    draining = [info.node for info in nodes if info.state is NodeState.DRAINING]
    tight = [info.node for info in nodes if info.space is not Space.ROOMY]
    useless = next((m for m in segment.members() if m.joining and m.node in (*draining, *tight)), None)
    if useless is not None:
        return RemoveDeadMember(segment.index, useless.stream)
    unfinished = tuple(m for m in living if m.stream not in done.finalized)
    if unfinished:
        return FinalizeMembers(segment.index, unfinished)
    for group in segment.groups:
        others = tuple(m for m in segment.serving(group) if m in living)
        for member in group:
            if segment.repaired and member.node in done.awaited and not member.joining:
                continue  # others have all that it has
            if member not in living and (others or member.joining):
                return RemoveDeadMember(segment.index, member.stream, () if member.joining else others)
    if not segment.repaired:
        everyone = all(member in living for member in segment.members())
        return RepairSegment(segment.index) if everyone else None
    return _width_duty(view, segment, living, nodes, draining)


def _width_duty(
    view: Projection, segment: Segment, living: list[Member], nodes: tuple[NodeInfo, ...], draining: list[str]
) -> CopyToJoiner | AddMember | RemoveDeadMember | None:
    """Members on nodes that are being drained serve on, but do not count, until others have taken their places."""
    if segment.end is not None and segment.end <= view.trim + 1:
        return None  # nothing left to copy
    for index, group in enumerate(segment.groups):
        if not any(member in living for member in segment.serving(group)):
            continue  # nobody to copy from
        joiner = next((m for m in group if m.joining), None)
        if joiner is not None:
            return CopyToJoiner(segment.index, joiner)
        staying = tuple(member for member in group if member.node not in draining)
        if len(staying) < view.settings.replicas:
            spare = replacement(nodes, tuple(member.node for member in group))
            if spare is not None:
                return AddMember(segment.index, index, Seat(spare.node, spare.incarnation))
        elif len(staying) < len(group):
            leaving = next(member for member in group if member not in staying)
            return RemoveDeadMember(segment.index, leaving.stream, tuple(m for m in staying if m in living))
    return None


def _tidy_duty(alive: dict[str, NodeInfo], done: Done) -> TidyNode | None:
    return next((TidyNode(node) for node in alive if node not in done.tidied), None)


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
