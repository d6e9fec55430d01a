"""Many tables in one place: one destination with all of them, and as many destinations with one each.

The first run is `trunkline deliver run --once`, as a user starts it; then windows are measured like everywhere else.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delivery_database import CapturedTables, captured_database, tenants_of
from delivery_rig import Engine, Figures, Rig, descendants, engine, middle
from delivery_source import Made
from delivery_spans import DIRECTORY, Spans
from log_load import cpu_seconds
from log_processes import BENCH, Failed

from trunkline.delivery.config import load_pipeline
from trunkline.delivery.deliverer.assembly import pipeline_source, task_pipeline

PLACES = {
    "ducklake-sqlite": "DuckLake, one catalog in SQLite",
    "ducklake-postgres": "DuckLake, one catalog in PostgreSQL",
    "postgres": "PostgreSQL, one database",
}
ONE, SET, TENANTS = "one table", "one destination with {} tables", "{} destinations with one table"
FIRST_RUN_S_MAX = 1_800.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class FirstRun:
    """`--once` with nothing there yet."""

    exit_code: int
    rows: int
    seconds: float  # of delivering, without the start of Spark
    cpu_seconds: float  # of all its processes
    failures: int  # of destinations in jobs: each is retried
    conflicts: int


@dataclass(frozen=True)
class ManyTables:
    place: str
    shape: str
    first: FirstRun
    windows: Figures
    conflicts: int  # in all windows


@dataclass(frozen=True)
class Shape:
    """A pipeline's file: a source, and its destinations in a place."""

    name: str
    source: CapturedTables
    place: str
    file: Path


