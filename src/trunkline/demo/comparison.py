"""Compares every delivered table with its part of the shop, with DuckDB and delta-rs only."""

from __future__ import annotations

from collections.abc import Sequence

import deltalake
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.backends.sql import literal
from trunkline.delivery.config import DestinationConfig
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress

COLUMNS = "id, tenant, item, quantity, price, paid"


class Compared(Struct, frozen=True):
    tenant: str
    rows: int
    differences: int


def compare(shop: LakeAddress, destinations: Sequence[DestinationConfig]) -> list[Compared]:
    """Rows that only one side has, counted as a multiset."""
    connection = new_duckdb("ducklake", "sqlite_scanner")
    try:
        attach_lake(connection, shop, "shop", read_only=True)
        found = []
        for destination in destinations:
            match destination.address:
                case LakeAddress() as address:
                    attach_lake(connection, address, "held", read_only=True)
                    held = f"SELECT {COLUMNS} FROM held.{address.schema}.{address.table}"
                case DeltaAddress(path=path):
                    connection.register("held_rows", deltalake.DeltaTable(path).to_pyarrow_table())
                    held = f"SELECT {COLUMNS} FROM held_rows"
                case _:
                    raise AssertionError("the demo has no such destination")
            wanted = f"SELECT {COLUMNS} FROM shop.orders WHERE tenant = {literal(destination.name)}"
            ((rows, missing, extra),) = connection.execute(
                f"SELECT (SELECT count(*) FROM ({held})), (SELECT count(*) FROM ({wanted} EXCEPT ALL {held})), "
                f"(SELECT count(*) FROM ({held} EXCEPT ALL {wanted}))"
            ).fetchall()
            found.append(Compared(destination.name, rows, missing + extra))
            if isinstance(destination.address, LakeAddress):
                connection.execute("DETACH held")
            else:
                connection.unregister("held_rows")
        return found
    finally:
        connection.close()
