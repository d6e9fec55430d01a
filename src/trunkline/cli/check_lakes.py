"""The mutants of delivery, which the fuzz over real lakes must find: a part of ``trunkline check --mutants``.

Only they need the packages of the extra ``delivery``, which are imported on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trunkline.check import report
from trunkline.check.runner import ReportProgress, Task, run_tasks
from trunkline.cli.check_output import Output
from trunkline.cli.tables import plural

if TYPE_CHECKING:
    from trunkline.delivery.fuzz.hunts import Hunt
    from trunkline.delivery.fuzz.mutants import LakeMutant

NEEDED = ("duckdb", "duckdb_extension_ducklake", "msgspec", "numpy", "pyarrow")
MISSING = "skipping the mutants of delivery, whose packages are missing: pip install 'trunkline[delivery]'"


def lake_mutants(names: Sequence[str], output: Output) -> list[LakeMutant]:
    """The mutants with these names, or all. None, with a note, if their packages are not installed."""
    if any(find_spec(package) is None for package in NEEDED):
        output.note(f"note: {MISSING}")
        return []
    from trunkline.delivery.fuzz.mutants import MUTANTS

    return [mutant for mutant in MUTANTS if not names or mutant.name in names]


class LakeHunts:
    """The results for the lake mutants and for the correct code."""

    def __init__(self, mutants: Sequence[LakeMutant], jobs: int, output: Output, budget: int | None = None) -> None:
        """Search for every mutant; the correct code must survive ten times the windows of a mutant's budget."""
        from trunkline.delivery.fuzz.hunts import BUDGET, SURVIVAL_FACTOR, hunt

        self._mutants = mutants
        self._budget = BUDGET if budget is None else budget
        parts = max(1, jobs)
        windows = -(-self._budget * SURVIVAL_FACTOR // parts)
        tasks: list[Task[list[Hunt]]] = [partial(hunt, mutants, self._budget)]
        tasks += [partial(_survive, part, windows) for part in range(parts)]
        titles = ["mutants of delivery", *(f"correct delivery, part {part + 1} of {parts}" for part in range(parts))]
        with output.progress(titles) as progress:
            found = run_tasks(tasks, jobs=jobs, on_progress=progress.show, on_result=progress.done)
        self._hunts, *survivals = [each or [] for each in found]
        self._survivals = [each for part in survivals for each in part]

    @property
    def good(self) -> bool:
        """All mutants were found, and the correct code survived."""
        return all(each.wrong for each in self._hunts) and not any(each.wrong for each in self._survivals)

    def text(self, seconds: float) -> str:
        rows = [
            (mutant.name, self._found(each), mutant.check, _where(each), mutant.summary)
            for mutant, each in zip(self._mutants, self._hunts, strict=True)
        ]
        found = sum(each.wrong is not None for each in self._hunts)
        table = report.table(("mutant of delivery", "found after", "check", "seed, window", "what"), rows)
        return f"{table}\n\n{found} of {len(rows)} mutants of delivery found, {self._survival()}, {seconds:.1f} s"

    def json(self) -> list[dict[str, Any]]:
        survivals = {
            "survival_windows": sum(part.windows for part in self._survivals),
            "survives": not any(part.wrong for part in self._survivals),
        }
        return [
            {
                "mutant": mutant.name,
                "check": mutant.check,
                "found": each.wrong is not None,
                "windows": each.windows,
                "budget": self._budget,
                "seed": each.wrong.seed if each.wrong else None,
                "window": [each.wrong.window.after, each.wrong.window.through] if each.wrong else None,
            }
            | survivals
            for mutant, each in zip(self._mutants, self._hunts, strict=True)
        ]

    def _found(self, hunt: Hunt) -> str:
        return plural(hunt.windows, "window") if hunt.wrong else f"NOT FOUND in {plural(self._budget, 'window')}"

    def _survival(self) -> str:
        for each in self._survivals:
            if each.wrong is not None:
                return f"CORRECT CODE IS WRONG ({each.wrong.check}, {_where(each)}: {each.wrong.what})"
        return f"correct code survives {plural(sum(each.windows for each in self._survivals), 'window')}"


def _survive(part: int, windows: int, report_progress: ReportProgress) -> list[Hunt]:
    from trunkline.delivery.fuzz.hunts import survive

    return [survive(part, windows, report_progress)]


def _where(hunt: Hunt) -> str:
    wrong = hunt.wrong
    return "-" if wrong is None else f"{wrong.seed}, ({wrong.window.after}, {wrong.window.through}]"
