"""The fuzz of real lakes, ``./run fuzz``: each mutant must be found, and the correct code must survive.

Random histories of a DuckLake table are written, every window of them is read and settled, and the result is compared
with what the lake itself showed at each version. Mutants have one known bug; the code that ships must survive ten times
as many windows as each mutant may take.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from lake_fuzz.hunts import BUDGET, SURVIVAL_FACTOR, Hunt, Tell, hunt, survive
from lake_fuzz.mutants import MUTANTS, LakeMutant
from trunkline.check.report import table
from trunkline.check.runner import Task, cores, run_tasks
from trunkline.plural import plural


class FuzzResult(Struct, frozen=True):
    mutants: Sequence[LakeMutant]
    budget: int
    hunts: Sequence[Hunt]
    survivals: Sequence[Hunt]

    @property
    def good(self) -> bool:
        """Every mutant was found, and nothing is wrong with the code that ships."""
        return all(each.wrong for each in self.hunts) and not any(each.wrong for each in self.survivals)

    def text(self, seconds: float) -> str:
        rows = [
            (mutant.name, self._found(each), mutant.check, _where(each), mutant.summary)
            for mutant, each in zip(self.mutants, self.hunts, strict=True)
        ]
        found = sum(each.wrong is not None for each in self.hunts)
        mutants = table(("mutant", "found after", "check", "seed, window", "what"), rows)
        return f"{mutants}\n\n{found} of {len(rows)} mutants found, {self._survival()}, {seconds:.1f} s"

    def _found(self, hunt: Hunt) -> str:
        return plural(hunt.windows, "window") if hunt.wrong else f"NOT FOUND in {plural(self.budget, 'window')}"

    def _survival(self) -> str:
        for each in self.survivals:
            if each.wrong is not None:
                return f"CORRECT CODE IS WRONG ({each.wrong.check}, {_where(each)}: {each.wrong.what})"
        return f"correct code survives {plural(sum(each.windows for each in self.survivals), 'window')}"


def fuzz(mutants: Sequence[LakeMutant], jobs: int, budget: int = BUDGET) -> FuzzResult:
    windows = -(-budget * SURVIVAL_FACTOR // jobs)
    tasks: list[Task[list[Hunt]]] = [partial(hunt, mutants, budget)]
    tasks += [partial(_survive, part, windows) for part in range(jobs)]
    titles = ["mutants", *(f"correct code, part {part + 1} of {jobs}" for part in range(jobs))]

    def done(index: int, _: object) -> None:
        print(f"{titles[index]}: done", file=sys.stderr)

    hunts, *survivals = [each or [] for each in run_tasks(tasks, jobs=jobs, on_result=done)]
    return FuzzResult(mutants, budget, hunts, [each for part in survivals for each in part])


def _survive(part: int, windows: int, tell: Tell) -> list[Hunt]:
    return [survive(part, windows, tell)]


def _where(hunt: Hunt) -> str:
    wrong = hunt.wrong
    return "-" if wrong is None else f"{wrong.seed}, ({wrong.window.after}, {wrong.window.through}]"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./run fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {mutant.name: mutant for mutant in MUTANTS}
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help="which mutants (default: all)")
    parser.add_argument("--budget", type=int, default=BUDGET, help=f"windows for each mutant (default: {BUDGET})")
    parser.add_argument("--jobs", type=int, default=cores(), help="worker processes (default: cores)")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.mutants if name not in known]:
        parser.error(f"there is no mutant {unknown[0]!r}; the mutants are {', '.join(known)}")
    if options.list:
        print(table(("mutant", "check", "what"), [(each.name, each.check, each.summary) for each in MUTANTS]))
        return 0
    started = time.monotonic()
    result = fuzz([known[name] for name in options.mutants or known], max(1, options.jobs), options.budget)
    print(result.text(time.monotonic() - started))
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
