"""What a coordinator remembers about the nodes' keys in etcd is bounded, and errs on the safe side."""

from __future__ import annotations

import asyncio

from metadata.projections import node
from trunkline.metadata.etcd_gateway import EtcdOptions, Gateway
from trunkline.metadata.node_leases import TOUCHED_MAX, NodeLeases


def held(leases: NodeLeases, name: str) -> bool:
    return name in leases._held


def remembered(leases: NodeLeases) -> int:
    return len(leases._touched)


def test_clients_that_vanish_leave_little_behind_and_late_news_of_them_still_count() -> None:
    async def scenario() -> None:
        leases = NodeLeases(Gateway(EtcdOptions(("http://127.0.0.1:1",))), 3)
        last = TOUCHED_MAX * 3
        for revision in range(1, last + 1):
            leases.forget(f"client{revision}")  # the node's key goes first, then its live key
            leases.touched(f"client{revision}", revision)
        assert remembered(leases) == TOUCHED_MAX
        leases.hold(node("client1"), 7, 0)  # written before it was touched, though that is forgotten
        assert not held(leases, "client1")
        leases.hold(node(f"client{last}"), 7, last - 1)
        assert not held(leases, f"client{last}")
        leases.hold(node("new"), 7, last + 1)
        assert held(leases, "new")

    asyncio.run(scenario())
