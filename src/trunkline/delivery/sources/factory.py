"""Makes the source of a pipeline from its address."""

from __future__ import annotations

from trunkline.delivery.config.addresses import (
    Address,
    DeltaAddress,
    DestinationAddress,
    IcebergAddress,
    LakeAddress,
    LogAddress,
    PostgresAddress,
)
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources.contract import Source
from trunkline.errors import ConfigError


def source_of(address: Address, selection: Selection | None = None) -> Source:
    """A set of tables, or without a selection the one table of the address. Connects to nothing. Imports the driver
    here, so that a process loads only the one that it uses."""
    match address:
        case LakeAddress() if selection is not None:
            from trunkline.delivery.sources.lake_tables import LakeTables

            return LakeTables(address, selection)
        case LakeAddress():
            from trunkline.delivery.sources.ducklake import DuckLakeSource
            from trunkline.delivery.sources.table_set import OneTable

            return OneTable(DuckLakeSource(address))
        case DeltaAddress() if selection is None:
            from trunkline.delivery.sources.delta import DeltaSource
            from trunkline.delivery.sources.table_set import OneTable

            return OneTable(DeltaSource(address))
        case LogAddress() if selection is not None or address.table is not None:
            from trunkline.delivery.sources.database import DatabaseSource

            return DatabaseSource(address, selection)
        case LogAddress():
            from trunkline.delivery.sources.log import LogSource
            from trunkline.delivery.sources.table_set import OneTable

            return OneTable(LogSource(address))
        case DeltaAddress():
            raise ConfigError(
                "source: a Delta table is one table; leave out `tables`, or read them from a lake or a log"
            )
        case IcebergAddress():
            raise ConfigError("source: an Iceberg table is not allowed as a source; use a lake, a Delta table or a log")
        case PostgresAddress():
            raise ConfigError("source: a PostgreSQL table is not allowed as a source; capture it into a log")
        case DestinationAddress():
            raise ConfigError("source: this kind of table is only a destination; use a lake, a Delta table or a log")
