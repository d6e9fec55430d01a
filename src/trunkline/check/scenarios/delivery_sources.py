"""Scenarios of delivery from a source that forgets versions, is restored from a backup, or is recreated."""

from __future__ import annotations

from trunkline.check.delivery_rows import Change, source_script
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.delivery import ONE_TENANT, PLANNED, requested, scenario
from trunkline.check.scenarios.delivery_world import Advance, ReplaceSource
from trunkline.core.delivery_messages import Life, LifeChanged


def expiring_source() -> Scenario:
    """The source forgets versions: first a position that a note covers, then all older ones."""
    return scenario(
        "expiring-source",
        "the source forgets versions while destinations are behind: they are written once, or reseeded",
        ONE_TENANT,
        steps=(Advance(1), Advance(2), Advance(3, 2), Advance(4), Advance(5, 4)),
        looks=True,
        sometimes=("HistoryExpired", "Seeded", "TableWritten"),
    )


def restored_backup() -> Scenario:
    """A note about an empty window holds only for the position at which the window began."""
    return scenario(
        "restored-backup",
        "a destination is paused, restored from a backup and resumed: it continues from its restored position",
        source_script((Change("k", 1),), (Change("k", 1),), (Change("l", 2),)),
        planned=PLANNED[:1],
        asked={"a": requested(LifeChanged("d1", Life.PAUSED), "d1", LifeChanged("d1", Life.ACTIVE))},
        sometimes=("TableWritten", "PlanDropped"),
    )


def restored_source() -> Scenario:
    """Its second incarnation begins behind the destinations, and reaches versions that they had in the first."""
    first = source_script((Change("k", 1),), (Change("l", 1),), (Change("k", 2),))
    second = source_script((Change("k", 1),), (Change("m", 1),), (Change("k"),))
    return scenario(
        "restored-source",
        "the source is restored from a backup and diverges: destinations of the old history halt and are reseeded",
        first._replace(another=second.versions, shared=1),
        planned=PLANNED[:1],
        steps=(Advance(1), Advance(2), ReplaceSource(3, 2, ("d1",)), Advance(4)),
        faults=Faults(early_timer=1),
        sometimes=("Halted", "Seeded", "TableWritten"),
    )


def remade_source() -> Scenario:
    return scenario(
        "remade-source",
        "the source is recreated under its old name and stays behind its first incarnation: a requested reseed wins",
        source_script((Change("k", 1),), (Change("l", 1),))._replace(another=source_script((Change("m", 1),)).versions),
        planned=PLANNED[:1],
        steps=(Advance(1), ReplaceSource(2, 1, ("d1",))),
        faults=Faults(loss=1),
        lossy="d1",
        sometimes=("Halted", "Seeded", "TableWritten"),
    )


SOURCE_SCENARIOS = (expiring_source, restored_backup, restored_source, remade_source)
