"""An immutable sorted map from numbers to values: the memory of monitors.

The search compares and hashes a monitor's state, and the state grows with a recording. So this is a tree of tuples: a
change copies one path of short tuples, and equal contents are equal values whatever the order of insertion.

    height 1        ((0, .), (3, .))                     prefixes: key >> 6
    height 0    ((1, a), (7, b))   ((192, c),)           keys

The height follows from the highest key. Keys below 64, as in most scenarios, make one flat tuple.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from trunkline.check.frozen import text

V = TypeVar("V")
TreeNode = tuple[tuple[int, Any], ...]

BITS = 6  # of a key per level


class SortedMap(NamedTuple, Generic[V]):
    """Keys are not negative. ``put`` returns a new map."""

    height: int = 0
    node: TreeNode = ()

    def get(self, key: int) -> V | None:
        node: Any = self.node
        for level in range(self.height, -1, -1):
            prefix = key >> BITS * level
            at = bisect_left(node, (prefix,))
            if at == len(node) or node[at][0] != prefix:
                return None
            node = node[at][1]
        value: V = node
        return value

    def put(self, key: int, value: V) -> SortedMap[V]:
        assert key >= 0, f"keys are positions and checksums, never {key}"
        height, node = self
        while key >> BITS * (height + 1):
            height, node = height + 1, ((0, node),) if node else ()
        return SortedMap(height, _put(node, height, key, value))

    def floor(self, key: int) -> V | None:
        """The value at the highest key <= ``key``."""
        found = _floor(self.node, self.height, key)
        return None if found is None else found[1]

    def highest(self) -> int | None:
        """The highest key."""
        return _last(self.node, self.height)[0] if self.node else None

    def items(self) -> Iterator[tuple[int, V]]:
        return _items(self.node, self.height)

    def brief(self) -> str:
        return text(dict(self.items()))


def _put(node: TreeNode, level: int, key: int, value: Any) -> TreeNode:
    prefix = key >> BITS * level
    at = bisect_left(node, (prefix,))
    present = at < len(node) and node[at][0] == prefix
    if level:
        value = _put(node[at][1] if present else (), level - 1, key, value)
    return (*node[:at], (prefix, value), *node[at + present :])


def _floor(node: TreeNode, level: int, key: int) -> tuple[int, Any] | None:
    prefix = key >> BITS * level
    at = bisect_left(node, (prefix + 1,)) - 1
    if at < 0 or level == 0:
        return node[at] if at >= 0 else None
    if node[at][0] == prefix:
        found = _floor(node[at][1], level - 1, key)
        if found is not None or at == 0:
            return found
        at -= 1
    return _last(node[at][1], level - 1)


def _last(node: TreeNode, level: int) -> tuple[int, Any]:
    for _ in range(level):
        node = node[-1][1]
    return node[-1]


def _items(node: TreeNode, level: int) -> Iterator[tuple[int, Any]]:
    for prefix, value in node:
        if level:
            yield from _items(value, level - 1)
        else:
            yield prefix, value
