"""Known bugs of delivery: planners that believe too much, and destinations that check too little."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.delivery_rows import Rows
from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.check.scenarios import delivery_world
from trunkline.check.scenarios.delivery_world import Apply, ScriptedSource, Table
from trunkline.core import planner_groups
from trunkline.core.delivery_messages import Grant, JobDone, Outcome, Released, Result, SourceAt
from trunkline.core.effects import Address, Effects, Message, Send
from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide
from trunkline.core.planner import Planner, PlannerState
from trunkline.core.planner_schedule import Schedule
from trunkline.core.planner_tracks import GroupKey, PlannerJob, Track

_through = planner_groups._through
_on_result = Planner._on_result
_on_done = Planner._on_done
_on_granted = Planner._on_granted
_handle = Planner._handle
_on_table_message = Table.on_message
_release = Schedule.release
_table_write = Table._write


# ------------------------------------------------------------------------------------------------------- destinations


def _unfenced(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held._replace(token=0), step)


def _from_anywhere(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held, step._replace(expected=held.position, mark=held.mark) if step.expected else step)


def _over_anything(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held, step if step.expected else step._replace(expected=held.position, mark=held.mark))


def _without_marks(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held._replace(mark=""), step._replace(mark="", through_mark=""))


def _seeds_beside(self: Table, apply: Apply) -> None:
    before = self.image.rows
    _table_write(self, apply)
    if apply.seed is not None:
        self.image = replace(self.image, rows=_merged(before, apply.seed))


def _merged(before: Rows, seed: Rows) -> Rows:
    keys = {row.key for row in seed}
    return tuple(sorted([*seed, *(row for row in before if row.key not in keys)]))


def _rows_first(self: Table, apply: Apply) -> None:
    """Rows now; position and token by a transaction of their own, which comes later."""
    before = self.image
    _table_write(self, apply)
    if apply.seed is None:
        self.later = self.image  # type: ignore[attr-defined]
        self.image = replace(before, rows=self.image.rows)


def _position_later(self: Table, source: Address, message: Message) -> Effects:
    later = getattr(self, "later", None)
    if later is not None:
        self.image = replace(self.image, position=later.position, token=later.token)
        self.later = None  # type: ignore[attr-defined]
    return _on_table_message(self, source, message)


# ----------------------------------------------------------------------------------------------------------- planners


def _epoch_lost(self: Track) -> None:
    """What is in flight is believed whatever happened meanwhile."""
    self.known = self.job != 0


def _job_forgotten(self: Track) -> None:
    """Who is told to begin anew does so at once."""
    self.known, self.job = False, 0


def _failure_is_empty(self: Planner, track: Track, job: PlannerJob, result: Result) -> Effects:
    """The next window begins where the failed one was to end."""
    if result.outcome is Outcome.TRANSIENT:
        self.schedule.note_empty(track, job.through, job.mark)
    return _on_result(self, track, job, result)


def _silence_is_empty(self: Planner, track: Track, job: PlannerJob, result: Result) -> Effects:
    if result.outcome is Outcome.UNKNOWN and not job.stamp and job.through:
        return self.schedule.note_empty(track, job.through, job.mark)
    return _on_result(self, track, job, result)


def _all_fail(self: Planner, done: JobDone) -> Effects:
    failed = [each for each in done.results if each.outcome is Outcome.TRANSIENT]
    if failed:
        done = replace(done, results=tuple(replace(failed[0], destination=each.destination) for each in done.results))
    return _on_done(self, done)


def _all_halt(self: Planner, track: Track, job: PlannerJob, result: Result) -> Effects:
    if result.outcome is not Outcome.PERMANENT:
        return _on_result(self, track, job, result)
    return [effect for each in self.tracks.values() for effect in self.schedule.halt(each, result.error)]


def _noted_for_any(self: Track) -> int:
    return max(self.position, self.empty.through)


def _never_stamps(self: Schedule, track: Track) -> GroupKey:
    return GroupKey(track.effective, False, False, track.failures > 0, track.crowd, None)


def _says_settled(self: Schedule, *released: Released) -> Send:
    return _release(self, *(replace(each, settled=True) for each in released))


def _across_stops(key: GroupKey, due: int, source: SourceAt, left: list[GroupKey]) -> int:
    return _through(key, due, replace(source, stops=()), left)


def _takes_late_grant(self: Planner, grant: Grant) -> Effects:
    track = self.tracks[grant.destination]
    track.token_floor = 0
    return _on_granted(self, grant)


def _grant_overrules(self: Planner, grant: Grant) -> Effects:
    """The reseed request of the grant counts, even if a newer request arrived after the grant was written."""
    self.tracks[grant.destination].reseed = 0
    return _on_granted(self, grant)


def _deaf_in_the_end(self: Planner, source: Address, message: Message) -> Effects:
    return [] if self.state is PlannerState.STOPPED else _handle(self, message) + self._continue()


def _expiry_unseen(self: Planner, message: Message) -> Effects:
    return _handle(self, replace(message, oldest=1) if isinstance(message, SourceAt) else message)


def _expiry_passes(self: Planner, track: Track, job: PlannerJob, result: Result) -> Effects:
    gone = result.outcome is Outcome.EXPIRED
    return _on_result(self, track, job, replace(result, outcome=Outcome.TRANSIENT) if gone else result)


def _history_unseen(self: Planner, message: Message) -> Effects:
    return _handle(self, replace(message, history=0) if isinstance(message, SourceAt) else message)


def _in_any_history(self: ScriptedSource, version: int, mark: str) -> bool:
    return version <= self.version


def _never_ignores(self: Planner, source: Address, message: Message) -> bool:
    return False


DELIVERY_MUTANTS = (
    Mutant(
        "delivery-unfenced",
        "a destination does not look at tokens",
        "two-deliverers",
        patch((delivery_world, "decide", _unfenced)),
        "SingleDeliverer",
        "breadth",
        100_000,
        breaks=("fence F1",),
    ),
    Mutant(
        "expected-position-unchecked",
        "a flush is written wherever the destination is",
        "mirror",
        patch((delivery_world, "decide", _from_anywhere)),
        ("NoLoss", "NoPhantom", "ExactlyOnce"),
        "breadth",
        20_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "position-outside-transaction",
        "rows are committed first, and the position afterwards",
        "append-mode",
        patch((Table, "_write", _rows_first), (Table, "on_message", _position_later)),
        ("NoLoss", "NoPhantom", "ExactlyOnce"),
        "breadth",
        20_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "seed-beside",
        "a seed leaves what was there before",
        "seeding",
        patch((Table, "_write", _seeds_beside)),
        "NoPhantom",
        "breadth",
        10_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "late-seed",
        "a seed that comes late takes a destination back",
        "lost-answers",
        patch((delivery_world, "decide", _over_anything)),
        "CursorMonotone",
        "breadth",
        60_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "read-epoch-lost",
        "the answer of a job is believed although the configuration changed after it had begun",
        "rerouting",
        patch((Track, "doubt", _epoch_lost)),
        ("Progress", "NoPhantom", "NoLoss"),
        "breadth",
        20_000,
        breaks=("planner P3",),
    ),
    Mutant(
        "two-flushes-in-flight",
        "a destination that begins anew does not wait for what is in flight to it",
        "rerouting",
        patch((Track, "doubt", _job_forgotten)),
        "FlushState",
        "breadth",
        20_000,
        breaks=("planner P1",),
    ),
    Mutant(
        "planned-not-reset",
        "after a failure the next window begins where the failed one was to end",
        "backing-off",
        patch((Planner, "_on_result", _failure_is_empty)),
        ("NoLoss", "NoPhantom", "ReadOnce"),
        "breadth",
        20_000,
        breaks=("planner P2",),
    ),
    Mutant(
        "silence-is-empty",
        "a job that broke off is taken for a window without rows",
        "lost-answers",
        patch((Planner, "_on_result", _silence_is_empty)),
        ("NoLoss", "NoPhantom"),
        "breadth",
        60_000,
        breaks=("planner P5",),
    ),
    Mutant(
        "one-fails-for-all",
        "the failure of one destination resets its whole group",
        "backing-off",
        patch((Planner, "_on_done", _all_fail)),
        "ReadOnce",
        "breadth",
        20_000,
        breaks=("planner P9",),
    ),
    Mutant(
        "one-halts-all",
        "the halt of one destination halts every other",
        "halting",
        patch((Planner, "_on_result", _all_halt)),
        "Progress",
        "breadth",
        20_000,
        breaks=("planner P9",),
    ),
    Mutant(
        "note-for-any-position",
        "a note of a window without rows is used for a destination that is at another position by now",
        "restored-backup",
        patch((Track, "effective", property(_noted_for_any))),
        ("NoLoss", "NoPhantom", "Progress"),
        "breadth",
        20_000,
        breaks=("planner P6",),
    ),
    Mutant(
        "empty-unsettled",
        "a window is left unwritten although an older flush may still land and change what it was measured from",
        "mirror",
        patch((Schedule, "_flush_key", _never_stamps)),
        ("Progress", "NoPhantom", "NoLoss"),
        "breadth",
        100_000,
        breaks=("planner P11",),
    ),
    Mutant(
        "released-unsettled",
        "a destination is handed over as settled, although an older flush may still land",
        "hand-over",
        patch((Schedule, "release", _says_settled)),
        ("Progress", "NoPhantom", "NoLoss"),
        "breadth",
        200_000,
        breaks=("planner P11",),
    ),
    Mutant(
        "window-crosses-stop",
        "a window goes on across a version that it may not cross",
        "stops",
        patch((planner_groups, "_through", _across_stops)),
        ("NoPhantom", "NoLoss"),
        "breadth",
        20_000,
        breaks=("planner P8",),
    ),
    Mutant(
        "late-grant-taken",
        "a grant that was overtaken by a later one is taken all the same",
        "lease-returns",
        patch((Planner, "_on_granted", _takes_late_grant), (Planner, "ignores", _never_ignores)),
        "Progress",
        "swarm",
        800,
        breaks=("planner P10",),
    ),
    Mutant(
        "reseed-request-overruled",
        "a reseed request is forgotten when a grant arrives that was written before it",
        "reseeding",
        patch((Planner, "_on_granted", _grant_overrules)),
        "Progress",
        "breadth",
        50_000,
        breaks=("planner P3",),
    ),
    Mutant(
        "grant-after-the-end",
        "a planner that has stopped keeps what it is granted",
        "hand-over",
        patch((Planner, "on_message", _deaf_in_the_end)),
        "Progress",
        "breadth",
        200_000,
        breaks=("planner P13",),
    ),
    Mutant(
        "mark-not-compared",
        "a version counts as the same one whatever its mark is",
        "restored-source",
        patch((ScriptedSource, "_has", _in_any_history)),
        ("NoPhantom", "NoLoss", "Progress"),
        "breadth",
        50_000,
        breaks=("planner P15",),
    ),
    Mutant(
        "history-unseen",
        "versions only grow for a planner, also when the source was made anew",
        "remade-source",
        patch((Planner, "_handle", _history_unseen), (Planner, "ignores", _never_ignores)),
        "Progress",
        "random",
        30,
        breaks=("planner P15",),
    ),
    Mutant(
        "position-without-mark",
        "a destination looks at positions only: a seed that takes it back lands once more, where it is as far again",
        "restored-source",
        patch((delivery_world, "decide", _without_marks)),
        ("CursorMonotone", "NoPhantom", "NoLoss", "Progress"),
        "breadth",
        50_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "expiry-unseen",
        "a destination whose position the source has forgotten is flushed for ever",
        "expiring-source",
        patch((Planner, "_handle", _expiry_unseen), (Planner, "_on_result", _expiry_passes)),
        "Progress",
        "swarm",
        50,
        breaks=("planner P7",),
    ),
)
