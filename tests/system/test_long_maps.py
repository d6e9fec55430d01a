"""A log with tens of thousands of segments continues after a node was killed, with every metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import trunkline
from etcd_server import Etcd
from metadata.long_maps import long_map
from system.processes import Processes
from trunkline.cli.status import warnings
from trunkline.client.cluster import ClientOptions
from trunkline.core.messages import NodeInfo, Swap, Swapped
from trunkline.core.projection import Member, Owner, Policy, Projection, Segment
from trunkline.runtime.coordinator import CoordinatorServerConfig, make_store

SEGMENTS = 20_000
PATIENT = ClientOptions(timeout=300.0)


@pytest.fixture(params=["sqlite", "etcd"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Processes, CoordinatorServerConfig]]:
    """A cluster, and how its coordinator reaches its store."""
    with ExitStack() as stack:
        uses_etcd = request.param == "etcd"
        endpoints = stack.enter_context(Etcd(tmp_path / "etcd")).endpoints if uses_etcd else ()
        processes = stack.enter_context(Processes(tmp_path))
        processes.add_coordinator("c1", etcd=endpoints)
        for number in range(1, 5):
            processes.add_node(f"n{number}")
        processes.start("c1", *processes.node_names)
        processes.wait_live(*processes.node_names)
        yield processes, CoordinatorServerConfig(directory=None if uses_etcd else tmp_path / "c1", etcd=endpoints)


def test_appends_to_a_log_of_20_000_segments_continue_after_a_node_is_killed(
    running: tuple[Processes, CoordinatorServerConfig],
) -> None:
    processes, config = running

    async def run() -> None:
        async with trunkline.connect(processes.coordinators, options=PATIENT) as cluster:
            view = long_map("orders", SEGMENTS, opened_on((await cluster.nodes())[:2]), cluster.id)
            processes.kill("c1")
            await store_map(config, view)
            processes.start("c1")
            log = await cluster.log("orders")
            first = await log.append(b"before")
            assert await log.tail() == first + 1
            killed = (await cluster.describe("orders")).last.members()[0].node
            processes.kill(killed)
            second = await log.append(b"after")
            assert [entry.payload async for entry in log.subscribe(first, second)] == [b"before", b"after"]
            view = await cluster.describe("orders")
            assert len(view.segments) > SEGMENTS
            assert killed not in {member.node for member in view.last.members()}
            [status] = (await cluster.status()).logs
            assert status.segments_total == len(view.segments)
            assert any(text.startswith("long: orders has 20,0") for text in warnings(status))

    asyncio.run(run())


async def store_map(config: CoordinatorServerConfig, view: Projection) -> None:
    """Through the same path as every map."""
    store = make_store(config)
    await store.start()
    assert await store.handle(Swap(view.log, 0, view)) == Swapped(view.log, 1)
    await store.close()


def opened_on(nodes: Sequence[NodeInfo]) -> Segment:
    members = tuple(Member(info.node, info.incarnation, f"1.0.{at}") for at, info in enumerate(nodes))
    return Segment(0, 1, 1, None, False, Policy.CHAIN, 1024, (members,), Owner(nodes[0].node, nodes[0].start))
