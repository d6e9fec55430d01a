"""Results as text and as JSON. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from trunkline.check.replay import Replay, lines
from trunkline.check.results import (
    SURVIVAL_FACTOR,
    MutantReport,
    ScenarioReport,
    SurvivalReport,
    ViolationReport,
)
from trunkline.check.scenario import Faults, Scenario

FAIR_FIRST, FAIR_LAST = 20, 15  # steps of a fair phase that are shown
Survivals = dict[tuple[str, str], SurvivalReport]  # by scenario and strategy


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with headings; columns of numbers are right-aligned."""
    body = [list(row) for row in rows]
    widths = [max(len(row[at]) for row in [list(columns), *body]) for at in range(len(columns))]
    right = [bool(body) and all(_numeric(row[at]) for row in body) for at in range(len(columns))]
    rendered = []
    for row in [list(columns), *body]:
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        rendered.append("  ".join(cells).rstrip())
    rendered.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(rendered)


def scenario_table(reports: Sequence[ScenarioReport], seconds: float) -> str:
    rows = [
        (
            report.scenario,
            strategy_text(report),
            states_text(report),
            f"{report.transitions:,}",
            str(report.depth),
            str(len(report.coverage)),
            str(len(report.violations)),
        )
        for report in reports
    ]
    columns = ("scenario", "strategy", "distinct states", "transitions", "depth", "coverage pairs", "violations")
    return table(columns, rows) + "\n\n" + closing_line(reports, seconds)


def closing_line(reports: Sequence[ScenarioReport], seconds: float) -> str:
    violations = sum(len(report.violations) for report in reports)
    return f"{_count(len(reports), 'scenario')}, {_count(violations, 'violation')}, {seconds:.1f} s"


def strategy_text(report: ScenarioReport) -> str:
    parts = [report.strategy]
    if report.schedules:
        parts.append(f"({_count(report.schedules, 'schedule')})")
    if report.complete:
        parts.append("(exhausted)")
    return " ".join(parts)


def states_text(report: ScenarioReport) -> str:
    return f"{'' if report.exact else '~'}{report.states:,}"


def exhaustive_text(scenario: Scenario, report: ScenarioReport, limits: str) -> str:
    rate = report.states / report.cpu_seconds if report.cpu_seconds else 0.0
    facts = [
        ("scenario", f"{scenario.name}: {scenario.summary}"),
        ("bounds", bounds_text(scenario) + (f"; {limits}" if limits else "")),
        (
            "states",
            f"{report.states:,}"
            + (" (all within the bounds)" if report.complete else " (not all: a limit was reached)"),
        ),
        ("transitions", f"{report.transitions:,}"),
        ("depth", str(report.depth)),
        ("coverage", f"{len(report.coverage)} pairs of role state and event"),
        ("liveness", report.liveness),
        ("cpu seconds", f"{report.cpu_seconds:.2f}"),
        ("memory", f"{report.memory_bytes / 2**20:,.0f} MiB"),
        ("states/s", f"{rate:,.0f}"),
        ("violations", str(len(report.violations))),
    ]
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in facts)


def bounds_text(scenario: Scenario) -> str:
    operations = sum(len(process.operations) for process in scenario.processes)
    budgets = [f"{name} {count}" for name, count in asdict(scenario.faults).items() if count]
    parts = [
        _count(len(scenario.processes), "process", "processes"),
        _count(operations, "operation"),
        "FIFO network" if scenario.fifo else "bag network",
        ("faults: " + ", ".join(budgets)) if scenario.faults != Faults() else "no faults",
    ]
    free = [f"{each.process}.{each.role} {each.key} {each.count} times" for each in scenario.free_timers]
    dropped = [f"{each.source}>{each.target} {each.message} {each.count} times" for each in scenario.drops]
    parts += ["free timers: " + ", ".join(free)] if free else []
    parts += ["dropped: " + ", ".join(dropped)] if dropped else []
    parts += [f"{scenario.copies} copies of a message"] if scenario.copies > 1 else []
    return "; ".join(parts)


def coverage_text(report: ScenarioReport) -> str:
    title = f"{report.scenario}: {len(report.coverage)} pairs"
    return "\n".join([title, *(f"  {role} {phase} {event}" for role, phase, event in report.coverage)])


