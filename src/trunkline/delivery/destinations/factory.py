"""Opens places by address, and caches them in a worker process: connecting costs more than a small flush."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from typing import Final

from trunkline.delivery.config.address_rules import place_of
from trunkline.delivery.config.addresses import (
    Address,
    DeltaAddress,
    DestinationAddress,
    IcebergAddress,
    LakeAddress,
    LogAddress,
    PostgresAddress,
)
from trunkline.delivery.destinations.contract import Place
from trunkline.errors import ConfigError

OPEN_MAX: Final = 256  # places in one process; more: more memory and connections, fewer: slower


def open_place(address: Address) -> Place:
    """The place of a destination. Imports the driver here, so that a process loads only those that it uses."""
    match address:
        case LakeAddress():
            from trunkline.delivery.destinations.ducklake import open_lake

            return open_lake(address)
        case DeltaAddress():
            from trunkline.delivery.destinations.delta import DeltaPlace

            return DeltaPlace()
        case IcebergAddress():
            from trunkline.delivery.destinations.iceberg import IcebergPlace

            return IcebergPlace()
        case PostgresAddress():
            from trunkline.delivery.destinations.postgres_place import PostgresPlace

            return PostgresPlace(address)
        case DestinationAddress():
            place: Place = address.open_place()
            return place
        case LogAddress():
            raise ConfigError(
                "a log is not allowed as a destination; write to it with `trunkline append`, or capture a table into it"
            )


def cached_place(address: Address) -> Place:
    """The cached place of an address; beyond the limit, the least recently used one is closed."""
    known, name = _open_places(), place_of(address)
    if name in known:
        known.move_to_end(name)
        return known[name]
    while len(known) >= OPEN_MAX:
        known.popitem(last=False)[1].close()
    known[name] = open_place(address)
    return known[name]


def forget_place(address: Address) -> None:
    """Close it after an error, which may have left it in any state."""
    if (place := _open_places().pop(place_of(address), None)) is not None:
        place.close()


@cache
def _open_places() -> OrderedDict[str, Place]:
    """Global to the process."""
    return OrderedDict()
