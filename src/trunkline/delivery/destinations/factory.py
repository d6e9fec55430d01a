"""Opens destinations by address, and caches them in a worker process: connecting costs more than a small flush."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from typing import Final

from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, LogAddress, PostgresAddress
from trunkline.delivery.destinations.contract import Destination
from trunkline.errors import ConfigError

OPEN_MAX: Final = 256  # destinations in one process; more: more memory and connections, fewer: slower


def open_destination(address: Address) -> Destination:
    """Imports the driver here, so that a process loads only those that it uses."""
    match address:
        case LakeAddress():
            from trunkline.delivery.destinations.ducklake import DuckLakeDestination

            return DuckLakeDestination(address)
        case DeltaAddress():
            from trunkline.delivery.destinations.delta import DeltaDestination

            return DeltaDestination(address)
        case PostgresAddress():
            from trunkline.delivery.destinations.postgres import PostgresDestination

            return PostgresDestination(address)
        case LogAddress():
            raise ConfigError(
                "a log is not allowed as a destination; write to it with `trunkline append`, or capture a table into it"
            )


def cached_destination(address: Address) -> Destination:
    """The cached destination of an address; beyond the limit, the least recently used one is closed."""
    known = _open_destinations()
    if address in known:
        known.move_to_end(address)
        return known[address]
    while len(known) >= OPEN_MAX:
        known.popitem(last=False)[1].close()
    known[address] = open_destination(address)
    return known[address]


def forget_destination(address: Address) -> None:
    """Close it after an error, which may have left it in any state."""
    if (destination := _open_destinations().pop(address, None)) is not None:
        destination.close()


@cache
def _open_destinations() -> OrderedDict[Address, Destination]:
    """Global to the process."""
    return OrderedDict()
