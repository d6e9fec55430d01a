"""What every kind of destination promises when processes die and race: rules T1 and T2 of its contract.

The kill is a real SIGKILL of a real process, before each of its statements and after the last one.
"""

from __future__ import annotations

import contextlib
import random
from multiprocessing.connection import Connection
from typing import Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import Mode, Op
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.destination_suite.place import Change, Plan, Row, Table, content, needs
from trunkline.destination_suite.processes import PATIENCE_S, OneStep, apply, forking, run_until, worker
from trunkline.destination_suite.steps import steps
from trunkline.errors import Unreachable

ORDERS: Final = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"), Column("amount", "INTEGER"))
NOTED: Final = (*ORDERS, Column("note", "VARCHAR"))
SEED: Final = Plan(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",), seeds=True)
FLUSH: Final = Plan(expected=10, through=20, token=2, source="lake/orders", columns=ORDERS, key=("id",))
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
RESHAPED: Final = steps(  # the tenant takes the name of the amount, which is dropped
    ORDERS,
    {ORDERS[0]: "id", Column("amount", "VARCHAR"): "tenant", Column("note", "VARCHAR"): None},
    {"note": "none"},
)
RESHAPED_CHANGES: Final[list[Change]] = [
    (Op.REMOVE, {"id": 1}),
    (Op.REPLACE, {"id": 2, "amount": "acme", "note": "two"}),
    (Op.REPLACE, {"id": None, "amount": "acme", "note": None}),
    (Op.INSERT, {"id": 4, "amount": "acme", "note": "four"}),
]
STATEMENTS_MAX: Final = 160
ROUNDS: Final = 8
KILLS: Final = 6
KILL_AFTER_S_MAX: Final = 0.2

RESHAPING: Final = "mirror, with columns renamed, dropped and added"
STEPS: Final[dict[str, tuple[OneStep, list[Row]]]] = {
    "mirror": (
        (FLUSH, [change for change in CHANGES if change[1]["id"] is not None]),
        [*SEEDED[2:], CHANGES[1][1], CHANGES[3][1]],
    ),
    "mirror, with a new column": (
        (replace(FLUSH, columns=NOTED), [*CHANGES, (Op.INSERT, NOTED_ROW)]),
        [*({**row, "note": None} for row in CHANGED), NOTED_ROW],
    ),
    RESHAPING: (
        (replace(FLUSH, columns=RESHAPED.after, steps=RESHAPED), RESHAPED_CHANGES),
        [
            {"id": 3, "amount": "acme", "note": "none"},
            *(row for op, row in RESHAPED_CHANGES if op is not Op.REMOVE),
        ],
    ),
    "append": ((replace(FLUSH, mode="append"), INSERTS), [*SEEDED, *SEEDED]),
    "seed again": ((replace(SEED, through=20, token=2, columns=NOTED, expected=10), [NOTED_ROW]), [NOTED_ROW]),
}


def state(table: Table) -> tuple[Standing | None, object]:
    """Standing and rows of one moment: a server may still be at work for a process that is dead."""
    destination = table.open()
    try:
        while True:
            standing, held = destination.standing(), content(table.held())
            if destination.standing() == standing:
                return standing, held
    finally:
        destination.close()


def killed_everywhere(table: Table, step: OneStep, old: object, new: object) -> None:
    """Do a step in one process after another, each killed one statement later, until one lives.

    Whatever the dead leave behind is there for those who come after them: the last one does the step in spite of it.
    """
    seen = []
    for at in range(STATEMENTS_MAX):
        lived = run_until(table, step, at)
        found = state(table)
        assert found in (old, new), f"killed before statement {at}"
        seen.append(found == new)
        if lived:
            break
    assert lived, "the step never came to its end"
    assert seen == sorted(seen), "once it is there it stays"
    assert not seen[0]
    assert seen[-2:] == [True, True], "killed when it was done, and not killed"
    assert len(seen) > 3, "a destination reports every statement to its watcher"


@pytest.mark.parametrize("step", [step for step in STEPS if step != RESHAPING])
def test_t1_a_process_killed_at_any_statement_leaves_the_old_state_or_the_new(table: Table, step: str) -> None:
    killed_at_a_step(table, step)


@needs("column_steps")
def test_t1_a_process_killed_while_columns_change_leaves_the_old_state_or_the_new(table: Table) -> None:
    killed_at_a_step(table, RESHAPING)


def killed_at_a_step(table: Table, step: str) -> None:
    doing, expected = STEPS[step]
    destination = table.open()
    apply(destination, (replace(SEED, mode=doing[0].mode), SEEDED))
    destination.close()
    killed_everywhere(table, doing, (OLD, content(SEEDED)), (NEW, content(expected)))


def test_t1_a_process_killed_at_any_statement_of_the_first_seed_leaves_nothing_or_all(table: Table) -> None:
    killed_everywhere(table, (SEED, SEEDED), (None, None), (OLD, content(SEEDED)))


def numbered_flush(number: int) -> OneStep:
    """From position ``number`` on: one row comes, one changes, and one goes."""
    changes: list[Change] = [(Op.INSERT, {"id": number, "tenant": "acme", "amount": 0})]
    if number > 10:
        changes.append((Op.REPLACE, {"id": number - 1, "tenant": "acme", "amount": number}))
    if number >= 15:
        changes.append((Op.REMOVE, {"id": number - 5}))
    return replace(FLUSH, expected=number, through=number + 1), changes


def numbered_rows(position: int) -> list[Row]:
    """What all flushes up to a position leave of an empty table at 10."""
    held = range(max(10, position - 5), position)
    return [{"id": n, "tenant": "acme", "amount": n + 1 if n + 1 < position else 0} for n in held]


def flush_on_and_on(table: Table, report: Connection) -> None:
    destination = table.open()
    standing = destination.standing()
    assert standing is not None
    for number in range(standing.position, standing.position + 1000):
        apply(destination, numbered_flush(number))
        report.send(number)


def test_t1_processes_killed_at_random_moments_leave_the_rows_of_their_position(table: Table) -> None:
    destination = table.open()
    apply(destination, (SEED, []))
    destination.close()
    draw = random.Random(7)
    for _ in range(KILLS):
        ours, theirs = forking().Pipe()
        child = forking().Process(target=flush_on_and_on, args=(table, theirs), daemon=True)
        child.start()
        theirs.close()
        assert ours.poll(PATIENCE_S), "no flush finished"
        child.join(draw.uniform(0.0, KILL_AFTER_S_MAX))
        child.kill()
        child.join()
        ours.close()
        standing, held = state(table)
        assert standing is not None
        assert held == content(numbered_rows(standing.position)), standing


def seeded(table: Table) -> None:
    destination = table.open()
    apply(destination, (SEED, SEEDED))
    destination.close()


@pytest.mark.parametrize(("mode", "ahead"), [("mirror", 0), ("mirror", 5), ("append", 0)])
def test_t2_of_two_processes_that_race_one_writes(table: Table, mode: Mode, ahead: int) -> None:
    """From one position to one end, or ``ahead`` of it, with the token of a later owner."""
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
