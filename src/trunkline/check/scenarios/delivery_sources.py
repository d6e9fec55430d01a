"""Walk-throughs of delivery from a source that forgets, is restored from a backup, or is made anew."""

from __future__ import annotations

from trunkline.check.delivery_rows import Change, history
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.delivery import ONE_TENANT, PLANNED, scenario, told
from trunkline.check.scenarios.delivery_world import Advance, ReplaceSource
from trunkline.core.delivery_messages import Life, LifeChanged


def expiring_source() -> Scenario:
    """The source forgets what lies before a version: first a position that a note covers, then all of it."""
    return scenario(
        "expiring-source",
        "the source forgets its history while destinations are behind: written once, or seeded again",
        ONE_TENANT,
        steps=(Advance(1), Advance(2), Advance(3, 2), Advance(4), Advance(5, 4)),
        looks=True,
        sometimes=("HistoryExpired", "Seeded", "TableWritten"),
    )


def restored_backup() -> Scenario:
    """What was noted of windows without rows holds for the position that it was measured from."""
    return scenario(
        "restored-backup",
        "a destination is paused, restored from a backup and resumed: it goes on from what it is now",
        history((Change("k", 1),), (Change("k", 1),), (Change("l", 2),)),
        planned=PLANNED[:1],
        asked={"a": told(LifeChanged("d1", Life.PAUSED), "d1", LifeChanged("d1", Life.ACTIVE))},
        sometimes=("TableWritten", "PlanDropped"),
    )


def restored_source() -> Scenario:
    """Its second life begins behind where destinations may be, and comes to versions that they had in the first."""
    first = history((Change("k", 1),), (Change("l", 1),), (Change("k", 2),))
    second = history((Change("k", 1),), (Change("m", 1),), (Change("k"),))
    return scenario(
        "restored-source",
        "the source is restored from a backup and goes on differently: what strayed halts, and is seeded again",
        first._replace(another=second.versions, shared=1),
        planned=PLANNED[:1],
        steps=(Advance(1), Advance(2), ReplaceSource(3, 2, ("d1",)), Advance(4)),
        faults=Faults(early_timer=1),
        sometimes=("Halted", "Seeded", "TableWritten"),
    )


def remade_source() -> Scenario:
    return scenario(
        "remade-source",
        "the source is made anew under its old name, and stays behind its first life: an operator's seed wins",
        history((Change("k", 1),), (Change("l", 1),))._replace(another=history((Change("m", 1),)).versions),
        planned=PLANNED[:1],
        steps=(Advance(1), ReplaceSource(2, 1, ("d1",))),
        faults=Faults(loss=1),
        lossy="d1",
        sometimes=("Halted", "Seeded", "TableWritten"),
    )


SOURCE_SCENARIOS = (expiring_source, restored_backup, restored_source, remade_source)
