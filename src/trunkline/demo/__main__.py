"""`./run demo`: runs the story in a directory of its own, and sums it up."""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from trunkline.cli.extras import missing_extra
from trunkline.cli.paths import local_path
from trunkline.errors import TrunklineError

try:
    from trunkline.demo.story import Broken, Story, Told
except ModuleNotFoundError as error:
    if (missing := missing_extra(error, "python -m trunkline.demo")) is None:
        raise
    sys.exit(f"demo: {missing}")

BEAT_S: Final = 12.0
INTERRUPTED: Final = 130


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="A shop's changes through capture, a replicated log and Spark to 20 tables, with faults.",
    )
    parser.add_argument("--keep", action="store_true", help="go on until Ctrl-C, with a page to watch it")
    parser.add_argument(
        "--dir", type=local_path, help="where everything goes, and stays (default: a temporary directory)"
    )
    parser.add_argument(
        "--beat", type=float, default=BEAT_S, metavar="S", help=f"of each chapter (default: {BEAT_S:g})"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="trunkline-demo-") as temporary:
            folder = _folder(options.dir, temporary)
            with Story(folder, say, beat_s=options.beat, keep=options.keep) as story:
                told = story.tell()
                print(summary(told, time.monotonic() - began, folder if options.dir else None, keep=options.keep))
                if options.keep:
                    print(f"\nit goes on until Ctrl-C; watch it at {story.page}", flush=True)
                    story.stay()
    except (Broken, TrunklineError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped; every process has ended", file=sys.stderr)
        return INTERRUPTED
    return 0 if is_right(told) else 1


def _folder(given: Path | None, temporary: str) -> Path:
    if given is None:
        return Path(temporary)
    given.mkdir(parents=True, exist_ok=True)
    if any(given.iterdir()):
        raise Broken(f"{given} is not empty; name another directory")
    return given.absolute()


def _interrupt() -> None:
    raise KeyboardInterrupt


def is_right(told: Told) -> bool:
    return bool(told.compared) and not any(each.differences for each in told.compared)


def summary(told: Told, seconds: float, folder: Path | None, *, keep: bool = False) -> str:
    """What happened, in a few aligned lines."""
    wrong = [each for each in told.compared if each.differences]
    delivered = sum(each.rows for each in told.compared)
    lags = told.lags_ms or [0]
    rate, (before, after) = told.changes / told.seconds, told.epochs
    rows = [
        ("changes", f"{told.changes:,} in {told.transactions:,} transactions, {rate:,.0f} a second"),
        ("log", f"{told.entries:,} entries on three nodes; epoch {before} became {after} by the fail-over"),
        ("a node killed", f"appends went on after {told.failover_s:.1f} s"),
        ("deliverer killed", f"delivery went on after {told.resumed_s:.1f} s, Spark's start included"),
        ("lag", f"median {statistics.median(lags) / 1000:.1f} s, at most {max(lags) / 1000:.1f} s"),
        ("tables", f"{len(told.compared)} with {delivered:,} rows; the shop has {told.rows:,}"),
        ("verified", _verdict(told, wrong_names=[each.tenant for each in wrong])),
    ]
    width = max(len(name) for name, _ in rows)
    lines = ["", *(f"  {name:<{width}}  {text}" for name, text in rows), "", f"done in {seconds:.0f} s."]
    if folder is not None:
        lines.append(f"everything is in {folder}: the shop, the log, the tables, pipeline.yaml")
    again = "" if keep else "`./run demo --keep` leaves it running, with a page to watch it; "
    lines.append(f"{again}docs/delivery.md tells the rest.")
    return "\n".join(lines)


def _verdict(told: Told, wrong_names: list[str]) -> str:
    if not told.compared:
        return "NOT: nothing was compared"
    if wrong_names:
        return f"NO: {len(wrong_names)} of {len(told.compared)} differ from the shop: {', '.join(wrong_names)}"
    return f"all {len(told.compared)} equal to the shop, row by row"


if __name__ == "__main__":
    sys.exit(main())
