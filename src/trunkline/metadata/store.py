"""The metadata repository, as the coordinator sees it: one small interface, two stores behind it.

The contract is the role ``core.register.MetadataRegister`` (rules M1 to M3). A store adds what a role cannot have: a
disk, a clock for leases, watchers, and an election among coordinators.

Rules
 K1  An answer leaves only when what it says is durable. Where the outcome is not known there is no answer at all, but
     ``StoreUnavailable``: the caller reads again.
 K2  Whatever a store tells in an answer, it has announced before (``Projected``).
 K3  A watcher hears of every change that comes after ``watch()``, perhaps several as one. It hears names, not values:
     it reads to learn more.
 K4  ``active()`` is true for at most one coordinator at a time, as far as the clocks of two machines run alike. No
     safety rests on it.
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

NODES_CHANGED = ""  # what a watcher hears when the registry of nodes changed; no log has this name


class StoreUnavailable(OutcomeUnknown):
    """The store cannot answer now. What was asked may have happened: read again before trying again."""


class MapTooLarge(StorageError):
    """The projection does not fit into the store, now or later. Nothing was changed."""


class MetadataStore(Protocol):
    async def start(self) -> None:
        """Open the store. Raises ``StorageError`` where a person has to help, ``StoreUnavailable`` where time may."""

    async def close(self) -> None:
        """Let go of everything; watchers end. The leases of nodes go on."""

    async def handle(self, message: Request) -> Answer | None:
        """Carry out one request; None: it gets no answer (it came from an earlier start of a node).

        Raises ``StoreUnavailable`` when the outcome is not known, ``MapTooLarge`` for a swap that does not fit, and
        ``ValueError`` for one that no caller may send.
        """

    async def leave(self, node: str, start: int) -> None:
        """This start of a node or client has ended: its lease is over, as if it had run out.

        Said twice, late, or of a start that is not the present one, it changes nothing. Raises ``StoreUnavailable``.
        """

    async def logs(self) -> tuple[str, ...]:
        """The names of all logs, deleted ones too, sorted."""

    async def projections(self) -> tuple[Projection, ...]:
        """Those of all logs, deleted ones too, sorted by name. The same object as before where nothing has changed."""

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """The registry, sorted by name."""

    async def set_node_state(self, node: str, state: NodeState) -> bool:
        """An operator's word on a node; it outlives later registrations. False: no such node (a client is none)."""

    async def forget_node(self, node: str) -> bool:
        """Take an entry out of the registry, whatever it says; should it register again, it is new. False: no entry."""

    async def cluster(self) -> str:
        """The cluster's id, "" before there is one."""

    async def create_cluster(self, proposed: str) -> str:
        """Write the cluster's id if there is none. Everybody gets the id of the first."""

    def watch(self) -> AsyncIterator[str]:
        """Names of logs whose projection changed, ``NODES_CHANGED`` for the registry; ends when the store closes."""

    async def campaign(self, me: str) -> None:
        """Return when this coordinator has become the active one. One campaign at a time."""

    def active(self) -> bool:
        """Whether this coordinator is the active one, at this moment."""

    async def deposed(self) -> None:
        """Return when this coordinator is not the active one (any more)."""

    async def active_coordinator(self) -> str:
        """Who is the active one, "" if nobody is. For people: it may have changed when the answer is read."""

    def events(self, listener: Listener) -> None:
        """Tell the listener what the register announces. To be set before ``start``, which announces what it finds."""


def is_passing(info: NodeInfo) -> bool:
    """Whether an entry of the registry goes with its lease: a client that writes is no node."""
    return info.state is NodeState.CLIENT


def require_sound(swap: Swap) -> None:
    """Raise ``ValueError`` for a swap that contradicts itself: a broken promise of its sender (M1)."""
    projection = swap.projection
    if not swap.log or projection.log != swap.log or not projection.segments:
        raise ValueError(f"a swap of {swap.log!r} needs a projection of that log, with segments; it has {projection}")
    if swap.expected < 0 or projection.epoch != swap.expected + 1:
        raise ValueError(f"a swap from epoch {swap.expected} leads to the next, not to {projection.epoch}")
