"""A log with tens of thousands of segments goes on after a node was killed, with every metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import trunkline
from etcd_server import Etcd
from metadata.long_maps import long_map
from system.processes import Processes
from trunkline.cli.status import warnings
from trunkline.client.cluster import ClientOptions, Cluster
from trunkline.core.messages import NodeInfo, Swap, Swapped
from trunkline.core.projection import Member, Owner, Policy, Segment
from trunkline.runtime.links import REGISTER

SEGMENTS = 20_000
PATIENT = ClientOptions(timeout=120.0)


@pytest.fixture(params=["sqlite", "etcd"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as running:
        if request.param == "sqlite":
            running.start_cluster(nodes=4)
            yield running
        else:
            with Etcd(tmp_path / "etcd") as etcd:
                start(running, etcd.endpoints)
                yield running


def start(processes: Processes, endpoints: Sequence[str]) -> None:
    processes.add_coordinator("c1", etcd=endpoints)
    for number in range(1, 5):
        processes.add_node(f"n{number}")
    processes.start("c1", *processes.node_names)
    processes.wait_live(*processes.node_names)


def test_appends_to_a_log_of_20_000_segments_go_on_after_a_node_is_killed(processes: Processes) -> None:
    async def run() -> None:
        async with trunkline.connect(processes.coordinators, options=PATIENT) as cluster:
            await make_long(cluster, "orders")
            log = await cluster.log("orders")
            first = await log.append(b"before")
            assert await log.tail() == first + 1
            processes.kill((await cluster.describe("orders")).last.members()[0].node)
            second = await log.append(b"after")
            assert [entry.payload async for entry in log.subscribe(first, second)] == [b"before", b"after"]
            view = await cluster.describe("orders")
            assert len(view.segments) > SEGMENTS
            assert view.segments[SEGMENTS - 1].end == second == view.last.base
            [facts] = (await cluster.status())["logs"]
            assert facts["segments_total"] == len(view.segments)
            assert any(text.startswith("long: orders has 20,0") for text in warnings(facts))

    asyncio.run(run())


async def make_long(cluster: Cluster, name: str) -> None:
    """By the way that every change of a map goes."""
    nodes = (await cluster.nodes())[:2]
    view = long_map(name, SEGMENTS, opened_on(nodes), cluster.id)
    assert await cluster._ask(REGISTER, Swap(name, 0, view), "the swap") == Swapped(name, 1)


def opened_on(nodes: Sequence[NodeInfo]) -> Segment:
    members = tuple(Member(info.node, info.incarnation, f"1.0.{at}") for at, info in enumerate(nodes))
    return Segment(0, 1, 1, None, False, Policy.CHAIN, 1024, (members,), Owner(nodes[0].node, nodes[0].start))
