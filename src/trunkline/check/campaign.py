"""The tasks of a worker: explore a scenario, run its schedules, hunt a mutant. Each returns a plain report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from trunkline.check.action_file import ActionFile
from trunkline.check.mutant import Mutant, Strategy
from trunkline.check.random_search import HEAL_STEPS_MAX, STEPS_MAX, RandomSearch, search
from trunkline.check.replay import replay_actions
from trunkline.check.results import (
    MutantReport,
    ScenarioReport,
    SurvivalReport,
    ViolationReport,
    merged,
    with_vacuity,
)
from trunkline.check.runner import ReportProgress
from trunkline.check.scenario import Scenario
from trunkline.check.search import Exploration, explore, peak_memory_bytes
from trunkline.check.shrink import Failure, explored_failure, shrink
from trunkline.check.world import World

REPORT_SECONDS = 0.5  # between two reports of progress


@dataclass(frozen=True)
class SearchBounds:
    """Limits of a search. None: only the scenario's own bounds."""

    max_states: int | None = None
    max_depth: int | None = None
    max_steps: int = STEPS_MAX
    heal_steps: int = HEAL_STEPS_MAX


@dataclass(frozen=True)
class SchedulePlan:
    """Which random schedules to run."""

    strategy: Strategy
    first_seed: int
    schedules: int


def check_exhaustively(scenario: Scenario, bounds: SearchBounds, report_progress: ReportProgress) -> ScenarioReport:
    """Breadth-first, with liveness on the explored graph if it is complete."""
    world = World(scenario)
    explored = explore(
        world,
        max_states=bounds.max_states,
        max_depth=bounds.max_depth,
        symmetry=bool(scenario.symmetric),
        keep_edges=True,
        on_progress=lambda progress: report_progress(f"{progress.distinct:,} states, depth {progress.depth}"),
    )
    failure = explored_failure(world, explored, bounds.heal_steps)
    report = ScenarioReport(
        scenario=scenario.name,
        strategy="breadth",
        states=explored.distinct,
        transitions=explored.transitions,
        depth=explored.depth,
        complete=explored.complete,
        coverage=tuple(sorted(world.coverage)),
        events_seen=tuple(sorted(world.events_seen.items())),
        never_seen=_never_seen(scenario, world.events_seen),
        liveness=_liveness_text(explored, failure),
        cpu_seconds=explored.seconds,
        memory_bytes=explored.memory_bytes,
    )
    return replace(report, violations=(_violation(scenario, failure),)) if failure else report


def check_schedules(
    scenario: Scenario, plan: SchedulePlan, bounds: SearchBounds, report_progress: ReportProgress
) -> ScenarioReport:
    """Random schedules of consecutive seeds, until the first finding."""
    found = _search(World(scenario), plan, bounds, report_progress)
    report = ScenarioReport(
        scenario=scenario.name,
        strategy=plan.strategy,
        states=found.distinct,
        exact=found.exact,
        transitions=found.transitions,
        depth=found.depth,
        schedules=found.schedules,
        coverage=tuple(sorted(found.coverage)),
        events_seen=tuple(sorted(found.events_seen.items())),
        never_seen=_never_seen(scenario, found.events_seen),
        liveness="every fair phase reached its goal" if found.walk is None else "not judged",
        cpu_seconds=found.seconds,
        memory_bytes=peak_memory_bytes(),
    )
    walk = found.walk
    if walk is None or walk.finding is None:
        return report
    fair_steps = bounds.heal_steps if walk.healed else None
    failure = Failure(walk.world, tuple(walk.actions), walk.finding, fair_steps)
    violation = replace(_violation(scenario, failure), seed=walk.seed, strategy=plan.strategy)
    return replace(report, violations=(violation,))


