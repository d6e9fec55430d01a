"""Nodes whose disks are nearly full, or full: the effect of a failure, a rebuild and a restart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trunkline
from system.processes import Processes
from system.volumes import MIB, Volumes
from trunkline.client.cluster import ClientOptions, Cluster
from trunkline.client.log import Log
from trunkline.errors import Refused

DISK_BYTES = 32 * MIB
STORAGE: dict[str, Any] = {"reserve_bytes": 4 * MIB, "margin_bytes": MIB, "extent_bytes": MIB}
FULL_BYTES, TIGHT_BYTES = 5 * MIB, 8 * MIB  # with the reserve
PAYLOAD = b"." * 65_536
OPTIONS = ClientOptions(timeout=30.0)
REBUILD_S = 60.0


def _start(volumes: Volumes, processes: Processes, count: int, kind: str = "memory") -> dict[str, Path]:
    names = [f"n{number}" for number in range(1, count + 1)]
    make = volumes.memory if kind == "memory" else volumes.ext4
    disks = {name: make(name, DISK_BYTES) for name in names}
    processes.add_coordinator("c1")
    for name in names:
        processes.add_node(name, directory=disks[name] / "node", storage=STORAGE)
        (disks[name] / "node").mkdir()
    processes.start("c1", *names)
    processes.wait_live(*names)
    return disks


def _free(disk: Path) -> int:
    """What the node counts as free: with its reserve."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize + (disk / "node" / "reserve").stat().st_size


def _leave(disk: Path, left: int) -> None:
    """Take space until this much is left for the node, its reserve counted."""
    with (disk / "ballast").open("ab", buffering=0) as file:
        file.write(b"\0" * max(0, _free(disk) - left))


def _take_all(disk: Path) -> None:
    with (disk / "ballast").open("ab", buffering=0) as file:
        try:
            while file.write(b"\0" * 4_096):
                pass
        except OSError:
            return


async def _fill_segment(log: Log, appends: int) -> None:
    for _ in range(appends):
        await log.append([PAYLOAD] * 4)
    await log.seal()
    await log.reopen()


def _check_alive(processes: Processes, disks: dict[str, Path], gone: str) -> None:
    ended = {name: processes.ended(name) for name in disks if name != gone and processes.ended(name) is not None}
    assert ended == {}, "ended by themselves"


async def _members(cluster: Cluster, log: str, index: int) -> list[str]:
    segment = (await cluster.describe(log)).segment(index)
    assert segment is not None
    return [member.node for member in segment.members() if not member.joining]


async def _until(condition: Callable[[], Any], what: str) -> None:
    try:
        async with asyncio.timeout(REBUILD_S):
            while not await condition():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"waited for {what}") from None


def test_a_rebuild_goes_to_the_node_with_room_and_ends_no_nearly_full_one(tmp_path: Path) -> None:
    with Volumes(tmp_path / "disks") as volumes, Processes(tmp_path / "run") as processes:
        disks = _start(volumes, processes, 5)

        async def run() -> None:
            async with trunkline.connect(processes.coordinators, options=OPTIONS) as cluster:
                log = await cluster.log("orders", create=True)
                await _fill_segment(log, 32)  # 8 MiB
                members = await _members(cluster, "orders", 0)
                gone = members[0]
                nearly_full, roomy = sorted(set(disks) - set(members))
                for name in (*members[1:], nearly_full):
                    _leave(disks[name], FULL_BYTES + MIB)
                await _until(lambda: _is(cluster, nearly_full, "TIGHT"), "the registry to know")
                processes.kill(gone)
                await cluster.set_node_state(gone, "gone")

                async def rebuilt() -> bool:
                    _check_alive(processes, disks, gone)
                    return set(await _members(cluster, "orders", 0)) == {*members[1:], roomy}

                await _until(rebuilt, "the segment to be copied")
                assert (await log.read(1)).payload == PAYLOAD
                await log.append(b"continues")

        asyncio.run(run())


async def _is(cluster: Cluster, node: str, space: str) -> bool:
    return any(info.node == node and info.space.name == space for info in await cluster.nodes())


async def _are(cluster: Cluster, space: str) -> bool:
    return all(info.space.name == space for info in await cluster.nodes())


