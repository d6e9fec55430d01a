"""Rebuild of a member: copies a repaired segment to a joining stream, and proves the copy before it counts.

States
    preparing --Finalized--> fetching --Fetched--> writing(all frames) --all Stored--> fetching ...
    fetching --nothing left--> proving(span by span) --digests equal--> finished

Rules
 J1  Only a repaired segment is copied, to a stream id that was never used before.
 J2  Everything above the trim of the projection is copied; the joiner counts only after its digest equals that of its
     source.
"""

from __future__ import annotations

from trunkline.core.effects import Address, Effects, Message, Send
from trunkline.core.entries import Frame
from trunkline.core.messages import (
    Digest,
    Digested,
    Fetch,
    Fetched,
    Finalize,
    Finalized,
    Reason,
    Rejected,
    Stored,
    StreamTarget,
    Write,
    Written,
    descriptor_of,
    target_of,
)
from trunkline.core.projection import Member, Projection, Segment


class MemberCopy:
    def __init__(self, view: Projection, segment: Segment, source: Member, joiner: Member, span: int) -> None:
        """``span``: positions in one fetch, and in one proof."""
        assert segment.repaired and segment.end is not None  # J1
        self.descriptor = descriptor_of(view, segment, joiner)
        self.end = segment.end
        self.source_node = source.node
        self.joiner_node = joiner.node
        self.source: StreamTarget = target_of(view, segment, source)
        self.joiner: StreamTarget = target_of(view, segment, joiner)
        self.first = max(segment.base, view.trim + 1)
        self.span = span
        self.prepared = False
        self.cursor = self.first
        self.pending: set[Frame] = set()
        self.proved = self.first  # both streams are equal below this
        self.proofs: dict[str, tuple[Frame, ...]] = {}
        self.finished = False
        self.failed = False
        self.no_space = False  # it failed because the joiner has no space

    def start(self) -> Effects:
        return [Send(Address(self.joiner_node, "storage"), Finalize(self.descriptor, self.end))]

    def on_message(self, message: Message) -> Effects:
        match message:
            case Finalized(stream) if stream == self.joiner.stream and not self.prepared:
                self.prepared = True
                return self._fetch()
            case Fetched(stream, first, end, frames) if stream == self.source.stream and self._wants(first, end):
                self.pending, self.cursor = set(frames), end
                return self._write(frames)
            case Stored(stream, frame) if stream == self.joiner.stream and frame in self.pending:
                self.pending.remove(frame)
                return [] if self.pending else self._fetch()
            case Digested(stream, first, end, frames) if self._proving and (first, end) == self._span(self.proved):
                return self._on_proof(stream, frames)
            case Written(stream) | Rejected(stream) if stream in (self.source.stream, self.joiner.stream):
                self.failed = True
                self.no_space = isinstance(message, Rejected) and message.reason is Reason.NO_SPACE
        return []

    def silent_nodes(self) -> tuple[str, ...]:
        """Nodes that have not answered."""
        if not self._proving:
            fetching = self.prepared and not self.pending
            return (self.source_node if fetching else self.joiner_node,)
        asked = ((self.source_node, self.source), (self.joiner_node, self.joiner))
        return tuple(node for node, target in asked if target.stream not in self.proofs)

    @property
    def _proving(self) -> bool:
        return self.prepared and self.cursor >= self.end and not self.pending

    def _wants(self, first: int, end: int) -> bool:
        """A node may answer with less than the requested span."""
        return self.prepared and not self.pending and first == self.cursor < end <= self.end

    def _fetch(self) -> Effects:
        if self.cursor >= self.end:
            return self._prove()
        return [Send(Address(self.source_node, "storage"), Fetch(self.source, *self._span(self.cursor)))]

    def _span(self, first: int) -> tuple[int, int]:
        return first, min(first + self.span, self.end)

    def _write(self, frames: tuple[Frame, ...]) -> Effects:
        """All fetched frames at once: their order does not matter."""
        if not frames:
            return self._fetch()
        joiner = Address(self.joiner_node, "storage")
        return [Send(joiner, Write(self.joiner, frame, repair=True)) for frame in frames]

    def _prove(self) -> Effects:
        if self.proved >= self.end:
            self.finished = True
            return []
        self.proofs = {}
        asked = ((self.source_node, self.source), (self.joiner_node, self.joiner))
        span = self._span(self.proved)
        return [Send(Address(node, "storage"), Digest(target, *span)) for node, target in asked]

    def _on_proof(self, stream: str, frames: tuple[Frame, ...]) -> Effects:
        if stream not in (self.source.stream, self.joiner.stream):
            return []  # a late answer to another role
        self.proofs[stream] = frames
        if len(self.proofs) < 2:
            return []
        if self.proofs[self.source.stream] != self.proofs[self.joiner.stream]:  # J2
            self.failed = True
            return []
        self.proved = self._span(self.proved)[1]
        return self._prove()
