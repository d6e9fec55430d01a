"""Nodes whose disks are full: what is refused, what still works, and what happens when space returns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trunkline
from system.processes import Processes
from system.volumes import MIB, Volumes
from trunkline.client.arguments import PolicyName
from trunkline.client.cluster import ClientOptions, Cluster
from trunkline.client.log import Log
from trunkline.errors import Refused, TrunklineError

DISK_BYTES = 48 * MIB
STORAGE: dict[str, Any] = {
    "reserve_bytes": 4 * MIB,
    "margin_bytes": 2 * MIB,
    "extent_bytes": MIB,
}
PAYLOAD = b"." * 65_536
OPTIONS = ClientOptions(timeout=30.0)
APPENDS_MAX = 2_000  # far more than fit


@pytest.mark.parametrize("policy", ["chain", "broadcast"])
def test_a_full_cluster_refuses_appends_serves_reads_and_accepts_appends_again_when_space_is_freed(
    tmp_path: Path, policy: PolicyName
) -> None:
    with Volumes(tmp_path / "disks") as volumes, Processes(tmp_path / "run") as processes:
        disks = _start(volumes, processes, 3)

        async def run() -> None:
            async with trunkline.connect(processes.coordinators, options=OPTIONS) as cluster:
                log = await cluster.log("orders", create=True, policy=policy)
                first = await log.append([PAYLOAD, b"the first"])
                refusal = await _append_until_refused(log)
                print(f"refused: {refusal}")
                assert "space" in str(refusal)
                assert (await log.read(first + 1)).payload == b"the first"
                assert await log.tail() > first
                await log.seal()  # metadata and seals have their reserve
                await log.reopen()
                for disk in disks.values():
                    (disk / "ballast").unlink()
                await _append_when_possible(log)

        for disk in disks.values():
            (disk / "ballast").write_bytes(b"\0" * (DISK_BYTES - 24 * MIB))
        asyncio.run(run())


def test_trimming_a_full_cluster_makes_room_for_appends(tmp_path: Path) -> None:
    with Volumes(tmp_path / "disks") as volumes, Processes(tmp_path / "run") as processes:
        _start(volumes, processes, 3)

        async def run() -> None:
            async with trunkline.connect(processes.coordinators, options=OPTIONS) as cluster:
                log = await cluster.log("orders", create=True)
                await _append_until_refused(log)
                tail = await log.tail()
                assert tail - 50 < await log.trim(tail - 10) <= tail - 10  # no batch is cut
                glsn = await _append_when_possible(log)
                assert glsn >= tail
                assert (await log.read(tail - 5)).payload == PAYLOAD

        asyncio.run(run())


@pytest.mark.parametrize("policy", ["chain", "broadcast"])
def test_appends_move_to_a_spare_node_when_a_member_is_full(tmp_path: Path, policy: PolicyName) -> None:
    with Volumes(tmp_path / "disks") as volumes, Processes(tmp_path / "run") as processes:
        disks = _start(volumes, processes, 4)

        async def run() -> None:
            async with trunkline.connect(processes.coordinators, options=OPTIONS) as cluster:
                log = await cluster.log("orders", create=True, policy=policy)
                first = await log.append(b"before")
                members = await _members(cluster)
                full = members[1]
                _fill(disks[full])
                [spare] = set(disks) - set(members)
                while full in await _members(cluster):
                    assert await log.append(PAYLOAD) > first
                assert spare in await _members(cluster)
                assert (await log.read(first)).payload == b"before"

        asyncio.run(run())


def _start(volumes: Volumes, processes: Processes, nodes: int) -> dict[str, Path]:
    names = [f"n{number}" for number in range(1, nodes + 1)]
    disks = {name: volumes.memory(name, DISK_BYTES) for name in names}
    processes.add_coordinator("c1")
    for name in names:
        processes.add_node(name, directory=disks[name] / "node", storage=STORAGE)
        (disks[name] / "node").mkdir()
    processes.start("c1", *names)
    processes.wait_live(*names)
    return disks


def _fill(disk: Path) -> None:
    """Take all space except the reserve of the node."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 65_536):
                pass
        except OSError:
            return


async def _append_until_refused(log: Log) -> TrunklineError:
    for _ in range(APPENDS_MAX):
        try:
            await log.append([PAYLOAD] * 4)
        except Refused as error:
            return error
    raise AssertionError("the disks are never full")


async def _append_when_possible(log: Log) -> int:
    """Space is checked now and then, so the first attempts may still be refused."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await log.append(b"there is space again")
            except Refused:
                await asyncio.sleep(0.1)


async def _members(cluster: Cluster) -> list[str]:
    view = await cluster.describe("orders")
    return [member.node for member in view.last.members()]
