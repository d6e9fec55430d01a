"""The next duty of a coordinator for a log: a pure function of projection, registry and what is done already.

Duties are ordered by urgency: keep the log writable, forget what is trimmed, make ended segments safe, restore their
width, tidy up. Of a long map a part is examined at a time: ``DutyMemory`` remembers where to continue.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from msgspec import Struct

from trunkline.core.messages import NodeInfo, NodeState, Space, StreamTarget
from trunkline.core.placement import replacement, with_space
from trunkline.core.projection import Group, Member, Policy, Projection, Seat, Segment, epoch_of

DIGITS_MAX = 19  # of a number in a stream id
ASKED_MAX = 256  # streams in a duty; too small: more checks; too big: many messages at once
PRESENT = (NodeState.RW, NodeState.DRAINING)


class EndTheSegment(Struct, frozen=True):
    """The open segment has a dead, damaged or draining member or sequencer, or could be wider.

    A broadcast segment is ended for the same reasons, and keeps its owner: an active writer rolls first.
    """

    segment: int
    suspects: tuple[str, ...]


class RemoveServingMember(Struct, frozen=True):
    """A serving member of an ended segment is dead or lost data: a rebuild under a new stream id replaces it. Or its
    node is draining, and another member has taken its place.

    First one of the ``witnesses``, which stay, must confirm for this removal that it is intact: the last intact member
    is never removed. Without a witness there is no such duty.
    """

    segment: int
    stream: str
    witnesses: Group

    def __post_init__(self) -> None:
        assert self.witnesses and all(w.stream != self.stream and not w.joining for w in self.witnesses)


class RemoveJoiner(Struct, frozen=True):
    """A joiner is dead, damaged, misplaced or without space. It has not served yet, so no witness is needed."""

    segment: int
    stream: str


class FinalizeMembers(Struct, frozen=True):
    """Send members of ended segments the end, and ask whether they are intact: index and members of each."""

    segments: tuple[tuple[int, Group], ...]


class RepairSegment(Struct, frozen=True):
    segment: int


class CopyToJoiner(Struct, frozen=True):
    segment: int
    joiner: Member
    source: Member


class AddMember(Struct, frozen=True):
    segment: int
    group: int
    seat: Seat


class TrimMembers(Struct, frozen=True):
    segment: int
    members: Group


class ForgetTheSegments(Struct, frozen=True):
    """Ended segments without a position: trimmed, or always empty."""

    segments: tuple[int, ...]


class TidyNode(Struct, frozen=True):
    """Ask a node for its streams of the log, and let it drop those that have left the projection."""

    node: str


Duty = (
    EndTheSegment
    | RemoveServingMember
    | RemoveJoiner
    | FinalizeMembers
    | RepairSegment
    | CopyToJoiner
    | AddMember
    | TrimMembers
    | ForgetTheSegments
    | TidyNode
)


class DutyMemory:
    """What this coordinator knows to be done. Volatile: after a restart it is done again, which is harmless."""

    def __init__(self, examined_max: int = 1000) -> None:
        """``examined_max``: a map with more segments is examined in parts."""
        self.examined_max = examined_max
        self.finalized: set[str] = set()  # streams that know their end and are intact
        self.damaged: set[str] = set()  # streams that lost data, or are not what the projection says
        self.trimmed: dict[str, int] = {}
        self.tidied: set[str] = set()  # nodes without streams that have left the log
        self.blocked = -1  # the open segment, if the last attempt to end it failed
        self.harmed: tuple[int, str] | None = None  # an open segment, and the node of its damaged member
        self.failed: set[int] = set()  # segments whose repair or copy failed; others come first
        self.awaited: set[str] = set()  # nodes that are absent for a short time and may come back
        self.silent: set[str] = set()  # nodes with a lease that did not answer
        self.full: set[str] = set()  # nodes without space for a copy
        self.may_widen = True  # the open segment has been stable for a while
        self.place = 0  # of the segment at which the next check of a long map starts
        self.unseen = 0  # segments of a long map that were not examined since the last change

    def found_damaged(self, stream: str) -> None:
        self.damaged.add(stream)
        self.finalized.discard(stream)

    def forget(self, stream: str) -> None:
        """The stream has left the log."""
        self.damaged.discard(stream)
        self.finalized.discard(stream)
        self.trimmed.pop(stream, None)

    def begin_round(self, view: Projection | None) -> None:
        """Something has changed: examine every segment of a long map again."""
        count = len(view.segments) if view is not None else 0
        self.unseen = count if count > self.examined_max else 0


class Situation:
    """The registry and the memory, indexed for questions about members."""

    def __init__(self, view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> None:
        self.view = view
        self.nodes = nodes
        self.done = done
        self.alive = {i.node: i for i in nodes if i.live and i.state in PRESENT}
        self.draining = {i.node for i in nodes if i.state is NodeState.DRAINING}
        self.tight = {i.node for i in nodes if i.space is not Space.ROOMY}  # they refuse copies
        self._present = {i.node: i.incarnation for i in self.alive.values()}
        self._steady = {n: at for n, at in self._present.items() if n not in self.draining}
        self._spares: dict[tuple[str, ...], NodeInfo | None] = {}

    def lives(self, member: Member) -> bool:
        return self._present.get(member.node) == member.incarnation and member.stream not in self.done.damaged

    def answers(self, member: Member) -> bool:
        return self.lives(member) and member.node not in self.done.silent

    def vouches(self, member: Member) -> bool:
        """It serves, is known to be intact, and answers."""
        return not member.joining and member.stream in self.done.finalized and self.answers(member)

    def spare(self, group: Group) -> NodeInfo | None:
        """A node that could join the group."""
        taken = tuple(member.node for member in group)
        if taken not in self._spares:
            unfit = (self.done.silent | self.done.full).difference(taken)
            fit = tuple(info for info in self.nodes if info.node not in unfit)
            self._spares[taken] = replacement(fit, taken)
        return self._spares[taken]

    def is_trimmed(self, segment: Segment) -> bool:
        return segment.end is not None and segment.end <= self.view.trim + 1

    def is_empty(self, segment: Segment) -> bool:
        """It never held a position, and is not the last."""
        return segment.base == segment.end and segment is not self.view.last

    def is_fine(self, segment: Segment) -> bool:
        """Nothing is due for an ended segment. This is the hot path of a long map."""
        if not segment.repaired:
            return False
        replicas, steady, finalized = self.view.settings.replicas, self._steady, self.done.finalized
        for group in segment.groups:
            if len(group) != replicas:
                return False
            for member in group:
                if member.joining or member.stream not in finalized or steady.get(member.node) != member.incarnation:
                    return False
        return True


def next_duty(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> Duty | None:
    """The most urgent duty that can be done now, or None."""
    now = Situation(view, nodes, done)
    if view.deleted:
        return _tidy_duty(now)
    can_end = view.last.is_open and view.last.index != done.blocked
    duty: Duty | None = _open_segment_duty(now) if can_end else None
    duty = duty or _forget_duty(now, takewhile(now.is_trimmed, view.segments)) or _ended_segments_duty(now)
    if duty is not None:
        done.begin_round(view)
        return duty
    return _trim_duty(now) or _tidy_duty(now)


def is_over(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> bool:
    """Whether nothing is left to do for a deleted log, now or later (C13)."""
    return view.deleted and all(info.node in done.tidied for info in nodes if info.state in PRESENT)


def names_node(view: Projection, node: str) -> bool:
    """Whether the log needs this node."""
    if view.deleted:
        return False
    orders = view.last.is_open and view.last.policy is Policy.CHAIN and view.last.owner.process == node
    return orders or any(member.node == node for s in view.segments for group in s.groups for member in group)


def left_streams(view: Projection, kept: tuple[StreamTarget, ...]) -> tuple[StreamTarget, ...]:
    """The streams of a node that have left the log.

    A stream is named from the epoch in its id until it leaves: one that is newer than this view may be in use. A stream
    whose id no projection made (a client may open any) stays.
    """
    named = set(view.streams())
    unnamed = (t for t in kept if t.stream not in named and _is_stream_id(t.stream))
    return tuple(t for t in unnamed if epoch_of(t.stream) <= view.epoch)


def left_members(before: Projection, after: Projection) -> list[Member]:
    """Members that a later projection no longer names."""
    kept = {} if after.deleted else {segment.index: segment for segment in after.segments}
    left: list[Member] = []
    for segment in before.segments:
        now = kept.get(segment.index)
        if now is segment or (now is not None and now.groups == segment.groups):
            continue
        named = now.members() if now is not None else ()
        streams = {member.stream for member in named}
        left += [member for member in segment.members() if member.stream not in streams]
    return left


def _is_stream_id(stream: str) -> bool:
    """Whether it has the form ``epoch.group.member``."""
    parts = stream.split(".")
    return len(parts) == 3 and all(p.isascii() and p.isdigit() and len(p) <= DIGITS_MAX for p in parts)


def _open_segment_duty(now: Situation) -> EndTheSegment | None:
    view, done, last = now.view, now.done, now.view.last
    members = last.members()
    suspects = [m.node for m in members if (info := now.alive.get(m.node)) is None or info.incarnation != m.incarnation]
    draining = [i.node for i in now.nodes if i.node in now.draining and any(m.node == i.node for m in members)]
    if done.harmed is not None and done.harmed[0] == last.index:
        suspects.append(done.harmed[1])
    owner = now.alive.get(last.owner.process)
    if last.policy is Policy.BROADCAST:
        pass  # its owner is not a node
    elif owner is None or owner.start != last.owner.start:
        suspects.append(last.owner.process)
    elif owner.state is NodeState.DRAINING:
        draining.append(owner.node)
    width = min(len(group) for group in last.groups)
    silent = tuple(info.node for info in now.nodes if info.node in done.silent)
    could_be = min(view.settings.replicas, len(with_space(now.nodes, silent)))
    if could_be < width:
        draining = []  # no node would take its place
    if suspects or draining or (width < could_be and done.may_widen):
        return EndTheSegment(last.index, tuple(dict.fromkeys((*suspects, *draining, *silent))))
    return None


def _ended_segments_duty(now: Situation) -> Duty | None:
    """The next duty for ended segments; of a long map, from where the last check stopped, and for the newest."""
    segments, done = now.view.segments, now.done
    is_long = len(segments) > done.examined_max
    begin = done.place if is_long and done.place < len(segments) else 0
    examined = segments[begin : begin + done.examined_max]
    newest = segments[max(begin + done.examined_max, len(segments) - done.examined_max // 10) :] if is_long else ()
    unfinished: list[tuple[int, Group]] = []
    asked = 0
    for place, segment in enumerate((*newest, *examined), start=begin - len(newest)):
        if segment.end is None or now.is_fine(segment) or now.is_empty(segment):
            continue
        members = _unfinished(now, segment)
        if members:
            unfinished.append((segment.index, members))
            asked += len(members)
            if asked >= ASKED_MAX:
                break
        elif not unfinished and segment.index not in done.failed:
            duty = _ended_segment_duty(now, segment)
            if duty is not None:
                done.place = max(begin, place) if is_long else 0
                return duty
    if unfinished:
        return FinalizeMembers(tuple(unfinished))
    if is_long:
        done.place = (begin + len(examined)) % len(segments)
        done.unseen = max(0, done.unseen - len(examined))
    return _forget_duty(now, (segment for segment in (*examined, *newest) if now.is_empty(segment)))


def _forget_duty(now: Situation, segments: Iterable[Segment]) -> ForgetTheSegments | None:
    indexes = tuple(segment.index for segment in segments if segment is not now.view.last)
    return ForgetTheSegments(indexes) if indexes else None


def _unfinished(now: Situation, segment: Segment) -> Group:
    """Members that answer and are not known to have the end. A joiner without space does not need it."""
    finalized, full = now.done.finalized, now.done.full | now.tight
    asked = (m for m in segment.members() if m.stream not in finalized and not (m.joining and m.node in full))
    return tuple(member for member in asked if now.answers(member))


def _ended_segment_duty(now: Situation, segment: Segment) -> Duty | None:
    done = now.done
    for group in segment.groups:
        witnesses = tuple(member for member in group if now.vouches(member))
        for member in group:
            if member.joining:
                if _is_useless(now, group, member):
                    return RemoveJoiner(segment.index, member.stream)
            elif segment.repaired and member.node in done.awaited:
                continue  # others have everything that it has
            elif not now.lives(member) and witnesses:
                return RemoveServingMember(segment.index, member.stream, witnesses)
    if not segment.repaired:
        everyone = all(now.vouches(member) for member in segment.members())
        return RepairSegment(segment.index) if everyone else None
    return None if now.is_trimmed(segment) else _width_duty(now, segment)


def _is_useless(now: Situation, group: Group, joiner: Member) -> bool:
    """It will never serve, or another node can do so sooner."""
    if not now.lives(joiner) or joiner.node in now.draining or joiner.node in now.tight:
        return True
    unfit = joiner.node in now.done.silent or joiner.node in now.done.full
    return unfit and now.spare(group) is not None


def _width_duty(now: Situation, segment: Segment) -> CopyToJoiner | AddMember | RemoveServingMember | None:
    """Members on draining nodes still serve, but do not count, until others have taken their places."""
    for index, group in enumerate(segment.groups):
        source = next((member for member in group if now.vouches(member)), None)
        if source is None:
            continue  # no source for a copy
        joiner = next((member for member in group if member.joining), None)
        if joiner is not None:
            if now.answers(joiner) and joiner.node not in now.done.full:
                return CopyToJoiner(segment.index, joiner, source)
            continue
        staying = tuple(member for member in group if member.node not in now.draining)
        if len(staying) < now.view.settings.replicas:
            spare = now.spare(group)
            if spare is not None:
                return AddMember(segment.index, index, Seat(spare.node, spare.incarnation))
        elif len(staying) < len(group) and all(map(now.lives, staying)):
            leaving = next(member for member in group if member not in staying)
            witnesses = tuple(member for member in staying if now.vouches(member))
            if witnesses:
                return RemoveServingMember(segment.index, leaving.stream, witnesses)
    return None


def _tidy_duty(now: Situation) -> TidyNode | None:
    left = (node for node in now.alive if node not in now.done.tidied and node not in now.done.silent)
    return next(map(TidyNode, left), None)


def _trim_duty(now: Situation) -> TrimMembers | None:
    """Fully trimmed segments are already forgotten: the trim point lies in one segment at most."""
    trim, trimmed = now.view.trim, now.done.trimmed
    for segment in takewhile(lambda each: each.base <= trim, now.view.segments):
        behind = tuple(m for m in segment.members() if now.answers(m) and trimmed.get(m.stream, 0) < trim)
        if behind:
            return TrimMembers(segment.index, behind)
    return None
