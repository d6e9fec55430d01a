"""Trunkline's side of `./run bench log`: a local cluster of real processes, and a client that uses the public library.

As a program it is the client; the benchmark starts it as a separate process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop
from log_load import Figures, cpu_seconds, measure
from log_processes import Processes, own_directory, run_client

import trunkline

REPLICAS = 3
LOG = "bench"
FILL_TASKS = 64


class TrunklineCluster:
    def __init__(self, address: str, pids: list[int]) -> None:
        self.address = address
        self.pids = pids

    def append(self, **options: Any) -> Figures:
        """One measured window of a separate client; the options are those of ``append`` below."""
        return Figures(**self._client("append", options))

    def subscribe(self, **options: Any) -> dict[str, Any]:
        return self._client("subscribe", options)

    def idle_percent(self, seconds: float) -> float:
        """CPU time of all processes of an idle cluster, in percent of one core."""
        before, began = cpu_seconds(self.pids), time.monotonic()
        time.sleep(seconds)
        return (cpu_seconds(self.pids) - before) / (time.monotonic() - began) * 100

    def _client(self, work: str, options: dict[str, Any]) -> dict[str, Any]:
        return run_client("log_trunkline", {"work": work, "address": self.address, "servers": self.pids, **options})


@contextmanager
def trunkline_cluster(directory: Path, *, again: bool = False) -> Iterator[TrunklineCluster]:
    """`trunkline up` with three nodes, synced before each acknowledgement; ``again``: restart the one stopped there."""
    own = directory / "trunkline" if again else own_directory(directory, "trunkline")
    command: list[str | Path] = [Path(sys.executable).parent / "trunkline", "up", "--dir", own / "cluster"]
    command += ["--nodes", str(REPLICAS), "--port", "0", "--sync", "always"]
    with Processes() as processes:
        processes.start("up", command, own / "log")
        state: dict[str, Any] = {}

        def is_up() -> bool:
            state.update(_state(own / "cluster" / "cluster.json"))
            return bool(state.get("up"))

        processes.until("trunkline up", is_up)
        servers = [int(each["pid"]) for each in state["processes"]]
        yield TrunklineCluster(state["connect"], [*processes.pids, *servers])


def _state(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


# ----------------------------------------------------------------------------------------------------------- the client


async def append(
    *,
    address: str,
    servers: list[int],
    tasks: int,
    count: int,
    payload_bytes: int,
    warm_up_s: float,
    seconds: float,
) -> dict[str, Any]:
    """Appends of ``count`` records each from many tasks; a single record is appended by itself."""
    async with trunkline.connect(address) as cluster:
        log = await cluster.log(f"{LOG}-{count}", create=True, replicas=REPLICAS)
        payload = os.urandom(payload_bytes)
        what = payload if count == 1 else [payload] * count
        found = await measure(
            lambda: log.append(what),
            tasks=tasks,
            records=count,
            warm_up_s=warm_up_s,
            seconds=seconds,
            servers=servers,
        )
        return asdict(found)


async def subscribe(
    *, address: str, servers: list[int], records: int, count: int, payload_bytes: int, repeats: int
) -> dict[str, Any]:
    """Records a second of ``batches()`` and of ``subscribe()``, over a log in the page cache."""
    options = trunkline.ClientOptions(batch=trunkline.BatchOptions(batch_entries=count))
    async with trunkline.connect(address, options=options) as cluster:
        log = await cluster.log(f"{LOG}-subscribe", create=True, replicas=REPLICAS)
        await _fill(log, records, [os.urandom(payload_bytes)] * count)
        everyone = [*servers, os.getpid()]
        batches, entries, cpu = [], [], []
        for turn in range(repeats + 1):  # the first one warms the caches
            before, began = cpu_seconds(everyone), time.perf_counter()
            await _read_batches(log, records)
            after_batches = time.perf_counter()
            used = cpu_seconds(everyone) - before
            await _read_entries(log, records)
            if turn:
                batches.append(records / (after_batches - began))
                entries.append(records / (time.perf_counter() - after_batches))
                cpu.append(used / records * 1e6)
        return {"batches": batches, "entries": entries, "cpu_seconds_per_million": cpu}


async def _fill(log: trunkline.Log, records: int, batch: list[bytes]) -> None:
    remaining = iter(range(0, records, len(batch)))

    async def work() -> None:
        for _ in remaining:
            await log.append(batch)

    await asyncio.gather(*(work() for _ in range(FILL_TASKS)))


async def _read_batches(log: trunkline.Log, records: int) -> None:
    seen = 0
    async for batch in log.batches(start=1, until=records):
        seen += len(batch)
    assert seen == records, f"{seen} of {records} records were read"


async def _read_entries(log: trunkline.Log, records: int) -> None:
    seen = 0
    async for entry in log.subscribe(start=1, until=records):
        seen += 1
        assert entry.glsn == seen, f"entry {entry.glsn} was read where {seen} should be"
    assert seen == records, f"{seen} of {records} records were read"


def main() -> int:
    options = json.loads(sys.argv[1])
    works: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {"append": append, "subscribe": subscribe}
    work = works[options.pop("work")]
    print(json.dumps(uvloop.run(work(**options))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
