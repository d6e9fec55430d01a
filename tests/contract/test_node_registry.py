"""One suite for the registry of nodes and their leases in every metadata store."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from metadata.places import LONG_MS, PATIENCE_S, Place, heard, opened, until
from metadata.projections import node
from trunkline.core.effects import Event
from trunkline.core.events import LeaseLost
from trunkline.core.messages import Get, Got, NodeState, Register, Registered
from trunkline.metadata.store import NODES_CHANGED, MetadataStore


def test_nodes_are_listed_by_name_and_kept_over_a_restart(place: Place) -> None:
    nodes = tuple(node(name) for name in ("a", "b", "x/y"))

    async def scenario() -> None:
        async with opened(place) as store:
            for info in reversed(nodes):
                assert await store.handle(Register(info)) == Registered(info.node, 1)
            assert await store.nodes() == nodes
        async with opened(place) as store:
            assert await store.handle(Get("orders")) == Got("orders", 0, None, nodes)

    asyncio.run(scenario())


def test_m3_a_lease_expires_and_is_renewed(place: Place) -> None:
    async def scenario() -> None:
        announced: list[Event] = []
        async with opened(place, place.lease_ms, announced.append) as store:
            await store.handle(Register(node()))
            await until(store, lambda: dead(store))
            assert await store.nodes() == (replace(node(), live=False),)
            assert announced == [LeaseLost("a")]
            assert await store.handle(Register(node())) == Registered("a", 1)
            assert await store.nodes() == (node(),)

    asyncio.run(scenario())


def test_m3_a_node_that_renews_keeps_its_lease(place: Place) -> None:
    async def scenario() -> None:
        announced: list[Event] = []
        async with opened(place, place.lease_ms, announced.append) as store:
            await store.handle(Register(node("quiet")))
            async with asyncio.timeout(PATIENCE_S):
                while LeaseLost("quiet") not in announced:  # so long the other one is renewed
                    await store.handle(Register(node("steady")))
                    assert node("steady") in await store.nodes()
                    await asyncio.sleep(place.lease_ms / 10_000)  # as a node does between its renewals
            assert announced == [LeaseLost("quiet")]

    asyncio.run(scenario())


def test_m3_if_no_coordinator_was_there_to_keep_leases_every_node_gets_a_new_period(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place, place.lease_ms) as store:
            await store.handle(Register(node()))
            await until(store, lambda: dead(store))
        async with opened(place, place.lease_ms) as store:
            assert await store.nodes() == (node(),)
            await until(store, lambda: dead(store))

    asyncio.run(scenario())


async def dead(store: MetadataStore) -> bool:
    return not any(info.live for info in await store.nodes())


def test_a_late_registration_of_an_earlier_start_gets_no_answer_and_changes_nothing(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            assert await store.handle(Register(node(start=2))) == Registered("a", 2)
            assert await store.handle(Register(node(start=1))) is None
            assert await store.handle(Register(node(start=1, incarnation=9))) is None
            assert await store.nodes() == (node(start=2),)
            assert await store.handle(Register(node(start=3, incarnation=9))) == Registered("a", 3)
            assert await store.nodes() == (node(start=3, incarnation=9),)

    asyncio.run(scenario())


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.GONE])
def test_a_state_set_by_an_operator_survives_registrations_and_restarts(place: Place, state: NodeState) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            assert not await store.set_node_state("a", state)  # not registered yet
            await store.handle(Register(node()))
            assert await store.set_node_state("a", state)
            await store.handle(Register(node()))
            await store.handle(Register(node(start=2)))
            assert await store.nodes() == (replace(node(start=2), state=state),)
        async with opened(place) as store:
            [info] = await store.nodes()
            assert info.state is state
            assert await store.set_node_state("a", NodeState.RW)
            await store.handle(Register(node(start=3)))
            assert await store.nodes() == (node(start=3),)

    asyncio.run(scenario())


def test_the_entry_of_a_client_ends_with_its_lease_and_has_no_operator_state(place: Place) -> None:
    client = replace(node("writer"), state=NodeState.CLIENT)

    async def scenario() -> None:
        async with opened(place, place.lease_ms) as store:
            assert await store.handle(Register(client)) == Registered("writer", 1)
            assert await store.nodes() == (client,)
            assert not await store.set_node_state("writer", NodeState.DRAINING)
            await until(store, lambda: empty(store))
            assert await store.handle(Register(client)) == Registered("writer", 1)
            assert await store.nodes() == (client,)
            await until(store, lambda: empty(store))
        async with opened(place) as store:
            assert await store.nodes() == ()

    asyncio.run(scenario())


async def empty(store: MetadataStore) -> bool:
    return await store.nodes() == ()


def test_the_lease_of_a_node_that_leaves_ends_at_once_and_it_may_come_back(place: Place) -> None:
    async def scenario() -> None:
        announced: list[Event] = []
        async with opened(place, LONG_MS, announced.append) as store:
            await store.handle(Register(node()))
            await store.handle(Register(node("b")))
            watcher = store.watch()
            await store.leave("a", 1)
            assert await store.nodes() == (replace(node(), live=False), node("b"))
            async with asyncio.timeout(PATIENCE_S):
                await heard(watcher, NODES_CHANGED)
                while announced != [LeaseLost("a")]:
                    await anext(watcher)
            for start in (1, 2):
                assert await store.handle(Register(node(start=start))) == Registered("a", start)
                assert await store.nodes() == (node(start=start), node("b"))

    asyncio.run(scenario())


def test_a_client_that_leaves_is_forgotten_at_once(place: Place) -> None:
    client = replace(node("writer"), state=NodeState.CLIENT)

    async def scenario() -> None:
        async with opened(place, LONG_MS) as store:
            await store.handle(Register(client))
            await store.leave("writer", 1)
            assert await store.nodes() == ()
        async with opened(place, LONG_MS) as store:
            assert await store.nodes() == ()
            assert await store.handle(Register(client)) == Registered("writer", 1)
            assert await store.nodes() == (client,)

    asyncio.run(scenario())


def test_leaving_twice_too_late_or_unknown_changes_nothing(place: Place) -> None:
    client = replace(node("writer", start=2), state=NodeState.CLIENT)

    async def scenario() -> None:
        announced: list[Event] = []
        async with opened(place, LONG_MS, announced.append) as store:
            known = (node(start=2), client)
            for info in known:
                await store.handle(Register(info))
            for name in ("a", "writer"):
                await store.leave(name, 1)  # the start before
                await store.leave(name, 3)
            await store.leave("unknown", 1)
            assert await store.nodes() == known
            for _ in range(3):
                await store.leave("a", 2)
                await store.leave("writer", 2)
            assert await store.nodes() == (replace(node(start=2), live=False),)
            await until(store, lambda: has(announced, 2))
            assert sorted(announced, key=str) == [LeaseLost("a"), LeaseLost("writer")]

    asyncio.run(scenario())


async def has(events: list[Event], count: int) -> bool:
    return len(events) >= count


def test_a_forgotten_node_is_removed_and_may_register_as_a_new_one(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            await store.handle(Register(node("a", start=9)))
            await store.handle(Register(node("b")))
            await store.set_node_state("a", NodeState.GONE)
            assert await store.forget_node("a")
            assert not await store.forget_node("a")
            assert await store.nodes() == (node("b"),)
        async with opened(place) as store:
            assert await store.nodes() == (node("b"),)
            assert await store.handle(Register(node("a", start=1))) == Registered("a", 1)  # it is a new node
            assert await store.nodes() == (node("a", start=1), node("b"))

    asyncio.run(scenario())


def test_m4_a_client_cannot_take_the_name_of_a_node_nor_a_node_that_of_a_client(place: Place) -> None:
    async def scenario() -> None:
        client = replace(node("c"), state=NodeState.CLIENT)
        async with opened(place) as store:
            await store.handle(Register(node("n")))
            await store.handle(Register(client))
            assert await store.handle(Register(replace(node("n", start=2), state=NodeState.CLIENT))) is None
            assert await store.handle(Register(node("c", start=2))) is None
            assert await store.nodes() == (client, node("n"))

    asyncio.run(scenario())
