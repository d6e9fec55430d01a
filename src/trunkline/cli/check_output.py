"""The output of ``trunkline check``: results on standard output, progress on standard error, files for violations."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from trunkline.check import report
from trunkline.check.diagram import render
from trunkline.check.random_search import STEPS_MAX
from trunkline.check.results import MutantReport, ScenarioReport, ViolationReport
from trunkline.cli import WrongInput

DEFAULT_DIRECTORY = Path("check-out")
REFRESH_SECONDS = 0.2
PAGE_FAIR_STEPS = 60  # of a fair phase in a diagram: thousands would take many megabytes


class Output:
    """One command's output. Under ``as_json`` standard output holds one JSON value and nothing else."""

    def __init__(self, *, as_json: bool, directory: Path | None, coverage: bool, max_steps: int = STEPS_MAX) -> None:
        self.as_json = as_json
        self._directory = directory
        self._coverage = coverage
        self._max_steps = max_steps

    def print(self, text: str) -> None:
        print(text)

    def print_json(self, value: dict[str, Any]) -> None:
        print(json.dumps(value, indent=2))

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def progress(self, titles: Sequence[str]) -> ProgressDisplay:
        return ProgressDisplay(titles)

    def violations(self, found: ScenarioReport) -> None:
        """Write the files of each violation and print it."""
        for number, violation in enumerate(found.violations):
            stem = f"{found.scenario}-{violation.finding.monitor}" + (f"-{number}" if number else "")
            actions, page = self._write(stem, found.scenario, violation, self._directory or DEFAULT_DIRECTORY)
            if not self.as_json:
                commands = self._commands(found.scenario, violation, actions)
                self.print(report.violation_text(found.scenario, violation, commands, page) + "\n")

    def mutant_files(self, found: MutantReport) -> None:
        """Mutants are expected to fail: their runs are written only if a directory is given."""
        if found.violation is not None and self._directory is not None:
            self._write(found.mutant, found.scenario, found.violation, self._directory)

    def coverage_of(self, found: ScenarioReport) -> None:
        if self._coverage and not self.as_json:
            self.print(report.coverage_text(found) + "\n")

    def _write(
        self, stem: str, scenario: str, violation: ViolationReport, directory: Path
    ) -> tuple[str | None, str | None]:
        """The paths of the action file and of the diagram."""
        if violation.file is None or violation.replay is None:
            return None, None
        actions, page = directory / f"{stem}.actions", directory / f"{stem}.html"
        shown = len(violation.replay.steps)
        title = f"{scenario}: {violation.finding.monitor}"
        fair_from = violation.replay.fair_from
        if fair_from is not None and shown > fair_from + PAGE_FAIR_STEPS:
            title += f" (the first {PAGE_FAIR_STEPS} of {shown - fair_from} fair steps)"
            shown = fair_from + PAGE_FAIR_STEPS
        steps, states = violation.replay.steps[:shown], violation.replay.states[: shown + 1]
        replay = f"trunkline check {scenario} --actions {actions}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            actions.write_text(violation.file.text(), encoding="utf-8")
            page.write_text(render(title, violation.finding, steps, states, replay=replay), encoding="utf-8")
        except OSError as error:
            raise WrongInput(f"cannot write to {directory}: {error.strerror}") from None
        return str(actions), str(page)

    def _commands(self, scenario: str, violation: ViolationReport, actions: str | None) -> list[str]:
        commands = [f"trunkline check {scenario} --actions {actions}"] if actions else []
        if violation.seed is not None:
            depth = f" --max-depth {self._max_steps}" if self._max_steps != STEPS_MAX else ""
            seed = f"trunkline check {scenario} --seed {violation.seed} --strategy {violation.strategy}{depth}"
            commands.append(f"{seed}  (the whole schedule)")
        return commands


class ProgressDisplay:
    """Shows progress on standard error: a line per finished task and, on a terminal, a status line."""

    def __init__(self, titles: Sequence[str]) -> None:
        self._titles = titles
        self._latest: dict[int, str] = {}
        self._finished = 0
        self._shown_at = 0.0
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._clear()

    def show(self, index: int, text: str) -> None:
        self._latest[index] = text
        now = time.monotonic()
        if self._terminal and now - self._shown_at >= REFRESH_SECONDS:
            self._shown_at = now
            running = ", ".join(f"{self._titles[each]}: {self._latest[each]}" for each in sorted(self._latest))
            line = f"[{self._finished}/{len(self._titles)}] {running}"
            sys.stderr.write(f"\r\x1b[2K{line[:118]}")
            sys.stderr.flush()

    def done(self, index: int, _result: object) -> None:
        self._finished += 1
        last = self._latest.pop(index, "")
        self._clear()
        print(f"[{self._finished}/{len(self._titles)}] {self._titles[index]}: done {last}".rstrip(), file=sys.stderr)

    def _clear(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
