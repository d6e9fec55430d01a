"""Liveness on a fully explored graph: from every state, without another fault, a state of rest can be reached.

A state is at rest when no monitor is hot. This asks whether the goal stays *reachable*; that every fair schedule in
fact reaches it is asked by the fair phase at the end of random schedules.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from trunkline.check.actions import Action
from trunkline.check.views import Finding


@dataclass(frozen=True)
class Liveness:
    """``finding`` is None when rest can be reached from everywhere; otherwise ``trace`` leads to a state where not."""

    finding: Finding | None
    trace: tuple[Action, ...]


class Graph:
    """States by number and the steps between them that are no faults, in 8 bytes a step."""

    def __init__(self) -> None:
        self._hot = bytearray()
        self._sources = array("I")
        self._targets = array("I")

    def enter(self, *, hot: bool) -> None:
        """The next number's state."""
        self._hot.append(hot)

    def connect(self, source: int, target: int) -> None:
        self._sources.append(source)
        self._targets.append(target)

    def first_stuck(self) -> int | None:
        """The least number from which no state of rest can be reached, or None."""
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
        """For each state the sources of its steps: ``before[begins[n] : begins[n + 1]]``."""
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
