"""Compares every delivered table with its part of the shop, with DuckDB and delta-rs only; and looks at tenants while
they change: whether their two tables are of one version."""

from __future__ import annotations

from collections.abc import Sequence

import deltalake
import duckdb
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake, catalog_scanners, detach
from trunkline.delivery.backends.object_store import store_options
from trunkline.delivery.backends.sql import literal
from trunkline.delivery.config import DestinationConfig
from trunkline.delivery.config.address_rules import address_of
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.config.object_urls import is_url
from trunkline.demo.shop import TABLES

AGREE = """SELECT (SELECT coalesce(sum(orders), 0) FROM {customers}) = (SELECT count(*) FROM {orders})
    AND (SELECT coalesce(sum(spent), 0) FROM {customers}) = (SELECT coalesce(sum(price), 0) FROM {orders})
    AND NOT EXISTS (SELECT 1 FROM {orders} o ANTI JOIN {customers} c ON o.customer = c.id)"""


class Compared(Struct, frozen=True):
    tenant: str
    tables: int
    rows: int
    differences: int


def compare(shop: LakeAddress, destinations: Sequence[DestinationConfig]) -> list[Compared]:
    """Rows that only one side has, counted as a multiset."""
    remote = any(is_url(lake.data_path) for each in destinations if isinstance(lake := each.address, LakeAddress))
    connection = new_duckdb("ducklake", "sqlite_scanner", *(("httpfs",) if remote else ()))
    try:
        attach_lake(connection, shop, "shop", read_only=True)
        found = []
        for destination in destinations:
            counted = [_compared(connection, destination, table) for table in TABLES]
            rows, differences = (sum(numbers) for numbers in zip(*counted, strict=True))
            found.append(Compared(destination.name, len(counted), rows, differences))
        return found
    finally:
        connection.close()


def _compared(connection: duckdb.DuckDBPyConnection, destination: DestinationConfig, table: str) -> tuple[int, int]:
    columns = ", ".join(each.split()[0] for each in TABLES[table].split(", "))
    match address_of(destination.address, f"main.{table}"):
        case LakeAddress() as address:
            attach_lake(connection, address, "held", read_only=True)
            held = f"SELECT {columns} FROM held.{address.schema}.{address.table}"
        case DeltaAddress(path=path) as address:
            options = store_options(address) if is_url(path) else None
            found = deltalake.DeltaTable(path, storage_options=options)
            connection.register("held_rows", found.to_pyarrow_table())
            held = f"SELECT {columns} FROM held_rows"
        case _:
            raise AssertionError("the demo has no such destination")
    wanted = f"SELECT {columns} FROM shop.{table} WHERE tenant = {literal(destination.name)}"
    ((rows, missing, extra),) = connection.execute(
        f"SELECT (SELECT count(*) FROM ({held})), (SELECT count(*) FROM ({wanted} EXCEPT ALL {held})), "
        f"(SELECT count(*) FROM ({held} EXCEPT ALL {wanted}))"
    ).fetchall()
    detach(connection, "held")
    return rows, missing + extra


class TenantReader:
    """Looks at the two tables of one tenant in one transaction, by DuckLake's own extension."""

    def __init__(self, address: LakeAddress) -> None:
        self._connection = new_duckdb("ducklake", *catalog_scanners(address))
        attach_lake(self._connection, address, "held", read_only=True)

    def agrees(self) -> bool:
        """Raises ``duckdb.Error`` while the catalog is locked."""
        self._connection.execute("BEGIN")
        try:
            names = {table: f"held.main.{table}" for table in TABLES}
            ((agrees,),) = self._connection.execute(AGREE.format(**names)).fetchall()
            return bool(agrees)
        finally:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()
