"""How many entries nodes sent between two polls. It is pure."""

from __future__ import annotations

from trunkline.dashboard.views import ShownCluster


def entries_read(before: ShownCluster | None, now: ShownCluster) -> dict[str, int]:
    """By node. A node that did not answer twice, or restarted in between, is left out: its count restarted."""
    known = {node.name: node.disk for node in before.nodes if node.live} if before is not None else {}
    found: dict[str, int] = {}
    for node in now.nodes:
        old, new = known.get(node.name), node.disk
        if not node.live or old is None or new is None or old.start != new.start:
            continue
        if old.entries_read is not None and new.entries_read is not None:
            found[node.name] = max(0, new.entries_read - old.entries_read)
    return found
