"""The checks of what happened: traces of scenarios, recordings of running processes, histories of clients."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trunkline.check import report
from trunkline.check.catalogue import Catalogue
from trunkline.check.history import HistoryVerdict, judge_histories
from trunkline.check.history_file import HistoryError
from trunkline.check.recording import open_recording
from trunkline.check.recording_judge import RecordingVerdict, judge_recording
from trunkline.check.trace import TraceError, judge
from trunkline.cli import WrongInput
from trunkline.cli.check_output import Output
from trunkline.core.recording import VERSION
from trunkline.plural import plural


def judge_trace(known: Catalogue, path: Path, output: Output) -> int:
    """A directory or a file of a recording, or the run of a scenario. Line by line: it may be larger than memory."""
    try:
        if path.is_dir() or _is_recording(path):
            return _recording(path, output)
        with path.open(encoding="utf-8") as file:
            verdict = judge(file, known.scenario)
    except TraceError as error:
        raise WrongInput(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise WrongInput(f"{path}: {_reason(error)}") from None
    if output.as_json:
        output.print_json(report.verdict_json(verdict))
    else:
        output.print(report.verdict_text(verdict))
    return 1 if verdict.finding else 0


def judge_history(path: Path, output: Output) -> int:
    try:
        verdicts = judge_histories(path)
    except HistoryError as error:
        raise WrongInput(f"{path}: {error}") from None
    except OSError as error:
        raise WrongInput(f"{path}: {_reason(error)}") from None
    if output.as_json:
        output.print_json({"logs": [_history_json(verdict) for verdict in verdicts]})
    else:
        for verdict in verdicts:
            output.print(_history_text(verdict))
    return 1 if any(verdict.broken for verdict in verdicts) else 0


def _is_recording(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline()
    try:
        header = json.loads(first)
    except ValueError:  # what is wrong with it is said by the one who reads it
        return False
    return isinstance(header, dict) and header.get("version") == VERSION and "process" in header


def _recording(path: Path, output: Output) -> int:
    verdict = judge_recording(open_recording(path))
    if output.as_json:
        output.print_json({**asdict(verdict), "violated": verdict.violated})
    else:
        output.print(_recording_text(verdict))
    return 1 if verdict.violated else 0


def _recording_text(verdict: RecordingVerdict) -> str:
    lines = []
    for log in verdict.logs:
        if log.finding is not None:
            lines += [f"VIOLATION in log {log.log}, at {log.place}: {log.finding.monitor}", f"  {log.finding.text}"]
        seen = (
            f"{plural(log.events, 'event')}, {plural(log.committed, 'batch', 'batches')} committed, {log.read:,} read"
        )
        lines.append(f"log {log.log}: {seen}" + ("" if log.finding else ": no violation"))
    files = f"{plural(verdict.files, 'file')} ({verdict.cut:,} of processes that were killed, or still run)"
    return "\n".join([*lines, f"{plural(verdict.events, 'event')} of {files}, judged by {', '.join(verdict.monitors)}"])


def _history_text(verdict: HistoryVerdict) -> str:
    lines = [f"VIOLATION in log {verdict.log}: {each.rule}\n  {each.text}" for each in verdict.broken]
    entries = plural(verdict.acknowledged, "entry", "entries")
    seen = f"{plural(verdict.operations, 'operation')}, {entries} acknowledged, {verdict.read:,} read"
    lines.append(f"log {verdict.log}: {seen}" + ("" if verdict.broken else ": no violation"))
    if not verdict.final:
        lines.append("  there is no final reading: what was lost at the end would not be seen")
    return "\n".join(lines)


def _history_json(verdict: HistoryVerdict) -> dict[str, Any]:
    return {**asdict(verdict), "broken": [each._asdict() for each in verdict.broken]}


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not a text file"
