"""Results of checks, as plain values: they pass between processes and become tables or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trunkline.check.action_file import ActionFile
from trunkline.check.mutant import Strategy
from trunkline.check.replay import Replay
from trunkline.check.views import Finding

Pair = tuple[str, str, str]  # role class, phase, event
VACUOUS = "Vacuous"
SURVIVAL_FACTOR = 10  # the correct code must survive this many times a mutant's budget


@dataclass(frozen=True)
class ViolationReport:
    """A finding with its shrunk run. ``seed`` and ``strategy`` name the original schedule, if any."""

    finding: Finding
    file: ActionFile | None  # None: no run (an event was never seen)
    replay: Replay | None
    seed: int | None = None
    strategy: Strategy = "breadth"


@dataclass(frozen=True)
class ScenarioReport:
    """The result of checking one scenario."""

    scenario: str
    strategy: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    schedules: int = 0
    complete: bool = False  # every interleaving within the scenario's bounds was explored
    exact: bool = True  # False: several workers or worlds counted ``states`` separately
    coverage: tuple[Pair, ...] = ()
    events_seen: tuple[tuple[str, int], ...] = ()
    never_seen: tuple[str, ...] = ()  # events that the scenario requires
    liveness: str = "not judged"
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    violations: tuple[ViolationReport, ...] = ()


@dataclass(frozen=True)
class MutantReport:
    """Whether one known bug was found. ``found_after`` counts states (breadth) or schedules.

    ``steps`` counts those of the shrunk run, without a fair phase.
    """

    mutant: str
    scenario: str
    strategy: Strategy
    budget: int
    found_after: int | None
    finding: Finding | None
    expected: tuple[str, ...]
    steps: int
    violation: ViolationReport | None

    @property
    def found(self) -> bool:
        return self.finding is not None and self.finding.monitor in self.expected


@dataclass(frozen=True)
class SurvivalReport:
    """How far the correct code went without a finding, for one scenario under one strategy."""

    scenario: str
    strategy: Strategy
    reached: int  # states or schedules
    complete: bool
    finding: Finding | None


def with_vacuity(report: ScenarioReport) -> ScenarioReport:
    """A required event that never happened is a violation: some monitor had nothing to judge."""
    if report.violations or not report.never_seen:
        return report
    findings = (Finding(VACUOUS, f"never saw {name}") for name in report.never_seen)
    return replace(report, violations=tuple(ViolationReport(finding, None, None) for finding in findings))


def merged(reports: Sequence[ScenarioReport]) -> ScenarioReport:
    """One report of several parts of a scenario's check, with the violations of the first part that has any."""
    first = reports[0]
    seen: dict[str, int] = {}
    for report in reports:
        for name, times in report.events_seen:
            seen[name] = seen.get(name, 0) + times
    violations = next((report.violations for report in reports if report.violations), ())
    strategies = list(dict.fromkeys(report.strategy for report in reports))
    return ScenarioReport(
        scenario=first.scenario,
        strategy="+".join(strategies),
        states=sum(report.states for report in reports),
        transitions=sum(report.transitions for report in reports),
        depth=max(report.depth for report in reports),
        schedules=sum(report.schedules for report in reports),
        complete=any(report.complete for report in reports),
        exact=len(reports) == 1 and first.exact,
        coverage=tuple(sorted(dict.fromkeys(pair for report in reports for pair in report.coverage))),
        events_seen=tuple(sorted(seen.items())),
        never_seen=tuple(name for name in first.never_seen if not seen.get(name)),
        liveness=reports[-1].liveness,
        cpu_seconds=sum(report.cpu_seconds for report in reports),
        memory_bytes=max(report.memory_bytes for report in reports),
        violations=violations,
    )
