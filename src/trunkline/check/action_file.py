"""Action files: one schedule as a list of actions, which a replay runs exactly.

    trunkline-actions 1
    scenario takeover
    fair 2000

    deliver c1.appender>n1.storage Write(...)
    crash n1

The head ends at the first empty line. ``scenario`` is required, the rest is optional:

    smaller K       run the scenario's smaller version number K, from 0
    mutant NAME     run with this mutant
    network fifo    run with a FIFO network although the scenario has a bag
    without F ...   run with these fault budgets at zero
    fair N          a fair phase of at most N steps follows the actions

Lines that begin with ``#`` are comments.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from trunkline.check.scenario import Faults, Scenario

FIRST_LINE = "trunkline-actions 1"
HEAD_KEYS = ("scenario", "smaller", "mutant", "network", "without", "fair")


class ActionFileError(ValueError):
    """Not a valid action file, or it does not fit its scenario; the text names the line."""


@dataclass(frozen=True)
class ActionFile:
    scenario: str
    actions: tuple[str, ...]  # as ``Action.text`` writes them
    smaller: int | None = None
    mutant: str | None = None
    fifo: bool = False
    without: tuple[str, ...] = ()  # names of fault budgets
    fair_steps: int | None = None  # None: no fair phase

    def text(self) -> str:
        head = [FIRST_LINE, f"scenario {self.scenario}"]
        if self.smaller is not None:
            head.append(f"smaller {self.smaller}")
        if self.mutant is not None:
            head.append(f"mutant {self.mutant}")
        if self.fifo:
            head.append("network fifo")
        if self.without:
            head.append(f"without {' '.join(self.without)}")
        if self.fair_steps is not None:
            head.append(f"fair {self.fair_steps}")
        return "\n".join([*head, "", *self.actions, ""])

    def version_of(self, scenario: Scenario) -> Scenario:
        """The scenario to run, given the one that the file names."""
        if self.smaller is not None:
            if self.smaller >= len(scenario.smaller):
                raise ActionFileError(f"scenario {scenario.name} has no smaller version {self.smaller}")
            scenario = scenario.smaller[self.smaller]()
        faults = dataclasses.replace(scenario.faults, **dict.fromkeys(self.without, 0))
        return dataclasses.replace(scenario, fifo=scenario.fifo or self.fifo, faults=faults)


def parse_action_file(text: str) -> ActionFile:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if not line.startswith("#")]
    if not lines or lines[0][1].strip() != FIRST_LINE:
        raise ActionFileError(f"line 1: expected `{FIRST_LINE}`")
    end = next((index for index, (_, line) in enumerate(lines) if not line.strip()), len(lines))
    head: dict[str, str] = {}
    for number, line in lines[1:end]:
        key, _, value = line.strip().partition(" ")
        if key not in HEAD_KEYS or key in head or not value:
            raise ActionFileError(f"line {number}: not a valid head line: {line.strip()!r}")
        if not _fits(key, value):
            raise ActionFileError(f"line {number}: bad value for {key}: {value!r}")
        head[key] = value
    if "scenario" not in head:
        raise ActionFileError("the head lacks a scenario line")
    return ActionFile(
        scenario=head["scenario"],
        actions=tuple(line.rstrip() for _, line in lines[end:] if line.strip()),
        smaller=int(head["smaller"]) if "smaller" in head else None,
        mutant=head.get("mutant"),
        fifo="network" in head,
        without=tuple(head.get("without", "").split()),
        fair_steps=int(head["fair"]) if "fair" in head else None,
    )


def _fits(key: str, value: str) -> bool:
    if key in ("smaller", "fair"):
        return value.isdecimal()
    if key == "without":
        return all(name in {field.name for field in dataclasses.fields(Faults)} for name in value.split())
    return key != "network" or value == "fifo"