class TablesPart:
    def __init__(self, directory: Path, say: Callable[[str], None], *, tables: int, operations: int) -> None:
        self._directory = directory
        self._say = say
        self._tables = tables
        self._operations = operations

    def measure(
        self, places: Sequence[str], *, slots: int, rows_each: int, warm_up: int, windows: int, profile: bool = False
    ) -> Iterator[ManyTables]:
        with captured_database(self._directory) as (server, cluster):
            sources = {
                ONE: CapturedTables(server, cluster, "single", 1, self._tables),
                SET.format(self._tables): CapturedTables(server, cluster, "many", self._tables, self._tables),
            }
            sources[TENANTS.format(self._tables)] = sources[ONE]
            for source in dict.fromkeys(sources.values()):
                source.fill(rows_each * self._tables // source.tables)
            shapes = []
            for place, (name, source) in itertools.product(places, sources.items()):
                dsn = server.create_database(f"place{len(shapes)}") if "postgres" in place else ""
                shapes.append(self._shape(name, source, place, dsn))
            firsts = [self._first_run(shape, slots) for shape in shapes]
            made = {
                id(source): [source.make_window(self._operations) for _ in range(warm_up + windows)]
                for source in dict.fromkeys(sources.values())
            }
            with engine(self._directory, slots=slots, profile=profile) as spark:
                for shape, first in zip(shapes, firsts, strict=True):
                    yield self._windows(spark, shape, first, made[id(shape.source)], warm_up)

    # ------------------------------------------------------------------------------------------------------- the file

    def _shape(self, name: str, source: CapturedTables, place: str, dsn: str) -> Shape:
        folder = self._directory / place / name.replace(" ", "-")
        folder.mkdir(parents=True)
        tenants = name == TENANTS.format(self._tables)
        whole = {"type": "log", "log": source.log, "connect": source.connect}
        config: dict[str, Any] = {
            "pipeline": "bench",
            "source": whole if source.tables > 1 else {**whole, "table": "public.t0"},
            "control": {"store": f"sqlite:{folder}/control.db"},
            "spark": {"conf": {"spark.python.daemon.module": "delivery_spans"}},
        }
        config |= {"tables": ["public.*"]} if source.tables > 1 else {"key": ["id"]}
        config |= {"routing": {"column": "tenant"}} if tenants else {}
        tables = [f"{each}_rows" for each in tenants_of(self._tables)] if tenants else ["{table}"]
        tables = ["single_rows"] if source.tables == 1 and not tenants else tables
        names = tenants_of(self._tables) if tenants else ["all"]
        address = _address(place, folder, dsn)
        config["destinations"] = [
            {"name": each, "table": table, **address} for each, table in zip(names, tables, strict=True)
        ]
        file = folder / "pipeline.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        return Shape(name, source, place, file)

    # -------------------------------------------------------------------------------------------------- the first run

    def _first_run(self, shape: Shape, slots: int) -> FirstRun:
        spans = shape.file.parent / "spans"
        spans.mkdir()
        command = [str(Path(sys.executable).parent / "trunkline"), "deliver", "run", str(shape.file), "--once"]
        command += ["--json", "--log-format", "json", "--master", f"local[{slots}]"]
        environment = {**os.environ, DIRECTORY: str(spans), "PYTHONPATH": str(BENCH)}
        begun = time.monotonic()
        done, used = _finished(command, environment)
        if not done.stdout:
            raise Failed(
                f"{shape.place}, {shape.name}: the first run ended with {done.returncode}:\n{done.stderr[-2000:]}"
            )
        said, kept = json.loads(done.stdout), Spans(spans)
        kept.take(begun, time.monotonic())
        lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        failures = sum(int(line.get("failed", 0)) for line in lines)
        first = FirstRun(done.returncode, said["rows"], said["seconds"], used, failures, kept.conflicts)
        self._say(f"{PLACES[shape.place]}, {shape.name}: first run {first}")
        return first

    # ---------------------------------------------------------------------------------------------------- the windows

    def _windows(
        self, spark: Engine, shape: Shape, first: FirstRun, windows: Sequence[Made], warm_up: int
    ) -> ManyTables:
        with _rig(spark, shape) as rig:
            rig.adopt()
            before = spark.spans.conflicts
            found = [rig.deliver(made)[0] for made in windows]
        done = ManyTables(shape.place, shape.name, first, middle(found[warm_up:]), spark.spans.conflicts - before)
        self._say(
            f"{PLACES[shape.place]}, {shape.name}: {done.windows.rate:,.0f} rows/s, "
            f"{done.windows.cpu_seconds_per_million:.1f} CPU-s per million; "
            f"{done.windows.split.as_text if done.windows.split else ''}"
        )
        return done


@contextmanager
def _rig(spark: Engine, shape: Shape) -> Iterator[Rig]:
    pipeline = load_pipeline(shape.file)
    work = task_pipeline(pipeline, pipeline_source(pipeline), pipeline.destinations)
    with closing(Rig(spark, work)) as rig:
        yield rig


def _address(place: str, folder: Path, dsn: str) -> dict[str, str]:
    match place:
        case "postgres":
            return {"type": "postgres", "dsn": dsn}
        case "ducklake-postgres":
            catalog = f"postgres:{dsn}"
        case _:
            catalog = f"sqlite:{folder}/catalog.sqlite"
    return {"type": "ducklake", "catalog": catalog, "data_path": str(folder / "data")}


def _finished(command: Sequence[str], environment: Mapping[str, str]) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command; also the CPU-seconds of it and all of its processes, most of which it does not wait for."""
    used = 0.0
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        subprocess.Popen(command, stdout=out, stderr=err, text=True, env=environment) as process,
    ):
        until = time.monotonic() + FIRST_RUN_S_MAX
        while process.poll() is None:
            with suppress(OSError, IndexError):  # one of them has just ended
                used = max(used, cpu_seconds(descendants(process.pid)))
            if time.monotonic() > until:
                process.terminate()
                raise Failed(f"{' '.join(command)} took longer than {FIRST_RUN_S_MAX:.0f} s")
            time.sleep(LOOK_EVERY_S)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, out.read(), err.read()), used
