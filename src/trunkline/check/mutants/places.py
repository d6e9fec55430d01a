"""Mutants of places: transactions that commit too much or report too much, and tables that are not made level."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.check.scenarios import delivery_lone
from trunkline.check.scenarios.delivery_lone import LoneImage, LoneStep
from trunkline.check.scenarios.delivery_place import Place, TableImage, Transaction
from trunkline.core import group_commit
from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide
from trunkline.core.group_commit import GroupCommit, MemberFate
from trunkline.core.planner_schedule import Schedule
from trunkline.core.planner_tracks import GroupKey, Track

_judge = GroupCommit.judge
_leave_out = GroupCommit.leave_out
_commit = Place._commit
_flush_key = Schedule._flush_key
_plan = LoneStep._plan
_first = LoneStep._first


# ------------------------------------------------------------------------------------------------------ transactions


def _write_what_was_judged(self: GroupCommit) -> None:
    """The transaction is repeated as it was: only the snapshot is new."""


def _write_refused(self: GroupCommit, held: Mapping[str, StoredPosition]) -> tuple[str, ...]:
    writing = _judge(self, held)
    return tuple(held) if writing else ()


def _keep_writes(self: Place, transaction: Transaction, name: str) -> None:
    pass


def _fail_all(self: GroupCommit, name: str, *, undone_alone: bool) -> None:
    self._settle({each: MemberFate.BUSY for each in self.waiting if each != name})
    _leave_out(self, name, undone_alone=undone_alone)


def _move_positions_of_all(self: Place, transaction: Transaction) -> None:
    _commit(self, transaction)
    for write in transaction.apply.writes:
        if write.name in transaction.errors:
            self.images[write.name] = replace(self.images[write.name], position=write.through)


def _commit_first_alone(self: Place, transaction: Transaction) -> None:
    first = min(transaction.draft)
    self.images[first] = transaction.draft[first]


def _report_applied(self: GroupCommit) -> None:
    self._end(MemberFate.APPLIED)


def _report_nothing_written(self: GroupCommit) -> None:
    self._end(MemberFate.BUSY)


# ------------------------------------------------------------------------------------------------------------- repairs


def _repair_at_any_position(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held, step._replace(expected=held.position, mark=held.mark) if step.repairs else step)


def _repair_as_flush(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held, step._replace(repairs=False))


def _repair_unfenced(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held._replace(token=0) if step.repairs else held, step)


# ------------------------------------------------------------------------------------------- tables that commit alone


def _plan_beyond(self: Schedule, track: Track) -> GroupKey:
    return _flush_key(self, track)._replace(until=0)


def _write_ahead_again(self: LoneStep, table: TableImage) -> bool:
    return True


def _go_silently(self: LoneStep, lead: LoneImage) -> bool:
    """The lead does not record where the other tables are going."""
    return False


def _end_elsewhere(self: LoneStep) -> StoredPosition:
    """A step from where the lead is may end anywhere, wherever the tables are going."""
    standing = delivery_lone.standing_of(self.write.name, self.images)
    return StoredPosition(standing.position, standing.token, standing.mark)


def _lead_first(self: LoneStep) -> tuple[tuple[int, LoneImage], ...]:
    *others, end = _plan(self)
    return (end, *(each for each in others if each[0]))


def _seed_in_place(self: LoneStep, lead: LoneImage) -> LoneImage:
    """A seed takes the position away, but does not make the lead its own if there is none."""
    return lead if self.write.seed is not None and not lead.table.position else _first(self, lead)


PLACE_MUTANTS = (
    Mutant(
        "judged-once",
        "a transaction that lost a race is written again as it was judged before",
        "grouped-race",
        patch((GroupCommit, "lost_race", _write_what_was_judged)),
        ("SingleDeliverer", "CursorMonotone", "NoPhantom", "NoLoss"),
        "breadth",
        40_000,
        breaks=("group_commit U4",),
    ),
    Mutant(
        "refused-with-the-group",
        "a member that is fenced or has moved is written with the others",
        "grouped-takeover",
        patch((GroupCommit, "judge", _write_refused)),
        ("LeftOut", "SingleDeliverer"),
        "breadth",
        40_000,
        breaks=("group_commit U1",),
    ),
    Mutant(
        "failed-member-kept",
        "what a failed member wrote is committed with the others",
        "grouped-savepoints",
        patch((Place, "_undo", _keep_writes)),
        "LeftOut",
        "breadth",
        5_000,
        breaks=("group_commit U2",),
    ),
    Mutant(
        "failure-of-all",
        "the failure of one member fails the whole transaction",
        "grouped-failure",
        patch((GroupCommit, "leave_out", _fail_all)),
        "FailsAlone",
        "breadth",
        5_000,
        breaks=("group_commit U2",),
    ),
    Mutant(
        "left-out-moved",
        "the position of a member that was left out moves with the others",
        "grouped-failure",
        patch((Place, "_commit", _move_positions_of_all)),
        ("LeftOut", "NoLoss", "NoPhantom"),
        "breadth",
        5_000,
        breaks=("group_commit U3",),
    ),
    Mutant(
        "group-torn",
        "the members of a transaction are committed one after another, and not all of them",
        "grouped-flush",
        patch((Place, "_commit", _commit_first_alone)),
        ("NotTorn", "AppliedCommitted"),
        "breadth",
        20_000,
        breaks=("group_commit U3",),
    ),
    Mutant(
        "unknown-reported-applied",
        "a commit with an unknown outcome is reported as done",
        "grouped-unknown",
        patch((GroupCommit, "unknown", _report_applied)),
        "AppliedCommitted",
        "breadth",
        5_000,
        breaks=("group_commit U5",),
    ),
    Mutant(
        "unknown-reported-failed",
        "a commit with an unknown outcome is reported as if nothing was written",
        "grouped-unknown",
        patch((GroupCommit, "unknown", _report_nothing_written)),
        ("LeftOut", "FailsAlone"),
        "breadth",
        5_000,
        breaks=("group_commit U5",),
    ),
    Mutant(
        "repair-at-any-position",
        "a repair writes the rows of its position whatever position the destination has by then",
        "repair",
        patch((group_commit, "decide", _repair_at_any_position)),
        ("CursorMonotone", "NoLoss", "NoPhantom"),
        "breadth",
        10_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "repair-done-before",
        "a repair, which ends where it begins, counts as done, and nothing is written",
        "repair",
        patch((group_commit, "decide", _repair_as_flush)),
        "Progress",
        "breadth",
        10_000,
        breaks=("fence F2",),
    ),
    Mutant(
        "repair-unfenced",
        "a repair whose lease has expired is written after those of the next owner",
        "repair-expired",
        patch((group_commit, "decide", _repair_unfenced)),
        "SingleDeliverer",
        "breadth",
        80_000,
        breaks=("fence F1",),
    ),
    Mutant(
        "ahead-passed",
        "a member with tables at two positions is flushed beyond the later one",
        "torn-append",
        patch((Schedule, "_flush_key", _plan_beyond)),
        "Progress",
        "swarm",
        200,
        breaks=("planner P16",),
    ),
    Mutant(
        "ahead-written-again",
        "a table that is ahead gets the rows again that it has",
        "torn-append",
        patch((LoneStep, "_is_behind", _write_ahead_again)),
        "ExactlyOnce",
        "breadth",
        100_000,
        breaks=("planner P16",),
    ),
    Mutant(
        "goal-unrecorded",
        "tables that commit alone are written without a record of where they are going",
        "torn-takeover",
        patch((LoneStep, "_unannounced", _go_silently)),
        ("NoLoss", "NoPhantom"),
        "breadth",
        400_000,
        breaks=("planner P16",),
    ),
    Mutant(
        "goal-passed",
        "a step does not end where the tables are going",
        "torn-takeover",
        patch((LoneStep, "_held", _end_elsewhere)),
        ("NoLoss", "NoPhantom", "ExactlyOnce"),
        "breadth",
        400_000,
        breaks=("planner P16",),
    ),
    Mutant(
        "lead-first",
        "the table that leads commits before the others",
        "torn-tables",
        patch((LoneStep, "_plan", _lead_first)),
        ("NoLoss", "NoPhantom"),
        "breadth",
        100_000,
        breaks=("planner P16",),
    ),
    Mutant(
        "seed-in-place",
        "a seed of tables that have no position does not first record in the lead that it began",
        "torn-seed",
        patch((LoneStep, "_first", _seed_in_place)),
        ("NoLoss", "NoPhantom"),
        "breadth",
        400_000,
        breaks=("planner P16",),
    ),
)
