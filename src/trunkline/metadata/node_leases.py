"""The leases in etcd that this coordinator keeps for the nodes that register with it."""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.messages import NodeInfo
from trunkline.metadata.election import grant, keep_alive
from trunkline.metadata.etcd_gateway import Gateway

TOUCHED_MAX = 1024  # fewer: when more change at once, some are registered again needlessly; more: memory


class HeldLease(Struct, frozen=True):
    info: NodeInfo  # as the node registered
    lease: int
    revision: int  # of etcd, when the node's keys were written


class NodeLeases:
    """A lease is held until another process changes the node's keys: meanwhile a renewal changes nothing."""

    def __init__(self, gateway: Gateway, ttl_s: int) -> None:
        self._gateway = gateway
        self._ttl_s = ttl_s
        self._held: dict[str, HeldLease] = {}  # as many as there are nodes
        self._touched: dict[str, int] = {}  # node: revision of its last foreign change, oldest first
        self._touched_before = 0  # the last revision that was evicted from it

    async def renew(self, info: NodeInfo) -> bool:
        """Renew the lease of a node whose registration is unchanged. False: register it again."""
        held = self._held.get(info.node)
        if held is None or held.info != info:
            return False
        alive = await keep_alive(self._gateway, held.lease)
        if not alive:
            self._held.pop(info.node, None)
        return alive and self._held.get(info.node) is held

    async def lease_for(self, node: str) -> int:
        """A lease with its full time left: the one that is held, or a new one."""
        held = self._held.get(node)
        if held is not None and await keep_alive(self._gateway, held.lease):
            return held.lease
        return await grant(self._gateway, self._ttl_s)

    def hold(self, info: NodeInfo, lease: int, revision: int) -> None:
        """This coordinator wrote the node's keys at this revision, the live key with this lease."""
        touched = self._touched.get(info.node, self._touched_before)
        if touched <= revision:  # the watch may have reported a later change already
            self._held[info.node] = HeldLease(info, lease, revision)

    def touched(self, node: str, revision: int) -> None:
        """A key of the node changed; the coordinator's own writes arrive here, too."""
        held = self._held.get(node)
        if held is None or held.revision < revision:
            self._touched.pop(node, None)
            self._touched[node] = revision
            self._held.pop(node, None)
            if len(self._touched) > TOUCHED_MAX:  # every client has another name
                self._touched_before = self._touched.pop(next(iter(self._touched)))

    def forget(self, node: str) -> None:
        """The node's entry was removed."""
        self._touched.pop(node, None)
        self._held.pop(node, None)
