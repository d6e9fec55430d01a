"""What a node counts as it works. Plain numbers, changed on the event loop alone.

An append costs one addition for a batch, a request or a sync, and none for an entry.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from trunkline.core.effects import Message
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import Reason, Written
from trunkline.net.connection import Connection
from trunkline.observing.metrics import Histogram
from trunkline.runtime.bodies import Answer, BodySender, Damaged
from trunkline.runtime.process import Buffer
from trunkline.storage import Engine

SYNC_BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)


class NodeCounts:
    def __init__(self) -> None:
        self.requests: Counter[type[Message]] = Counter()  # by kind: those that a node takes
        self.answers = 0
        self.refused: Counter[Reason] = Counter()
        self.batches_stored = 0
        self.entries_stored = 0
        self.bytes_stored = 0
        self.batches_read = 0
        self.entries_read = 0
        self.bytes_read = 0
        self.fills = 0
        self.seals = 0
        self.scrubbed_bytes = 0
        self.sync_seconds = Histogram(SYNC_BUCKETS_S)

    def stored(self, frame: Frame, size_bytes: int) -> None:
        if frame.kind is FrameKind.JUNK:
            self.fills += 1
            return
        self.batches_stored += 1
        self.entries_stored += frame.count
        self.bytes_stored += size_bytes


class CountedBodies(BodySender):
    """Counts the bodies that leave for readers, and for members that copy."""

    def __init__(self, engine: Engine, damaged: Damaged, counts: NodeCounts) -> None:
        super().__init__(engine, damaged)
        self._counts = counts

    def _send(self, connection: Connection, answer: Answer, wanted: list[Frame], bodies: list[Buffer]) -> None:
        if not isinstance(answer.message, Written):
            counts = self._counts
            counts.batches_read += len(bodies)
            counts.entries_read += sum(frame.count for frame in wanted[: len(bodies)])
            counts.bytes_read += sum(map(len, bodies))
        super()._send(connection, answer, wanted, bodies)
