"""The demonstration at this stage: a known bug is found, the code that ships survives the same search, and then runs.

The classes that are explored are the ones that the servers and the client of the last part run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from trunkline.check.campaign import Bounds, check_exhaustively, hunt, survive
from trunkline.check.catalogue import Catalogue, shipped
from trunkline.check.diagram import render
from trunkline.check.recording import open_recording
from trunkline.check.recording_judge import judge_recording
from trunkline.check.results import SURVIVAL_FACTOR, MutantReport
from trunkline.client.cluster import ClientOptions, connect
from trunkline.client.log import Log
from trunkline.core.projection import Projection

BUG = "roll-without-freezing"
EXHAUSTED = "chain"
BOUNDS = Bounds()
LINE_LENGTH = 108
TRUNKLINE = (sys.executable, "-m", "trunkline.cli.main")
APPENDS = 4_000  # of the last part, by
APPENDERS = 16


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
    runs = _run_for_real()
    print(f"\ndone in {time.monotonic() - began:.0f} s. `./run check` explores every scenario,")
    print("`./run check --mutants` puts every known bug back and finds it, `./run trunkline up` starts a cluster.")
    return 0 if found and survived and exhausted and runs else 1


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


def _run_for_real() -> bool:
    """A local cluster that loses the head of a chain under load."""
    print(f"\n4. The same classes as processes: 3 nodes, {APPENDS:,} appends, and `kill -9` of the head in the middle")
    with tempfile.TemporaryDirectory(prefix="trunkline-demo-") as directory:
        place, recordings = Path(directory, "cluster"), Path(directory, "recordings")
        up = (*TRUNKLINE, "up", "--detach", "--no-restart", "--port", "0", "--dir", str(place))
        subprocess.run((*up, "--record", str(recordings)), check=True, stdout=subprocess.DEVNULL)
        try:
            facts = json.loads((place / "cluster.json").read_text())
            whole = asyncio.run(_append_and_kill(facts, recordings))
        finally:
            subprocess.run((*TRUNKLINE, "down", "--dir", str(place)), check=True, stdout=subprocess.DEVNULL)
        verdict = judge_recording(open_recording(recordings))
    events = sum(log.events for log in verdict.logs)
    fine = all(log.finding is None for log in verdict.logs)
    print(f"   recordings of all processes, {events:,} events: {'no violation' if fine else 'VIOLATION'}")
    return whole and fine


async def _append_and_kill(facts: dict[str, object], recordings: Path) -> bool:
    processes = {each["name"]: each for each in facts["processes"]}  # type: ignore[attr-defined]
    address = next(each["address"] for each in processes.values() if each["kind"] == "coordinator")
    async with connect(address, options=ClientOptions(record=recordings)) as cluster:
        log = await cluster.log("orders", create=True)
        head = (await cluster.describe("orders")).last.groups[0][0].node
        given: dict[int, bytes] = {}
        began, stall = time.monotonic(), 0.0
        last = began

        async def append(first: int) -> None:
            nonlocal last, stall
            for number in range(first, APPENDS, APPENDERS):
                payload = b"order %d" % number
                given[await log.append(payload)] = payload
                now = time.monotonic()
                last, stall = now, max(stall, now - last)
                if len(given) == APPENDS // 2:
                    os.kill(processes[head]["pid"], signal.SIGKILL)

        await asyncio.gather(*(append(first) for first in range(APPENDERS)))
        took = time.monotonic() - began
        view = await cluster.describe("orders")
        print(f"   {APPENDS:,} acknowledged in {took:.1f} s; {head} was killed, the log stood still for {stall:.1f} s,")
        print(f"   then went on in segment {view.last.index} (epoch {view.last.epoch}) on {_members(view)}")
        return await _read_back(log, given)


def _members(view: Projection) -> str:
    return " > ".join(member.node for member in view.last.groups[0])


async def _read_back(log: Log, given: dict[int, bytes]) -> bool:
    found = {entry.glsn: entry.payload async for entry in log.subscribe(1, to_tail=True)}
    lost = [glsn for glsn, payload in given.items() if found.get(glsn) != payload]
    print(f"   read back: {len(found):,} entries, {len(lost)} of the acknowledged ones missing or another")
    return not lost


def _short(text: str) -> str:
    return text if len(text) <= LINE_LENGTH else text[: LINE_LENGTH - 1] + "…"


def _quiet(text: str) -> None:
    """Progress of a search that takes a few seconds is not worth a line."""


if __name__ == "__main__":
    sys.exit(main())
