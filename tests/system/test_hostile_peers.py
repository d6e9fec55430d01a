"""Peers that register or store nonsense, belong to another cluster, or send anything at all: servers keep working."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import trunkline
from system.hostile import ask, memory_kib, peer_of, random_head, run
from system.processes import Processes
from trunkline.core.messages import Get, Got, NodeInfo, NodeState, Register, Swap, Swapped
from trunkline.core.projection import Opening, Owner, Seat, Settings, create
from trunkline.errors import Refused
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.metadata.stored_json import encode
from trunkline.net.admin import ClusterAnswer, ClusterRequest, RequestRefused

MIB = 1024 * 1024
PACKETS = 4_000
GROWTH_KIB_MAX = 96 * 1024


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path / "cluster") as started:
        yield started


def append(processes: Processes, log: str = "orders", *, create: bool = False) -> int:
    async def appended() -> int:
        async with trunkline.connect(processes.coordinators) as cluster:
            return await (await cluster.log(log, create=create)).append(b"entry")

    return asyncio.run(appended())


def logged(processes: Processes, name: str) -> str:
    return (processes.directory / f"{name}.err").read_text()


# ------------------------------------------------------------------------------------------------------ registrations


def test_registrations_out_of_bounds_are_refused_and_the_cluster_keeps_working(processes: Processes) -> None:
    processes.start_cluster(nodes=3)
    append(processes, create=True)
    bad = [
        *(NodeInfo(f"evil{number}", 1, 1, address="x" * MIB) for number in range(5)),
        NodeInfo("y" * MIB, 1, 1),
        NodeInfo("", 1, 1),
        NodeInfo("evil", 1, 1, zone="z" * 1000),
        NodeInfo("evil", -1, 1),
        NodeInfo("evil", 1, 2**63),
        NodeInfo("evil", 1, 1, damaged=-1),
        NodeInfo("evil", 1, 1, NodeState.GONE),
        NodeInfo("evil", 1, 1, NodeState.DRAINING),
        NodeInfo("evil", 1, 1, live=False),
        NodeInfo("evil\n", 1, 1),
    ]
    answers = ask(processes.coordinators[0], *map(Register, bad))
    assert all(isinstance(answer, RequestRefused) for answer in answers)
    assert append(processes) == 2
    status = processes.status()
    assert status is not None
    assert [node.name for node in status.nodes] == ["n1", "n2", "n3"]


def test_bad_registrations_of_an_older_version_are_dropped_at_the_start(processes: Processes) -> None:
    processes.start_cluster(nodes=1)
    processes.stop("c1")
    file = sqlite3.connect(processes.directory / "c1" / "metadata.sqlite")
    with file:
        for number in range(5):
            info = NodeInfo(f"evil{number}", 1, 1, address="x" * MIB)
            file.execute("INSERT INTO nodes VALUES (?, ?)", (info.node, encode(info).decode()))
    file.close()
    processes.start("c1")
    processes.wait_live("n1")
    append(processes, create=True)
    status = processes.status()
    assert status is not None
    assert [node.name for node in status.nodes] == ["n1"]
    assert "dropped from the registry: the registration of 'evil4' has an address of more than" in logged(
        processes, "c1"
    )


def test_a_node_can_be_forgotten_when_it_is_not_live_and_no_log_names_it(processes: Processes) -> None:
    processes.start_cluster(nodes=2)

    async def forget(node: str) -> str:
        async with trunkline.connect(processes.coordinators) as cluster:
            try:
                await cluster.forget_node(node)
            except Refused as error:
                return str(error)
            return ""

    async def single() -> str:
        async with trunkline.connect(processes.coordinators) as cluster:
            await cluster.log("orders", create=True, replicas=1)
            [[member]] = (await cluster.describe("orders")).last.groups
            return member.node

    keeper = asyncio.run(single())
    other = "n1" if keeper == "n2" else "n2"
    assert "there is no node n9" in asyncio.run(forget("n9"))
    assert f"node {other} is live; stop it first" in asyncio.run(forget(other))
    processes.stop("n1", "n2")
    assert f"log orders still names node {keeper}" in asyncio.run(forget(keeper))
    assert asyncio.run(forget(other)) == ""
    status = processes.status()
    assert status is not None
    assert [node.name for node in status.nodes] == [keeper]


# --------------------------------------------------------------------------------------------------------------- maps


def test_maps_that_no_role_would_make_are_refused(processes: Processes) -> None:
    processes.start_cluster(nodes=3)
    append(processes, create=True)
    address = processes.coordinators[0]
    [cluster, got] = ask(address, ClusterRequest(), Get("orders"))
    assert isinstance(cluster, ClusterAnswer)
    assert isinstance(got, Got)
    stored = got.projection
    assert stored is not None
    fresh = create(cluster.cluster, "fresh", Settings(), Opening(((Seat("n1", 1),),), Owner("n1", 1)))
    following = replace(stored, epoch=stored.epoch + 1)
    last = stored.last
    [[member]] = fresh.last.groups
    huge = replace(fresh.last, groups=(tuple(replace(member, node=f"{n}" * 40) for n in range(15_000)),))
    swaps = [
        Swap("日" * 100, 0, replace(fresh, log="日" * 100)),
        Swap("a b", 0, replace(fresh, log="a b")),
        Swap("x" * MIB, 0, replace(fresh, log="x" * MIB)),
        Swap("other", 0, fresh),
        Swap("fresh", 0, replace(fresh, cluster="another")),
        Swap("fresh", 1, fresh),
        Swap("fresh", 0, replace(fresh, segments=(huge,))),
        Swap("fresh", 0, replace(fresh, trim=7)),
        Swap("orders", stored.epoch, replace(following, trim=-1)),
        Swap("orders", stored.epoch, replace(following, segments=(replace(last, base=1000),))),
        Swap("orders", stored.epoch, replace(following, segments=(replace(last, owner=Owner("evil", 1)),))),
        Swap("orders", stored.epoch, replace(following, deleted=True)),
        Swap("orders", stored.epoch, replace(following, settings=replace(stored.settings, replicas=1))),
    ]
    answers = ask(address, *swaps)
    assert [type(answer).__name__ for answer in answers] == ["RequestRefused"] * len(swaps)
    assert ask(address, Get("orders"))[0] == got
    assert append(processes) == 2


def test_a_log_with_a_long_name_of_an_older_version_works(processes: Processes) -> None:
    processes.start_cluster(nodes=3)
    append(processes, create=True)
    [got] = ask(processes.coordinators[0], Get("orders"))
    assert isinstance(got, Got)
    stored = got.projection
    assert stored is not None
    old = replace(stored, log="日" * 100)  # 300 bytes: nodes of that version closed the connection of all logs
    processes.stop("c1")

    async def store() -> None:
        file = SqliteStore(processes.directory / "c1" / "metadata.sqlite")
        await file.start()
        assert await file.handle(Swap(old.log, 0, old)) == Swapped(old.log, 1)
        await file.close()

    run(store())
    processes.start("c1")
    processes.wait_live("n1", "n2", "n3")

    async def scene() -> None:
        async with trunkline.connect(processes.coordinators) as cluster:
            orders, other = await cluster.log("orders"), await cluster.log(old.log)
            for number in range(3):
                assert await orders.append(b"entry") == 2 + number
                assert await other.append(b"entry") == 1 + number
            assert await cluster.describe("orders") == stored  # no fail-over
            await other.delete()

    run(scene())


# ------------------------------------------------------------------------------------------------------ another cluster


def test_a_coordinator_that_lost_its_metadata_refuses_old_nodes_and_all_log_the_reason(processes: Processes) -> None:
    processes.start_cluster(nodes=1)
    append(processes, create=True)
    processes.stop("c1")
    kept = processes.directory / "c1"
    kept.rename(processes.directory / "kept")
    kept.mkdir()
    processes.start("c1")

    def refused() -> bool:
        status = processes.status()
        return status is not None and [each.name for each in status.refused] == ["n1"]

    processes.wait(refused, "the coordinator to tell of the node that it refuses")
    status = processes.status()
    assert status is not None
    assert status.nodes == ()
    assert "the coordinator has lost its metadata" in status.refused[0].why
    assert "c1 refused a connection of n1" in logged(processes, "c1")
    processes.wait(
        lambda: "node n1 is not registered, and no log uses it" in logged(processes, "n1"), "n1 to log the reason"
    )
    processes.stop("c1")
    kept.rename(processes.directory / "empty")
    (processes.directory / "kept").rename(kept)
    processes.start("c1")
    processes.wait_live("n1")
    assert append(processes) == 2


def test_a_client_of_the_old_cluster_learns_that_this_is_another(processes: Processes) -> None:
    processes.start_cluster(nodes=1)

    async def scene() -> None:
        async with trunkline.connect(processes.coordinators) as cluster:
            await asyncio.to_thread(processes.stop, "c1")
            kept = processes.directory / "c1"
            kept.rename(processes.directory / "kept")
            kept.mkdir()
            processes.start("c1")
            await asyncio.to_thread(processes.wait, processes.status, "the new coordinator")
            with pytest.raises(Refused, match=r"belongs to cluster .* check the address"):
                await cluster.status(timeout=5.0)

    run(scene())


# ----------------------------------------------------------------------------------------------------------- anything


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_a_peer_sends_servers_keep_serving_others_and_do_not_grow(processes: Processes, seed: int) -> None:
    processes.start_cluster(nodes=2)
    status = processes.status()
    assert status is not None
    [node] = [each for each in status.nodes if each.name == "n1"]
    targets = {"c1": processes.coordinators[0], "n1": node.address}
    known = {"cluster": status.cluster, "incarnation": node.incarnation}

    async def attack(drawn: random.Random, address: str, packets: int) -> None:
        async with peer_of(address) as peer:
            for number in range(packets):
                peer.say(random_head(drawn, known))
                if number % 50 == 0:
                    await peer.connection.drained()
                    await asyncio.sleep(0)
            heard = await peer.ask(Get("orders") if address == targets["c1"] else Get("nothing for a node"))
            assert heard is not None
            assert peer.connection.open, peer.connection.reason
            assert peer.answered() > packets / 4

    async def scene() -> None:
        drawn = random.Random(seed)
        async with trunkline.connect(processes.coordinators) as cluster:
            log = await cluster.log("orders", create=True, replicas=2)
            await asyncio.gather(*(attack(drawn, address, PACKETS // 4) for address in targets.values()))
            before = {name: memory_kib(processes.pid(name)) for name in targets}
            attacks = [asyncio.create_task(attack(drawn, address, PACKETS)) for address in targets.values()]
            appended = [await log.append(b"%d" % number) for number in range(100)]
            await asyncio.gather(*attacks)
            assert appended == list(range(1, 101))
            assert [entry.payload async for entry in log.subscribe(to_tail=True)] == [b"%d" % n for n in range(100)]
            assert (await cluster.describe("orders")).epoch == 1  # there was no fail-over
            assert (await cluster.node_status("n1", timeout=20.0)).streams > 5  # much of it was accepted
            for name, kib in before.items():
                assert memory_kib(processes.pid(name)) - kib < GROWTH_KIB_MAX, name

    run(scene())
    assert [processes.ended(name) for name in targets] == [None, None]
