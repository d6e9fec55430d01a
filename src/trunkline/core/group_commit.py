"""One transaction of a place for several members: who is written, who is left out, and what became of each.

A *place* commits once: a DuckLake catalog, a PostgreSQL database, a Delta table. A *member* is one destination with all
its tables there. This class decides; the place reads, writes and commits, and reports what happened. Every kind of
place uses it, and so does the model of the checker.

States
    reading --judge--> writing --committed--> over          writing --unknown--> over
                          |--leave_out--> writing (what it wrote is undone by itself), or
                          |--leave_out--> reading (the whole transaction was undone)
                          |--lost_race--> reading
    reading --judge, no member may be written--> over

Rules
 U1  Positions, marks and tokens of all members are read inside the transaction that writes them, and
     ``core/fence.py`` decides for each. Only a member with PROCEED is written.
 U2  A member that fails is left out and reported alone. What it wrote is undone before anything is committed: by a
     savepoint, or by undoing the whole transaction, which then begins again without it.
 U3  The rows of a member and its position are in one transaction, or neither is.
 U4  Whenever the transaction begins again (a lost race, a member left out), everything is read and judged again: what
     was read before proves nothing.
 U5  No member is reported as written before the commit is known. An unknown outcome is unknown for every member that
     was written in that transaction, and for no other.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide


class MemberFate(enum.Enum):
    """What became of a member."""

    APPLIED = "applied"
    ALREADY = "already"  # done before: success, nothing was written
    FENCED = "fenced"  # this and the following: nothing was written
    FOREIGN = "foreign"
    MOVED = "moved"
    FAILED = "failed"  # by an error of its own
    BUSY = "busy"  # the transaction lost too many races
    UNKNOWN = "unknown"  # it may have been written


REFUSALS = {
    Decision.ALREADY: MemberFate.ALREADY,
    Decision.FENCED: MemberFate.FENCED,
    Decision.FOREIGN: MemberFate.FOREIGN,
    Decision.MOVED: MemberFate.MOVED,
}


class Verdict(NamedTuple):
    fate: MemberFate
    held: StoredPosition  # as the last transaction saw it


class GroupStage(enum.Enum):
    READING = "reading"
    WRITING = "writing"
    OVER = "over"


class GroupCommit:
    """The members of one place in one task. ``races_max``: lost races after which the rest is BUSY."""

    def __init__(self, writes: Mapping[str, PlannedWrite], races_max: int = 16) -> None:
        self._writes = dict(writes)
        self._races_left = races_max
        self._held: dict[str, StoredPosition] = {}
        self.stage = GroupStage.READING if self._writes else GroupStage.OVER
        self.waiting: tuple[str, ...] = tuple(sorted(self._writes))  # without a verdict
        self.writing: tuple[str, ...] = ()  # in the transaction that is under way
        self.verdicts: dict[str, Verdict] = {}

    def judge(self, held: Mapping[str, StoredPosition]) -> tuple[str, ...]:
        """The members to write, given what the transaction reads of every waiting one (U1, U4)."""
        assert self.stage is GroupStage.READING
        self._held = {name: held[name] for name in self.waiting}
        decided = {name: decide(held[name], self._writes[name]) for name in self.waiting}
        self._settle({name: REFUSALS[each] for name, each in decided.items() if each is not Decision.PROCEED})
        self.writing = self.waiting
        self.stage = GroupStage.WRITING if self.writing else GroupStage.OVER
        return self.writing

    def leave_out(self, name: str, *, undone_alone: bool) -> None:
        """A member failed (U2). ``undone_alone``: the others' writes are kept, else all begin again."""
        assert self.stage is GroupStage.WRITING and name in self.writing
        self._settle({name: MemberFate.FAILED})
        self.writing = tuple(each for each in self.writing if each != name) if undone_alone else ()
        if not self.waiting:
            self.stage = GroupStage.OVER
        elif not undone_alone:
            self.stage = GroupStage.READING

    def lost_race(self) -> None:
        """Another transaction was faster, and nothing was written: read and judge again (U4)."""
        assert self.stage is GroupStage.WRITING
        self._races_left -= 1
        if self._races_left > 0:
            self.stage, self.writing = GroupStage.READING, ()
        else:
            self._end(MemberFate.BUSY)

    def committed(self) -> None:
        self._end(MemberFate.APPLIED)

    def unknown(self) -> None:
        """The commit was sent, and its outcome is not known (U5)."""
        self._end(MemberFate.UNKNOWN)

    def _end(self, fate: MemberFate) -> None:
        assert self.stage is GroupStage.WRITING and self.writing == self.waiting
        self._settle(dict.fromkeys(self.writing, fate))
        self.writing, self.stage = (), GroupStage.OVER

    def _settle(self, fates: Mapping[str, MemberFate]) -> None:
        self.verdicts |= {name: Verdict(fate, self._held[name]) for name, fate in fates.items()}
        self.waiting = tuple(name for name in self.waiting if name not in fates)
