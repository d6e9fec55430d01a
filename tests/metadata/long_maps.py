"""Logs with very many segments, for tests."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.core.projection import Member, Owner, Policy, Projection, Segment, Settings

ATTIC = "attic"  # a node that is not registered: its segments need no duty


def long_map(log: str, count: int, last: Segment | None = None, cluster: str = "cluster") -> Projection:
    """A first projection with ``count`` segments: each of one entry on a removed node, and the open one."""
    segments = [_ended(index) for index in range(count - 1)]
    members = tuple(Member(node, 1, f"1.0.{at}") for at, node in enumerate(("a", "b")))
    opened = last or Segment(0, 1, 1, None, False, Policy.CHAIN, 1024, (members,), Owner("a", 1))
    segments.append(replace(opened, index=count - 1, base=count))
    return Projection(cluster, log, 1, 0, tuple(segments), Settings(replicas=2))


def _ended(index: int) -> Segment:
    """As real ones are: with numbers that differ."""
    members = tuple(Member(ATTIC, 1_700_000_000_000_000_000 + index * 7919 % 1000, f"0.{index}.{at}") for at in (0, 1))
    owner = Owner(f"node-{index % 5}", 1_700_000_000_000_000_000 + index)
    return Segment(index, 1, index + 1, index + 2, True, Policy.CHAIN, 1024, (members,), owner)
