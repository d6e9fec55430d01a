"""The baseline of `./run bench delivery`: the same windows, delivered by DuckDB in one process, without Spark.

A good simple implementation: one DuckDB instance with all cores and default settings; the window is read once, by our
exact reader (the change feed of DuckLake is not exact); one SQL statement computes the net changes; each destination is
written in one transaction with its position, which is checked first; every catalog stays attached.

As a program it answers one request per line, so that it and Spark can take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from delivery_source import KEY, ROUTING, Made
from log_processes import BENCH, STOP_WITHIN_S, Failed, _die_with_parent

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.backends.sql import literal
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.ducklake import DuckLakeSource
from trunkline.delivery.sources.ducklake_catalog import CATALOG, LakeCatalog
from trunkline.delivery.sources.ducklake_window import WindowReader, plan_window

REMOVE, REPLACE, INSERT = 0, 1, 2


class Baseline:
    """The process, seen from the benchmark."""

    def __init__(self, source: LakeAddress, destinations: list[tuple[str, LakeAddress]]) -> None:
        command = [sys.executable, str(BENCH / "delivery_baseline.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=_die_with_parent
        )
        self.pid = self._process.pid
        self._ask(source=_plain(source), destinations=[(name, _plain(address)) for name, address in destinations])

    def __enter__(self) -> Baseline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def seed(self, through: int) -> None:
        self._ask(after=BEFORE_ALL, through=through)

    def deliver(self, made: Made) -> tuple[float, float]:
        """Seconds and CPU-seconds of a window."""
        found = self._ask(after=made.window.after, through=made.window.through)
        if (found["removed"], found["written"]) != (made.removed, made.written):
            raise Failed(f"the baseline delivered {found} where {made} was expected")
        return found["seconds"], found["cpu_seconds"]

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Failed("the baseline's process ended; its message is above")
        return dict(json.loads(answer))


def _plain(address: LakeAddress) -> dict[str, str]:
    assert address.data_path is not None
    return {"catalog": address.catalog, "table": address.table, "data_path": address.data_path}


# ---------------------------------------------------------------------------------------------------------- the process


class Delivery:
    def __init__(self, source: LakeAddress, destinations: list[tuple[str, LakeAddress]]) -> None:
        self._source = source
        self._connection = new_duckdb("ducklake", "sqlite_scanner")
        self._lakes: dict[str, str] = {}  # routing value -> alias
        self._columns: Columns = ()
        for value, address in destinations:
            alias = f"lake{len(self._lakes)}"
            Path(str(address.data_path)).parent.mkdir(parents=True, exist_ok=True)
            attach_lake(self._connection, address, alias, read_only=False)
            self._lakes[value] = alias

    def deliver(self, window: Window) -> tuple[int, int]:
        """Rows removed and written."""
        self._settle(self._read(window))
        counts = self._connection.execute(
            f"SELECT {ROUTE_COLUMN}, count(*) FILTER (op <> {INSERT}), count(*) FILTER (op <> {REMOVE}) "
            f"FROM staged GROUP BY ALL"
        ).fetchall()
        removed = written = 0
        for value, leaving, coming in counts:
            if value in self._lakes:
                self._flush(window, value, leaving, coming)
                removed, written = removed + leaving, written + coming
        return removed, written

    def _read(self, window: Window) -> NetChanges:
        if not self._columns:
            self._columns = DuckLakeSource(self._source).columns(window.through)
        with LakeCatalog(self._connection, self._source) as catalog:
            plan = plan_window(catalog, window)
            reader = WindowReader(self._connection, catalog, plan, ReadRequest(self._columns, KEY, ROUTING))
        self._connection.execute(f"DETACH {CATALOG}")
        return reader.read(ALL_ROUTES)

    def _settle(self, net: NetChanges) -> None:
        """Each row's own routing value decides: a row that moved leaves one destination and arrives at another."""
        self._connection.register("gone", net.removed)
        self._connection.register("came", net.arrived)
        names = ", ".join([ROUTE_COLUMN, *KEY])
        self._connection.execute(
            f"""CREATE OR REPLACE TEMP TABLE staged AS
            SELECT came.*, CASE WHEN was IS NULL THEN {INSERT} ELSE {REPLACE} END AS op
            FROM came LEFT JOIN (SELECT DISTINCT {names}, true AS was FROM gone) USING ({names})
            UNION ALL BY NAME
            SELECT DISTINCT {names}, {REMOVE} AS op FROM gone ANTI JOIN came USING ({names})
            ORDER BY {ROUTE_COLUMN}"""
        )
        shared = f"SELECT count(*) - count(DISTINCT ({names})) FROM staged"
        if self._connection.execute(shared).fetchall() != [(0,)]:
            raise SystemExit("rows of the source share a key")
        self._connection.unregister("gone")
        self._connection.unregister("came")

    def _flush(self, window: Window, value: str, leaving: int, coming: int) -> None:
        run, lake = self._connection.execute, self._lakes[value]
        mine = f"{ROUTE_COLUMN} = {literal(value)}"
        run("BEGIN")
        if window.after == BEFORE_ALL:
            columns = ", ".join(f"{column.name} {column.type}" for column in self._columns)
            run(f"CREATE TABLE {lake}.orders ({columns})")
            run(f"CREATE TABLE {lake}.position (position BIGINT, token BIGINT)")
            run(f"INSERT INTO {lake}.position VALUES ({BEFORE_ALL}, 1)")
        if run(f"SELECT position, token FROM {lake}.position").fetchall() != [(window.after, 1)]:
            raise SystemExit(f"{value} is not where it was left")
        same = " AND ".join(f"t.{name} = s.{name}" for name in KEY)
        removing = f"DELETE FROM {lake}.orders t USING (SELECT * FROM staged WHERE {mine}) s WHERE {same}"
        if run(removing).fetchall() != [(leaving,)]:
            raise SystemExit(f"{value} has a key that is inserted, or lacks one that is deleted")  # rolls back
        names = ", ".join(column.name for column in self._columns)
        run(f"INSERT INTO {lake}.orders SELECT {names} FROM staged WHERE {mine} AND op <> {REMOVE}")
        run(f"UPDATE {lake}.position SET position = {window.through}")
        run("COMMIT")


def main() -> int:
    delivery: Delivery | None = None
    for line in sys.stdin:
        request = json.loads(line)
        begun, cpu = time.perf_counter(), time.process_time()
        removed = written = 0
        if delivery is None:
            found = [(value, LakeAddress(**address)) for value, address in request["destinations"]]
            delivery = Delivery(LakeAddress(**request["source"]), found)
        else:
            removed, written = delivery.deliver(Window(request["after"], request["through"]))
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
        answer = {"seconds": seconds, "cpu_seconds": cpu_seconds, "removed": removed, "written": written}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
