"""The states of a lake's table as DuckLake itself reads them: verification compares destinations with these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import duckdb
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import Extension
from trunkline.delivery.backends.ducklake_attachment import attach_lake, catalog_scanners, detach
from trunkline.delivery.backends.object_errors import store_reason
from trunkline.delivery.backends.sql import first_line, identifier, literal
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.sources.contract import TableSnapshot
from trunkline.errors import ConfigError, SourceExpired, Unreachable

LAKE: Final = "verified_lake"
KEEPS_ROWS: Final = (  # kinds of changes that remove no row
    "tables_created",
    "inserted_into_table",
    "inlined_insert",
    "merge_adjacent",
    "rewrite_delete",
    "inline_flush",
    "flushed_inlined",
)


class LakeSnapshots(Struct, frozen=True):
    """The states of a lake's table, by DuckLake's reader."""

    address: LakeAddress

    @property
    def extensions(self) -> tuple[Extension, ...]:
        return ("ducklake", *catalog_scanners(self.address))

    @contextmanager
    def snapshot(self, connection: duckdb.DuckDBPyConnection, version: int) -> Iterator[TableSnapshot]:
        """Keeps the lake attached, read-only: no process can write to a lake with a DuckDB catalog meanwhile."""
        address = self.address
        attach_lake(connection, address, LAKE, read_only=True)
        try:
            table = f"{LAKE}.{identifier(address.schema)}.{identifier(address.table)} AT (VERSION => {version})"
            yield TableSnapshot(table, _columns(connection, address, table), _only_grew(connection, address, version))
        except duckdb.InvalidInputException as error:
            if "No snapshot found" not in str(error):
                raise
            raise SourceExpired(f"the lake {address.catalog} no longer has snapshot {version}") from error
        except (duckdb.IOException, duckdb.HTTPException, duckdb.ConnectionException) as error:
            raise Unreachable(
                f"the lake {address.catalog} cannot be read now: {store_reason(error, address)}"
            ) from error
        finally:
            detach(connection, LAKE)


def _columns(connection: duckdb.DuckDBPyConnection, address: LakeAddress, table: str) -> Columns:
    try:
        found = connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
    except duckdb.CatalogException as error:
        raise ConfigError(f"source: {address.schema}.{address.table}: {first_line(error)}") from error
    return tuple(Column(name, kind) for name, kind, *_ in found)


def _only_grew(connection: duckdb.DuckDBPyConnection, address: LakeAddress, version: int) -> bool:
    """False if anything else may have happened to a table of this name, or if snapshots were expired."""
    kept = ", ".join(literal(kind) for kind in KEEPS_ROWS)
    found = connection.execute(
        f"""WITH made AS (SELECT snapshot_id, unnest(map_entries(changes)) AS change
            FROM ducklake_snapshots('{LAKE}') WHERE snapshot_id <= {version}),
        named AS (SELECT table_id FROM ducklake_table_info('{LAKE}') WHERE table_name = {literal(address.table)})
        SELECT (SELECT count(*) FROM ducklake_snapshots('{LAKE}') WHERE snapshot_id <= {version}),
        (SELECT count(*) FROM named),
        (SELECT count(*) FROM made WHERE change.key NOT IN ({kept})
            AND list_has_any(change.value, (SELECT list(CAST(table_id AS VARCHAR)) FROM named)))"""
    ).fetchall()
    ((snapshots, tables, removals),) = found
    return bool(snapshots == version + 1 and tables == 1 and removals == 0)
