"""Mutants of delivery: planners that trust too much, and destinations that check too little."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.delivery_rows import Rows
from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.check.scenarios.delivery_place import Place, StagedWrite, TableImage, Transaction
from trunkline.check.scenarios.delivery_world import ScriptedSource
from trunkline.core import group_commit, planner_groups
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
_on_place_message = Place.on_message
_release = Schedule.release
_written = Place._written


# ------------------------------------------------------------------------------------------------------- destinations


def _ignore_tokens(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held._replace(token=0), step)


def _flush_at_any_position(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held, step._replace(expected=held.position, mark=held.mark) if step.expected else step)


def _seed_at_any_position(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held, step if step.expected else step._replace(expected=held.position, mark=held.mark))


def _ignore_marks(held: StoredPosition, step: PlannedWrite) -> Decision:
    return decide(held._replace(mark=""), step._replace(mark="", through_mark=""))


def _seed_without_replacing(self: Place, write: StagedWrite) -> TableImage:
    image = _written(self, write)
    return image if write.seed is None else replace(image, rows=_merged(self.images[write.name].rows, write.seed))


def _merged(before: Rows, seed: Rows) -> Rows:
    keys = {row.key for row in seed}
    return tuple(sorted([*seed, *(row for row in before if row.key not in keys)]))


def _commit_rows_first(self: Place, transaction: Transaction) -> None:
    """Rows first; position and token of a flush follow in a later transaction."""
    flushes = [write.name for write in transaction.apply.writes if write.seed is None]
    for name, image in transaction.draft.items():
        self.images[name] = replace(self.images[name], rows=image.rows) if name in flushes else image
    self.later = {name: image for name, image in transaction.draft.items() if name in flushes}  # type: ignore[attr-defined]


def _write_position_later(self: Place, source: Address, message: Message) -> Effects:
    for name, later in getattr(self, "later", {}).items():
        self.images[name] = replace(self.images[name], position=later.position, token=later.token)
    self.later = {}  # type: ignore[attr-defined]
    return _on_place_message(self, source, message)


# ----------------------------------------------------------------------------------------------------------- planners


def _trust_job_in_flight(self: Track) -> None:
    """The result of a job in flight counts whatever happened meanwhile."""
    self.known = self.job != 0


def _forget_job_in_flight(self: Track) -> None:
    """A destination that restarts its plan does not wait for its job."""
    self.known, self.job = False, 0


def _note_failure_as_empty(self: Planner, track: Track, job: PlannerJob, result: Result) -> Effects:
    """The next window begins at the end of the failed one."""
    if result.outcome is Outcome.TRANSIENT:
        self.schedule.note_empty(track, job.through, job.mark)
    return _on_result(self, track, job, result)


def _note_silence_as_empty(self: Planner, track: Track, job: PlannerJob, result: Result) -> Effects:
    if result.outcome is Outcome.UNKNOWN and not job.stamp and job.through:
        return self.schedule.note_empty(track, job.through, job.mark)
    return _on_result(self, track, job, result)


def _fail_whole_group(self: Planner, done: JobDone) -> Effects:
    failed = [each for each in done.results if each.outcome is Outcome.TRANSIENT]
    if failed:
        done = replace(done, results=tuple(replace(failed[0], destination=each.destination) for each in done.results))
    return _on_done(self, done)


def _halt_all(self: Planner, track: Track, job: PlannerJob, result: Result) -> Effects:
    if result.outcome is not Outcome.PERMANENT:
        return _on_result(self, track, job, result)
    return [effect for each in self.tracks.values() for effect in self.schedule.halt(each, result.error)]


def _use_note_at_any_position(self: Track) -> int:
    return max(self.position, self.empty.through)


def _never_stamp(self: Schedule, track: Track) -> GroupKey:
    return GroupKey(track.effective, False, False, track.failures > 0, track.crowd, None)


def _release_as_settled(self: Schedule, *released: Released) -> Send:
    return _release(self, *(replace(each, settled=True) for each in released))


def _ignore_stops(key: GroupKey, due: int, source: SourceAt, left: list[GroupKey]) -> int:
    return _through(key, due, replace(source, stops=()), left)


def _accept_late_grant(self: Planner, grant: Grant) -> Effects:
    track = self.tracks[grant.destination]
    track.token_floor = 0
    return _on_granted(self, grant)


def _drop_reseed_request(self: Planner, grant: Grant) -> Effects:
    """The reseed request of the grant counts, even if a newer request arrived after the grant was written."""
    self.tracks[grant.destination].reseed = 0
    return _on_granted(self, grant)


def _ignore_messages_when_stopped(self: Planner, source: Address, message: Message) -> Effects:
    return [] if self.state is PlannerState.STOPPED else _handle(self, message) + self._continue()


def _ignore_expiry_of_source(self: Planner, message: Message) -> Effects:
    return _handle(self, replace(message, oldest=1) if isinstance(message, SourceAt) else message)


def _retry_expired(self: Planner, track: Track, job: PlannerJob, result: Result) -> Effects:
    expired = result.outcome is Outcome.EXPIRED
    return _on_result(self, track, job, replace(result, outcome=Outcome.TRANSIENT) if expired else result)


def _ignore_history(self: Planner, message: Message) -> Effects:
    return _handle(self, replace(message, history=0) if isinstance(message, SourceAt) else message)


def _ignore_mark_of_version(self: ScriptedSource, version: int, mark: str) -> bool:
    return version <= self.version


def _handle_all_messages(self: Planner, source: Address, message: Message) -> bool:
    return False


DELIVERY_MUTANTS = (
    Mutant(
        "delivery-unfenced",
        "a destination ignores tokens",
        "two-deliverers",
        patch((group_commit, "decide", _ignore_tokens)),
        "SingleDeliverer",
        "breadth",
        100_000,
        breaks=("fence F1",),
    ),
    Mutant(
        "expected-position-unchecked",
        "a flush is written at any position of the destination",
        "mirror",
        patch((group_commit, "decide", _flush_at_any_position)),
        ("NoLoss", "NoPhantom", "ExactlyOnce"),
        "breadth",
        20_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "position-outside-transaction",
        "rows are committed before the position",
        "append-mode",
        patch((Place, "_commit", _commit_rows_first), (Place, "on_message", _write_position_later)),
        ("NoLoss", "NoPhantom", "ExactlyOnce"),
        "breadth",
        20_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "seed-beside",
        "a seed keeps the previous rows",
        "seeding",
        patch((Place, "_written", _seed_without_replacing)),
        "NoPhantom",
        "breadth",
        10_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "late-seed",
        "a late seed moves a destination back",
        "lost-answers",
        patch((group_commit, "decide", _seed_at_any_position)),
        "CursorMonotone",
        "breadth",
        60_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "read-epoch-lost",
        "the result of a job counts although the configuration changed since it began",
        "rerouting",
        patch((Track, "doubt", _trust_job_in_flight)),
        ("Progress", "NoPhantom", "NoLoss"),
        "breadth",
        20_000,
        breaks=("planner P3",),
    ),
    Mutant(
        "two-flushes-in-flight",
        "a destination that restarts its plan does not wait for the flush in flight",
        "rerouting",
        patch((Track, "doubt", _forget_job_in_flight)),
        "FlushState",
        "breadth",
        20_000,
        breaks=("planner P1",),
    ),
    Mutant(
        "planned-not-reset",
        "after a failure the next window begins at the end of the failed one",
        "backing-off",
        patch((Planner, "_on_result", _note_failure_as_empty)),
        ("NoLoss", "NoPhantom", "ReadOnce"),
        "breadth",
        20_000,
        breaks=("planner P2",),
    ),
    Mutant(
        "silence-is-empty",
        "a job without an answer counts as a window without rows",
        "lost-answers",
        patch((Planner, "_on_result", _note_silence_as_empty)),
        ("NoLoss", "NoPhantom"),
        "breadth",
        60_000,
        breaks=("planner P5",),
    ),
    Mutant(
        "one-fails-for-all",
        "the failure of one destination resets its whole group",
        "backing-off",
        patch((Planner, "_on_done", _fail_whole_group)),
        "ReadOnce",
        "breadth",
        20_000,
        breaks=("planner P9",),
    ),
    Mutant(
        "one-halts-all",
        "the halt of one destination halts all others",
        "halting",
        patch((Planner, "_on_result", _halt_all)),
        "Progress",
        "breadth",
        20_000,
        breaks=("planner P9",),
    ),
    Mutant(
        "note-for-any-position",
        "a note about an empty window is used for a destination at another position",
        "restored-backup",
        patch((Track, "effective", property(_use_note_at_any_position))),
        ("NoLoss", "NoPhantom", "Progress"),
        "breadth",
        20_000,
        breaks=("planner P6",),
    ),
    Mutant(
        "empty-unsettled",
        "an empty window is not written although an older flush may still land and change its begin",
        "mirror",
        patch((Schedule, "_flush_key", _never_stamp)),
        ("Progress", "NoPhantom", "NoLoss"),
        "breadth",
        100_000,
        breaks=("planner P11",),
    ),
    Mutant(
        "released-unsettled",
        "a destination is handed over as settled although an older flush may still land",
        "hand-over",
        patch((Schedule, "release", _release_as_settled)),
        ("Progress", "NoPhantom", "NoLoss"),
        "breadth",
        200_000,
        breaks=("planner P11",),
    ),
    Mutant(
        "window-crosses-stop",
        "a window crosses a version that it may not cross",
        "stops",
        patch((planner_groups, "_through", _ignore_stops)),
        ("NoPhantom", "NoLoss"),
        "breadth",
        20_000,
        breaks=("planner P8",),
    ),
    Mutant(
        "late-grant-taken",
        "a grant is accepted although a later one arrived before it",
        "lease-returns",
        patch((Planner, "_on_granted", _accept_late_grant), (Planner, "ignores", _handle_all_messages)),
        "Progress",
        "swarm",
        800,
        breaks=("planner P10",),
    ),
    Mutant(
        "reseed-request-overruled",
        "a reseed request is lost when an older grant arrives",
        "reseeding",
        patch((Planner, "_on_granted", _drop_reseed_request)),
        "Progress",
        "breadth",
        50_000,
        breaks=("planner P3",),
    ),
    Mutant(
        "grant-after-the-end",
        "a stopped planner keeps what it is granted",
        "hand-over",
        patch((Planner, "on_message", _ignore_messages_when_stopped)),
        "Progress",
        "breadth",
        200_000,
        breaks=("planner P13",),
    ),
    Mutant(
        "mark-not-compared",
        "a version counts as the same whatever its mark is",
        "restored-source",
        patch((ScriptedSource, "_has", _ignore_mark_of_version)),
        ("NoPhantom", "NoLoss", "Progress"),
        "breadth",
        50_000,
        breaks=("planner P15",),
    ),
    Mutant(
        "history-unseen",
        "a planner ignores that the source was recreated with lower versions",
        "remade-source",
        patch((Planner, "_handle", _ignore_history), (Planner, "ignores", _handle_all_messages)),
        "Progress",
        "random",
        30,
        breaks=("planner P15",),
    ),
    Mutant(
        "position-without-mark",
        "a destination ignores marks: a seed that moved it back lands again at the same position of another history",
        "restored-source",
        patch((group_commit, "decide", _ignore_marks)),
        ("CursorMonotone", "NoPhantom", "NoLoss", "Progress"),
        "breadth",
        50_000,
        breaks=("fence F3",),
    ),
    Mutant(
        "expiry-unseen",
        "a destination whose position the source has forgotten is flushed forever",
        "expiring-source",
        patch((Planner, "_handle", _ignore_expiry_of_source), (Planner, "_on_result", _retry_expired)),
        "Progress",
        "swarm",
        50,
        breaks=("planner P7",),
    ),
)