def check_by_default(
    scenario: Scenario, bounds: SearchBounds, schedules: int, report_progress: ReportProgress
) -> ScenarioReport:
    """Breadth-first up to the bound, then swarm schedules if states are left. Vacuity is a violation here."""
    report = check_exhaustively(scenario, bounds, report_progress)
    if not report.complete and not report.violations:
        report = merged(
            [report, check_schedules(scenario, SchedulePlan("swarm", 0, schedules), bounds, report_progress)]
        )
    return with_vacuity(report)


def hunt(
    mutant: Mutant, build: Callable[[], Scenario], bounds: SearchBounds, report_progress: ReportProgress
) -> MutantReport:
    """Search for a mutant within its budget."""
    with mutant.patch():
        report, after = _within(build(), mutant.strategy, mutant.budget, bounds, report_progress)
    violation = report.violations[0] if report.violations else None
    if violation is not None and violation.file is not None:
        violation = replace(violation, file=replace(violation.file, mutant=mutant.name))
    return MutantReport(
        mutant=mutant.name,
        scenario=mutant.scenario,
        strategy=mutant.strategy,
        budget=mutant.budget,
        found_after=after if violation else None,
        finding=violation.finding if violation else None,
        expected=mutant.monitors,
        steps=len(violation.file.actions) if violation and violation.file else 0,
        violation=violation,
    )


def survive(
    scenario: Scenario, strategy: Strategy, budget: int, bounds: SearchBounds, report_progress: ReportProgress
) -> SurvivalReport:
    """Search the correct code as its mutants are searched, with a larger budget."""
    report, reached = _within(scenario, strategy, budget, bounds, report_progress)
    finding = report.violations[0].finding if report.violations else None
    return SurvivalReport(scenario.name, strategy, reached, report.complete, finding)


def _within(
    scenario: Scenario, strategy: Strategy, budget: int, bounds: SearchBounds, report_progress: ReportProgress
) -> tuple[ScenarioReport, int]:
    """A search with a budget of states or schedules, and how much of it the search used."""
    if strategy == "breadth":
        report = check_exhaustively(scenario, replace(bounds, max_states=budget), report_progress)
        return report, report.states
    report = check_schedules(scenario, SchedulePlan(strategy, 0, budget), bounds, report_progress)
    return report, report.schedules


def _search(world: World, plan: SchedulePlan, bounds: SearchBounds, report_progress: ReportProgress) -> RandomSearch:
    reported_at = 0.0

    def progress(found: RandomSearch) -> None:
        nonlocal reported_at
        if found.seconds - reported_at >= REPORT_SECONDS:
            reported_at = found.seconds
            report_progress(f"{found.schedules:,} schedules, {found.distinct:,} states")

    return search(
        world,
        plan.schedules,
        plan.first_seed,
        plan.strategy,
        max_steps=bounds.max_steps,
        heal_steps=bounds.heal_steps,
        on_progress=progress,
    )


def _liveness_text(explored: Exploration, failure: Failure | None) -> str:
    if explored.liveness is None:
        return "not judged (the graph is not complete)"
    if explored.liveness.finding is None:
        return "rest can be reached from every state"
    if failure is None:
        return "rest is unreachable only where no restart is left; the fair phase reaches it"
    return "violated"


def _violation(scenario: Scenario, failure: Failure) -> ViolationReport:
    """Shrink the run and replay the result for the report."""
    shrunk = shrink(scenario, failure)
    small = shrunk.failure
    replay = replay_actions(small.world, small.actions, small.fair_steps)
    mix = small.world.scenario if shrunk.smaller is None else scenario
    file = ActionFile(
        scenario=scenario.name,
        actions=tuple(action.text() for action in small.actions),
        smaller=shrunk.smaller,
        fifo=mix.fifo and not scenario.fifo,
        without=tuple(name for name, count in vars(mix.faults).items() if count < getattr(scenario.faults, name)),
        fair_steps=small.fair_steps,
    )
    return ViolationReport(small.finding, file, replay)


def _never_seen(scenario: Scenario, events_seen: dict[str, int]) -> tuple[str, ...]:
    return tuple(name for name in scenario.sometimes if not events_seen.get(name))
