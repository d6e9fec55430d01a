"""Bodies of batches that roles copy from one node to another.

Roles know batches by identity. A copy to a replica writes a body in the step that received it; a fill needs it in later
steps, so it is kept until no fill can need it.
"""

from __future__ import annotations

from trunkline.core.entries import Frame
from trunkline.core.filler import Filler
from trunkline.core.messages import Fetched, ReadFrames, Written
from trunkline.runtime.process import Buffer, Step

FILLED_MAX = 64  # kept bodies before those of finished fills are purged


class CarriedBodies:
    def __init__(self, filler: Filler) -> None:
        self._filler = filler
        self._filled: dict[Frame, Buffer] = {}

    def find(self, frame: Frame, step: Step) -> Buffer | None:
        body = came_with(frame, step)
        return body if body is not None else self._filled.get(frame)

    def keep_for_filling(self, frame: Frame, body: Buffer) -> None:
        if len(self._filled) >= FILLED_MAX:
            needed = {filling.frame for filling in self._filler.fillings.values()}
            self._filled = {kept: content for kept, content in self._filled.items() if kept in needed}
        self._filled[frame] = body


def came_with(frame: Frame, step: Step) -> Buffer | None:
    """The body of a frame if it arrived with the message of this step. Frames are mostly requested in order."""
    message = step.message
    if isinstance(message, ReadFrames | Fetched):
        frames = message.frames
        if not (step.used < len(frames) and frames[step.used] == frame):
            if frame not in frames:
                return None
            step.used = frames.index(frame)
        at, step.used = step.used, step.used + 1
        return step.attachments[at] if at < len(step.attachments) else None
    if isinstance(message, Written) and message.existing == frame and step.attachments:
        return step.attachments[0]
    return None
