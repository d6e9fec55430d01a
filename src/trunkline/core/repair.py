"""Repair of an ended chain segment: every position below the end and above the trim gets one value on every member.

Members are compared by digests, one span at a time; the filler settles only positions that differ or are missing, run
by run.

Rules
 E1  Only an ended segment is repaired, and only while all its members can be asked.
 E2  It is repaired when every position holds the same frame on all members of its group.
"""

from __future__ import annotations

from trunkline.core.effects import SELF, Address, Effects, Message, Send
from trunkline.core.entries import Frame
from trunkline.core.messages import Digest, Digested, Rejected, target_of
from trunkline.core.projection import Group, Projection, Segment
from trunkline.core.siblings import Fill, FillDone


class SegmentRepair:
    def __init__(self, view: Projection, segment: Segment, span: int) -> None:
        """``span``: positions in one comparison."""
        assert segment.end is not None  # E1
        self.view = view
        self.segment = segment
        self.span = span
        self.serving = {m.stream: m.node for m in segment.members() if not m.joining}
        self.cursor = max(segment.base, view.trim + 1)
        self.digests: dict[str, tuple[Frame, ...]] = {}
        self.unsettled: list[tuple[int, int]] = []  # runs of positions: first, end
        self.finished = self.cursor >= segment.end
        self.failed = False

    def start(self) -> Effects:
        if self.finished:
            return []
        self.digests = {}
        first, end = self._span()
        return [
            Send(Address(m.node, "storage"), Digest(target_of(self.view, self.segment, m), first, end))
            for m in self.segment.members()
            if not m.joining
        ]

    def on_message(self, message: Message) -> Effects:
        match message:
            case Digested(stream, first, end, frames) if not self.unsettled and (first, end) == self._span():
                return self._on_digest(stream, frames)
            case FillDone(_, glsn, frames) if self.unsettled and glsn == self.unsettled[0][0]:
                return self._on_filled(frames)
            case Rejected(stream) if stream in self.serving:
                self.failed = True
        return []

    def silent_nodes(self) -> tuple[str, ...]:
        """Nodes that have not answered. The filler reports nodes that it cannot reach."""
        waiting = (node for stream, node in self.serving.items() if stream not in self.digests)
        return () if self.unsettled else tuple(waiting)

    def _span(self) -> tuple[int, int]:
        assert self.segment.end is not None
        return self.cursor, min(self.cursor + self.span, self.segment.end)

    def _on_digest(self, stream: str, frames: tuple[Frame, ...]) -> Effects:
        if stream not in self.serving:
            return []
        self.digests[stream] = frames
        if len(self.digests) < len(self.serving):
            return []
        self.unsettled = [run for group in self.segment.groups for run in self._differing(self.segment.serving(group))]
        return self._next()

    def _differing(self, group: Group) -> list[tuple[int, int]]:
        """Runs of positions at which the members of a group do not hold the same frame."""
        first, end = self._span()
        held = [{max(frame.first, first): frame for frame in self.digests[member.stream]} for member in group]
        differing: list[tuple[int, int]] = []
        glsn = first
        while glsn < end:
            if self.segment.serving(self.segment.group_of(glsn)) != group:
                glsn += 1
                continue
            frame = held[0].get(glsn)
            if frame is None or any(other.get(glsn) != frame for other in held[1:]):
                begun = differing.pop()[0] if differing and differing[-1][1] == glsn else glsn
                differing.append((begun, glsn + 1))
            glsn = frame.next if frame is not None else glsn + 1
        return differing

    def _next(self) -> Effects:
        if self.unsettled:
            return [Send(Address(SELF, "filler"), Fill(self.view, self.segment.index, *self.unsettled[0]))]
        self.cursor = self._span()[1]
        assert self.segment.end is not None
        self.finished = self.cursor >= self.segment.end
        return self.start()

    def _on_filled(self, frames: tuple[Frame, ...]) -> Effects:
        if not frames:
            self.failed = True
            return []
        reached, end = frames[-1].next, self.unsettled[0][1]
        self.unsettled[:1] = [(reached, end)] if reached < end else []
        return self._next()
