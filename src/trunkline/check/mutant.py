"""A mutant: the code with one known bug, and the budget within which the checker must find it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

Strategy = Literal["breadth", "random", "pct", "swarm"]


@dataclass(frozen=True)
class Mutant:
    """One patch of one role or of one rule of the world.

    ``patch`` is entered before the scenario is built and exited after the last step, so it may replace methods of role
    classes; the exit must undo everything. ``budget`` counts states for ``breadth`` and schedules for the others.
    ``breaks`` names the numbered rules that the bug breaks, each as module and rule: ``"reader D1"``.
    """

    name: str
    summary: str
    scenario: str
    patch: Callable[[], AbstractContextManager[None]]
    monitor: str | tuple[str, ...]  # the monitor that must report it, or any of several
    strategy: Strategy
    budget: int
    breaks: tuple[str, ...] = ()

    @property
    def monitors(self) -> tuple[str, ...]:
        """The names of the monitors that may report this mutant."""
        return (self.monitor,) if isinstance(self.monitor, str) else self.monitor
