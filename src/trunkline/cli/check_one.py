"""Replays of one run, by seed or by action file; and the lists of scenarios, mutants and rules."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from trunkline.check import report, rules
from trunkline.check.action_file import ActionFile, ActionFileError, parse_action_file
from trunkline.check.campaign import SearchBounds
from trunkline.check.catalogue import Catalogue
from trunkline.check.mutant import Strategy
from trunkline.check.random_search import walk
from trunkline.check.replay import Replay, lines, replay_file, replay_walk
from trunkline.check.world import World
from trunkline.cli import WrongInput
from trunkline.cli.check_output import Output


def list_all(known: Catalogue, output: Output) -> int:
    scenarios = [(name, build().summary) for name, build in known.scenarios.items()]
    mutants = [(mutant.name, mutant.scenario, mutant.summary) for mutant in known.mutants]
    if output.as_json:
        output.print_json(
            {
                "scenarios": [{"name": name, "summary": summary} for name, summary in scenarios],
                "mutants": [{"name": name, "scenario": of, "summary": summary} for name, of, summary in mutants],
            }
        )
        return 0
    output.print(report.table(("scenario", "summary"), scenarios))
    if mutants:
        output.print("\n" + report.table(("mutant", "scenario", "summary"), mutants))
    return 0


def list_rules(output: Output) -> int:
    """Fails if a rule has neither a mutant nor a sentence."""
    rows = rules.shipped_table()
    if output.as_json:
        output.print_json({"rules": [{**vars(rule), "mutants": list(rule.mutants)} for rule in rows]})
    else:
        cells = [(rule.name, ", ".join(rule.mutants) or rule.sentence or "MISSING") for rule in rows]
        output.print(report.table(("rule", "mutants that break it, or why no monitor can tell"), cells))
        output.print("\n" + rules.closing_line(rows))
    return 1 if any(rule.missing for rule in rows) else 0


def replay_seed(
    known: Catalogue, name: str, seed: int, strategy: Strategy, bounds: SearchBounds, output: Output
) -> int:
    world = World(known.scenario(name))
    replay = replay_walk(walk(world, seed, strategy, bounds.max_steps, bounds.heal_steps))
    title = f"{name}, {strategy}, seed {seed}"
    return _show(replay, title, output)


def replay_actions(known: Catalogue, name: str | None, path: Path, output: Output) -> int:
    try:
        file = parse_action_file(_read(path))
        _refuse_other(name, file)
        with known.mutant(file.mutant).patch() if file.mutant else contextlib.nullcontext():
            world = World(file.version_of(known.scenario(file.scenario)))
            replay = replay_file(world, file)
    except ActionFileError as error:
        raise WrongInput(f"{path}: {error}") from None
    return _show(replay, _title(file), output)


def _refuse_other(name: str | None, file: ActionFile) -> None:
    if name is not None and name != file.scenario:
        raise ActionFileError(f"it belongs to scenario {file.scenario}, not {name}")


def _title(file: ActionFile) -> str:
    parts = [file.scenario]
    if file.smaller is not None:
        parts.append(f"smaller version {file.smaller}")
    if file.mutant is not None:
        parts.append(f"with {file.mutant}")
    return ", ".join(parts)


def _show(replay: Replay, title: str, output: Output) -> int:
    if output.as_json:
        found: dict[str, Any] | None = None
        if replay.finding is not None:
            found = {"monitor": replay.finding.monitor, "text": replay.finding.text}
        output.print_json({"run": title, "steps": list(lines(replay)), "finding": found})
    else:
        output.print(title)
        for line in lines(replay):
            output.print(line)
        if replay.finding is None:
            output.print("no violation")
        else:
            output.print(f"VIOLATION: {replay.finding.monitor}\n  {replay.finding.text}")
    return 1 if replay.finding else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise WrongInput(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise WrongInput(f"{path}: not a text file") from None
