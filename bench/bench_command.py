"""Shared by the benchmark commands: options, a temporary directory, a report, an exit code.

Exit code 0: every goal is met; 1: one is missed; 2: the measurement failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from log_processes import Failed

Results = TypeVar("Results")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser_of(name: str, document: str | None, *, quick: str, needs: str) -> argparse.ArgumentParser:
    """``quick``: what `--quick` makes smaller. ``needs``: the disk space."""
    summary = document.splitlines()[0] if document else ""
    parser = argparse.ArgumentParser(prog=f"./run bench {name}", description=summary)
    parser.add_argument("--quick", action="store_true", help=f"{quick}: a functional test, not a measurement")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--dir", type=Path, help=f"directory on the measured disk, needs {needs} (default: that for temporary files)"
    )
    return parser


def _end(*_: object) -> None:
    """Stop and remove everything on a signal, too. Java is killed first, or the exit would wait for its job."""
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGTERM)
    sys.exit(143)


def measured(
    name: str,
    options: argparse.Namespace,
    measure: Callable[[Path], Results],
    *,
    lines: Callable[[Results], Iterable[str]],
    values: Callable[[Results], Any],
    met: Callable[[Results], bool],
) -> int:
    """Measure in a temporary directory, and print the report."""
    signal.signal(signal.SIGTERM, _end)
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="trunkline-bench-", dir=options.dir) as directory:
            results = measure(Path(directory))
            print(json.dumps(values(results), indent=2) if options.json else "\n".join(["", *lines(results)]))
    except Failed as failure:
        say(f"bench {name}: {failure}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if met(results) else 1
