"""Renders the HTML page of a run that violates a property: a sequence diagram, and the state after each step.

The page is one self-contained file: no network, no fonts, no other scripts. Its policy allows only its own script, and
all text from the run is escaped, so payloads may hold anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from string import Template

from trunkline.check.diagram_svg import BANDS, SYMBOLS, Drawing, draw, icon
from trunkline.check.views import Finding, ProcessView, StateView, StepView

FAULT_WORDS = {
    "lose": "message lost",
    "drop": "message dropped",
    "duplicate": "message doubled",
    "crash": "crash",
    "crash_in": "crash",
    "restart": "restart",
    "wipe": "wiped disk",
    "power_cut": "power cut",
    "rot": "rot",
    "cut": "network cut",
    "early_timer": "early timer",
    "free_timer": "free timer",
}
LEGEND_ICONS = (
    ("crash", "crash"),
    ("restart", "restart"),
    ("wipe", "restart on an empty disk"),
    ("rot", "data went bad"),
    ("timer", "timer"),
    ("early_timer", "early timer"),
    ("free_timer", "free timer"),
    ("operate", "an operation begins"),
    ("sync", "disk synced"),
)
LEGEND_PILLS = (
    ("phase", "a role changed its phase"),
    ("disk", "made durable"),
    ("event", "announced to monitors"),
    ("done", "operation completed"),
    ("bad", "the violation"),
)
LEGEND_LINES = (
    ("arrived", '<path class="head" d="M40 7l-9-4v8z"/>', "delivered"),
    ("lost", '<path class="cross" d="M35 2l10 10m0-10l-10 10"/>', "lost"),
    ("pending", '<circle class="end" cx="40" cy="7" r="3.5"/>', "still in flight at the end"),
    ("dropped", '<path d="M40 2v10"/>', "never handled by its target"),
)


def render(
    title: str, finding: Finding, steps: Sequence[StepView], states: Sequence[StateView], *, replay: str = ""
) -> str:
    """The page as text. ``states`` holds the initial state and then the state after each step.

    ``replay`` is the command that replays this run; the page offers it for copying.
    """
    if len(states) != len(steps) + 1:
        raise ValueError(f"{len(steps)} steps need {len(steps) + 1} states, not {len(states)}")
    if [step.index for step in steps] != list(range(1, len(steps) + 1)):
        raise ValueError("steps must be numbered from 1")
    drawing = draw(finding, steps, states)
    script = _part("js")
    return Template(_part("html")).substitute(
        title=escape(title),
        facts=_facts(steps, states),
        monitor=escape(finding.monitor),
        finding=escape(finding.text),
        replay=_replay(replay),
        width=drawing.width,
        names=_names(drawing, states),
        drawing=drawing.svg,
        legend=_legend(),
        style=_part("css"),
        data=_data(finding, steps, states),
        script=script,
        script_hash=_policy_hash(script),
    )


def _part(suffix: str) -> str:
    return resources.files(__package__).joinpath(f"diagram_page.{suffix}").read_text(encoding="utf-8")


def _policy_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _facts(steps: Sequence[StepView], states: Sequence[StateView]) -> str:
    words = [FAULT_WORDS[step.kind] for step in steps if step.kind in FAULT_WORDS]
    faults = [f"{word} ×{words.count(word)}" if words.count(word) > 1 else word for word in dict.fromkeys(words)]
    sizes = [f"{len(steps)} step{'s' * (len(steps) != 1)}", f"{len(states[0].processes)} processes"]
    return escape(" · ".join(sizes + faults))


def _replay(command: str) -> str:
    if not command:
        return ""
    return (
        f'<div class="replay"><code id="replay" tabindex="0">{escape(command)}</code>'
        '<button type="button" id="copy">copy</button></div>'
    )


def _names(drawing: Drawing, states: Sequence[StateView]) -> str:
    """The heads of the life lines. A process that is down at first shows its later roles."""
    roles = {process.name: "" for process in states[0].processes}
    for process in (process for state in states for process in state.processes if process.roles):
        roles[process.name] = roles[process.name] or ", ".join(role.name for role in process.roles)
    return "".join(
        f'<span style="left:{x:g}px" data-process="{escape(name)}" title="{escape(f"{name}: {roles[name]}")}">'
        f"{escape(name)}<small>{escape(roles[name]) or '&nbsp;'}</small></span>"
        for name, x in drawing.lines
    )


def _data(finding: Finding, steps: Sequence[StepView], states: Sequence[StateView]) -> str:
    """The run as JSON. Each distinct process state appears once: most steps change only one process."""
    numbers: dict[ProcessView, int] = {}
    shown = [
        {
            "processes": [numbers.setdefault(process, len(numbers)) for process in state.processes],
            "network": [asdict(message) for message in state.network],
            "budgets": state.budgets,
            "monitors": state.monitors,
        }
        for state in states
    ]
    run = {
        "finding": asdict(finding),
        "steps": [asdict(step) for step in steps],
        "processes": [asdict(process) for process in numbers],
        "states": shown,
    }
    # Inside a script element only `<` is special, and JSON can escape it.
    return json.dumps(run, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _legend() -> str:
    def sample(drawn: str, width: int = 24) -> str:
        return f'<svg width="{width}" height="20" viewBox="0 0 {width} 20" aria-hidden="true">{drawn}</svg>'

    lines = [
        sample(f'<g class="message m0 {fate}" transform="translate(0 3)"><path class="line" d="M2 7H36"/>{end}</g>', 50)
        + meaning
        for fate, end, meaning in LEGEND_LINES
    ]
    icons = [sample(icon(kind, 12, 10)) + meaning for kind, meaning in LEGEND_ICONS]
    bands = [f"{SYMBOLS[kind]}{kind.replace('_', ' ')}" for kind in BANDS]
    pills = [
        sample(f'<g class="pill {kind}"><rect x="1" y="3" width="28" height="14" rx="7"/></g>', 30) + meaning
        for kind, meaning in LEGEND_PILLS
    ]
    return f"<ul>{''.join(f'<li>{item}</li>' for item in (*lines, *icons, *bands, *pills))}</ul>"
