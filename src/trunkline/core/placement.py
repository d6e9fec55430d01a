"""The nodes that a new segment may use.

Every option is safe: placement decides how well a log is spread, never whether it is correct. A host picks one by load;
the checker tries them all. The first option is the default: members that are known to answer keep their places, as far
as the members of a group stay in different zones.

Nodes with a full disk are not used, unless fewer than ``min_replicas`` others are left: then appends are refused. Nodes
with a tight disk are used if they make a segment wider or spread it over more zones. Copies go to nodes with space.
"""

from __future__ import annotations

import itertools

from trunkline.core.messages import NodeInfo, NodeState, Space
from trunkline.core.projection import Opening, Owner, Policy, Seat, Settings

OPTIONS_MAX = 24  # permutations; if there are more, each node of the pool is the head of one option


def eligible(nodes: tuple[NodeInfo, ...], silent: tuple[str, ...]) -> tuple[NodeInfo, ...]:
    """Nodes that may become members: registered, live, not draining, and not known to be silent."""
    return tuple(n for n in nodes if n.live and n.state is NodeState.RW and n.node not in silent)


def with_space(nodes: tuple[NodeInfo, ...], silent: tuple[str, ...]) -> tuple[NodeInfo, ...]:
    """Eligible nodes that accept appends."""
    return tuple(info for info in eligible(nodes, silent) if info.space < Space.FULL)


def openings(
    settings: Settings,
    nodes: tuple[NodeInfo, ...],
    *,
    preferred: tuple[str, ...] = (),
    silent: tuple[str, ...] = (),
    suspects: tuple[str, ...] = (),
    owner: Owner | None = None,
) -> tuple[Opening, ...]:
    """The options for a new segment; empty if fewer than ``min_replicas`` nodes are left.

    ``silent`` nodes are never used. ``suspects`` answered, but failed a client: they come last and do not sequence.
    """
    usable = _with_room(eligible(nodes, silent), settings, suspects)
    if len(usable) < settings.min_replicas:
        return ()

    def rank(info: NodeInfo) -> tuple[bool, Space, int, str]:
        place = preferred.index(info.node) if info.node in preferred else len(preferred)
        return (info.node in suspects, info.space, place, info.node)

    ranked = sorted(usable, key=rank)
    width = min(settings.replicas, len(ranked))
    trusted = sum(info.node not in suspects for info in ranked)
    pool = _spread(ranked[: max(width, trusted)], suspects)
    picks = _picks(pool, width, suspects)
    return tuple(_opening(settings, pick, pool, suspects, owner) for pick in picks)


def _with_room(usable: tuple[NodeInfo, ...], settings: Settings, suspects: tuple[str, ...]) -> tuple[NodeInfo, ...]:
    """Only nodes with enough space, if they suffice."""
    able = tuple(info for info in usable if info.space < Space.FULL)
    if len(able) < settings.min_replicas:
        return usable
    roomy = tuple(info for info in able if info.space is Space.ROOMY)

    def spread(infos: tuple[NodeInfo, ...]) -> int:
        return min(settings.replicas, len({_zone(info) for info in infos if info.node not in suspects}))

    enough = sum(info.node not in suspects for info in roomy) >= settings.replicas and spread(roomy) == spread(able)
    return roomy if enough else able


def _picks(pool: list[NodeInfo], width: int, suspects: tuple[str, ...]) -> list[tuple[NodeInfo, ...]]:
    """Members of one group, in order. Every option covers as many zones as the first."""
    picks = list(itertools.islice(itertools.permutations(pool, width), OPTIONS_MAX + 1))
    if len(picks) > OPTIONS_MAX:
        turned = [[*pool[at:], *pool[:at]] for at in range(len(pool)) if at == 0 or pool[at].node not in suspects]
        return [tuple(_spread(each, suspects)[:width]) for each in turned]
    zones = len({_zone(info) for info in pool[:width]})
    return [pick for pick in picks if len({_zone(info) for info in pick}) == zones]


def replacement(nodes: tuple[NodeInfo, ...], members: tuple[str, ...]) -> NodeInfo | None:
    """A node to join these members, with space for a copy, preferably in another zone."""
    taken = {_zone(info) for info in nodes if info.node in members}
    roomy = (info for info in eligible(nodes, members) if info.space is Space.ROOMY)
    return min(roomy, key=lambda info: _zone(info) in taken, default=None)


def _zone(info: NodeInfo) -> str:
    return info.zone or f"node {info.node}"  # nodes without a zone fail independently


def _spread(ranked: list[NodeInfo], suspects: tuple[str, ...]) -> list[NodeInfo]:
    """Round-robin over the zones; suspects stay last."""
    seen: dict[str, int] = {}
    turns: dict[str, int] = {}
    for info in ranked:
        turns[info.node] = seen[_zone(info)] = seen.get(_zone(info), -1) + 1
    return sorted(ranked, key=lambda info: (info.node in suspects, turns[info.node]))


def _opening(
    settings: Settings,
    pick: tuple[NodeInfo, ...],
    pool: list[NodeInfo],
    suspects: tuple[str, ...],
    owner: Owner | None,
) -> Opening:
    """Each group begins at another node of the pool, so that the heads differ."""
    if settings.policy is Policy.BROADCAST:
        assert owner is not None, "a broadcast segment belongs to its writer"
        return Opening((_seats(pick),), owner)
    order = [info for info in (*pick, *pool) if info.node not in suspects] or list(pick)
    ring = list(dict.fromkeys((*pick, *pool)))
    groups = tuple(_seats(tuple(ring[(g + m) % len(ring)] for m in range(len(pick)))) for g in range(settings.groups))
    return Opening(groups, Owner(order[0].node, order[0].start))


def _seats(pick: tuple[NodeInfo, ...]) -> tuple[Seat, ...]:
    return tuple(Seat(info.node, info.incarnation) for info in pick)