def test_a_copy_that_does_not_fit_is_given_up_and_made_elsewhere_once_there_is_room(tmp_path: Path) -> None:
    with Volumes(tmp_path / "disks") as volumes, Processes(tmp_path / "run") as processes:
        disks = _start(volumes, processes, 4)

        async def run() -> None:
            async with trunkline.connect(processes.coordinators, options=OPTIONS) as cluster:
                log = await cluster.log("orders", create=True)
                await _fill_segment(log, 40)  # 10 MiB
                members = await _members(cluster, "orders", 0)
                gone, [spare] = members[0], set(disks) - set(members)
                _leave(disks[spare], TIGHT_BYTES + 4 * MIB)  # looks roomy
                processes.kill(gone)
                await cluster.set_node_state(gone, "gone")
                await _until(lambda: _is(cluster, spare, "TIGHT"), "the copy to be refused")

                async def dropped() -> bool:
                    _check_alive(processes, disks, gone)
                    view = await cluster.describe("orders")
                    return (
                        all(m.node != spare for m in view.segments[0].members()) and _free(disks[spare]) > TIGHT_BYTES
                    )

                await _until(dropped, "the copy to be dropped")
                processes.add_node("n9")
                processes.start("n9")

                async def rebuilt() -> bool:
                    _check_alive(processes, disks, gone)
                    return set(await _members(cluster, "orders", 0)) == {*members[1:], "n9"}

                await _until(rebuilt, "the segment to be copied to the new node")

        asyncio.run(run())


def test_five_full_nodes_lose_one_and_the_others_keep_running(tmp_path: Path) -> None:
    with Volumes(tmp_path / "disks") as volumes, Processes(tmp_path / "run") as processes:
        disks = _start(volumes, processes, 5)

        async def run() -> None:
            async with trunkline.connect(processes.coordinators, options=OPTIONS) as cluster:
                logs = [await cluster.log(name, create=True) for name in ("orders", "bills")]
                for log in logs:
                    await _fill_segment(log, 32)
                for disk in disks.values():
                    _take_all(disk)
                await _until(lambda: _are(cluster, "FULL"), "the registry to know")
                gone = (await _members(cluster, "orders", 0))[0]
                processes.kill(gone)
                await cluster.set_node_state(gone, "gone")

                async def removed() -> bool:
                    _check_alive(processes, disks, gone)
                    return gone not in await _members(cluster, "orders", 0)

                await _until(removed, "the dead member to be removed")
                with pytest.raises(Refused, match="space"):
                    await logs[0].append(PAYLOAD)
                for log in logs:
                    assert (await log.read(1)).payload == PAYLOAD
                _check_alive(processes, disks, gone)
                for name in set(disks) - {gone}:
                    (disks[name] / "ballast").unlink()

                async def rebuilt() -> bool:
                    _check_alive(processes, disks, gone)
                    return len(await _members(cluster, "orders", 0)) == 3

                await _until(rebuilt, "the copies to be made when there is room")
                await _append_when_possible(logs[0])

        asyncio.run(run())


async def _append_when_possible(log: Log) -> None:
    async with asyncio.timeout(REBUILD_S):
        while True:
            try:
                await log.append(b"there is room again")
                return
            except Refused:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["memory", "ext4"])
@pytest.mark.parametrize("reserve", [True, False], ids=["with its reserve", "without"])
def test_a_node_starts_on_a_disk_that_is_full(tmp_path: Path, kind: str, reserve: bool) -> None:
    with Volumes(tmp_path / "disks") as volumes, Processes(tmp_path / "run") as processes:
        disks = _start(volumes, processes, 1, kind)

        async def run() -> None:
            async with trunkline.connect(processes.coordinators, options=OPTIONS) as cluster:
                log = await cluster.log("orders", create=True, replicas=1)
                await _fill_segment(log, 8)
                processes.kill("n1")
                if not reserve:
                    (disks["n1"] / "node" / "reserve").write_bytes(b"")
                _take_all(disks["n1"])
                processes.start("n1")
                await asyncio.to_thread(processes.wait_live, "n1")
                assert (await log.read(1)).payload == PAYLOAD
                if reserve:
                    with pytest.raises(Refused, match="space"):
                        await log.append(PAYLOAD)
                assert await log.trim(28) == 28
                (disks["n1"] / "ballast").unlink()
                await _append_when_possible(log)
                await asyncio.to_thread(processes.stop_servers)

        asyncio.run(run())
