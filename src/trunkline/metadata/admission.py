"""Checks a request before the register sees it: every later answer contains what is stored.

Rules
 A1  Every field of a registration is bounded, and so is their number: the whole registry fits into an answer beside the
     largest map (``REGISTRY_BYTES_MAX``). A process cannot register itself as draining or gone.
 A2  A map belongs to this cluster and to the log that it is stored for, has names and numbers within bounds, and is at
     most ``MAP_BYTES_MAX`` long (a little longer if the change shrinks it). A new log needs a name that
     ``core.names`` allows.
 A3  A registered process is never refused for lack of a place.
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
NODES_MAX: Final = 512  # fewer: a large cluster cannot grow; more: every answer about a log lists them all
CLIENTS_MAX: Final = 16_384  # one for each broadcast log that a process writes
CLIENTS_BYTES_MAX: Final = 1024 * KIB
ENTRY_BYTES: Final = 64  # of a registration without its texts
REGISTRY_BYTES_MAX: Final = 1536 * KIB  # encoded: it fits into a packet head beside the largest map
MAP_BYTES_MAX: Final = 12 * KIB * KIB  # about 60,000 segments. less: an old log stops; more: it fits into no answer
REPAIR_BYTES: Final = 64 * KIB
ADDRESS_BYTES_MAX: Final = 262  # the longest name of a host, brackets, a port
ZONE_BYTES_MAX: Final = 128
COUNT_AGE_S_MAX: Final = 1.0  # how old the count of registrations may be


def request_fault(message: Request, cluster: str) -> str:
    """Why a request is refused; "" if it is valid. ``cluster`` "": unknown, and not compared."""
    match message:
        case Register(info):
            return registration_fault(info) or _self_report_fault(info)
        case Swap():
            return _swap_fault(message, cluster)
        case Get(log):
            return "" if not log or may_be_log(log) else log_name_fault(log)


def registration_fault(info: NodeInfo) -> str:
    """A1: what is wrong with a registration."""
    who = f"the registration of {shown(info.node)}"
    if not is_bounded(info.node) or not info.node.isprintable():
        return f"{who} needs a name of 1 to 255 printable bytes; rename the process"
    if _bytes(info.address) > ADDRESS_BYTES_MAX or not info.address.isprintable():
        return f"{who} has an address of more than {ADDRESS_BYTES_MAX} bytes; advertise host:port"
    if _bytes(info.zone) > ZONE_BYTES_MAX or not info.zone.isprintable():
        return f"{who} has a zone of more than {ZONE_BYTES_MAX} bytes; give it a shorter one"
    if not all(0 <= number < NUMBER_MAX for number in (info.incarnation, info.start, info.damaged)):
        return f"{who} has a number out of range; upgrade the older peer"
    return ""


def _self_report_fault(info: NodeInfo) -> str:
    """States that only an operator may set."""
    if info.state not in (NodeState.RW, NodeState.CLIENT) or not info.live:
        return f"the registration of {shown(info.node)} has the state {info.state.value}; only an operator can set it"
    return ""


def _swap_fault(swap: Swap, cluster: str) -> str:
    projection = swap.projection
    if not may_be_log(swap.log):
        return log_name_fault(swap.log)
    if swap.expected == 0 and (fault := log_name_fault(swap.log)):
        return fault
    if cluster and projection.cluster != cluster:
        return (
            f"the map of {shown(swap.log)} is for cluster {shown(projection.cluster)}, this is {cluster}; connect again"
        )
    try:
        require_sound(swap)
    except ValueError as error:
        return str(error)[: 4 * KIB]
    if not _is_bounded_map(projection):
        return f"the map of {shown(swap.log)} has a name or a number out of bounds; upgrade the older peer"
    size = len(msgspec.msgpack.encode(projection))
    grows = projection.last.epoch == projection.epoch  # trims and repairs may exceed the limit: they shrink it
    if size > MAP_BYTES_MAX + (0 if grows else REPAIR_BYTES):
        return f"the map of {shown(swap.log)} has {size} bytes, more than {MAP_BYTES_MAX}; trim the log"
    return ""


def _is_bounded_map(projection: Projection) -> bool:
    """Without its segments: ``core.transitions`` checks new ones against the stored ones."""
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
    """A1: how many processes are registered; at most ``COUNT_AGE_S_MAX`` old."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: set[str] = set()  # bounded by the number of places
        self._nodes = 0
        self._clients = 0
        self._clients_bytes = 0
        self._counted_at = float("-inf")

    async def fault(self, info: NodeInfo) -> str:
        """Why there is no place for a registration; "" if there is one (A3). Raises what the store raises."""
        if info.node in self._known:
            return ""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at > COUNT_AGE_S_MAX:
            self._counted_at = now
            await self._recount()
            if info.node in self._known:
                return ""
        full = self._clients >= CLIENTS_MAX or self._clients_bytes + _entry_bytes(info) > CLIENTS_BYTES_MAX
        if full if is_passing(info) else self._nodes >= NODES_MAX:
            what = "clients with leases" if is_passing(info) else "nodes"
            count = self._clients if is_passing(info) else self._nodes
            return (
                f"{shown(info.node)} is not registered: there are {count} {what}, the limit; "
                "`trunkline node forget` removes nodes that left"
            )
        self._count(info)
        return ""

    async def _recount(self) -> None:
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
