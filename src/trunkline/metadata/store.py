"""The metadata store, as the coordinator sees it: one small interface with two implementations.

The contract is the role ``core.register.MetadataRegister`` (rules M1 to M3). A store adds what a role cannot have: a
disk, a clock for leases, watchers, and an election among coordinators.

Rules
 K1  An answer is sent only when its content is durable. Where the outcome is unknown there is no answer, but
     ``StoreUnavailable``: the caller reads again.
 K2  A store announces a projection (``Projected``) before any answer contains it.
 K3  A watcher receives every change after ``watch()``, perhaps several as one. It receives names, not values.
 K4  ``active()`` is true for at most one coordinator at a time, as far as the clocks of the machines run at the same
     rate. Safety does not depend on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from trunkline.core.effects import Event
from trunkline.core.messages import Get, Got, NodeInfo, NodeState, Register, Registered, Swap, SwapLost, Swapped
from trunkline.core.projection import Projection
from trunkline.errors import OutcomeUnknown, StorageError

Request = Get | Swap | Register
Answer = Got | Swapped | SwapLost | Registered
Listener = Callable[[Event], None]

NODES_CHANGED = ""  # a watcher receives it when the registry of nodes changed; no log has this name


class StoreUnavailable(OutcomeUnknown):
    """The store cannot answer now. The request may have been carried out: read before you retry."""


class MapTooLarge(StorageError):
    """The projection does not fit into the store. Nothing was changed."""


class MetadataStore(Protocol):
    async def start(self) -> None:
        """Open the store. Raises ``StorageError`` if an operator must act, ``StoreUnavailable`` if a retry may help."""

    async def close(self) -> None:
        """Close the store; watchers end. The leases of nodes continue."""

    async def handle(self, message: Request) -> Answer | None:
        """Carry out one request; None: no answer (it came from an earlier start of a node).

        Raises ``StoreUnavailable`` if the outcome is unknown, ``MapTooLarge`` for a swap that does not fit, and
        ``ValueError`` for an invalid one.
        """

    async def leave(self, node: str, start: int) -> None:
        """This start of a node or client has shut down: its lease ends, as if it had expired.

        Has no effect if repeated, late, or for an earlier start. Raises ``StoreUnavailable``.
        """

    async def logs(self) -> tuple[str, ...]:
        """The names of all logs, deleted ones too, sorted."""

    async def projections(self) -> tuple[Projection, ...]:
        """Of all logs, deleted ones too, sorted by name. An unchanged projection is the same object as before."""

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """The registry, sorted by name."""

    async def set_node_state(self, node: str, state: NodeState) -> bool:
        """Set by an operator; it survives later registrations. False: no such node (a client is not a node)."""

    async def forget_node(self, node: str) -> bool:
        """Remove an entry from the registry; if the node registers again, it is new. False: no such entry."""

    async def cluster(self) -> str:
        """The cluster's id, "" before it is created."""

    async def create_cluster(self, proposed: str) -> str:
        """Store the cluster's id if there is none. All callers get the first one."""

    def watch(self) -> AsyncIterator[str]:
        """Names of logs whose projection changed, ``NODES_CHANGED`` for the registry; ends when the store closes."""

    async def campaign(self, me: str) -> None:
        """Return when this coordinator has become active. One campaign at a time."""

    def active(self) -> bool:
        """Whether this coordinator is active now."""

    async def deposed(self) -> None:
        """Return when this coordinator is not active (any more)."""

    async def active_coordinator(self) -> str:
        """The name of the active coordinator, "" if there is none. For display: it may be stale."""

    def events(self, listener: Listener) -> None:
        """Set the listener of announced events. Call it before ``start``, which announces what it finds."""


def is_passing(info: NodeInfo) -> bool:
    """Whether an entry ends with its lease: a writing client, not a node."""
    return info.state is NodeState.CLIENT


def require_sound(swap: Swap) -> None:
    """Raise ``ValueError`` for a swap that contradicts itself: its sender broke M1."""
    projection = swap.projection
    if not swap.log or projection.log != swap.log or not projection.segments:
        raise ValueError(f"a swap of {swap.log!r} needs a projection of that log, with segments; it has {projection}")
    if swap.expected < 0 or projection.epoch != swap.expected + 1:
        raise ValueError(f"a swap from epoch {swap.expected} leads to the next, not to {projection.epoch}")
