"""Removes entries from the registry of nodes: invalid ones at the start, others for an operator."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from trunkline.core.messages import NodeState
from trunkline.core.names import NAME_BYTES_MAX
from trunkline.core.projection import Projection
from trunkline.metadata.admission import registration_fault
from trunkline.metadata.store import MetadataStore

log = logging.getLogger("trunkline.coordinator")


async def drop_bad_registrations(store: MetadataStore) -> None:
    """Remove entries that are invalid today: one of them can be too large for any answer. Their nodes may register
    again. Raises ``StoreUnavailable``.
    """
    for info in await store.nodes():
        if fault := registration_fault(info):
            await store.forget_node(info.node)
            log.warning("dropped from the registry: %s", fault)


async def forget_node(store: MetadataStore, node: str, views: Iterable[Projection]) -> str:
    """Remove a node from the registry; returns why it stays, "" if it was removed. Raises ``StoreUnavailable``."""
    found = next((info for info in await store.nodes() if info.node == node), None)
    if found is None or found.state is NodeState.CLIENT:
        return f"there is no node {node[:NAME_BYTES_MAX]}"
    if found.live:
        return f"node {node} is live; stop it first, and wait until `trunkline status` shows that"
    logs = [view.log for view in views if any(m.node == node for each in view.segments for m in each.members())]
    if logs:
        others = f" and {len(logs) - 1} more" if len(logs) > 1 else ""
        return (
            f"log {logs[0]}{others} still names node {node}; `trunkline node drain {node} --wait` moves its data, "
            f"`trunkline node remove {node} --force` gives its copies up"
        )
    return "" if await store.forget_node(node) else f"there is no node {node}"
