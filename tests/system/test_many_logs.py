"""More logs than a process may have open files: no process stops, and no request is refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import trunkline
from local_cluster import RunningCluster, local_cluster
from trunkline.client.cluster import ClientOptions, Cluster

OPEN_FILES = 256
LOGS = 300
AT_ONCE = 30
OPTIONS = ClientOptions(timeout=60.0)


def test_300_logs_are_written_and_read_by_processes_that_may_open_256_files(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", open_files=OPEN_FILES) as cluster:
        before = {process.name: process.pid for process in cluster.record.processes}

        async def run() -> None:
            async with trunkline.connect(cluster.connect, options=OPTIONS) as connected:
                for payload in (b"first", b"second"):  # at the second all of them are open everywhere
                    for start in range(0, LOGS, AT_ONCE):
                        await asyncio.gather(*(_append(connected, start + n, payload) for n in range(AT_ONCE)))
                for number in (0, LOGS // 2, LOGS - 1):
                    log = await connected.log(f"log-{number}")
                    assert [(await log.read(glsn)).payload for glsn in (1, 2)] == [b"first", b"second"]

        asyncio.run(run())
        for name, pid in before.items():
            assert cluster.process(name).pid == pid, f"{name} ended\n{cluster.logs()}"
            assert len(os.listdir(f"/proc/{pid}/fd")) < OPEN_FILES


async def _append(connected: Cluster, number: int, payload: bytes) -> None:
    log = await connected.log(f"log-{number}", create=True)
    await log.append(payload)
    await log.close()


def test_a_server_whose_connections_are_all_taken_refuses_more_and_serves_the_others(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", open_files=OPEN_FILES) as cluster:
        asyncio.run(_crowd(cluster))
        cluster.ok("log", "create", "orders")
        cluster.ok("append", "orders", stdin=b"after all that\n")


async def _crowd(cluster: RunningCluster) -> None:
    """Open far more connections than a server accepts, to the coordinator and to a node, and close them again."""
    addresses = [cluster.connect, *(each.address for each in cluster.record.processes if each.name != "coordinator")]
    pids = [each.pid for each in cluster.record.processes]
    for address in addresses[:2]:
        host, _, port = address.rpartition(":")
        crowd = await asyncio.gather(
            *(asyncio.open_connection(host, int(port)) for _ in range(2 * OPEN_FILES)), return_exceptions=True
        )
        assert [each.pid for each in cluster.record.processes] == pids, cluster.logs()
        for each in crowd:
            if not isinstance(each, BaseException):
                each[1].close()
