"""``trunkline deliver status``, and the commands of operators: pause, resume, drain, retire, reseed.

They set desired states in the control store; a running deliverer, on any machine, follows within about a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec import to_builtins

from trunkline.cli import WrongInput
from trunkline.cli.deliver_pipeline import pipeline_of, store_of_a_pipeline_that_ran
from trunkline.cli.tables import plural, print_json, table
from trunkline.delivery.config import Pipeline
from trunkline.delivery.control.contract import DesiredState
from trunkline.delivery.control.store import ControlStore
from trunkline.delivery.deliverer.assembly import pipeline_source
from trunkline.errors import TrunklineError

WATCH_S: Final = 2.0
HALT_ENDS_S: Final = 10.0  # a deliverer reads the desired states once a second
POLL_S: Final = 0.2
UNROUTED_SHOWN: Final = 10
HEADINGS: Final = ("destination", "state", "position", "behind", "rows changed", "last written", "deliverer")
ROWS_CHANGED: Final = (
    "rows changed: removed and written since the deliverer acquired the destination, not the rows of its table"
)
DESIRED_STATES: Final[dict[str, DesiredState]] = {
    "pause": "paused",
    "resume": "active",
    "drain": "draining",
    "retire": "retired",
}

Facts = dict[str, Any]


# -------------------------------------------------------------------------------------------------------------- status


def status(options: argparse.Namespace) -> int:
    pipeline = pipeline_of(options.config)
    with store_of_a_pipeline_that_ran(pipeline, options.config) as store:
        if not options.watch:
            facts = gather(pipeline, store)
            print_json(facts) if options.json else print(status_text(facts))
            return 0
        try:
            while True:
                _show_again(gather(pipeline, store), as_json=options.json)
                threading.Event().wait(WATCH_S)
        except KeyboardInterrupt:
            return 0


def _show_again(facts: Facts, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts), flush=True)
    else:
        clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
        print(f"{clear}{status_text(facts)}\n", flush=True)


def gather(pipeline: Pipeline, store: ControlStore) -> Facts:
    """The whole status, as plain values."""
    through, unrouted = store.unrouted.counts(pipeline.name)
    return {
        "pipeline": pipeline.name,
        "source": _source(pipeline),
        "deliverers": to_builtins(store.deliverers(pipeline.name)),
        "destinations": [to_builtins(each) for each in store.destinations(pipeline.name)],
        "unrouted": {"through": through, "rows": unrouted.rows, **to_builtins(unrouted)},
    }


def _source(pipeline: Pipeline) -> Facts:
    try:
        return {"version": pipeline_source(pipeline).state(0).version, "error": ""}
    except TrunklineError as error:
        return {"version": None, "error": str(error)}


def status_text(facts: Facts) -> str:
    version = facts["source"]["version"]
    known = [each for each in facts["destinations"] if each["configured"] and not each["retired"]]
    hidden = len(facts["destinations"]) - len(known)
    live = [each["name"] for each in facts["deliverers"] if each["live"]]
    who = ", ".join(live) if live else "no deliverer: start one with `trunkline deliver run`"
    lines = [f"pipeline {facts['pipeline']}, source at version {version or '?'}, delivered by {who}"]
    lines += [f"the source cannot be read: {facts['source']['error']}"] if facts["source"]["error"] else []
    parts = ["\n".join(lines)]
    if known:
        rows = [_row(each, version) for each in known]
        parts.append(table(HEADINGS, rows))
        parts.append(ROWS_CHANGED)
    errors = {each["name"]: (each["status"] or {}).get("error", "") for each in known}
    parts += [f"{name}: {error.removeprefix(f'{name}: ')}" for name, error in errors.items() if error]
    if facts["unrouted"]["rows"]:
        parts.append(_unrouted(facts["unrouted"]))
    if hidden:
        parts.append(f"{plural(hidden, 'destination')} retired or no longer configured (--json shows them)")
    return "\n\n".join(parts)


def _row(record: Facts, version: int | None) -> list[object]:
    status = record["status"] or {}
    position = status.get("position")
    complete = max(position or 0, record["empty"]["through"])
    behind = max(0, version - complete) if version is not None and position is not None else None
    return [
        record["name"],
        _state(record),
        position,
        behind,
        status.get("rows_total"),
        _ago(status),
        record["owner"] or "-",
    ]


def _state(record: Facts) -> str:
    """The state that the deliverer reported, and the desired state while it differs."""
    state = (record["status"] or {}).get("state") or "new"
    state = state if record["owner"] or state == "new" else f"was {state}"
    desired = record["desired_state"]
    followed = {"active": "", "draining": "drained"}.get(desired, desired)
    return state if desired == "active" or state == followed else f"{state}, to be {followed}"


def _ago(status: Facts) -> str:
    flushed_at_ms = status.get("flushed_at_ms")
    if flushed_at_ms is None:
        return "-"
    seconds = max(0, round(time.time() - flushed_at_ms / 1000))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def _unrouted(unrouted: Facts) -> str:
    values = sorted(unrouted["values"].items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [f"{value!r} {count:,}" for value, count in values[:UNROUTED_SHOWN]]
    shown += [f"NULL {unrouted['nulls']:,}"] if unrouted["nulls"] else []
    rest = sum(count for _, count in values[UNROUTED_SHOWN:]) + unrouted["others"]
    shown += [f"others {rest:,}"] if rest else []
    return (
        f"{plural(unrouted['rows'], 'row has', 'rows have')} no destination, up to version {unrouted['through']}: "
        f"{', '.join(shown)}"
    )


# ------------------------------------------------------------------------------------------------------ desired states


def set_desired_state(options: argparse.Namespace) -> int:
    """``options.action``: the name of the command."""
    _check_names(options)
    pipeline = pipeline_of(options.config)
    with store_of_a_pipeline_that_ran(pipeline, options.config) as store:
        names = _names(options, pipeline, store)
        if options.action == "reseed":
            store.desired_states.request_reseed(pipeline.name, names, discards=options.discard_history)
            changed = tuple(names)
        else:
            halted = _halted(pipeline, store, names) if options.action == "resume" else ()
            changed = store.desired_states.set(pipeline.name, names, DESIRED_STATES[options.action])
            changed += _end_halts(pipeline, store, [name for name in halted if name not in changed])
        live = any(each.live for each in store.deliverers(pipeline.name))
    _report(options, names, changed, live=live)
    return 0


def _check_names(options: argparse.Namespace) -> None:
    if options.all and options.destinations:
        raise WrongInput("name destinations or use --all, not both")
    if not options.all and not options.destinations:
        raise WrongInput("name destinations, or use --all")
    if options.all and not getattr(options, "yes", True):
        raise WrongInput(f"this would {options.action} every destination of {options.config}; confirm with --yes")


def _names(options: argparse.Namespace, pipeline: Pipeline, store: ControlStore) -> list[str]:
    if options.destinations:
        return list(dict.fromkeys(options.destinations))
    return [each.name for each in store.destinations(pipeline.name) if each.configured and not each.retired]


def _report(options: argparse.Namespace, names: Sequence[str], changed: Sequence[str], *, live: bool) -> None:
    word = {"reseed": "to be seeded again"}.get(options.action) or DESIRED_STATES[options.action]
    if options.json:
        unchanged = [name for name in names if name not in changed]
        print_json({"desired_state": word, "changed": list(changed), "unchanged": unchanged, "followed_now": live})
        return
    print(
        f"{word}: {', '.join(changed)}"
        if changed
        else f"nothing to do: {plural(len(names), 'destination')} already {word}"
    )
    if changed and not live:
        print(f"no deliverer runs now; the next one follows it (`trunkline deliver run {options.config}`)")


# --------------------------------------------------------------------------------------------------------- after a halt


def _halted(pipeline: Pipeline, store: ControlStore, names: Sequence[str]) -> list[str]:
    """Those that a deliverer has halted."""
    asked = set(names)
    return [each.name for each in store.destinations(pipeline.name) if each.name in asked and each.halted]


def _end_halts(pipeline: Pipeline, store: ControlStore, names: Sequence[str]) -> tuple[str, ...]:
    """A halt ends when the desired state becomes active. It already is, so it becomes paused for a moment."""
    if not names:
        return ()
    store.desired_states.set(pipeline.name, names, "paused")
    try:
        until = time.monotonic() + HALT_ENDS_S
        while _halted(pipeline, store, names) and time.monotonic() < until:
            threading.Event().wait(POLL_S)
    finally:
        store.desired_states.set(pipeline.name, names, "active")
    return tuple(names)
