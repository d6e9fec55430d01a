"""What a destination decides before it writes: every rule on its own boundary."""

from __future__ import annotations

import pytest

from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide

FLUSH = PlannedWrite(5, "five", 8, "eight", 3, "lake")
SEED = FLUSH._replace(source=None)


@pytest.mark.parametrize(
    ("held", "decision"),
    [
        (StoredPosition(5, 3, "five", "lake"), Decision.PROCEED),
        (StoredPosition(5, 2, "five", "lake"), Decision.PROCEED),  # an older owner wrote last
        (StoredPosition(5, 4, "five", "lake"), Decision.FENCED),
        (StoredPosition(8, 4, "eight", "lake"), Decision.FENCED),  # done or not, another deliverer owns it
        (StoredPosition(5, 4, "five", "other"), Decision.FENCED),
        (StoredPosition(4, 3, "four", "lake"), Decision.MOVED),
        (StoredPosition(6, 3, "six", "lake"), Decision.MOVED),
        (StoredPosition(5, 3, "another five", "lake"), Decision.MOVED),
        (StoredPosition(5, 3, "", "lake"), Decision.MOVED),  # it was known when this was planned
        (StoredPosition(8, 3, "eight", "lake"), Decision.ALREADY),
        (StoredPosition(8, 3, "another eight", "lake"), Decision.MOVED),
        (StoredPosition(9, 3, "nine", "lake"), Decision.MOVED),  # only the source knows of which history it is
        (StoredPosition(0, 3), Decision.MOVED),
    ],
)
def test_flushes_and_seeds_are_decided_alike_where_rows_are_of_the_source(
    held: StoredPosition, decision: Decision
) -> None:
    assert decide(held, FLUSH) is decision
    assert decide(held, SEED) is decision


def test_rows_of_another_source_accept_no_flush_but_a_seed_that_was_planned_from_them() -> None:
    foreign = StoredPosition(5, 3, "five", "other")
    assert decide(foreign, FLUSH) is Decision.FOREIGN
    assert decide(foreign._replace(position=8, mark="eight"), FLUSH) is Decision.FOREIGN
    assert decide(foreign, SEED) is Decision.PROCEED
    assert decide(foreign._replace(position=6), SEED) is Decision.MOVED


@pytest.mark.parametrize("through", [3, 5, 8])
def test_a_seed_may_take_back_what_it_was_planned_from_and_nothing_else(through: int) -> None:
    seed = SEED._replace(through=through, through_mark="of the seed")
    assert decide(StoredPosition(5, 3, "five", "lake"), seed) is Decision.PROCEED
    assert decide(StoredPosition(5, 3, "five, later", "lake"), seed) is Decision.MOVED
    assert decide(StoredPosition(7, 3, "seven", "lake"), seed) is Decision.MOVED


def test_a_destination_without_a_record_takes_what_begins_there() -> None:
    assert decide(StoredPosition(), FLUSH._replace(expected=0, mark="")) is Decision.PROCEED
    assert decide(StoredPosition(), FLUSH) is Decision.MOVED
    assert decide(StoredPosition(), SEED._replace(expected=0, mark="")) is Decision.PROCEED


def test_a_mark_that_is_not_known_on_either_side_is_compared_by_its_position() -> None:
    held = StoredPosition(5, 3, "", "lake")
    assert decide(held, FLUSH._replace(mark="")) is Decision.PROCEED
    assert decide(held._replace(position=8), FLUSH._replace(mark="", through_mark="")) is Decision.ALREADY


@pytest.mark.parametrize(
    ("held", "decision"),
    [
        (StoredPosition(5, 3, "five", "lake"), Decision.PROCEED),  # however often it was written before
        (StoredPosition(5, 4, "five", "lake"), Decision.FENCED),
        (StoredPosition(5, 3, "another five", "lake"), Decision.MOVED),
        (StoredPosition(5, 3, "five", "other"), Decision.FOREIGN),
        (StoredPosition(8, 3, "eight", "lake"), Decision.MOVED),
        (StoredPosition(4, 3, "four", "lake"), Decision.MOVED),
        (StoredPosition(0, 3), Decision.MOVED),
    ],
)
def test_a_repair_is_written_only_where_it_was_planned_and_ends_there(held: StoredPosition, decision: Decision) -> None:
    repair = FLUSH._replace(expected=5, mark="five", through=5, through_mark="five", token=3, repairs=True)
    assert decide(held, repair) is decision
