"""Scenarios of places: several members in one transaction, and members whose tables commit one after another.

Three members show more than two: one that fails, one that is refused, and one that goes on.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from trunkline.check.delivery_rows import Change, Row, source_script
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.delivery import CONFIG, PLANNED, THREE, scenario
from trunkline.check.scenarios.delivery_place import TableImage
from trunkline.check.scenarios.delivery_processes import operations
from trunkline.check.scenarios.delivery_repair import repairer
from trunkline.check.scenarios.delivery_world import Advance, Expire, ReseedRequest
from trunkline.core.delivery_messages import Outcome, Planned, Shutdown

TRIPLE = (*PLANNED, Planned("d3", digest="3"))
THREE_TENANTS = source_script(  # d1: k, k, nothing; d2: nothing, l, l; d3: m, m, m and k
    (Change("k", 1), Change("m", 3)),
    (Change("k", 1), Change("l", 2), Change("m", 3)),
    (Change("k", 3), Change("l", 2)),
)
TO_REPAIR = source_script(  # two keys, of which one changes and one goes
    (Change("k", 1), Change("l", 1)),
    (Change("k", 1),),
    (Change("l"),),
)
CONFIG_OF_THREE = replace(CONFIG, members_max=3)
TWO_TABLES = {"d1": ("k", "l")}
BOTH_TABLES = source_script(  # both tables change, then each of them alone
    (Change("k", 1), Change("l", 1)),
    (Change("k", 1), Change("l", 1)),
    (Change("k"), Change("l", 2)),
    (Change("l", 1),),
)
THREE_TABLES = source_script(  # all of them change, then two, then one
    (Change("k", 1), Change("l", 1), Change("m", 1)),
    (Change("k", 1), Change("l", 1), Change("m", 1)),
    (Change("l", 1), Change("m", 1)),
    (Change("k", 1),),
)


# ---------------------------------------------------------------------------------------------------- several members


def grouped_flush() -> Scenario:
    return scenario(
        "grouped-flush",
        "two members of a place share each transaction, seeds too; the deliverer crashes and restarts",
        THREE,
        together=True,
        images={"d2": TableImage()},
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("Seeded", "TableWritten"),
    )


def grouped_failure() -> Scenario:
    return scenario(
        "grouped-failure",
        "members of a place fail by themselves, one of them always: the transaction begins again without them",
        THREE_TENANTS,
        planned=TRIPLE,
        config=CONFIG_OF_THREE,
        together=True,
        troubles={"d1": 2},
        broken={"d2": Outcome.PERMANENT},
        left_alone="d2",
        unknowns=1,
        sometimes=("BackedOff", "Halted", "TableWritten"),
    )


def grouped_savepoints() -> Scenario:
    return scenario(
        "grouped-savepoints",
        "the same where a savepoint undoes one member alone",
        THREE_TENANTS,
        planned=TRIPLE,
        config=CONFIG_OF_THREE,
        together=True,
        savepoints=True,
        troubles={"d1": 2},
        broken={"d2": Outcome.PERMANENT},
        left_alone="d2",
        unknowns=1,
        sometimes=("BackedOff", "Halted", "TableWritten"),
    )


def grouped_duplicate() -> Scenario:
    """d2 holds a key that arrives: a failure that only the transaction itself finds."""
    wrong = TableImage(rows=(Row("k", 2, 0),), position=1, seeded=0)
    return scenario(
        "grouped-duplicate",
        "one member of a place holds a row that arrives, and halts; the other one commits",
        THREE,
        together=True,
        images={"d2": wrong},
        left_alone="d2",
        sometimes=("Halted", "TableWritten"),
    )


def grouped_race() -> Scenario:
    """After the hand-over of one member, transactions of both deliverers have members of the same place."""
    return scenario(
        "grouped-race",
        "two deliverers write to one place: transactions lose races between reading and commit",
        source_script((Change("k", 1),), (Change("k", 2),), (Change("k", 2),)),
        deliverers="a b",
        together=True,
        races=2,
        events=(Expire("d2"),),
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def grouped_takeover() -> Scenario:
    return scenario(
        "grouped-takeover",
        "the lease of one member expires while a transaction with all members is in flight, and its owner crashes",
        source_script((Change("k", 1), Change("l", 2)), (Change("k", 1), Change("l", 2))),
        deliverers="a b",
        together=True,
        races=1,
        events=(Expire("d2"),),
        faults=Faults(crash=1),
        crashable="a",
        sometimes=("DeliveryFenced", "TableWritten"),
    )


def grouped_unknown() -> Scenario:
    return scenario(
        "grouped-unknown",
        "commits of a place with an unknown outcome, with and without effect, and one without an answer",
        THREE,
        together=True,
        unknowns=2,
        faults=Faults(loss=1, early_timer=1),
        lossy="p",
        sometimes=("BackedOff", "TableWritten"),
    )


def grouped_hand_over() -> Scenario:
    return scenario(
        "grouped-hand-over",
        "a deliverer of a whole place stops while a transaction is in flight; the other one continues",
        source_script((Change("k", 1),), (Change("k", 2),), (Change("k"),)),
        deliverers="a b",
        planned=tuple(Planned(each.destination, digest=each.digest, place="p") for each in PLANNED),
        asked={"a": operations("planner", Shutdown(1, drain=True))},
        troubles={"d1": 1},
        sometimes=("Stopped", "TableWritten"),
    )


# ------------------------------------------------------------------------------------------------------------- repairs


def _repaired(name: str, summary: str, **options: Any) -> Scenario:
    """Another program changed a row of d1, removed one, and added one that no flush touches."""
    wrong = TableImage(rows=(Row("k", 1, 0), Row("x", 1, 0)), position=1)
    found = scenario(
        name,
        summary,
        TO_REPAIR,
        planned=PLANNED[:1],
        images={"d1": wrong},
        sometimes=("Repaired", "TableWritten", *options.pop("also", ())),
        **options,
    )
    return dataclasses.replace(found, processes=(*found.processes, repairer("d1", (1,), "k l x", TO_REPAIR)))


def repair() -> Scenario:
    return _repaired(
        "repair",
        "a repair seizes a destination while its deliverer flushes, and its own commits may have an unknown outcome",
        unknowns=1,
        also=("DeliveryFenced",),
    )


def repair_expired() -> Scenario:
    return _repaired(
        "repair-expired",
        "the lease of a repairer expires: its late repair meets rows of a later position, or a newer token",
        events=(Expire("d1"),),
        races=1,
    )


# --------------------------------------------------------------------------------------------- tables that commit alone


def torn_tables() -> Scenario:
    return scenario(
        "torn-tables",
        "a member whose two tables commit one after another: the deliverer crashes between them",
        BOTH_TABLES,
        planned=PLANNED[:1],
        alone=TWO_TABLES,
        faults=Faults(crash=2, restart=2),
        crashable="a",
    )


def torn_append() -> Scenario:
    return scenario(
        "torn-append",
        "three such tables without keys: one that is ahead must not get its rows again",
        THREE_TABLES,
        planned=PLANNED[:1],
        alone={"d1": ("k", "l", "m")},
        append=True,
        faults=Faults(crash=1, restart=1),
        crashable="a",
    )


def torn_seed() -> Scenario:
    return scenario(
        "torn-seed",
        "a seed of two tables is torn by a crash, and an operator requests another one",
        BOTH_TABLES,
        planned=PLANNED[:1],
        alone=TWO_TABLES,
        seeded=0,
        events=(ReseedRequest("d1"),),
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("Seeded", "TableWritten"),
    )


def torn_expiry() -> Scenario:
    return scenario(
        "torn-expiry",
        "the source forgets versions while two tables that commit alone are at two positions: they are seeded",
        BOTH_TABLES,
        planned=PLANNED[:1],
        alone=TWO_TABLES,
        steps=(Advance(1), Advance(2), Advance(3, 3)),
        looks=True,
        faults=Faults(crash=1, restart=1),
        crashable="a",
        sometimes=("HistoryExpired", "Seeded", "TableWritten"),
    )


def torn_answers() -> Scenario:
    return scenario(
        "torn-answers",
        "answers of two tables that commit alone are lost, and come after the time-out; one table fails",
        BOTH_TABLES,
        planned=PLANNED[:1],
        alone=TWO_TABLES,
        troubles={"d1": 1},
        faults=Faults(loss=1, early_timer=1),
        lossy="d1",
        sometimes=("BackedOff", "TableWritten"),
    )


def torn_takeover() -> Scenario:
    """What comes into a table and goes again does not show in a window across both."""
    return scenario(
        "torn-takeover",
        "the lease of a member expires between the commits of its two tables: two deliverers make it level",
        source_script((Change("k", 1),), (Change("k", 1), Change("l", 1)), (Change("k", 1), Change("l"))),
        deliverers="a b",
        planned=PLANNED[:1],
        alone=TWO_TABLES,
        events=(Expire("d1"),),
        sometimes=("DeliveryFenced", "TableWritten"),
    )


PLACE_SCENARIOS = (
    grouped_flush,
    grouped_failure,
    grouped_savepoints,
    grouped_duplicate,
    grouped_race,
    grouped_takeover,
    grouped_unknown,
    grouped_hand_over,
    repair,
    repair_expired,
    torn_tables,
    torn_append,
    torn_seed,
    torn_expiry,
    torn_answers,
    torn_takeover,
)
