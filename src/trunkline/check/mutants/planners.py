"""Known bugs of planners and destinations that need an answer to be lost, or a hand-over, to show."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.check.scenarios import delivery_world
from trunkline.core.delivery_events import PlanDropped
from trunkline.core.effects import Announce, Effects
from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide
from trunkline.core.planner import Planner, PlannerState
from trunkline.core.planner_groups import Groups
from trunkline.core.planner_tracks import Track

_continue = Planner._continue


def _written_again(held: StoredPosition, step: PlannedWrite) -> Decision:
    decided = decide(held, step)
    return Decision.PROCEED if decided is Decision.ALREADY else decided


def _plans_from_memory(self: Planner, track: Track) -> Effects:
    return [Announce(PlanDropped(track.name))]


def _nowhere(self: Groups, names: list[str], tracks: Mapping[str, Track]) -> frozenset[str]:
    return frozenset()


def _stops_at_once(self: Planner) -> Effects:
    """Whoever is told to stop begins what is due, and gives everything back without waiting for it."""
    effects = _continue(self)
    return effects + self._stop() if self.state in (PlannerState.DRAINING, PlannerState.STOPPING) else effects


UNSEEN = {
    "fence F4": "The checked world has one source, which a mark tells from its other lives. What differs in its "
    "identity alone, because the marks are not known, is looked at by the contract suite of destinations.",
    "planner P12": "A planner that asks or waits without need does more work, and no destination differs by it: "
    "monitors judge what is written. A test of the planner looks at all that an idle one sends.",
}

PLANNING_MUTANTS = (
    Mutant(
        "place-shared",
        "two jobs at once write to destinations of one place",
        "one-place",
        patch((Groups, "places", _nowhere)),
        "OnePlace",
        "breadth",
        20_000,
        breaks=("planner P14",),
    ),
    Mutant(
        "flush-written-again",
        "a flush whose end is reached is written once more",
        "append-mode",
        patch((delivery_world, "decide", _written_again)),
        ("ExactlyOnce", "CursorMonotone", "NoPhantom", "NoLoss"),
        "breadth",
        20_000,
        breaks=("fence F2",),
    ),
    Mutant(
        "moved-not-read",
        "a destination that was not where it was expected is planned for from memory",
        "two-deliverers",
        patch((Planner, "_on_moved", _plans_from_memory)),
        "Progress",
        "random",
        30,
        breaks=("planner P4",),
    ),
    Mutant(
        "released-in-flight",
        "a planner that stops gives destinations back to which something is on its way",
        "hand-over-in-flight",
        patch((Planner, "_continue", _stops_at_once)),
        "Progress",
        "breadth",
        150_000,
        breaks=("planner P13",),
    ),
)
