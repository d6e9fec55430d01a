"""How many entries nodes have sent between two looks. It is pure."""

from __future__ import annotations

from trunkline.dashboard.views import Cluster


def entries_read(before: Cluster | None, now: Cluster) -> dict[str, int]:
    """By node. One that did not answer both times, or was restarted in between, is left out: its count began anew."""
    known = {node.name: node.disk for node in before.nodes if node.live} if before is not None else {}
    found: dict[str, int] = {}
    for node in now.nodes:
        old, new = known.get(node.name), node.disk
        if not node.live or old is None or new is None or old.start != new.start:
            continue
        if old.entries_read is not None and new.entries_read is not None:
            found[node.name] = max(0, new.entries_read - old.entries_read)
    return found
