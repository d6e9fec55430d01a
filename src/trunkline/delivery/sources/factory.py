"""Makes the source of a pipeline from its address."""

from __future__ import annotations

from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, LogAddress, PostgresAddress
from trunkline.delivery.sources.contract import Source
from trunkline.errors import ConfigError


def source_of(address: Address) -> Source:
    """Connects to nothing. Imports the driver here, so that a process loads only the one that it uses."""
    match address:
        case LakeAddress():
            from trunkline.delivery.sources.ducklake import DuckLakeSource

            return DuckLakeSource(address)
        case DeltaAddress():
            from trunkline.delivery.sources.delta import DeltaSource

            return DeltaSource(address)
        case LogAddress(table=str()):
            from trunkline.delivery.sources.database import DatabaseTableSource

            return DatabaseTableSource(address)
        case LogAddress():
            from trunkline.delivery.sources.log import LogSource

            return LogSource(address)
        case PostgresAddress():
            raise ConfigError("source: a PostgreSQL table is not allowed as a source; capture it into a log")