def mutant_table(reports: Sequence[MutantReport], survivals: Survivals, seconds: float) -> str:
    rows = [
        (
            report.mutant,
            report.scenario,
            report.strategy,
            found_text(report),
            str(report.steps) if report.violation else "-",
            report.finding.monitor if report.finding else "-",
            survival_text(report, survivals),
        )
        for report in reports
    ]
    columns = ("mutant", "scenario", "strategy", "found after", "steps", "monitor", "correct code survives")
    found = sum(report.found for report in reports)
    closing = f"{found} of {_count(len(reports), 'mutant')} found, {seconds:.1f} s"
    return table(columns, rows) + "\n\n" + closing


def found_text(report: MutantReport) -> str:
    unit = "states" if report.strategy == "breadth" else "schedules"
    if report.found_after is None:
        return f"NOT FOUND in {report.budget:,} {unit}"
    if not report.found:
        return f"OTHER MONITOR (expected {' or '.join(report.expected)})"
    return f"{report.found_after:,} {unit}"


def survives(report: MutantReport, survivals: Survivals) -> bool:
    survival = survivals[report.scenario, report.strategy]
    enough = survival.complete or survival.reached >= report.budget * SURVIVAL_FACTOR
    return survival.finding is None and enough


def survival_text(report: MutantReport, survivals: Survivals) -> str:
    survival = survivals[report.scenario, report.strategy]
    if survival.finding is not None:
        return f"NO: {survival.finding.monitor}"
    if survival.complete:
        return f"yes (exhausted: {survival.reached:,} states)"
    unit = "states" if report.strategy == "breadth" else "schedules"
    verdict = "yes" if survives(report, survivals) else "TOO SHORT"
    return f"{verdict} ({survival.reached:,} {unit})"


def violation_text(scenario: str, violation: ViolationReport, commands: Sequence[str], page: str | None) -> str:
    """Monitor, finding, the shrunk run, the commands that replay it, and the path of its diagram."""
    parts = [f"VIOLATION in {scenario}: {violation.finding.monitor}", f"  {violation.finding.text}"]
    if violation.replay is not None:
        parts += ["", f"  {_count(len(violation.replay.steps), 'step')}:"]
        parts += [f"  {line}" for line in _readable(violation.replay)]
        parts.append("")
    parts += [f"  replay:  {command}" for command in commands]
    if page is not None:
        parts.append(f"  diagram: {page}")
    return "\n".join(parts)


def _readable(replay: Replay) -> list[str]:
    """All steps before the fair phase; of a long fair phase its beginning and its end, which is often a loop."""
    shown = list(lines(replay))
    fair_from = len(shown) if replay.fair_from is None else replay.fair_from
    hidden = len(shown) - fair_from - FAIR_FIRST - FAIR_LAST
    if hidden <= 0:
        return shown
    return [*shown[: fair_from + FAIR_FIRST], f"... {_count(hidden, 'fair step')} ...", *shown[-FAIR_LAST:]]


def scenario_json(report: ScenarioReport) -> dict[str, Any]:
    return {
        **{
            name: value for name, value in vars(report).items() if name not in ("violations", "coverage", "events_seen")
        },
        "coverage": [list(pair) for pair in report.coverage],
        "events_seen": dict(report.events_seen),
        "violations": [violation_json(violation) for violation in report.violations],
    }


def violation_json(violation: ViolationReport) -> dict[str, Any]:
    return {
        "monitor": violation.finding.monitor,
        "text": violation.finding.text,
        "seed": violation.seed,
        "strategy": violation.strategy,
        "steps": list(lines(violation.replay)) if violation.replay else [],
        "actions": violation.file.text() if violation.file else None,
    }


def mutant_json(report: MutantReport, survivals: Survivals) -> dict[str, Any]:
    survival = survivals[report.scenario, report.strategy]
    return {
        "mutant": report.mutant,
        "scenario": report.scenario,
        "strategy": report.strategy,
        "budget": report.budget,
        "found": report.found,
        "found_after": report.found_after,
        "expected": list(report.expected),
        "trace_length": report.steps,
        "violation": violation_json(report.violation) if report.violation else None,
        "survives": survives(report, survivals),
        "survival": {"reached": survival.reached, "exhausted": survival.complete},
    }


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _numeric(cell: str) -> bool:
    return cell.removeprefix("~").replace(",", "").replace(".", "").isdigit()
