"""Which places a deliverer takes, and which it gives up. Destinations of one place have one owner (C9).

A place is taken and given up as a whole, whatever the share says: two owners would refuse each other's commits for
ever. Shares count destinations, so large places make them uneven.

Rules
 G1  If several deliverers own parts of a place, the one with most of it keeps it (then the first by name): it takes
     what is free there, and the others leave it.
 G2  A place without an owner is taken, the largest first, by a deliverer with room for all of it. If there is none,
     the deliverer that holds least takes it.
 G3  A deliverer above its share gives up what fits into its surplus, the largest first; and a larger place only if
     the deliverer that holds least then holds less than this one did. So what was given up does not come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class HeldPlace(NamedTuple):
    place: str
    owners: Mapping[str, int]  # deliverers with a live lease, and how many of its destinations they own
    free: int  # destinations without such an owner

    @property
    def size(self) -> int:
        return self.free + sum(self.owners.values())

    @property
    def keeper(self) -> str:
        """Who keeps it (G1); empty: it has no owner."""
        return min(self.owners, key=lambda name: (-self.owners[name], name), default="")


class PlaceMoves(NamedTuple):
    left: tuple[str, ...]  # places
    taken: tuple[str, ...]


def moves_of(me: str, places: Iterable[HeldPlace], loads: Mapping[str, int], quota: int) -> PlaceMoves:
    """What a deliverer leaves and takes. ``loads``: what each deliverer with a live lease holds."""
    known, held = sorted(places), dict(loads)
    left = [each for each in known if me in each.owners and each.keeper != me]
    taken = {each.place: each.free for each in known if each.keeper == me and each.free}
    held[me] = held.get(me, 0) - sum(each.owners[me] for each in left) + sum(taken.values())
    vacant = sorted((each for each in known if not each.keeper), key=lambda each: (-each.size, each.place))
    for each in vacant:
        if held[me] + each.size <= quota:
            taken[each.place] = each.size
            held[me] += each.size
    for each in reversed(vacant):
        if each.place not in taken and me == _least(held):
            taken[each.place] = each.size
            held[me] += each.size
    return PlaceMoves(tuple(each.place for each in left), tuple(taken))


class Surplus(NamedTuple):
    places: tuple[str, ...]
    singles: int  # destinations that share no place


def surplus_of(me: str, sizes: Mapping[str, int], loads: Mapping[str, int], quota: int) -> Surplus:
    """What a deliverer gives up (G3). ``sizes``: of the places that it holds; the rest of its load are singles."""
    held = {name: load for name, load in loads.items() if name != me}
    mine, given = loads.get(me, 0), dict[str, int]()
    singles = mine - sum(sizes.values())
    if not held:
        return Surplus((), 0)

    def give(count: int, place: str = "") -> None:
        nonlocal mine
        held[_least(held)] += count
        mine -= count
        given.update({place: count} if place else {})

    ascending = sorted((size, place) for place, size in sizes.items())
    for size, place in reversed(ascending):
        if size <= mine - quota:
            give(size, place)
    alone = max(0, min(mine - quota, singles))
    give(alone)
    for size, place in ascending:
        if place not in given and mine > quota and held[_least(held)] + size < mine:
            give(size, place)
    return Surplus(tuple(given), alone)


def _least(held: Mapping[str, int]) -> str:
    """Who holds least; the first by name."""
    return min(held, key=lambda name: (held[name], name))
