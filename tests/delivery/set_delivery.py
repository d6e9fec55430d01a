"""A shop of two tables, delivered to its tenants by tasks: without Spark, planner or control store."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa

from delivery.direct_delivery import Direct
from delivery.set_addresses import Make
from delivery.set_source import Row, SetSource, memory_table
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.table_works import known_tables
from trunkline.delivery.job.work import TaskDestination

CUSTOMERS = "id BIGINT, tenant VARCHAR, name VARCHAR"
ORDERS = "id BIGINT, tenant VARCHAR, customer BIGINT, price DOUBLE"


def customer(number: int, tenant: str, name: str = "Ann") -> Row:
    return {"id": number, "tenant": tenant, "name": name}


def order(number: int, tenant: str, price: float = 1.0) -> Row:
    return {"id": number, "tenant": tenant, "customer": number, "price": price}


def shop() -> SetSource:
    return SetSource(
        customers=memory_table(CUSTOMERS, customer(1, "acme"), customer(2, "bolt")),
        orders=memory_table(ORDERS, order(1, "acme"), order(2, "bolt"), order(3, "none")),
    )


def direct(source: SetSource, *targets: TaskDestination, **settings: Any) -> Direct:
    return Direct(source, *targets, **{"tables": ["*.*"], "key": (), **settings})


def tenants(make: Make) -> tuple[TaskDestination, TaskDestination]:
    return TaskDestination("acme", make("acme"), ("acme",)), TaskDestination("bolt", make("bolt"), ("bolt",))


def held(delivery: Direct, name: str, tables: tuple[str, ...] = ()) -> dict[str, list[Row]]:
    """The rows of each table of a destination, by name."""
    target = delivery.work.targets[delivery.work.index[name]]
    names = tables or known_tables(delivery.work)
    with closing(open_place(target.address)) as place:
        _, rows, end = place.rows(delivery.work.tables_of(target, names))
        try:
            tables_of = [pa.Table.from_batches(each).to_pylist() if each else [] for each in map(list, rows)]
        finally:
            end()
    found = dict(zip(names, tables_of, strict=True))
    return {table.partition(".")[2]: sorted(rows, key=repr) for table, rows in found.items()}


def assert_equal(delivery: Direct, source: SetSource, *names: str) -> None:
    """Each destination has its part of every table."""
    for name in names:
        values = delivery.work.targets[delivery.work.index[name]].values
        wanted = {
            table.partition(".")[2]: sorted(
                (dict(row) for row in state.rows if values is None or row["tenant"] in values),
                key=repr,
            )
            for table, state in source.states[-1].items()
        }
        assert held(delivery, name) == wanted, name
