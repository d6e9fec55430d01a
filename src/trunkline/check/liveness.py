"""Liveness on a complete graph: from every state, without another fault, a state of rest is reachable.

A state is at rest when no monitor is hot. This checks that the goal stays *reachable*; the fair phase at the end of
random schedules checks that fair schedules reach it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from trunkline.check.actions import Action
from trunkline.check.views import Finding


@dataclass(frozen=True)
class Liveness:
    """``finding`` is None if rest is always reachable; else ``actions`` lead to a state from which it is not."""

    finding: Finding | None
    actions: tuple[Action, ...]


class Graph:
    """States by number, and the steps between them that are not faults, in 8 bytes per step."""

    def __init__(self) -> None:
        self._hot = bytearray()
        self._sources = array("I")
        self._targets = array("I")

    def enter(self, *, hot: bool) -> None:
        """Add the state with the next number."""
        self._hot.append(hot)

    def connect(self, source: int, target: int) -> None:
        self._sources.append(source)
        self._targets.append(target)

    def first_stuck(self) -> int | None:
        """The least number of a state from which no state of rest is reachable, or None."""
        stuck = bytearray(self._hot)
        begins, before = self._predecessors()
        reached = array("I", (number for number, hot in enumerate(self._hot) if not hot))
        while reached:
            number = reached.pop()
            for source in before[begins[number] : begins[number + 1]]:
                if stuck[source]:
                    stuck[source] = 0
                    reached.append(source)
        found = stuck.find(1)
        return None if found < 0 else found

    def _predecessors(self) -> tuple[array[int], array[int]]:
        """The predecessors of state ``n``: ``before[begins[n] : begins[n + 1]]``."""
        begins = array("I", bytes(4 * (len(self._hot) + 2)))
        for target in self._targets:
            begins[target + 2] += 1
        for number in range(2, len(begins)):
            begins[number] += begins[number - 1]
        before = array("I", bytes(4 * len(self._sources)))
        for source, target in zip(self._sources, self._targets, strict=True):
            before[begins[target + 1]] = source
            begins[target + 1] += 1
        return begins, before
