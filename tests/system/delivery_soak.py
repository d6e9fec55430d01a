"""A pipeline of real processes under a random schedule of faults, compared with its source afterwards.

    .venv/bin/python tests/system/delivery_soak.py --minutes 10 --seed 7 --dir D [--master local-cluster[2,1,1024]]

Deliverers, Python workers, executors and the PostgreSQL server are killed (``kill -9``), and a deliverer is stopped
(SIGSTOP) for longer than its lease while another takes over, under a source that keeps changing. Then everything is
healed, the pipeline drains, and every table is compared with its part of the source: DuckLake, Delta and PostgreSQL,
mirror and append. Exit codes: 0 nothing is wrong, 1 something is.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # pytest has put the tests on the path already
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psycopg
import pyarrow as pa
from deltalake import DeltaTable

from postgres_server import PostgresServer
from system import delivery_workload
from system.delivery_workload import Writer
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.config.addresses import LakeAddress

REST_S = (2.0, 8.0)  # between two faults
STOPPED_S = 9.0  # longer than the lease
LEASE_MS = 5_000
FINAL_S_MAX = 300.0
COLUMNS = "id, tenant, amount, note, stamp"
KINDS = ("ducklake", "delta", "postgres")
FAULTS = {"kill driver": 4, "kill worker": 5, "kill executor": 3, "kill server": 3, "stop driver": 1}


@dataclass(frozen=True)
class Plan:
    seconds: float
    seed: int
    master: str = "local[2]"
    deliverers: int = 2


@dataclass(frozen=True)
class Target:
    name: str
    kind: str
    mode: str


TARGETS = tuple(
    Target(f"t{place}", KINDS[place % 3], "append" if place >= 6 else "mirror")
    for place in range(delivery_workload.TENANTS - 1)
)


class Wrong(AssertionError):
    """A destination is not what it should be."""


class Soak:
    def __init__(self, directory: Path, server: RestartingServer, plan: Plan) -> None:
        self._directory = directory
        self._server = server
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._address = LakeAddress(
            f"sqlite:{directory / 'source.sqlite'}", "orders", data_path=str(directory / "source")
        )
        self._config = directory / "orders.yaml"
        self._deliverers: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._writer: subprocess.Popen[bytes] | None = None
        self.faults: Counter[str] = Counter()

    def run(self) -> None:
        """Everything; raises ``Wrong`` if a table differs at the end."""
        self._prepare()
        try:
            for number in range(self._plan.deliverers):
                self._start(f"d{number}")
            end = time.monotonic() + self._plan.seconds
            while time.monotonic() < end:
                time.sleep(self._chance.uniform(*REST_S))
                self._fault()
                self._restart_the_dead()
        finally:
            self._end_everything()
        self._server.start_if_down()
        self._drain()
        self._compare()

    # --- the pipeline ---

    def _prepare(self) -> None:
        dsn = self._server.create_database("deliveries")
        Writer(self._address, self._plan.seed).begin()
        lines = [
            "pipeline: orders",
            f"source: {{type: ducklake, catalog: '{self._address.catalog}', table: orders}}",
            "routing: {column: tenant}",
            "key: [id]",
            "flush: {interval_ms: 200}",
            "retry: {first_ms: 200, most_ms: 3000}",
            "reading: {poll_ms: 200}",
            f"control: {{store: 'sqlite:control.db', lease_ms: {LEASE_MS}}}",
            f"spark: {{master: '{self._plan.master}'}}",
            "listen: none",
            "destinations:",
            *(f"  - {{name: {each.name}, mode: {each.mode}, {self._place(each, dsn)}}}" for each in TARGETS),
        ]
        self._config.write_text("\n".join(lines) + "\n")
        catalog, data = self._address.catalog, str(self._address.data_path)
        command = [sys.executable, delivery_workload.__file__, catalog, data, str(self._plan.seed), str(os.getpid())]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
        self._writer = subprocess.Popen([*command, str(self._directory / "progress")], env=environment)

    def _place(self, target: Target, dsn: str) -> str:
        match target.kind:
            case "ducklake":
                folder = self._directory / target.name
                return f"type: ducklake, catalog: 'sqlite:{folder}.sqlite', data_path: '{folder}', table: orders"
            case "delta":
                return f"type: delta, path: '{self._directory / target.name}'"
        return f"type: postgres, dsn: '{dsn}', table: orders_{target.name}"

    def _start(self, name: str) -> None:
        self._started += 1
        command = [
            sys.executable,
            "-m",
            "trunkline.cli.main",
            "deliver",
            "run",
            str(self._config),
            "--name",
            f"{name}-{self._started}",
        ]
        with open(self._directory / f"{name}.log", "ab") as log:
            self._deliverers[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _restart_the_dead(self) -> None:
        for name, process in list(self._deliverers.items()):
            if process.poll() is not None:
                self._start(name)
        self._server.start_if_down()

    # --- faults ---

    def _fault(self) -> None:
        kinds = [kind for kind in FAULTS if kind != "kill executor" or "cluster" in self._plan.master]
        kind = self._chance.choices(kinds, [FAULTS[each] for each in kinds])[0]
        driver = self._chance.choice(sorted(self._deliverers))
        process = self._deliverers[driver]
        match kind:
            case "kill driver":
                process.kill()
                process.wait()
            case "stop driver":
                process.send_signal(signal.SIGSTOP)
                time.sleep(STOPPED_S)
                process.send_signal(signal.SIGCONT)
            case "kill worker":
                if not self._kill_below(process.pid, "-m trunkline.delivery.engine.worker_daemon"):
                    return
            case "kill executor":
                if not self._kill_below(process.pid, "CoarseGrainedExecutorBackend"):
                    return
            case "kill server":
                self._server.kill()
                time.sleep(self._chance.uniform(0.1, 3.0))
        self.faults[kind] += 1

    def _kill_below(self, pid: int, *words: str) -> bool:
        """Kill one process below a deliverer whose command line has one of the words."""
        lines = {each: command_line(each) for each in descendants(pid)}
        found = sorted(each for each, line in lines.items() if any(word in line for word in words))
        if not found:
            return False
        try:
            os.kill(self._chance.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _end_everything(self) -> None:
        for process in (*self._deliverers.values(), *([self._writer] if self._writer else ())):
            if process.poll() is None:
                process.kill()
            process.wait()

    # --- the end ---

    def _drain(self) -> None:
        command = [sys.executable, "-m", "trunkline.cli.main", "deliver"]
        for step in (["run", str(self._config), "--once"], ["verify", str(self._config)]):
            done = subprocess.run([*command, *step], capture_output=True, text=True, timeout=FINAL_S_MAX, check=False)
            print(done.stdout, end="", flush=True)
            if done.returncode != 0:
                raise Wrong(f"`deliver {step[0]}` ended with {done.returncode}: {done.stderr[-3000:]}")

    def _compare(self) -> None:
        with new_duckdb("ducklake", "sqlite_scanner") as lake:
            attach_lake(lake, self._address, "lake", read_only=True)
            for target in TARGETS:
                lake.register("held", self._held(target))
                own = f"SELECT {COLUMNS} FROM lake.orders WHERE tenant = '{target.name}'"
                extra = f"SELECT {COLUMNS} FROM held EXCEPT ALL {own}"
                missing = f"{own} EXCEPT ALL SELECT {COLUMNS} FROM held"
                twice = "SELECT stamp FROM held GROUP BY stamp HAVING count(*) > 1"
                checks = {"missing": missing, "twice": twice} | ({"extra": extra} if target.mode == "mirror" else {})
                for what, query in checks.items():
                    if found := lake.sql(query).fetchmany(5):
                        raise Wrong(f"{target.name} ({target.kind}, {target.mode}): {what} {found}")
                lake.unregister("held")

    def _held(self, target: Target) -> pa.Table:
        match target.kind:
            case "ducklake":
                address = LakeAddress(f"sqlite:{self._directory / target.name}.sqlite", "orders")
                with new_duckdb("ducklake", "sqlite_scanner") as lake:
                    attach_lake(lake, address, "lake", read_only=True)
                    return lake.sql(f"SELECT {COLUMNS} FROM lake.orders").to_arrow_table()
            case "delta":
                return DeltaTable(self._directory / target.name).to_pyarrow_table(columns=COLUMNS.split(", "))
        with psycopg.connect(self._server.dsn("deliveries")) as connection:
            rows = connection.execute(f"SELECT {COLUMNS} FROM orders_{target.name}").fetchall()
        schema = pa.schema(
            {
                "id": pa.int64(),
                "tenant": pa.string(),
                "amount": pa.decimal128(12, 2),
                "note": pa.string(),
                "stamp": pa.int64(),
            }
        )
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


class RestartingServer(PostgresServer):
    """A server that can be found dead and started again."""

    def start_if_down(self) -> None:
        if not self.answers():
            self.restart()

    def answers(self) -> bool:
        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def descendants(pid: int) -> Iterator[int]:
    """Every process below one, as the kernel has it now; Java runs in a session of its own, but below its driver."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = {pid}
    while grown := {child for child, parent in parents.items() if parent in found} - found:
        found |= grown
        yield from grown


def command_line(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def soak(directory: Path, plan: Plan) -> Counter[str]:
    server = RestartingServer(fsync=True)
    with server:
        run = Soak(directory, server, plan)
        try:
            run.run()
        finally:
            print(f"faults: {dict(run.faults)}", flush=True)
        return run.faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--deliverers", type=int, default=2)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    directory = given.dir or Path(tempfile.mkdtemp(prefix="delivery-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        soak(directory, Plan(given.minutes * 60, given.seed, given.master, given.deliverers))
    except Wrong as wrong:
        print(f"WRONG (seed {given.seed}, {directory}): {wrong}")
        return 1
    print("every table is equal to its part of the source")
    return 0


if __name__ == "__main__":
    sys.exit(main())
