"""Rebuild of a member: copy a repaired segment into a joining stream, and prove the copy before it counts.

States
    preparing --Finalized--> fetching --Fetched--> writing(all that came) --all Stored--> fetching ...
    fetching --nothing left--> proving(span by span) --digests equal--> finished

Rules
 J1  Only a repaired segment is copied, into a stream id that was never used before.
 J2  Everything above the projection's trim is copied; the joiner counts only after its digest equals its source's.
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
    Rejected,
    Stored,
    Target,
    Write,
    Written,
    descriptor_of,
    target_of,
)
from trunkline.core.projection import Member, Projection, Segment

SPAN = 4096  # positions fetched at a time; too big: memory; too small: more round trips


class MemberCopy:
    def __init__(self, view: Projection, segment: Segment, source: Member, joiner: Member) -> None:
        assert segment.repaired and segment.end is not None  # J1
        self.descriptor = descriptor_of(view, segment, joiner)
        self.end = segment.end
        self.source_node = source.node
        self.joiner_node = joiner.node
        self.source: Target = target_of(view, segment, source)
        self.joiner: Target = target_of(view, segment, joiner)
        self.first = max(segment.base, view.trim + 1)
        self.cursor = self.first
        self.pending: list[Frame] = []
        self.proved = self.first  # everything below it is the same in both streams
        self.proofs: dict[str, tuple[Frame, ...]] = {}
        self.finished = False
        self.failed = False

    def start(self) -> Effects:
        return [Send(Address(self.joiner_node, "storage"), Finalize(self.descriptor, self.end))]

    def on_message(self, message: Message) -> Effects:
        match message:
            case Finalized(stream) if stream == self.joiner.stream and self.cursor == self.first and not self.pending:
                return self._fetch()
            case Fetched(stream, first, end, frames) if stream == self.source.stream and first == self.cursor:
                self.pending, self.cursor = list(frames), end
                return self._write()
            case Stored(stream, frame) if stream == self.joiner.stream and frame in self.pending:
                self.pending.remove(frame)
                return [] if self.pending else self._fetch()
            case Digested(stream, first, end, frames) if self._proving and (first, end) == self._span(self.proved):
                return self._on_proof(stream, frames)
            case Written() | Rejected():
                self.failed = True
        return []

    @property
    def _proving(self) -> bool:
        return self.cursor >= self.end and not self.pending

    def _fetch(self) -> Effects:
        if self.cursor >= self.end:
            return self._prove()
        return [Send(Address(self.source_node, "storage"), Fetch(self.source, *self._span(self.cursor)))]

    def _span(self, first: int) -> tuple[int, int]:
        return first, min(first + SPAN, self.end)

    def _write(self) -> Effects:
        """All that was fetched at once: the joiner's positions are its own, so their order does not matter."""
        if not self.pending:
            return self._fetch()
        joiner = Address(self.joiner_node, "storage")
        return [Send(joiner, Write(self.joiner, frame, repair=True)) for frame in self.pending]

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
            return []  # a late answer to somebody else's question
        self.proofs[stream] = frames
        if len(self.proofs) < 2:
            return []
        if self.proofs[self.source.stream] != self.proofs[self.joiner.stream]:  # J2
            self.failed = True
            return []
        self.proved = self._span(self.proved)[1]
        return self._prove()
