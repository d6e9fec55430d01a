"""Rebuild of a member: copy a repaired segment into a joining stream, and prove the copy before it counts.

States
    preparing --Finalized--> fetching --Fetched--> writing(frame by frame) --> fetching ...
    fetching --nothing left--> proving --digests equal--> finished

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
            case Stored(stream, frame) if stream == self.joiner.stream and self.pending and frame == self.pending[0]:
                self.pending.pop(0)
                return self._write()
            case Digested(stream, first, end, frames) if (first, end) == (self.first, self.end):
                return self._on_proof(stream, frames)
            case Written() | Rejected():
                self.failed = True
        return []

    def _fetch(self) -> Effects:
        if self.cursor >= self.end:
            return self._prove()
        fetch = Fetch(self.source, self.cursor, min(self.cursor + SPAN, self.end))
        return [Send(Address(self.source_node, "storage"), fetch)]

    def _write(self) -> Effects:
        if not self.pending:
            return self._fetch()
        write = Write(self.joiner, self.pending[0], repair=True)
        return [Send(Address(self.joiner_node, "storage"), write)]

    def _prove(self) -> Effects:
        asked = ((self.source_node, self.source), (self.joiner_node, self.joiner))
        return [Send(Address(node, "storage"), Digest(target, self.first, self.end)) for node, target in asked]

    def _on_proof(self, stream: str, frames: tuple[Frame, ...]) -> Effects:
        if stream not in (self.source.stream, self.joiner.stream):
            return []  # a late answer to somebody else's question
        self.proofs[stream] = frames
        if len(self.proofs) == 2:  # J2
            self.finished = self.proofs[self.source.stream] == self.proofs[self.joiner.stream]
            self.failed = not self.finished
        return []
