"""The demonstration at this stage: a known bug is found, and the code that ships survives the same search.

It explores the very classes that servers and clients will run.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from trunkline.check.campaign import Bounds, check_exhaustively, hunt, survive
from trunkline.check.catalogue import Catalogue, shipped
from trunkline.check.diagram import render
from trunkline.check.results import SURVIVAL_FACTOR, MutantReport

BUG = "roll-without-freezing"
EXHAUSTED = "chain"
BOUNDS = Bounds()
LINE_LENGTH = 108


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("check-out"), help="where the diagram goes (default: check-out)"
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    known = shipped()
    found = _find(known, options.out)
    survived = _survive(known)
    exhausted = _exhaust(known)
    print(f"\ndone in {time.monotonic() - began:.0f} s. `./run check` explores every scenario,")
    print("`./run check --mutants` puts every known bug back and finds it.")
    return 0 if found and survived and exhausted else 1


def _find(known: Catalogue, out: Path) -> bool:
    mutant = known.mutant(BUG)
    print(f"1. A known bug, put back on purpose: {mutant.summary}")
    report = hunt(mutant, partial(known.scenario, mutant.scenario), BOUNDS, _quiet)
    if report.finding is None or report.violation is None or report.violation.replay is None:
        print(f"   NOT FOUND within {mutant.budget:,} states")
        return False
    print(
        f"   found after {report.found_after:,} states of `{mutant.scenario}`, by the monitor {report.finding.monitor}:"
    )
    print(f"   {report.finding.text}")
    print("   the shortest way there:")
    for step in report.violation.replay.steps:
        print(f"   {step.index:3}  {_short(step.action)}")
    print(f"   diagram: {_draw(report, out)}  (open it in a browser; it needs no network)")
    return True


def _draw(report: MutantReport, out: Path) -> Path:
    assert report.violation is not None
    assert report.violation.replay is not None
    assert report.violation.file is not None
    page, actions = out / f"{report.mutant}.html", out / f"{report.mutant}.actions"
    out.mkdir(parents=True, exist_ok=True)
    actions.write_text(report.violation.file.text(), encoding="utf-8")
    replay = report.violation.replay
    command = f"./run check {report.scenario} --actions {actions}"
    title = f"{report.scenario} with {report.mutant}"
    page.write_text(
        render(title, report.violation.finding, replay.steps, replay.states, replay=command), encoding="utf-8"
    )
    return page


def _survive(known: Catalogue) -> bool:
    mutant = known.mutant(BUG)
    print(f"\n2. The code that ships, under the same search with {SURVIVAL_FACTOR} times the budget")
    report = survive(known.scenario(mutant.scenario), mutant.strategy, mutant.budget * SURVIVAL_FACTOR, BOUNDS, _quiet)
    verdict = "no violation" if report.finding is None else f"VIOLATION: {report.finding.text}"
    print(f"   {report.reached:,} states of `{mutant.scenario}`: {verdict}")
    return report.finding is None


def _exhaust(known: Catalogue) -> bool:
    scenario = known.scenario(EXHAUSTED)
    print(f"\n3. Every interleaving: {scenario.summary}")
    report = check_exhaustively(scenario, BOUNDS, _quiet)
    verdict = "no violation" if not report.violations else f"VIOLATION: {report.violations[0].finding.text}"
    print(
        f"   {report.states:,} states, {report.transitions:,} transitions, up to {report.depth} steps deep: {verdict}"
    )
    print(f"   {report.liveness}")
    return report.complete and not report.violations


def _short(text: str) -> str:
    return text if len(text) <= LINE_LENGTH else text[: LINE_LENGTH - 1] + "…"


def _quiet(text: str) -> None:
    """Progress of a search that takes a few seconds is not worth a line."""


if __name__ == "__main__":
    sys.exit(main())
