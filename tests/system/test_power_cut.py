"""Disks that lose power, and disks that decay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trunkline
from system.judging import appends, judge
from system.processes import Processes
from system.volumes import MIB, Volumes
from trunkline.client.cluster import ClientOptions, Cluster
from trunkline.client.log import Log

DISK_BYTES = 96 * MIB
STORAGE: dict[str, Any] = {"reserve_bytes": 4 * MIB, "margin_bytes": 2 * MIB, "extent_bytes": MIB}
NAMES = ("n1", "n2", "n3")


@pytest.mark.parametrize("policy", ["chain", "broadcast"])
def test_what_was_acknowledged_is_there_after_power_cuts_of_one_node_and_of_all(tmp_path: Path, policy: str) -> None:
    with Volumes(tmp_path / "disks") as volumes, Processes(tmp_path / "run") as processes:
        disks = {name: volumes.ext4(name, DISK_BYTES) for name in NAMES}
        processes.add_coordinator("c1")
        for name in NAMES:
            processes.add_node(name, directory=disks[name] / "node", storage=STORAGE)
        processes.start("c1", *NAMES)
        processes.wait_live(*NAMES)
        processes.add_client("w1", policy=policy, batches_per_s=400, payload_bytes=500)
        processes.start("w1")
        _wait_for_appends(processes, 200)

        volumes.cut_power(disks["n2"])
        assert processes.wait_end("n2") != 0, "a node whose disk failed must say so"
        _wait_for_appends(processes, 100)
        _power_on(volumes, processes, disks, "n2")

        _wait_for_appends(processes, 200)
        for disk in disks.values():
            volumes.cut_power(disk)
        processes.kill(*NAMES)
        _power_on(volumes, processes, disks, *NAMES)

        _wait_for_appends(processes, 50)
        assert processes.stop("w1") == {"w1": 0}
        processes.add_client("reader", policy=policy, final=True)
        processes.start("reader")
        assert processes.wait_end("reader") == 0
        processes.stop_servers()
        judgement = judge(processes.histories, processes.recordings)
        print(judgement.text())
        assert not judgement.broken
        assert judgement.complete


def test_a_flipped_bit_is_never_returned_and_is_repaired_from_a_peer(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=3)
        asyncio.run(_flip_and_read(processes))


async def _flip_and_read(processes: Processes) -> None:
    payloads = [b"entry %d " % number + b"=" * 200 for number in range(50)]
    async with trunkline.connect(processes.coordinators, options=ClientOptions()) as cluster:
        log = await cluster.log("orders", create=True)
        for payload in payloads:
            await log.append(payload)
        await log.reopen()
        view = await cluster.describe("orders")
        victim = view.segments[0].groups[0][-1]  # readers ask the last one first
        _flip(processes.directory / victim.node, payloads[20])
        assert await _read_all(log, 50) == payloads
        await _until_replaced(cluster, victim.stream)
        others = [name for name in processes.node_names if name != victim.node]
        processes.kill(*others)  # only the repaired copy is left
    async with trunkline.connect(processes.coordinators, options=ClientOptions()) as cluster:
        assert await _read_all(await cluster.log("orders"), 50) == payloads


async def _read_all(log: Log, count: int) -> list[bytes]:
    async with asyncio.timeout(30):
        return [entry.payload async for entry in log.subscribe(1, count)]


async def _until_replaced(cluster: Cluster, stream: str) -> None:
    """Until the damaged stream has left the projection, and there are three complete members."""
    async with asyncio.timeout(30):
        while True:
            view = await cluster.describe("orders")
            members = view.segments[0].members()
            whole = len(members) == 3 and not any(member.joining for member in members)
            if whole and stream not in {member.stream for member in members}:
                return
            await asyncio.sleep(0.05)


def _flip(directory: Path, content: bytes) -> None:
    """One bit, in the middle of this content, in the file that has it."""
    found = 0
    for path in directory.rglob("*"):
        if path.is_file() and (at := path.read_bytes().find(content)) >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(content) // 2)
                byte = file.read(1)[0]
                file.seek(at + len(content) // 2)
                file.write(bytes([byte ^ 0x10]))
            found += 1
    assert found == 1


def _power_on(volumes: Volumes, processes: Processes, disks: dict[str, Path], *names: str) -> None:
    for name in names:
        volumes.power_on(disks[name])
    processes.start(*names)
    processes.wait_live(*names)


def _wait_for_appends(processes: Processes, more: int) -> None:
    known = appends(processes.histories).acknowledged if processes.histories.exists() else 0
    processes.wait(lambda: appends(processes.histories).acknowledged >= known + more, f"{more} more appends")
