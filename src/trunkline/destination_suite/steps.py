"""The seed and the flush that the contract suite does again and again, and what they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from trunkline.core.fence import Decision
from trunkline.delivery.changes.column_steps import NEW, ColumnSteps
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.changes.versions import MARK_DIGITS
from trunkline.delivery.destinations.contract import Applied, LeavingTable, MemberResult, MemberTables, Standing
from trunkline.destination_suite.place import MEMBER, Change, Doing, Plan, Row, Rows, Site, Table, content, staged
from trunkline.destination_suite.processes import Group, apply, apply_group
from trunkline.errors import DestinationHalted, Fenced, PositionMoved, TrunklineError

ORDERS: Final[Columns] = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"), Column("amount", "INTEGER"))
SEED: Final = Plan(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",), seeds=True)
FLUSH: Final = Plan(expected=10, through=20, token=1, source="lake/orders", columns=ORDERS, key=("id",))
MARK_A: Final = "a" * MARK_DIGITS
MARK_B: Final = "0b" + "c" * (MARK_DIGITS - 2)
SEEDED: Final[list[Row]] = [{"id": n, "tenant": "acme", "amount": n * 10} for n in (1, 2, 3)]
CHANGES: Final[list[Change]] = [
    (Op.REMOVE, {"id": 1}),
    (Op.REPLACE, {"id": 2, "tenant": "acme", "amount": 21}),
    (Op.INSERT, {"id": 4, "tenant": "acme", "amount": 40}),
]
FLUSHED: Final = [
    {"id": 2, "tenant": "acme", "amount": 21},
    {"id": 3, "tenant": "acme", "amount": 30},
    {"id": 4, "tenant": "acme", "amount": 40},
]


def steps(
    before: Columns, after: Mapping[Column, str | None], defaults: Mapping[str, Any] | None = None
) -> ColumnSteps:
    """``after``: each column, and its name before or ``None`` if it is new."""
    places = {column.name: place for place, column in enumerate(before)}
    origins = tuple(NEW if name is None else places[name] for name in after.values())
    schema = arrow_schema(tuple(after))
    row = pa.RecordBatch.from_pylist([{name: (defaults or {}).get(name) for name in schema.names}], schema)
    return ColumnSteps(before, tuple(after), origins, row.serialize().to_pybytes() if defaults else b"")


def seeded(table: Table, seed: Plan = SEED, rows: Sequence[Row] | None = None) -> None:
    destination = table.open()
    apply(destination, (seed, list(SEEDED if rows is None else rows)))
    destination.close()


def flushed(table: Table, flush: Plan, changes: list[Change]) -> Applied:
    """Do one flush with a destination object of its own."""
    destination = table.open()
    try:
        return destination.flush(flush, staged(flush.columns, flush.key, changes))
    finally:
        destination.close()


def standing(table: Table) -> Standing | None:
    destination = table.open()
    try:
        return destination.standing()
    finally:
        destination.close()


def unchanged(table: Table) -> None:
    """The table is as ``seeded`` left it."""
    assert content(table.held()) == content(SEEDED)
    assert standing(table) == Standing(10, 1, "lake/orders")


def leave(table: Table, held: Standing) -> None:
    """Make the table stand like this, whatever it was."""
    with closing(table.open()) as destination:
        destination.retire()
        seed = Plan(held.position, held.token, held.source, ORDERS, ("id",), seeds=True, replace_existing=True)
        apply(destination, (replace(seed, through_mark=held.mark), list(SEEDED)))


def whose(step: Plan) -> str | None:
    """The source whose rows must be there."""
    return None if step.seeds else step.source


def outcome_of(table: Table, step: Plan) -> Decision:
    """What becomes of a step, in fencing's words."""
    with closing(table.open()) as destination:
        try:
            applied = destination.flush(step, [])
        except Fenced:
            return Decision.FENCED
        except PositionMoved:
            return Decision.MOVED
        except DestinationHalted:
            return Decision.FOREIGN
    return Decision.ALREADY if applied.already else Decision.PROCEED


# ------------------------------------------------------------------------------------- members with several tables

MARKED_SEED: Final = replace(SEED, through_mark=MARK_A)
MARKED_FLUSH: Final = replace(FLUSH, mark=MARK_A, through_mark=MARK_B)


def doing(
    site: Site,
    tables: Mapping[str, Rows | tuple[Plan, Rows]],
    plan: Plan = FLUSH,
    member: str = MEMBER,
    leaving: Mapping[str, bool] | None = None,
) -> Doing:
    """A step of a member. ``tables``: the rows of each, perhaps with a plan of its own; ``leaving``: which are
    dropped."""
    each = {name: of if isinstance(of, tuple) else (plan, of) for name, of in tables.items()}
    steps = [own.table(site, name) for name, (own, _) in each.items()]
    gone = [LeavingTable(name, site.address(name), drop) for name, drop in (leaving or {}).items()]
    return Doing(plan.member(site, member, steps, gone), {name: rows for name, (_, rows) in each.items()})


def done(site: Site, *doings: Doing) -> dict[str, MemberResult]:
    with closing(site.open()) as place:
        return apply_group(place, Group(site, doings))


def applied(site: Site, one: Doing) -> Applied:
    result = done(site, one)[one.step.member]
    if not isinstance(result, Applied):
        raise result
    return result


def stands(site: Site, names: Sequence[str], member: str = MEMBER) -> Standing | None:
    """The record of a member with these tables."""
    tables = MemberTables(member, site.home, tuple(map(site.address, names)))
    with closing(site.open()) as place:
        found = place.standings([tables])[member]
    if isinstance(found, TrunklineError):
        raise found
    return found


def holds(site: Site, tables: Mapping[str, Sequence[Row] | None]) -> None:
    for name, rows in tables.items():
        assert content(site.held(name)) == content(rows), name
