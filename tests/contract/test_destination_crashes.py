"""What every kind of destination promises when processes die and race: rules T1 and T2 of its contract.

The kill is a real SIGKILL of a real process, before each of its statements and after the last one.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from contract.destination_place import Change, Kind, Row, Step, Table, apply, content, run_until, worker
from trunkline.delivery.columns import Column
from trunkline.delivery.destinations.contract import Applied, Flush, Mode, Seed, Standing
from trunkline.delivery.windows import Op
from trunkline.errors import Unreachable

ORDERS: Final = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"), Column("amount", "INTEGER"))
NOTED: Final = (*ORDERS, Column("note", "VARCHAR"))
SEED: Final = Seed(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",))
FLUSH: Final = Flush(expected=10, through=20, token=2, source="lake/orders", columns=ORDERS, key=("id",))
SEEDED: Final[list[Row]] = [{"id": n, "tenant": "acme", "amount": n} for n in (1, 2, 3, None)]
OLD: Final = Standing(10, 1, "lake/orders")
NEW: Final = Standing(20, 2, "lake/orders")
CHANGES: Final[list[Change]] = [
    (Op.REMOVE, {"id": 1}),
    (Op.REPLACE, {"id": 2, "tenant": "acme", "amount": 21}),
    (Op.REPLACE, {"id": None, "tenant": "acme", "amount": 50}),
    (Op.INSERT, {"id": 4, "tenant": "acme", "amount": 40}),
]
CHANGED: Final[list[Row]] = [SEEDED[2], *(row for op, row in CHANGES if op is not Op.REMOVE)]
INSERTS: Final[list[Change]] = [(Op.INSERT, row) for row in SEEDED]
NOTED_ROW: Final[Row] = {"id": 9, "tenant": "acme", "amount": 9, "note": "new"}
MOST_STATEMENTS: Final = 60
ROUNDS: Final = 25

STEPS: Final[dict[str, tuple[Step, list[Row]]]] = {
    "mirror": ((FLUSH, CHANGES), CHANGED),
    "append": ((replace(FLUSH, mode="append"), INSERTS), [*SEEDED, *SEEDED]),
    "new column": (
        (replace(FLUSH, columns=NOTED), [(Op.INSERT, NOTED_ROW)]),
        [*({**row, "note": None} for row in SEEDED), NOTED_ROW],
    ),
    "seed again": ((replace(SEED, through=20, token=2, columns=NOTED), [NOTED_ROW]), [NOTED_ROW]),
}


def state(table: Table) -> tuple[Standing | None, object]:
    destination = table.open()
    try:
        return destination.standing(), content(table.held())
    finally:
        destination.close()


def start_over(table: Table, mode: Mode) -> None:
    """As it was before the step, whatever came of it."""
    destination = table.open()
    destination.retire()
    apply(destination, (replace(SEED, mode=mode, replace_existing=True), SEEDED))
    destination.close()


@pytest.mark.parametrize("step", STEPS)
def test_t1_a_process_killed_at_any_statement_leaves_the_old_state_or_the_new(table: Table, step: str) -> None:
    doing, expected = STEPS[step]
    old, new = (OLD, content(SEEDED)), (NEW, content(expected))
    seen = []
    for at in range(MOST_STATEMENTS):
        start_over(table, doing[0].mode)
        lived = run_until(table, doing, at)
        found = state(table)
        assert found in (old, new), f"killed before statement {at}"
        seen.append(found == new)
        destination = table.open()
        applied = apply(destination, doing)
        destination.close()
        assert isinstance(doing[0], Seed) or applied.already == (found == new)
        assert state(table) == new
        if lived is not None:
            break
    check_all_killed(seen)


def test_t1_a_process_killed_at_any_statement_of_the_first_seed_leaves_nothing_or_all(
    kind: Kind, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seen = []
    for at in range(MOST_STATEMENTS):
        folder = tmp_path / str(at)
        folder.mkdir()
        table = kind.make(folder, lambda: request.getfixturevalue("postgres"))
        lived = run_until(table, (SEED, SEEDED), at)
        found = state(table)
        assert found in ((None, None), (OLD, content(SEEDED))), f"killed before statement {at}"
        seen.append(found[0] is not None)
        destination = table.open()
        apply(destination, (SEED, SEEDED))
        destination.close()
        assert state(table) == (OLD, content(SEEDED))
        if lived is not None:
            break
    check_all_killed(seen)


def check_all_killed(seen: list[bool]) -> None:
    """``seen[n]``: whether a process that was killed before its statement n had done its work; the last one lived."""
    assert len(seen) < MOST_STATEMENTS, "the step never came to its end"
    assert seen == sorted(seen), "once it is there it stays"
    assert not seen[0]
    assert seen[-2:] == [True, True], "killed when it was done, and not killed"
    assert len(seen) > 3, "a destination tells its watcher of every statement"


def seeded(table: Table) -> None:
    destination = table.open()
    apply(destination, (SEED, SEEDED))
    destination.close()


@pytest.mark.parametrize("ahead", [0, 5], ids=["same window", "other window"])
@pytest.mark.parametrize("mode", ["mirror", "append"])
def test_t2_of_two_processes_that_race_one_writes(table: Table, mode: Mode, ahead: int) -> None:
    seeded(table)
    held, position = list(SEEDED), 10
    with worker(table) as one, worker(table) as two:
        for number in range(ROUNDS):
            rows: list[Row] = [{"id": 1000 + 10 * number + n, "tenant": "x", "amount": n} for n in range(3)]
            changes: list[Change] = [(Op.INSERT, row) for row in rows]
            if mode == "mirror":
                held, changes = held[1:], [*changes, (Op.REMOVE, held[0])]
            held += rows
            flush = replace(FLUSH, expected=position, through=position + 1, mode=mode, token=number + 2)
            other = replace(flush, through=position + 1 + ahead, token=number + 3)
            one.send((flush, changes))
            two.send((other, changes))
            answers = [one.recv(), two.recv()]
            written = [answer for answer in answers if isinstance(answer, Applied) and not answer.already]
            assert len(written) == 1, answers
            [loser] = [answer for answer in answers if answer is not written[0]]
            position = written[0].position
            assert loser in ("Fenced", "PositionMoved", Applied(position, already=True)), answers
            assert content(table.held()) == content(held)


def test_the_rows_that_are_read_are_those_of_the_standing(table: Table) -> None:
    seeded(table)
    destination = table.open()
    with worker(table) as other:
        seen = set()
        for number in range(ROUNDS):
            change: Change = (Op.REPLACE, {"id": 1, "tenant": "acme", "amount": 11 + number})
            other.send((replace(FLUSH, expected=10 + number, through=11 + number), [change]))
            while not other.poll():
                with contextlib.suppress(Unreachable):
                    at, batches = destination.rows()
                    read = pa.Table.from_batches(list(batches)).to_pylist()
                    [amount] = [row["amount"] for row in read if row["id"] == 1]
                    assert at.position == (amount if amount > 3 else 10)
                    seen.add(at.position)
            assert other.recv() == Applied(11 + number, removed=1, written=1)
    destination.close()
    assert seen
