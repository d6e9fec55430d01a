"""The counters of a node. Only the event loop changes them.

Counting costs one addition for each batch, request or sync, and none for an entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from trunkline.core.effects import Message
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import Reason
from trunkline.observing.metrics import Histogram
from trunkline.runtime.process import Buffer

SYNC_BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)


class NodeCounts:
    def __init__(self) -> None:
        self.requests: Counter[type[Message]] = Counter()  # by kind, of those that a node accepts
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

    def sent(self, frames: Sequence[Frame], bodies: Sequence[Buffer]) -> None:
        """To readers, and to nodes that copy them."""
        self.batches_read += len(bodies)
        self.entries_read += sum(frame.count for frame in frames)
        self.bytes_read += sum(map(len, bodies))
