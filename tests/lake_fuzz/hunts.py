"""Hunts for mutants, and the survival of the code that ships over ten times as many windows.

Effort is counted in judged windows. Histories have consecutive seeds, so that every number is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count, islice
from typing import Final

from msgspec import Struct

from lake_fuzz.histories import History, made_history
from lake_fuzz.judge import SHIPPED, Check, Suspect, Wrong, judge
from lake_fuzz.mutants import LakeMutant

BUDGET: Final = 300  # windows within which each mutant must be found
SURVIVAL_FACTOR: Final = 10
PART_SEEDS: Final = 1_000_000  # seeds between the parts of a survival, which may run at the same time

Tell = Callable[[str], None]


class Hunt(Struct, frozen=True):
    """The result for one suspect."""

    windows: int  # judged
    wrong: Wrong | None


def hunt(mutants: Sequence[LakeMutant], budget: int, tell: Tell) -> list[Hunt]:
    """Judge every mutant until it is found or its budget is exhausted. All share the histories."""
    hunts = [Hunt(0, None) for _ in mutants]
    for seed in count():
        at_large = [place for place, each in enumerate(hunts) if each.wrong is None and each.windows < budget]
        if not at_large:
            return hunts
        with made_history(seed) as history:
            for place in at_large:
                mutant = mutants[place]
                hunts[place] = _continued(hunts[place], history, mutant.suspect, budget, mutant.check)
        tell(f"{len(mutants) - len(at_large)} of {len(mutants)} done, history {seed}")
    raise AssertionError("seeds do not end")


def survive(part: int, windows: int, tell: Tell) -> Hunt:
    """Judge the code that ships, up to the first finding."""
    found = Hunt(0, None)
    for seed in count(part * PART_SEEDS):
        if found.wrong is not None or found.windows >= windows:
            return found
        with made_history(seed) as history:
            found = _continued(found, history, SHIPPED, windows)
        tell(f"{found.windows:,} windows")
    raise AssertionError("seeds do not end")


def _continued(before: Hunt, history: History, suspect: Suspect, budget: int, check: Check | None = None) -> Hunt:
    """Judge one more history. Only findings of the given check count."""
    windows = before.windows
    with closing(judge(history, suspect)) as verdicts:
        for _, wrong in islice(verdicts, budget - windows):
            windows += 1
            if wrong is not None and check in (None, wrong.check):
                return Hunt(windows, wrong)
    return Hunt(windows, None)
