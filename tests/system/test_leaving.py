"""Processes that shut down cleanly end their leases, which here are longer than any test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline
from etcd_server import Etcd
from system.processes import Processes
from trunkline.core.projection import Projection

LEASE_MS = 600_000
AT_ONCE_S = 10.0  # for a loaded machine; a lease is far longer


@pytest.fixture(params=["sqlite", "etcd"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    """A coordinator and three live nodes."""
    with Processes(tmp_path / "cluster") as started:
        if request.param == "sqlite":
            _start(started, ())
            yield started
        else:
            with Etcd(tmp_path / "etcd") as etcd:
                _start(started, etcd.endpoints)
                yield started
                started.close()


def _start(processes: Processes, etcd: tuple[str, ...]) -> None:
    processes.add_coordinator("c1", etcd=etcd, lease_ms=LEASE_MS)
    for name in ("n1", "n2", "n3"):
        processes.add_node(name)
    processes.start("c1", "n1", "n2", "n3")
    processes.wait_live("n1", "n2", "n3")


def live(processes: Processes) -> set[str]:
    status = processes.status()
    assert status is not None
    return {node.name for node in status.nodes if node.live}


def test_a_node_that_is_stopped_is_dead_at_once_and_one_that_is_killed_is_not(processes: Processes) -> None:
    processes.kill("n1")
    assert processes.stop("n2") == {"n2": 0}
    processes.wait(lambda: live(processes) == {"n1", "n3"}, "n2 to be dead", AT_ONCE_S)
    processes.start("n2")
    processes.wait_live("n2")
    assert live(processes) == {"n1", "n2", "n3"}


def test_writers_of_a_broadcast_log_follow_each_other_if_each_closes(processes: Processes) -> None:
    async def write(content: bytes, *, create: bool = False) -> int:
        async with trunkline.connect(processes.coordinators) as cluster:
            log = await cluster.log("orders", create=create, policy="broadcast")
            return await log.append(content)

    assert asyncio.run(write(b"0", create=True)) == 1
    for number in range(1, 4):
        assert asyncio.run(write(b"%d" % number)) == number + 1


def test_c9_a_node_that_stops_for_a_moment_keeps_its_replicas_of_repaired_segments(
    processes: Processes,
) -> None:
    """A fourth node could take a replica at once. A rolling restart would then copy everything again and again."""
    processes.add_node("n4")
    processes.start("n4")
    processes.wait_live("n4")

    async def write() -> None:
        async with trunkline.connect(processes.coordinators) as cluster:
            log = await cluster.log("orders", create=True)
            await log.append([b"one", b"two"])
            await log.seal()
            await log.reopen()

    async def described() -> Projection:
        async with trunkline.connect(processes.coordinators) as cluster:
            return await cluster.describe("orders")

    def members() -> list[str]:
        return [member.stream for member in asyncio.run(described()).segments[0].members()]

    def nothing_is_due() -> bool:
        status = processes.log_status("orders")
        return status is not None and status.duty == "idle"

    def is_open_without(node: str) -> bool:
        last = asyncio.run(described()).last
        return last.is_open and all(member.node != node for member in last.members())

    asyncio.run(write())
    processes.wait(lambda: asyncio.run(described()).segments[0].repaired, "the repair of segment 0")
    before = members()
    [stopped, *_] = [member.node for member in asyncio.run(described()).last.members()]
    processes.stop(stopped)
    processes.wait(lambda: is_open_without(stopped), "another segment, without the stopped node", AT_ONCE_S)
    processes.wait(nothing_is_due, "the duties to be done")
    assert members() == before
    processes.start(stopped)
    processes.wait_live(stopped)
    assert members() == before
