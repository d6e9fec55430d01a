"""The report of `./run bench delivery`: figures, targets, the baseline, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from delivery_idle import Idle
from delivery_parts import BigWindow, Comparison, Rate, Results
from delivery_places import NAMES
from delivery_tables import ONE, PLACES, ManyTables
from log_machine import is_busy

SIZES = ((10, 20_000), (10, 200_000), (100, 20_000), (100, 200_000))
RATES = {  # target rows per second, by kind, in the order of the sizes
    "ducklake": (40_000, 250_000, 12_000, 80_000),
    "ducklake-sqlite": (40_000, 250_000, 12_000, 80_000),
    "delta": (45_000, 300_000, 24_000, 150_000),
    "postgres": (40_000, 200_000, 40_000, 150_000),
}
RATIOS = {(10, 200_000): 1.0, (100, 20_000): 2.0}  # to the baseline; these are gates, for DuckLake
ROUTING_MAX = 2.0  # times the cost, with many more routing values that have no changes
TOUCHED_MAX = 1.0  # times the cost of a destination, with many more of them
IDLE_PERCENT_MAX = 2.0
GATE, TARGET = "gate", "target"
# A catalog in a DuckDB file is open in one process at a time: tasks attach and detach it for each flush, which the
# baseline, a single process, does not need. So the gates apply to catalogs that several processes may use.
GATED = "ducklake-sqlite"


@dataclass(frozen=True)
class Verdict:
    kind: str  # a gate must be met; a missed target is explained by a profile
    goal: str
    measured: str
    met: bool


def verdicts(results: Results) -> list[Verdict]:
    return [
        *(verdict for rate in results.rates for verdict in _of_rate(rate)),
        *(verdict for many in results.tables for verdict in _of_tables(many)),
        *(_of_routing(compared) for compared in results.routing),
        *(_of_touched(compared) for compared in results.touched),
        *([_of_big_window(results.big_window)] if results.big_window else ()),
        *(_of_idle(results.idle) if results.idle else ()),
    ]


def _of_rate(rate: Rate) -> Iterator[Verdict]:
    size = rate.destinations, rate.operations
    if size not in SIZES:
        return  # other sizes have no target
    name = f"{NAMES[rate.kind]}: {_size(rate)}"
    wanted = RATES[rate.kind][SIZES.index(size)]
    yield Verdict(TARGET, f"{name}: {wanted:,} rows/s", f"{rate.ours.rate:,.0f}", rate.ours.rate >= wanted)
    if rate.baseline is not None and size in RATIOS:
        ratio, least = rate.ours.rate / rate.baseline.rate, RATIOS[size]
        kind = GATE if rate.kind == GATED else TARGET
        yield Verdict(kind, f"{name}: at least {least:.0f} x the baseline", f"{ratio:.2f} x", ratio >= least)


def _of_tables(many: ManyTables) -> Iterator[Verdict]:
    name, first = f"{PLACES[many.place]}, {many.shape}", many.first
    complete = first.exit_code == 0 and first.failures == 0
    measured = f"exit code {first.exit_code}, {first.failures} failures of destinations"
    yield Verdict(GATE, f"{name}: `--once` completes at the first run", measured, complete)
    conflicts = first.conflicts + many.conflicts
    yield Verdict(GATE, f"{name}: no commit conflicts with another", f"{conflicts} conflicts", conflicts == 0)


def _of_routing(compared: Comparison) -> Verdict:
    ratio = compared.many_figures.seconds / compared.few_figures.seconds
    goal = (
        f"{NAMES[compared.kind]}: {compared.many:,} routing values of which {compared.few} are touched cost at most "
        f"{ROUTING_MAX:.0f} x of {compared.few}"
    )
    return Verdict(TARGET, goal, f"{ratio:.2f} x", ratio <= ROUTING_MAX)


def _of_touched(compared: Comparison) -> Verdict:
    few, many = _each_ms(compared)
    goal = (
        f"{NAMES[compared.kind]}: {compared.many:,} touched destinations cost no more each than {compared.few} "
        f"({few:.1f} ms)"
    )
    return Verdict(TARGET, goal, f"{many:.1f} ms", many <= few * TOUCHED_MAX)


def _each_ms(compared: Comparison) -> tuple[float, float]:
    few, many = compared.few_figures, compared.many_figures
    return few.seconds / compared.few * 1000, many.seconds / compared.many * 1000


def _of_big_window(found: BigWindow) -> Verdict:
    goal = f"{NAMES[found.kind]}: a window larger than the heap, 90 % of it in one tenant, completes"
    met = found.size_mib > found.heap_mib and found.path == "large"
    return Verdict(TARGET, goal, f"{found.size_mib:,.0f} MiB with a heap of {found.heap_mib} MiB", met)


def _of_idle(idle: Idle) -> Iterator[Verdict]:
    percent = f"an idle pipeline uses less than {IDLE_PERCENT_MAX:.0f} % of a core"
    yield Verdict(TARGET, percent, f"{idle.percent:.2f} %", idle.percent < IDLE_PERCENT_MAX)
    written = f"{len(idle.written)} files changed in {idle.seconds:.0f} s"
    yield Verdict(TARGET, "... and writes nothing to the source or a destination", written, not idle.written)


# ------------------------------------------------------------------------------------------------------------- as text


def report_lines(results: Results, *, profile: bool) -> Iterator[str]:
    yield from _machine_lines(results.machine)
    if results.rates:
        yield ""
        yield from _rate_lines(results.rates)
        yield ""
        yield from _split_lines(results.rates)
    if results.tables:
        yield ""
        yield from _tables_lines(results.tables)
    if results.sweep:
        yield ""
        yield from _sweep_lines(results.sweep)
    yield ""
    yield from _other_lines(results)
    if profile:
        yield from _profile_lines(results)
    yield ""
    for verdict in verdicts(results):
        yield f"{'PASS' if verdict.met else 'FAIL'}  {verdict.kind:6}  {verdict.goal}: {verdict.measured}"


def _machine_lines(facts: dict[str, Any]) -> Iterator[str]:
    yield (
        f"machine: {facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB, Linux {facts['kernel']},"
        f" {facts['file_system']}; 100 KiB written and synced: p50 {facts['sync_p50_ms']} ms,"
        f" p99 {facts['sync_p99_ms']} ms"
    )
    yield f"programs: {', '.join(f'{name} {version}' for name, version in facts['programs'].items())}"
    if is_busy(facts):
        yield (
            f"the machine was busy before this began (load {facts['load_before']}): wall times mean little, ratios and "
            "CPU-seconds a little more"
        )


def _size(rate: Rate) -> str:
    return f"{rate.destinations} x {rate.operations:,}"


def _rate_lines(rates: Sequence[Rate]) -> Iterator[str]:
    yield (
        f"{'median of the windows':64}{'rows/s':>10}{'target':>10}{'':>8}{'baseline':>10}{'ratio':>8}"
        f"{'CPU-s/M':>9}{'baseline':>10}"
    )
    for rate in rates:
        size = rate.destinations, rate.operations
        wanted = RATES[rate.kind][SIZES.index(size)] if size in SIZES else None
        met = "" if wanted is None else "met" if rate.ours.rate >= wanted else "missed"
        name = f"{NAMES[rate.kind]}: {_size(rate)}"
        line = f"{name:64}{rate.ours.rate:>10,.0f}{wanted or 0:>10,}{met:>8}"
        cpu = f"{rate.ours.cpu_seconds_per_million:>9.1f}"
        if rate.baseline is None:
            yield f"{line}{'':>18}{cpu}"
        else:
            ratio = rate.ours.rate / rate.baseline.rate
            yield (
                f"{line}{rate.baseline.rate:>10,.0f}{ratio:>8.2f}{cpu}{rate.baseline.cpu_seconds_per_million:>10.1f}"
            )


def _split_lines(rates: Sequence[Rate]) -> Iterator[str]:
    yield "where the milliseconds of a window go (in tasks: the mean over them):"
    for rate in rates:
        if rate.ours.split is not None:
            yield f"{rate.kind:16} {_size(rate):14} {rate.ours.seconds * 1000:>7,.0f} = {rate.ours.split.as_text}"


def _tables_lines(found: Sequence[ManyTables]) -> Iterator[str]:
    yield (
        f"{'many tables of one place (ratio: to the same changes in one table)':70}{'rows/s':>10}{'ratio':>8}"
        f"{'CPU-s/M':>9}{'ratio':>8}{'first run: s':>14}{'CPU-s/M':>9}{'rows/s':>10}"
    )
    single = {many.place: many.windows for many in found if many.shape == ONE}
    for many in found:
        one, ours, first = single.get(many.place, many.windows), many.windows, many.first
        yield (
            f"{PLACES[many.place] + ', ' + many.shape:70}{ours.rate:>10,.0f}{ours.rate / one.rate:>8.2f}"
            f"{ours.cpu_seconds_per_million:>9.1f}{ours.cpu_seconds_per_million / one.cpu_seconds_per_million:>8.1f}"
            f"{first.seconds:>14.1f}{first.cpu_seconds / first.rows * 1e6:>9.1f}{first.rows / first.seconds:>10,.0f}"
        )
    yield "the first run's CPU-seconds are those of the whole command, most of them for the start of Spark"
    yield "where the milliseconds of a window go (in tasks: the mean over them):"
    for many in found:
        if many.windows.split is not None:
            name = f"{many.place}, {many.shape}"
            yield f"{name:56} {many.windows.seconds * 1000:>7,.0f} = {many.windows.split.as_text}"


def _sweep_lines(sweep: Sequence[Rate]) -> Iterator[str]:
    yield f"{'task slots':44}{'rows/s':>10}{'CPU-s/M':>10}"
    for rate in sweep:
        name = f"{rate.kind} {_size(rate)}, {rate.slots} slots"
        yield f"{name:44}{rate.ours.rate:>10,.0f}{rate.ours.cpu_seconds_per_million:>10.1f}"


def _other_lines(results: Results) -> Iterator[str]:
    for compared in results.routing:
        few, many = compared.few_figures, compared.many_figures
        yield (
            f"{compared.kind}, {compared.few} destinations touched: {few.seconds * 1000:,.0f} ms a window of all,"
            f" {many.seconds * 1000:,.0f} ms with {compared.many:,} configured"
        )
        yield f"  {few.split.as_text if few.split else ''}"
        yield f"  {many.split.as_text if many.split else ''}"
    for compared in results.touched:
        per_few, per_many = _each_ms(compared)
        yield (
            f"{compared.kind}, every destination touched: {per_few:.1f} ms each of {compared.few:,}, "
            f"{per_many:.1f} ms each of {compared.many:,}"
        )
    if (big := results.big_window) is not None:
        peaks = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in big.peaks_mib.items())
        yield (
            f"{big.kind}, a window of {big.rows:,} rows ({big.size_mib:,.0f} MiB), 90 % in one tenant, heap "
            f"{big.heap_mib} MiB: {big.seconds:.1f} s; peaks: {peaks}"
        )
    if (idle := results.idle) is not None:
        yield (
            f"idle pipeline with {idle.destinations} destinations: {idle.percent:.2f} % of a core (of which the driver "
            f"{idle.driver_percent:.2f}), {len(idle.written)} files of source and destinations changed; the control "
            f"store was {'written (leases)' if idle.control_written else 'not written'}"
        )


def _profile_lines(results: Results) -> Iterator[str]:
    yield ""
    yield "statements of DuckLake destinations, all windows and tasks (calls, seconds, ms each):"
    for name, calls, seconds in results.hot_statements:
        yield f"  {name:28}{calls:>8}{seconds:>9.2f}{seconds / calls * 1000:>9.2f}"
    yield "functions of tasks (calls, seconds in themselves):"
    for name, calls, seconds in results.hot_functions:
        yield f"  {name:60}{calls:>8}{seconds:>9.2f}"


# ------------------------------------------------------------------------------------------------------------- as JSON


def report_values(results: Results) -> dict[str, Any]:
    return {**asdict(results), "verdicts": [asdict(verdict) for verdict in verdicts(results)]}
