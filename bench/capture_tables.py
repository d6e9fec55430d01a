"""Many tables of which few are busy, a table that is created meanwhile, and a server where only other tables change."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from statistics import median

from capture_drains import compared
from capture_pgbench import sampled
from capture_rig import Bench, LogReader, run, wait_complete
from log_processes import Failed

MANY = "CREATE TABLE many_{number:03} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text, size integer)"
BUSY = """
INSERT INTO many_{number:03} (note, size) VALUES ('busy', 1);
UPDATE many_{number:03} SET size = size + 1 WHERE id = 1;
"""
CREATED_ROWS = 1000
CLIENTS = 4


@dataclass
class ManyTables:
    tables: int
    busy: int
    seconds: float
    complete_s: float  # until all snapshots were in the log
    rate: float  # transactions a second of all busy tables
    delay_ms: float  # from commit to append, median
    created_s: float  # from CREATE TABLE until its rows are in the log
    cpu_seconds: float
    peak_mib: float
    verdict: str


@dataclass
class Retained:
    """Of a server where only tables that are not captured change."""

    minutes: float
    written_mib: float
    distance_mib: list[float]  # samples: what is not confirmed
    retained_mib: list[float]  # what the server keeps for the capture
    entries: int  # that the capture wrote meanwhile


def measure_tables(bench: Bench, *, tables: int, busy: int, seconds: float) -> ManyTables:
    bench.say(f"{tables} tables")
    bench.execute(*(MANY.format(number=number) for number in range(tables)))
    capture, reader = bench.capture("many", "--tables", "public.many_*"), LogReader(bench, "many")
    began = time.monotonic()
    capture.start()
    wait_complete(capture, reader, tables)
    complete_s, cpu, begin = time.monotonic() - began, capture.cpu_seconds, len(reader.delays_ms)
    scripts = []
    for number in range(busy):
        script = bench.directory / f"busy{number}.sql"
        script.write_text(BUSY.format(number=number))
        scripts += ["-f", str(script)]
    bench.say(f"{busy} of them are busy for {seconds:.0f} s; one more is created")
    command = bench.pgbench("-n", *scripts, "-c", str(CLIENTS), "-T", f"{seconds:.0f}")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as load:
        time.sleep(seconds / 3)
        created = MANY.format(number=tables)
        bench.execute(
            created, f"INSERT INTO many_{tables:03} (note) SELECT 'new' FROM generate_series(1, {CREATED_ROWS})"
        )
        at = time.monotonic()
        wait_complete(capture, reader, tables + 1)
        created_s = time.monotonic() - at
        _, errors = load.communicate()
        if load.returncode != 0:
            raise Failed(f"pgbench ended with {load.returncode}:\n{errors[-2000:]}")
    capture.settle("INSERT INTO many_000 (note) VALUES ('mark')")
    used, peak = capture.cpu_seconds - cpu, capture.peak_mib
    capture.stop()
    delays = reader.advance().delays_ms[begin:] or [0.0]
    verdict = compared(bench, "many")
    return ManyTables(
        tables, busy, seconds, complete_s, len(delays) / seconds, median(delays), created_s, used, peak, verdict
    )


def measure_retained(bench: Bench, minutes: float) -> Retained:
    bench.execute("CREATE TABLE calm (id bigint PRIMARY KEY)")
    run(bench.pgbench("-i", "-q"))
    capture, reader = bench.capture("calm", "--tables", "public.calm"), LogReader(bench, "calm")
    capture.start()
    wait_complete(capture, reader, 1)
    capture.settle("INSERT INTO calm VALUES (1)")
    before = reader.advance().entries
    bench.say(f"only other tables change for {minutes:g} minutes: those of pgbench")
    with sampled(bench, capture) as lag:
        run(bench.pgbench("-n", "-c", "4", "-T", f"{minutes * 60:.0f}"))
    capture.stop()
    return Retained(
        minutes,
        (lag.position[-1] - lag.position[0]) / 2**20,
        lag.mib,
        [each / 2**20 for each in lag.retained],
        reader.advance().entries - before,
    )
