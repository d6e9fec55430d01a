"""Looks at a request before the register sees it: what is stored is answered to everybody, for ever after.

Rules
 A1  Every field of a registration is bounded, and so is how many there are: the whole registry fits into an answer
     beside the largest map (``REGISTRY_BYTES_MAX``). Nobody registers as drained or gone.
 A2  A map is of this cluster and of the log that it is stored for, with names and numbers within bounds, and not larger
     than ``MAP_BYTES_MAX`` (a little larger where that helps to make it smaller). A log is made only under a name that
     ``core.names`` allows.
 A3  Whoever is registered already is never refused for want of a place.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from trunkline.core.messages import Get, NodeInfo, NodeState, Register, Swap
from trunkline.core.names import is_bounded, log_name_fault, may_be_log, shown
from trunkline.core.projection import Projection
from trunkline.core.transitions import COUNT_MAX, NUMBER_MAX, POSITION_MAX
from trunkline.metadata.store import MetadataStore, Request, is_passing, require_sound

KIB: Final = 1024
NODES_MAX: Final = 512  # fewer: a large cluster cannot grow; more: every answer about a log tells of all of them
CLIENTS_MAX: Final = 16_384  # one for each broadcast log that a process writes
CLIENTS_BYTES_MAX: Final = 1024 * KIB
ENTRY_BYTES: Final = 64  # of a registration besides its texts
REGISTRY_BYTES_MAX: Final = 1536 * KIB  # all of it, encoded: beside the largest map it fits into a head
MAP_BYTES_MAX: Final = 12 * KIB * KIB  # some 60,000 segments. less: an old log stops; more: it cannot be told
MENDING_BYTES: Final = 64 * KIB
ADDRESS_BYTES_MAX: Final = 262  # the longest name of a host, brackets, a port
ZONE_BYTES_MAX: Final = 128
LOOK_AGAIN_S: Final = 1.0  # how old the count of registrations may be


def request_fault(message: Request, cluster: str) -> str:
    """Why a request is refused; nothing where it is fine. ``cluster`` "": not known yet, and not compared."""
    match message:
        case Register(info):
            return registration_fault(info) or _said_fault(info)
        case Swap():
            return _swap_fault(message, cluster)
        case Get(log):
            return "" if not log or may_be_log(log) else log_name_fault(log)


def registration_fault(info: NodeInfo) -> str:
    """A1: what is wrong with a registration."""
    who = f"the registration of {shown(info.node)}"
    if not is_bounded(info.node) or not info.node.isprintable():
        return f"{who} has no name of 1 to 255 printable bytes; give the process another name"
    if _bytes(info.address) > ADDRESS_BYTES_MAX or not info.address.isprintable():
        return f"{who} has an address of more than {ADDRESS_BYTES_MAX} bytes; advertise host:port"
    if _bytes(info.zone) > ZONE_BYTES_MAX or not info.zone.isprintable():
        return f"{who} has a zone of more than {ZONE_BYTES_MAX} bytes; give it a shorter one"
    if not all(0 <= number < NUMBER_MAX for number in (info.incarnation, info.start, info.damaged)):
        return f"{who} has a number out of range; update the older of both ends"
    return ""


def _said_fault(info: NodeInfo) -> str:
    """What no process may say of itself; an operator may, and it is then stored."""
    if info.state not in (NodeState.RW, NodeState.CLIENT) or not info.live:
        return f"the registration of {shown(info.node)} says {info.state.value}; only an operator does"
    return ""


def _swap_fault(swap: Swap, cluster: str) -> str:
    projection = swap.projection
    if not may_be_log(swap.log):
        return log_name_fault(swap.log)
    if swap.expected == 0 and (fault := log_name_fault(swap.log)):
        return fault
    if cluster and projection.cluster != cluster:
        return (
            f"the map of {shown(swap.log)} is of cluster {shown(projection.cluster)}, this is {cluster}; connect again"
        )
    try:
        require_sound(swap)
    except ValueError as error:
        return str(error)[: 4 * KIB]
    if not _is_bounded_map(projection):
        return f"the map of {shown(swap.log)} has a name or a number out of bounds; update the older of both ends"
    size = len(msgspec.msgpack.encode(projection))
    grows = projection.last.epoch == projection.epoch  # what trims and mends it may pass the limit, or nothing could
    if size > MAP_BYTES_MAX + (0 if grows else MENDING_BYTES):
        return f"the map of {shown(swap.log)} has {size} bytes, more than {MAP_BYTES_MAX}; trim the log"
    return ""


def _is_bounded_map(projection: Projection) -> bool:
    """But for its segments: of these, what is new is looked at beside what is stored (``core.transitions``)."""
    settings = projection.settings
    numbers = (settings.replicas, settings.min_replicas, settings.groups, settings.stripe_unit)
    positions = [projection.epoch, projection.trim]
    positions += [position for gap in projection.gaps for position in (gap.first, gap.end)]
    return all(1 <= number < COUNT_MAX for number in numbers) and all(
        0 <= position < POSITION_MAX for position in positions
    )


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace")) if len(text) < KIB else len(text)


class Places:
    """A1: how many are registered, as of a moment ago."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: set[str] = set()  # at most as many as there are places
        self._nodes = 0
        self._clients = 0
        self._clients_bytes = 0
        self._looked = float("-inf")

    async def fault(self, info: NodeInfo) -> str:
        """Why there is no place for a registration; A3. Raises what the store raises."""
        if info.node in self._known:
            return ""
        now = asyncio.get_running_loop().time()
        if now - self._looked > LOOK_AGAIN_S:
            self._looked = now
            await self._look()
            if info.node in self._known:
                return ""
        full = self._clients >= CLIENTS_MAX or self._clients_bytes + _entry_bytes(info) > CLIENTS_BYTES_MAX
        if full if is_passing(info) else self._nodes >= NODES_MAX:
            what = "clients with leases" if is_passing(info) else "nodes"
            count = self._clients if is_passing(info) else self._nodes
            return (
                f"{shown(info.node)} is not registered: there are {count} {what}, the limit; "
                "`trunkline node forget` removes nodes that are gone"
            )
        self._count(info)
        return ""

    async def _look(self) -> None:
        found = await self._store.nodes()
        self._known, self._nodes, self._clients, self._clients_bytes = set(), 0, 0, 0
        for info in found:
            self._count(info)

    def _count(self, info: NodeInfo) -> None:
        self._known.add(info.node)
        if is_passing(info):
            self._clients += 1
            self._clients_bytes += _entry_bytes(info)
        else:
            self._nodes += 1


def _entry_bytes(info: NodeInfo) -> int:
    return ENTRY_BYTES + _bytes(info.node) + _bytes(info.address) + _bytes(info.zone)
