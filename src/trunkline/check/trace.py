"""The run of a scenario as a file of JSON lines, judged by the same monitors that judge explored states.

What running processes record is another thing: see ``recording``.

    {"format": "trunkline-trace", "version": 1, "scenario": "takeover", "monitors": {"TotalOrder": {}}}
    {"process": "n1", "role": "storage", "event": {"type": "Stored", "glsn": 1, ...}}
    ...
    {"end": "quiet"}

``scenario`` names the scenario whose monitors judge the run. ``monitors`` may be left out (all of them judge); it picks
some by name and may set fields of each (a monitor that is a dataclass is copied with those fields replaced). The last
line may be left out as well: it says that faults had stopped and the run had come to rest, so that a monitor which is
still hot has found a violation and not only an unfinished run.

Every struct carries its class name as ``type``. Event types are all subclasses of ``Event`` that are loaded.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from trunkline.check.scenario import Monitor, Observed, Scenario, Violation
from trunkline.check.trace_values import decode
from trunkline.check.views import Finding
from trunkline.core.effects import Event
from trunkline.core.recording import FORMAT, plain

VERSION = 1


class TraceError(ValueError):
    """The trace cannot be read; the text names the line and what is wrong with it."""


@dataclass(frozen=True)
class Header:
    scenario: str
    monitors: dict[str, dict[str, Any]] | None = None  # None: every monitor of the scenario, as it is


@dataclass(frozen=True)
class Verdict:
    """What the monitors said of one recorded run."""

    scenario: str
    events: int
    finding: Finding | None
    line: int | None  # the line of the file whose event broke the property
    hot: tuple[str, ...]  # "Monitor: reason" of what was still unfinished at the end
    monitors: tuple[str, ...]


def encode(header: Header, observed: Iterable[Observed], *, quiet: bool) -> Iterator[str]:
    """The lines of a trace file, without line ends."""
    first: dict[str, Any] = {"format": FORMAT, "version": VERSION, "scenario": header.scenario}
    if header.monitors is not None:
        first["monitors"] = header.monitors
    yield json.dumps(first)
    for each in observed:
        yield json.dumps({"process": each.process, "role": each.role, "event": plain(each.event)})
    if quiet:
        yield json.dumps({"end": "quiet"})


def judge(lines: Iterable[str], scenario_named: Callable[[str], Scenario]) -> Verdict:
    """Run the scenario's monitors over a trace, line by line; memory does not grow with the file.

    Raises ``TraceError`` for a malformed line, and whatever ``scenario_named`` raises for an unknown scenario.
    """
    numbered = enumerate(lines, start=1)
    _, first = next(numbered, (1, ""))
    header = _header(first)
    monitors = _monitors(header, scenario_named(header.scenario))
    states: list[Hashable] = [monitor.initial() for monitor in monitors]
    names = tuple(monitor.name for monitor in monitors)
    events, quiet = 0, False
    for number, line in numbered:
        if quiet:
            raise TraceError(f"line {number}: the trace goes on after its end")
        observed = _observed(number, line)
        if observed is None:
            quiet = True
            continue
        events += 1
        for index, monitor in enumerate(monitors):
            try:
                states[index] = monitor.observe(states[index], observed)
            except Violation as violation:
                return Verdict(header.scenario, events, Finding(monitor.name, str(violation)), number, (), names)
    reasons = ((monitor.name, monitor.hot(state)) for monitor, state in zip(monitors, states, strict=True))
    hot = tuple(f"{name}: {reason}" for name, reason in reasons if reason)
    finding = Finding("Progress", "; ".join(hot)) if hot and quiet else None
    return Verdict(header.scenario, events, finding, None, hot, names)


def _json_object(number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        raise TraceError(f"line {number}: not a JSON object") from None
    if not isinstance(value, dict):
        raise TraceError(f"line {number}: not a JSON object")
    return value


def _header(line: str) -> Header:
    value = _json_object(1, line)
    if value.get("format") != FORMAT:
        raise TraceError(f'line 1: not a trace (expected "format": "{FORMAT}")')
    if value.get("version") != VERSION:
        raise TraceError(f"line 1: trace version {value.get('version')!r}, this program reads version {VERSION}")
    scenario, monitors = value.get("scenario"), value.get("monitors")
    if not isinstance(scenario, str):
        raise TraceError("line 1: no scenario is named")
    if monitors is not None and not (
        isinstance(monitors, dict) and all(isinstance(fields, dict) for fields in monitors.values())
    ):
        raise TraceError("line 1: monitors must map a monitor's name to its fields")
    return Header(scenario, monitors)


def _monitors(header: Header, scenario: Scenario) -> list[Monitor]:
    if header.monitors is None:
        return list(scenario.monitors)
    known = {monitor.name: monitor for monitor in scenario.monitors}
    chosen: list[Monitor] = []
    for name, fields in header.monitors.items():
        if name not in known:
            raise TraceError(f"line 1: scenario {scenario.name} has no monitor {name} (it has {', '.join(known)})")
        chosen.append(_with_fields(known[name], fields))
    return chosen


def _with_fields(monitor: Monitor, fields: dict[str, Any]) -> Monitor:
    if not fields:
        return monitor
    if not dataclasses.is_dataclass(monitor):
        raise TraceError(f"line 1: monitor {monitor.name} has no fields to set")
    hints = typing.get_type_hints(type(monitor))
    unknown = [name for name in fields if name not in {field.name for field in dataclasses.fields(monitor)}]
    if unknown:
        raise TraceError(f"line 1: monitor {monitor.name} has no field {unknown[0]}")
    try:
        values = {name: msgspec.convert(value, hints[name]) for name, value in fields.items()}
    except msgspec.ValidationError as error:
        raise TraceError(f"line 1: monitor {monitor.name}: {error}") from None
    return typing.cast("Monitor", dataclasses.replace(typing.cast("Any", monitor), **values))


def _observed(number: int, line: str) -> Observed | None:
    """The event of one line; None for the closing line."""
    value = _json_object(number, line)
    if value == {"end": "quiet"}:
        return None
    process, role = value.get("process"), value.get("role")
    if not isinstance(process, str) or not isinstance(role, str) or set(value) != {"process", "role", "event"}:
        raise TraceError(f"line {number}: expected exactly process, role and event")
    try:
        return Observed(process, role, decode(value["event"], Event))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise TraceError(f"line {number}: {error}") from None
