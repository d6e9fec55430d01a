"""`./run demo`: runs the demo in a directory, and prints a summary."""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trunkline.cli.extras import missing_extra
from trunkline.cli.paths import local_path
from trunkline.errors import TrunklineError

try:
    from trunkline.demo.object_server import ServerFailed
    from trunkline.demo.run import Demo, DemoFailed, Result
except ModuleNotFoundError as error:
    if (missing := missing_extra(error, "python -m trunkline.demo")) is None:
        raise
    sys.exit(f"demo: {missing}")

STEP_S: Final = 12.0
INTERRUPTED: Final = 130
AGAIN_S: Final = 0.5  # after which an interrupt that had no effect is repeated


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="A shop's two tables go through a log and Spark to 20 tenants, while processes are killed.",
    )
    parser.add_argument("--keep", action="store_true", help="keep running until Ctrl-C, with the dashboard")
    parser.add_argument(
        "--s3", action="store_true", help="keep the tables in a bucket of an S3 server, which is killed, too"
    )
    parser.add_argument("--dir", type=local_path, help="keep all files here (default: a temporary directory)")
    parser.add_argument(
        "--beat", type=float, default=STEP_S, metavar="S", help=f"seconds between two steps (default: {STEP_S:g})"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="trunkline-demo-") as temporary:
            folder = _folder(options.dir, temporary)
            with (
                Demo(folder, say, step_s=options.beat, keep=options.keep, s3=options.s3) as demo,
                insistent_interrupts(),
            ):
                result = demo.run()
                print(summary(result, time.monotonic() - began, folder if options.dir else None, keep=options.keep))
                if options.keep:
                    print(f"\nit keeps running until Ctrl-C; dashboard: {demo.page}", flush=True)
                    demo.stay()
    except (DemoFailed, ServerFailed, TrunklineError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped; all processes have ended", file=sys.stderr)
        return INTERRUPTED
    return 0 if is_right(result) else 1


def _folder(given: Path | None, temporary: str) -> Path:
    if given is None:
        return Path(temporary)
    given.mkdir(parents=True, exist_ok=True)
    if any(given.iterdir()):
        raise DemoFailed(f"{given} is not empty; name another directory")
    return given.absolute()


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def insistent_interrupts() -> Iterator[None]:
    """Inside, an interrupt is repeated until it has an effect: Python drops one that arrives in the callback of a weak
    reference, or in a destructor."""

    def interrupt(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        raise KeyboardInterrupt

    wanted = [signal.SIGTERM, signal.SIGALRM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a job in the background
        wanted.append(signal.SIGINT)
    before = {each: signal.signal(each, interrupt) for each in wanted}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def is_right(result: Result) -> bool:
    return bool(result.compared) and not result.torn and not any(each.differences for each in result.compared)


def summary(result: Result, seconds: float, folder: Path | None, *, keep: bool = False) -> str:
    wrong = [each for each in result.compared if each.differences]
    delivered = sum(each.rows for each in result.compared)
    lags = result.lags_ms or [0]
    rate = result.changes / result.seconds
    rows = [
        ("changes", f"{result.changes:,} in {result.transactions:,} transactions, {rate:,.0f} a second"),
        ("log", f"{result.entries:,} entries on three nodes; {_failover(*result.epochs)}"),
        ("node killed", f"appends continued after {result.failover_s:.1f} s"),
        ("deliverer killed", f"delivery continued after {result.resumed_s:.1f} s, including the start of Spark"),
        *([("S3 server killed", f"delivery continued after {result.store_s:.1f} s")] if result.store_s else []),
        ("lag", f"median {statistics.median(lags) / 1000:.1f} s, at most {max(lags) / 1000:.1f} s"),
        (
            "tables",
            f"{sum(each.tables for each in result.compared)} with {delivered:,} rows; the shop has {result.rows:,}",
        ),
        ("looks", _looks(result)),
        ("verified", _verdict(result, wrong_names=[each.tenant for each in wrong])),
    ]
    width = max(len(name) for name, _ in rows)
    lines = ["", *(f"  {name:<{width}}  {text}" for name, text in rows), "", f"done in {seconds:.0f} s."]
    if folder is not None:
        lines.append(f"all files are in {folder}: the shop, the log, the tables, pipeline.yaml")
    again = "" if keep else "`./run demo --keep` keeps it running, with the dashboard; "
    lines.append(f"{again}docs/delivery.md explains it.")
    return "\n".join(lines)


def _failover(before: int, after: int) -> str:
    return f"the fail-over raised epoch {before} to {after}" if after > before else "the killed one was back in time"


def _looks(result: Result) -> str:
    if result.torn:
        return f"NO: {result.torn:,} of {result.looks:,} looks at a tenant saw tables of two versions"
    return f"{result.looks:,} at customers and orders of a tenant, each of one version of the shop"


def _verdict(result: Result, wrong_names: list[str]) -> str:
    if not result.compared:
        return "NO: nothing was compared"
    if wrong_names:
        return f"NO: {len(wrong_names)} of {len(result.compared)} differ from the shop: {', '.join(wrong_names)}"
    return f"all {len(result.compared)} tenants equal to the shop, row by row"


if __name__ == "__main__":
    sys.exit(main())
