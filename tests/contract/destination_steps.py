"""The seed and the flush that the contract suite does again and again, and what they leave."""

from __future__ import annotations

from typing import Final

from contract.destination_place import Change, Row, Table, apply, content, staged
from trunkline.delivery.columns import Column, Columns
from trunkline.delivery.destinations.contract import Applied, Flush, Seed, Standing
from trunkline.delivery.windows import Op

ORDERS: Final[Columns] = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"), Column("amount", "INTEGER"))
SEED: Final = Seed(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",))
FLUSH: Final = Flush(expected=10, through=20, token=1, source="lake/orders", columns=ORDERS, key=("id",))
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


def seeded(table: Table, seed: Seed = SEED, rows: list[Row] | None = None) -> None:
    destination = table.open()
    apply(destination, (seed, list(SEEDED) if rows is None else rows))
    destination.close()


def flushed(table: Table, flush: Flush, changes: list[Change]) -> Applied:
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
