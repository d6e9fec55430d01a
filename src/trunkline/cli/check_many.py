"""Searches over scenarios, schedules and mutants, spread over worker processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from trunkline.check import report, rules
from trunkline.check.campaign import (
    SchedulePlan,
    SearchBounds,
    check_by_default,
    check_exhaustively,
    check_schedules,
    hunt,
    survive,
)
from trunkline.check.catalogue import Catalogue
from trunkline.check.mutant import Mutant, Strategy
from trunkline.check.results import SURVIVAL_FACTOR, MutantReport, ScenarioReport, SurvivalReport, merged, with_vacuity
from trunkline.check.runner import ReportProgress, Task, run_tasks
from trunkline.check.scenario import Scenario
from trunkline.cli.check_output import Output

Result = TypeVar("Result")

CHUNK_SCHEDULES_MIN = 200  # fewer schedules do not justify another worker


def by_default(
    known: Catalogue, names: Sequence[str], schedules: int, bounds: SearchBounds, jobs: int, output: Output
) -> int:
    tasks = [partial(check_by_default, known.scenario(name), bounds, schedules) for name in names]
    return _table_of(names, tasks, jobs, output)


def exhaustive(known: Catalogue, names: Sequence[str], bounds: SearchBounds, jobs: int, output: Output) -> int:
    limits = ", ".join(
        f"at most {limit:,} {unit}"
        for limit, unit in ((bounds.max_states, "states"), (bounds.max_depth, "steps deep"))
        if limit is not None
    )

    tasks = [partial(_exhaustively, known.scenario(name), bounds) for name in names]
    with output.progress(names) as progress:
        reports = _all(run_tasks(tasks, jobs=jobs, on_progress=progress.show, on_result=progress.done))
    if output.as_json:
        output.print_json({"scenarios": [report.scenario_json(each) for each in reports]})
    for each in reports:
        if not output.as_json:
            output.print(report.exhaustive_text(known.scenario(each.scenario), each, limits) + "\n")
        output.violations(each)
        output.coverage_of(each)
    return _exit_code(reports)


def schedules(
    known: Catalogue, names: Sequence[str], plan: SchedulePlan, bounds: SearchBounds, jobs: int, output: Output
) -> int:
    started = time.monotonic()
    reports = [_scenario_schedules(known, name, plan, bounds, jobs, output) for name in names]
    _print_table(reports, time.monotonic() - started, output)
    for each in reports:
        if each.never_seen and not each.violations:
            output.note(f"note: {each.scenario}: these schedules never saw {', '.join(each.never_seen)}")
    return _exit_code(reports)


def mutants(
    known: Catalogue,
    names: Sequence[str],
    scenarios: Sequence[str],
    bounds: SearchBounds,
    jobs: int,
    output: Output,
    *,
    with_rules: bool,
) -> int:
    """Each mutant must be found, and the correct code must survive the same search with ten times the budget."""
    chosen = [known.mutant(name) for name in names] if names else list(known.mutants)
    if scenarios:
        chosen = [mutant for mutant in chosen if mutant.scenario in scenarios]
    good, document = _protocol_mutants(known, chosen, bounds, jobs, output)
    if with_rules and not names and not scenarios and not output.as_json:
        output.print("\n" + rules.closing_line(rules.shipped_table()))
    if output.as_json:
        output.print_json(document)
    return 0 if good else 1


def _protocol_mutants(
    known: Catalogue, chosen: Sequence[Mutant], bounds: SearchBounds, jobs: int, output: Output
) -> tuple[bool, dict[str, Any]]:
    started = time.monotonic()
    budgets = _survival_budgets(chosen)
    tasks: list[Task[MutantReport | SurvivalReport]] = []
    tasks += [partial(hunt, mutant, partial(known.scenario, mutant.scenario), bounds) for mutant in chosen]
    tasks += [partial(survive, known.scenario(name), how, budget, bounds) for (name, how), budget in budgets.items()]
    titles = [mutant.name for mutant in chosen] + [f"correct {name} ({how})" for name, how in budgets]
    with output.progress(titles) as progress:
        results = _all(run_tasks(tasks, jobs=jobs, on_progress=progress.show, on_result=progress.done))
    hunts = [each for each in results if isinstance(each, MutantReport)]
    survivals = {(each.scenario, each.strategy): each for each in results if isinstance(each, SurvivalReport)}
    keyed: report.Survivals = {(name, str(how)): each for (name, how), each in survivals.items()}
    if not output.as_json:
        output.print(report.mutant_table(hunts, keyed, time.monotonic() - started))
    for each in hunts:
        output.mutant_files(each)
    good = all(each.found and report.survives(each, keyed) for each in hunts)
    return good, {"mutants": [report.mutant_json(each, keyed) for each in hunts]}


def _exhaustively(scenario: Scenario, bounds: SearchBounds, report_progress: ReportProgress) -> ScenarioReport:
    """Only a complete search can prove that an event never happens."""
    found = check_exhaustively(scenario, bounds, report_progress)
    return with_vacuity(found) if found.complete else found


def _survival_budgets(mutants: Sequence[Mutant]) -> dict[tuple[str, Strategy], int]:
    """One search of the correct code serves all mutants of the same scenario and strategy."""
    budgets: dict[tuple[str, Strategy], int] = {}
    for mutant in mutants:
        key = (mutant.scenario, mutant.strategy)
        budgets[key] = max(budgets.get(key, 0), mutant.budget * SURVIVAL_FACTOR)
    return budgets


def _table_of(names: Sequence[str], tasks: Sequence[Task[ScenarioReport]], jobs: int, output: Output) -> int:
    started = time.monotonic()
    with output.progress(names) as progress:
        reports = _all(run_tasks(tasks, jobs=jobs, on_progress=progress.show, on_result=progress.done))
    _print_table(reports, time.monotonic() - started, output)
    return _exit_code(reports)


def _scenario_schedules(
    known: Catalogue, name: str, plan: SchedulePlan, bounds: SearchBounds, jobs: int, output: Output
) -> ScenarioReport:
    """Consecutive chunks of seeds, one worker each; the lowest seed with a finding wins."""
    chunks = max(1, min(jobs, plan.schedules // CHUNK_SCHEDULES_MIN))
    edges = [plan.first_seed + plan.schedules * at // chunks for at in range(chunks + 1)]
    plans = [SchedulePlan(plan.strategy, first, end - first) for first, end in pairwise(edges)]
    tasks = [partial(check_schedules, known.scenario(name), each, bounds) for each in plans]
    titles = [f"{name} seeds {first}-{end - 1}" for first, end in pairwise(edges)]
    with output.progress(titles) as progress:
        parts = run_tasks(
            tasks,
            jobs=jobs,
            on_progress=progress.show,
            on_result=progress.done,
            enough=lambda part: bool(part.violations),
        )
    return merged([part for part in parts if part is not None])


def _print_table(reports: Sequence[ScenarioReport], seconds: float, output: Output) -> None:
    if output.as_json:
        output.print_json({"scenarios": [report.scenario_json(each) for each in reports], "seconds": round(seconds, 3)})
    for each in reports:
        output.violations(each)
        output.coverage_of(each)
    if not output.as_json:
        output.print(report.scenario_table(reports, seconds))


def _exit_code(reports: Sequence[ScenarioReport]) -> int:
    return 1 if any(each.violations for each in reports) else 0


def _all(results: Sequence[Result | None]) -> list[Result]:
    return [each for each in results if each is not None]
