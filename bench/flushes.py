"""What one small flush costs, again and again, and into tables of ever more files.

    ./run bench flushes [--quick] [--kind KIND]... [--flushes N] [--plot FILE] [--json] [--dir DIR]

One process flushes 200 operations (160 inserts, 30 updates, 10 deletes) into one table, a thousand times, with
all the upkeep that a deliverer does. The cost of a flush must stay flat. Then tables of 10, 50 and 200 files get a few
flushes each. Exit code 0: the cost stays flat; 1: it grows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_command import measured, parser_of, say
from flushes_plot import plot
from flushes_table import KINDS, NAMES, BenchTable, Cost, bench_server, middle_cost
from log_machine import is_busy, machine_facts

OPERATIONS = 200
FIRST_ROWS = 10_000
WARM_UP = 20  # flushes that are not counted
GROWTH_MAX = 1.5  # of the CPU time of a flush, from the second tenth of the flushes to the last
FILES = (10, 50, 200)
FLUSHES_OF_FILES = 8  # into a table of so many files: fewer than after which it is compacted


@dataclass(frozen=True)
class Stretch:
    """A tenth of all flushes."""

    flushes: int  # at its end
    cost: Cost
    files: int | None  # of the table at its end; None: it has no files


@dataclass(frozen=True)
class Kind:
    kind: str
    stretches: list[Stretch]
    by_files: dict[int, Cost]

    @property
    def growth(self) -> float:
        return self.stretches[-1].cost.cpu_ms / self.stretches[1].cost.cpu_ms


@dataclass
class Results:
    machine: dict[str, Any]
    kinds: list[Kind] = field(default_factory=list)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("flushes", __doc__, quick="100 flushes", needs="2 GB")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be repeated")
    parser.add_argument("--flushes", type=int, help="how many, at least 20 (default: 1000)")
    parser.add_argument("--plot", type=Path, help="also draw the cost of flushes into this SVG file")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, directory: Path) -> Results:
    results = Results(machine_facts(directory))
    count = max(20, options.flushes or (100 if options.quick else 1000))
    for kind in options.kind or KINDS:
        with bench_server(kind) as server:
            stretches = list(_stretches(BenchTable(kind, directory / kind, server), count))
            files = FILES[:1] if options.quick else FILES
            by_files = {
                number: cost
                for number in files
                if (cost := _cost_with_files(BenchTable(kind, directory / f"{kind}-{number}", server), number))
            }
        results.kinds.append(Kind(kind, stretches, by_files))
    if options.plot is not None:
        options.plot.write_text(plot({NAMES[each.kind]: _points(each) for each in results.kinds}))
    return results


def _stretches(table: BenchTable, count: int) -> Iterator[Stretch]:
    with table:
        table.seed(FIRST_ROWS)
        for _ in range(WARM_UP):
            table.flush(OPERATIONS)
        costs = list[Cost]()
        for number in range(1, count + 1):
            costs.append(table.flush(OPERATIONS))
            if len(costs) == count // 10:
                stretch = Stretch(number, middle_cost(costs), table.files())
                say(f"{table.kind}: flush {number}: {_text(stretch)}")
                yield stretch
                costs.clear()
        table.check()


def _cost_with_files(table: BenchTable, files: int) -> Cost | None:
    with table:
        if not table.has_files:
            return None
        table.seed(FIRST_ROWS)
        table.add_files(files)
        costs = [table.flush(OPERATIONS) for _ in range(FLUSHES_OF_FILES)]
        table.check()
    return middle_cost(costs[1:])


def _points(kind: Kind) -> list[tuple[int, float]]:
    return [(stretch.flushes, stretch.cost.cpu_ms) for stretch in kind.stretches]


def _text(stretch: Stretch) -> str:
    files = "" if stretch.files is None else f", {stretch.files} files"
    cost = stretch.cost
    return f"{cost.cpu_ms:.1f} CPU-ms, p50 {cost.p50_ms:.1f} ms, p99 {cost.p99_ms:.1f} ms{files}"


def report_lines(results: Results) -> Iterator[str]:
    facts = results.machine
    yield f"machine: {facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB, {facts['file_system']}"
    if is_busy(facts):
        yield f"the machine was busy before this began (load {facts['load_before']}): compare CPU-ms, not ms"
    yield f"a flush of {OPERATIONS} operations; CPU-s/M: per million operations"
    for kind in results.kinds:
        yield f"{NAMES[kind.kind]}:"
        for stretch in kind.stretches:
            per_million = stretch.cost.cpu_ms / OPERATIONS * 1e3
            yield f"  after {stretch.flushes:>6,} flushes  {_text(stretch)}, {per_million:.0f} CPU-s/M"
        for files, cost in kind.by_files.items():
            yield f"  a table of {files} files: {cost.cpu_ms:.1f} CPU-ms, p50 {cost.p50_ms:.1f} ms"
    for kind in results.kinds:
        verdict = "PASS" if kind.growth <= GROWTH_MAX else "FAIL"
        yield f"{verdict}  {NAMES[kind.kind]}: the cost of a flush grows at most {GROWTH_MAX} x: {kind.growth:.2f} x"


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    return measured(
        "flushes",
        options,
        lambda directory: run(options, directory),
        lines=report_lines,
        values=asdict,
        met=lambda results: all(kind.growth <= GROWTH_MAX for kind in results.kinds),
    )


if __name__ == "__main__":
    sys.exit(main())
