"""The recovery of a stream after a restart: which frames stand, which are lost, and whether that is certain.

Each frame carries the synced mark at the time of its write: how many frames before it were certainly on disk.

    slot      0      1      2      3      4
            [good] [good] [good] [BAD ] [good]
    mark      0      1      1      3      3        highest mark: 3

Rules
 V1  A bad or missing frame below any mark was acknowledged and is lost: the stream has lost data.
 V2  Above the last mark lies one group that may never have been synced. It is cut at its first bad frame, whatever
     follows: a later frame may be on disk while an earlier one is not.
 V3  If a cut frame had its full length it may have been acknowledged and damaged later: the stream is uncertain. Its
     answer to Seal counts only if every member of its group has answered and none is certain.
 V4  A seal is a mark: it is written only after everything before it is on disk.
 V5  A frame that does not match its checksum is never returned.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.entries import Frame


class Condition(enum.Enum):
    GOOD = "good"
    BAD = "bad"  # full length, but header or payload does not match the checksum
    SHORT = "short"  # the file ends inside it


class Slot(Struct, frozen=True):
    """One frame as read. The contents of a bad slot must not be trusted."""

    frame: Frame
    mark: int
    condition: Condition = Condition.GOOD


class Recovered(Struct, frozen=True):
    kept: int  # slots from the first on that stand; the rest is cut
    frames: tuple[Frame, ...]
    data_loss: bool
    uncertain: bool


def recover(slots: tuple[Slot, ...], own_mark: int = 0) -> Recovered:
    """Recover the slots of a stream. ``own_mark``: of a seal (V4), or written by an idle stream."""
    marks = [slot.mark for slot in slots if slot.condition is Condition.GOOD]
    mark = max([own_mark, *marks])
    bad = [index for index, slot in enumerate(slots) if slot.condition is not Condition.GOOD]
    data_loss = mark > len(slots) or any(index < mark for index in bad)  # V1
    above = [index for index in bad if index >= mark]
    kept = above[0] if above else len(slots)  # V2
    uncertain = any(slot.condition is not Condition.SHORT for slot in slots[kept:])  # V3
    frames = tuple(slot.frame for slot in slots[:kept] if slot.condition is Condition.GOOD)  # V5
    return Recovered(kept, frames, data_loss, uncertain)
