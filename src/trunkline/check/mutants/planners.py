"""Mutants of planners and destinations that need a lost answer or a hand-over."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.core import group_commit
from trunkline.core.delivery_events import PlanDropped
from trunkline.core.effects import Announce, Effects
from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide
from trunkline.core.planner import Planner, PlannerState
from trunkline.core.planner_groups import Groups
from trunkline.core.planner_tracks import Track

_continue = Planner._continue


def _write_flush_again(held: StoredPosition, step: PlannedWrite) -> Decision:
    decided = decide(held, step)
    return Decision.PROCEED if decided is Decision.ALREADY else decided


def _plan_from_memory(self: Planner, track: Track) -> Effects:
    return [Announce(PlanDropped(track.name))]


def _ignore_places(self: Groups, names: list[str], tracks: Mapping[str, Track]) -> frozenset[str]:
    return frozenset()


def _stop_without_waiting(self: Planner) -> Effects:
    """A stopping planner starts what is due, and releases everything without waiting for it."""
    effects = _continue(self)
    return effects + self._stop() if self.state in (PlannerState.DRAINING, PlannerState.STOPPING) else effects


UNSEEN = {
    "fence F4": "The checked world has one source, whose incarnations differ in their marks. The contract suite of "
    "destinations covers sources that differ in their identity alone.",
    "planner P12": "Needless requests and waits of a planner change no destination, and monitors judge what is "
    "written. A test of the planner checks all that an idle one sends.",
}

PLANNING_MUTANTS = (
    Mutant(
        "place-shared",
        "two jobs at once write to destinations of one place",
        "one-place",
        patch((Groups, "places", _ignore_places)),
        "OnePlace",
        "breadth",
        20_000,
        breaks=("planner P14",),
    ),
    Mutant(
        "flush-written-again",
        "a flush that was already applied is written again",
        "append-mode",
        patch((group_commit, "decide", _write_flush_again)),
        ("ExactlyOnce", "CursorMonotone", "NoPhantom", "NoLoss"),
        "breadth",
        20_000,
        breaks=("fence F2",),
    ),
    Mutant(
        "moved-not-read",
        "after an unexpected position a destination is planned from memory",
        "two-deliverers",
        patch((Planner, "_on_moved", _plan_from_memory)),
        "Progress",
        "random",
        30,
        breaks=("planner P4",),
    ),
    Mutant(
        "released-in-flight",
        "a stopping planner releases destinations with a flush in flight",
        "hand-over-in-flight",
        patch((Planner, "_continue", _stop_without_waiting)),
        "Progress",
        "breadth",
        150_000,
        breaks=("planner P13",),
    ),
)
