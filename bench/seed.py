"""A first run from the log of a captured table that is larger than the memory it may use.

    ./run bench seed [--quick] [--rows N] [--heap MIB] [--json] [--dir DIR]

A PostgreSQL table of 10 million rows is captured into a log. `trunkline deliver run --once` then seeds ten tenants,
Delta tables, with a Java heap of 512 MiB; `deliver verify` compares every row afterwards.
Exit code 0: it completes, and every table is equal; 1: not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_command import measured, parser_of, say
from delivery_database import CapturedTables, captured_database, tenants_of
from delivery_rig import descendants
from log_load import cpu_seconds
from log_machine import is_busy, machine_facts
from log_processes import memory_mib

TENANTS = 10
ROWS = 10_000_000
HEAP_MIB = 512
LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Seed:
    machine: dict[str, Any]
    rows: int
    heap_mib: int
    exit_code: int
    verified: bool
    seconds: float  # of the whole command, with the start of Spark
    cpu_seconds: float
    java_mib: float  # at its highest
    worker_mib: float  # the largest Python process

    @property
    def met(self) -> bool:
        return self.exit_code == 0 and self.verified


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("seed", __doc__, quick="200,000 rows", needs="10 GB")
    parser.add_argument("--rows", type=int, help=f"of the table (default: {ROWS:,})")
    parser.add_argument("--heap", type=int, default=HEAP_MIB, help="of Java, in MiB (default: %(default)s)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, directory: Path) -> Seed:
    rows = options.rows or (200_000 if options.quick else ROWS)
    with captured_database(directory) as (server, cluster):
        source = CapturedTables(server, cluster, "large", 1, TENANTS)
        source.fill(rows)
        say(f"{rows:,} rows are captured")
        file = _pipeline(directory, source, options.heap)
        took, used, peaks, code = _watched("run", str(file), "--once")
        _, _, _, verified = _watched("verify", str(file))
    java = max((mib for name, mib in peaks.values() if name == "java"), default=0.0)
    worker = max((mib for name, mib in peaks.values() if name != "java"), default=0.0)
    return Seed(machine_facts(directory), rows, options.heap, code, verified == 0, took, used, java, worker)


def _pipeline(directory: Path, source: CapturedTables, heap_mib: int) -> Path:
    file = directory / "pipeline.yaml"
    config = {
        "pipeline": "seed",
        "source": {"type": "log", "log": source.log, "connect": source.connect, "table": "public.t0"},
        "key": ["id", "tenant"],
        "routing": {"column": "tenant"},
        "defaults": {"type": "delta", "path": str(directory / "tables" / "{name}")},
        "destinations": [{"name": name} for name in tenants_of(TENANTS)],
        "control": {"store": f"sqlite:{directory}/control.db"},
        "spark": {"conf": {"spark.driver.memory": f"{heap_mib}m"}},
        "listen": "none",
    }
    file.write_text(json.dumps(config))  # JSON is YAML
    return file


def _watched(*arguments: str) -> tuple[float, float, dict[int, tuple[str, float]], int]:
    """Seconds, CPU-seconds, the highest memory of each process by its program, and the exit code."""
    command = [str(Path(sys.executable).parent / "trunkline"), "deliver", *arguments]
    begun, used = time.monotonic(), 0.0
    peaks: dict[int, tuple[str, float]] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ)) as process:
        while process.poll() is None:
            with suppress(OSError, IndexError, KeyError):  # one of them has just ended
                found = descendants(process.pid)
                used = max(used, cpu_seconds(found))
                for pid in found:
                    peaks[pid] = (Path(f"/proc/{pid}/comm").read_text().strip(), memory_mib(pid)[1])
            time.sleep(LOOK_EVERY_S)
    return time.monotonic() - begun, used, peaks, process.returncode


def report_lines(seed: Seed) -> Iterator[str]:
    facts = seed.machine
    yield f"machine: {facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB, {facts['file_system']}"
    if is_busy(facts):
        yield f"the machine was busy (load {facts['load_before']}): seconds mean little"
    yield (
        f"{seed.rows:,} rows to {TENANTS} Delta tables with a heap of {seed.heap_mib} MiB: {seed.seconds:.0f} s, "
        f"{seed.cpu_seconds / seed.rows * 1e6:.1f} CPU-s per million; peaks: Java {seed.java_mib:,.0f} MiB, the "
        f"largest Python process {seed.worker_mib:,.0f} MiB"
    )
    verdict = "PASS" if seed.met else "FAIL"
    yield f"{verdict}  the first run ends with 0 ({seed.exit_code}), and every table is equal ({seed.verified})"


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    return measured(
        "seed",
        options,
        lambda directory: run(options, directory),
        lines=report_lines,
        values=asdict,
        met=lambda seed: seed.met,
    )


if __name__ == "__main__":
    sys.exit(main())
