"""The fuzz of the direct writer of lakes, ``./run writer-fuzz``: each mutant must be found, and the code that ships
must survive.

Random steps are written to a lake: direct flushes, flushes by the extension, statements of other programs, maintenance.
DuckDB's own reader judges after each. Mutants have one known bug each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from functools import cache
from itertools import count

from msgspec import Struct

from postgres_server import PostgresServer
from trunkline.check.report import table
from trunkline.plural import plural
from writer_fuzz.histories import STEPS_EACH, Servers, judged_steps
from writer_fuzz.judge import Wrong
from writer_fuzz.mutants import MUTANTS, WriterMutant

BUDGET = 200  # steps within which each mutant must be found
STEPS = 3000  # that the code that ships must survive, for each kind of catalog
CATALOGS = ("sqlite", "postgres")


class Hunt(Struct):
    steps: int = 0
    seed: int = 0
    wrong: Wrong | None = None
    kinds: Counter[str] = Counter()


def hunt(catalog: str, steps: int, postgres: Servers, mutant: WriterMutant | None = None, first: int = 0) -> Hunt:
    """Judge random steps, up to the first finding."""
    found = Hunt(kinds=Counter())
    for seed in count(first):
        for name, wrong in _steps(seed, catalog, postgres, mutant):
            found.steps += 1
            found.kinds[name] += 1
            if wrong is not None:
                found.seed, found.wrong = seed, wrong
            if wrong is not None or found.steps >= steps:
                return found
        print(f"{catalog}: {plural(found.steps, 'step')}, history {seed}", file=sys.stderr)
    raise AssertionError("seeds do not end")


def _steps(
    seed: int, catalog: str, postgres: Servers, mutant: WriterMutant | None
) -> Iterator[tuple[str, Wrong | None]]:
    with nullcontext() if mutant is None else mutant.planted():
        yield from judged_steps(seed, catalog, postgres, STEPS_EACH)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./run writer-fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {mutant.name: mutant for mutant in MUTANTS}
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help="which mutants (default: all)")
    parser.add_argument("--catalog", choices=CATALOGS, action="append", help="kind of catalog (default: both)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"to survive, for each kind (default: {STEPS})")
    parser.add_argument("--budget", type=int, default=BUDGET, help=f"steps for each mutant (default: {BUDGET})")
    parser.add_argument("--seed", type=int, default=0, help="of the first history (default: 0)")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.mutants if name not in known]:
        parser.error(f"there is no mutant {unknown[0]!r}; the mutants are {', '.join(known)}")
    if options.list:
        print(table(("mutant", "what"), [(each.name, each.summary) for each in MUTANTS]))
        return 0
    with ExitStack() as stack:

        @cache
        def postgres() -> PostgresServer:
            return stack.enter_context(PostgresServer())

        return _report([known[name] for name in options.mutants or known], options, postgres)


def _report(mutants: Sequence[WriterMutant], options: argparse.Namespace, postgres: Servers) -> int:
    begun, rows, good = time.monotonic(), [], True
    if options.budget:
        for mutant in mutants:
            found = hunt("sqlite", options.budget, postgres, mutant, options.seed)
            good = good and found.wrong is not None
            check = found.wrong.check if found.wrong else "-"
            after = plural(found.steps, "step") if found.wrong else f"NOT FOUND in {plural(found.steps, 'step')}"
            rows.append((mutant.name, after, check, mutant.summary))
            print(f"{mutant.name}: done", file=sys.stderr)
        print(table(("mutant", "found after", "check", "what"), rows))
    for catalog in (options.catalog or CATALOGS) if options.steps else ():
        found = hunt(catalog, options.steps, postgres, first=options.seed)
        good = good and found.wrong is None
        kinds = ", ".join(f"{number} {name}" for name, number in found.kinds.most_common())
        print(f"{catalog}: {plural(found.steps, 'step')} ({kinds})")
        if found.wrong is not None:
            print(f"CORRECT CODE IS WRONG: seed {found.seed}: {found.wrong.check}: {found.wrong.what}")
    print(f"{time.monotonic() - begun:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
