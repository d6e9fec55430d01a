"""The checks of real runs: recordings of processes and histories of clients."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from trunkline.check.history import HistoryVerdict, judge_histories
from trunkline.check.history_file import HistoryError
from trunkline.check.recording import RecordingError, open_recording
from trunkline.check.recording_judge import RecordingVerdict, judge_recording
from trunkline.cli import WrongInput
from trunkline.cli.check_output import Output
from trunkline.plural import plural


def check_recording(path: Path, output: Output) -> int:
    """Judge a directory of recorded files, or one of them. It is read line by line: it may be larger than memory."""
    try:
        verdict = judge_recording(open_recording(path))
    except RecordingError as error:
        raise WrongInput(f"{path}: {error}") from None
    except OSError as error:
        raise WrongInput(f"{path}: {error.strerror or error}") from None
    if output.as_json:
        output.print_json({**asdict(verdict), "violated": verdict.violated})
    else:
        output.print(_recording_text(verdict))
    return 1 if verdict.violated else 0


def check_history(path: Path, output: Output) -> int:
    try:
        verdicts = judge_histories(path)
    except HistoryError as error:
        raise WrongInput(f"{path}: {error}") from None
    except OSError as error:
        raise WrongInput(f"{path}: {error.strerror or error}") from None
    if output.as_json:
        output.print_json({"logs": [_history_json(verdict) for verdict in verdicts]})
    else:
        for verdict in verdicts:
            output.print(_history_text(verdict))
    return 1 if any(verdict.broken for verdict in verdicts) else 0


def _recording_text(verdict: RecordingVerdict) -> str:
    lines = []
    for log in verdict.logs:
        if log.finding is not None:
            lines += [f"VIOLATION in log {log.log}, at {log.place}: {log.finding.monitor}", f"  {log.finding.text}"]
        seen = (
            f"{plural(log.events, 'event')}, {plural(log.committed, 'batch', 'batches')} committed, {log.read:,} read"
        )
        lines.append(f"log {log.log}: {seen}" + ("" if log.finding else ": no violation"))
    files = f"{plural(verdict.files, 'file')} ({verdict.cut:,} of processes that were killed or still run)"
    return "\n".join([*lines, f"{plural(verdict.events, 'event')} of {files}, judged by {', '.join(verdict.monitors)}"])


def _history_text(verdict: HistoryVerdict) -> str:
    lines = [f"VIOLATION in log {verdict.log}: {each.rule}\n  {each.text}" for each in verdict.broken]
    entries = plural(verdict.acknowledged, "entry", "entries")
    seen = f"{plural(verdict.operations, 'operation')}, {entries} acknowledged, {verdict.read:,} read"
    lines.append(f"log {verdict.log}: {seen}" + ("" if verdict.broken else ": no violation"))
    if not verdict.final:
        lines.append("  no client wrote a final reading: a loss at the end would go unnoticed")
    return "\n".join(lines)


def _history_json(verdict: HistoryVerdict) -> dict[str, Any]:
    return {**asdict(verdict), "broken": [each._asdict() for each in verdict.broken]}
