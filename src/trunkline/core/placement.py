"""Which nodes a new segment may use.

Every option is safe: placement decides how well a log is spread, never whether it is right. A host picks one by load
and zones; the checker tries them all. The first option is the sensible default: members that are known to answer keep
their places.
"""

from __future__ import annotations

import itertools

from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.projection import Opening, Owner, Policy, Seat, Settings

OPTIONS_MAX = 24


def eligible(nodes: tuple[NodeInfo, ...], silent: tuple[str, ...]) -> tuple[NodeInfo, ...]:
    """Nodes that may take a new membership: registered, live, not being drained, and not known to be silent."""
    return tuple(n for n in nodes if n.live and n.state is NodeState.RW and n.node not in silent)


def openings(
    settings: Settings,
    nodes: tuple[NodeInfo, ...],
    *,
    preferred: tuple[str, ...] = (),
    silent: tuple[str, ...] = (),
    suspects: tuple[str, ...] = (),
    owner: Owner | None = None,
) -> tuple[Opening, ...]:
    """The shapes that a new segment may have; empty if not even ``min_replicas`` nodes are left.

    ``silent`` nodes are never used; ``suspects`` answered, but somebody could not work with them: they come last and do
    not order.
    """
    usable = eligible(nodes, silent)
    if len(usable) < settings.min_replicas:
        return ()

    def rank(info: NodeInfo) -> tuple[bool, int, str]:
        place = preferred.index(info.node) if info.node in preferred else len(preferred)
        return (info.node in suspects, place, info.node)

    ranked = sorted(usable, key=rank)
    width = min(settings.replicas, len(ranked))
    trusted = sum(info.node not in suspects for info in ranked)
    pool = ranked[: max(width, trusted)]
    picks = itertools.islice(itertools.permutations(pool, width), OPTIONS_MAX)
    return tuple(_opening(settings, pick, pool, suspects, owner) for pick in picks)


def _opening(
    settings: Settings,
    pick: tuple[NodeInfo, ...],
    pool: list[NodeInfo],
    suspects: tuple[str, ...],
    owner: Owner | None,
) -> Opening:
    """Each group begins at another node of the pool, so that heads rotate."""
    if settings.policy is Policy.BROADCAST:
        assert owner is not None, "a broadcast segment belongs to its writer"
        return Opening((_seats(pick),), owner)
    order = [info for info in (*pick, *pool) if info.node not in suspects] or list(pick)
    ring = list(dict.fromkeys((*pick, *pool)))
    groups = tuple(_seats(tuple(ring[(g + m) % len(ring)] for m in range(len(pick)))) for g in range(settings.groups))
    return Opening(groups, Owner(order[0].node, order[0].start))


def _seats(pick: tuple[NodeInfo, ...]) -> tuple[Seat, ...]:
    return tuple(Seat(info.node, info.incarnation) for info in pick)
