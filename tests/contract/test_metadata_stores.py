"""What every metadata store promises: the contract of the register role, on a disk or in etcd."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metadata import swapping_process
from metadata.places import LONG_MS, PATIENCE_S, EtcdPlace, Place, SqlitePlace, eventually, heard, opened
from metadata.projections import creation, first_of, node, trim, trimmed
from trunkline.core.effects import Address, Event, Persist, Send
from trunkline.core.events import Projected
from trunkline.core.messages import Get, Got, LeaseExpired, NodeState, Register, Registered, Swap, SwapLost, Swapped
from trunkline.core.projection import Settings
from trunkline.core.register import MetadataRegister, RegisterImage
from trunkline.metadata.store import NODES_CHANGED, MetadataStore, Request, StoreUnavailable

# ------------------------------------------------------------------------------------------------------------- swaps


def test_m1_a_swap_is_accepted_only_at_the_expected_epoch(place: Place) -> None:
    async def scenario() -> None:
        first = first_of()
        async with opened(place) as store:
            assert await store.handle(Get("orders", 7)) == Got("orders", 7, None, ())
            assert await store.handle(trim(first)) == SwapLost("orders", 1)  # the log does not exist yet
            assert await store.handle(creation()) == Swapped("orders", 1)
            assert await store.handle(creation()) == SwapLost("orders", 0)
            assert await store.handle(trim(first)) == Swapped("orders", 2)
            assert await store.handle(trim(first)) == SwapLost("orders", 1)  # a doubled message is not another swap
            assert await store.handle(Get("orders", 8)) == Got("orders", 8, trimmed(first), ())

    asyncio.run(scenario())


def test_m1_of_a_hundred_swaps_at_once_one_wins_each_epoch(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            await store.handle(creation())
            projection = first_of()
            for _ in range(3):
                answers = await asyncio.gather(*(store.handle(trim(projection, by)) for by in range(1, 101)))
                [winner] = [by for by, answer in enumerate(answers, start=1) if isinstance(answer, Swapped)]
                assert answers.count(SwapLost("orders", projection.epoch)) == 99
                projection = trimmed(projection, winner)
                assert await store.handle(Get("orders")) == Got("orders", 0, projection, ())

    asyncio.run(scenario())


def test_a_swap_that_contradicts_itself_is_refused_and_changes_nothing(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            for broken in (
                Swap("orders", 0, trimmed(first_of())),
                Swap("other", 0, first_of()),
                Swap("orders", -1, replace(first_of(), epoch=0)),
                Swap("orders", 0, replace(first_of(), segments=())),
            ):
                with pytest.raises(ValueError, match="a swap"):
                    await store.handle(broken)
            assert await store.logs() == ()

    asyncio.run(scenario())


def test_logs_of_any_name_are_listed_and_kept_apart(place: Place) -> None:
    names = ("a", "a/b", "a/b/live", "nodes/x", "ünï%2F ☂")

    async def scenario() -> None:
        async with opened(place) as store:
            await asyncio.gather(*(store.handle(creation(name)) for name in names))
            assert await store.logs() == tuple(sorted(names))
        async with opened(place) as store:
            for name in names:
                assert await store.handle(Get(name)) == Got(name, 0, first_of(name), ())

    asyncio.run(scenario())


def test_m2_an_answered_swap_outlives_kill_9(place: Place) -> None:
    command = [sys.executable, swapping_process.__file__, *place.arguments()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 40:
                break
        process.kill()
        answered = [40, *(int(line) for line in process.stdout.read().split("\n")[:-1])]

    async def scenario() -> None:
        async with opened(place) as store:
            answer = await store.handle(Get("orders"))
            assert isinstance(answer, Got)
            assert answer.projection is not None
            assert answered[-1] <= answer.projection.epoch <= answered[-1] + 1  # the last may lack its answer

    asyncio.run(scenario())


# --------------------------------------------------------------------------------- cluster, watchers, announcements


def test_the_cluster_id_is_written_once_and_all_callers_get_the_first(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            assert await store.cluster() == ""
            ids = await asyncio.gather(*(store.create_cluster(f"id{n}") for n in range(10)))
            assert len(set(ids)) == 1
        async with opened(place) as store:
            assert await store.create_cluster("another") == await store.cluster() == ids[0]

    asyncio.run(scenario())


def test_k3_a_watcher_receives_changes_of_logs_and_nodes_until_the_store_closes(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            early, late = store.watch(), store.watch()
            async with asyncio.timeout(PATIENCE_S):
                await store.handle(creation())
                await heard(early, "orders")
                await store.handle(Register(node()))
                await heard(early, NODES_CHANGED)
                await store.handle(trim(first_of()))
                await heard(early, "orders")
        async with asyncio.timeout(PATIENCE_S):
            assert {name async for name in late} == {"orders", NODES_CHANGED}  # each once, however often it changed

    asyncio.run(scenario())


def test_k2_every_accepted_swap_is_announced_once_and_what_is_found_at_a_start(place: Place) -> None:
    async def scenario() -> None:
        announced: list[Event] = []
        first = first_of()
        async with opened(place, listener=announced.append) as store:
            await store.handle(creation())
            await store.handle(creation())
            await store.handle(trim(first))
            await store.handle(Get("orders"))
            assert announced == [Projected(first), Projected(trimmed(first))]
        announced.clear()
        async with opened(place, listener=announced.append) as store:
            assert announced == [Projected(trimmed(first))]
            await store.handle(Get("orders"))
            assert announced == [Projected(trimmed(first))]

    asyncio.run(scenario())


def test_k4_a_lone_coordinator_is_elected_and_resigns_when_it_closes(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            assert not store.active()
            assert await store.active_coordinator() == ""
            async with asyncio.timeout(PATIENCE_S):
                await store.campaign("c1")
            assert store.active()
            assert await store.active_coordinator() == "c1"
            deposed = asyncio.create_task(store.deposed())
        assert not store.active()
        async with asyncio.timeout(PATIENCE_S):
            await deposed
            async with opened(place) as store:
                await store.campaign("c2")
                assert store.active()

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------------------ outages


def test_k1_a_store_that_is_down_gives_no_answer_and_recovers(place: Place) -> None:
    async def scenario() -> None:
        first = first_of()
        async with opened(place) as store:
            await store.handle(creation())
            await store.handle(Register(node()))
            place.break_down()
            with pytest.raises(StoreUnavailable):
                await store.handle(trim(first))
            with pytest.raises(StoreUnavailable):
                await store.handle(Register(node(start=2)))
            place.mend()
            assert await settled(store) == Got("orders", 0, first, (node(),))
            assert await store.handle(trim(first)) == Swapped("orders", 2)
            assert await store.handle(Register(node(start=2))) == Registered("a", 2)

    asyncio.run(scenario())


def test_a_closed_store_gives_no_answer_and_closing_twice_is_harmless(place: Place) -> None:
    async def scenario() -> None:
        store = place.store()
        await store.start()
        await store.close()
        await store.close()
        asked_of_it = (store.handle(Get("orders")), store.cluster(), store.nodes(), store.campaign("me"))
        for asked in (*asked_of_it, store.leave("a", 1)):
            with pytest.raises(StoreUnavailable, match="closed"):
                await asked
        assert [name async for name in store.watch()] == []
        assert not store.active()

    asyncio.run(scenario())


async def settled(store: MetadataStore) -> Got:
    """The content once the store answers again; etcd may not have a leader yet."""
    found: list[Got] = []

    async def answered() -> bool:
        with contextlib.suppress(StoreUnavailable):
            answer = await store.handle(Get("orders"))
            assert isinstance(answer, Got)
            found.append(answer)
        return bool(found)

    await eventually(answered)
    return found[0]


# --------------------------------------------------------------------------------------------- against the pure role


class Model:
    """The register role, with a disk that never fails."""

    def __init__(self) -> None:
        self.role = MetadataRegister(RegisterImage())

    def ask(self, message: Request | LeaseExpired) -> object:
        effects = self.role.on_message(Address("caller", "caller"), message)
        assert all(isinstance(effect, Persist) for effect in effects[:1] if len(effects) > 1)
        return next((effect.message for effect in effects if isinstance(effect, Send)), None)


LOGS = st.sampled_from(["x", "y"])
SWAPS = st.builds(
    lambda log, expected, by: Swap(log, expected, replace(trimmed(first_of(log), by), epoch=expected + 1)),
    LOGS,
    st.integers(0, 3),
    st.integers(1, 3),
)
REGISTERS = st.builds(
    lambda name, start, incarnation: Register(node(name, start, incarnation)),
    st.sampled_from(["a", "b"]),
    st.integers(1, 3),
    st.integers(1, 2),
)
REQUESTS = st.lists(st.one_of(st.builds(Get, LOGS, st.integers(0, 9)), SWAPS, REGISTERS), max_size=16)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=REQUESTS)
def test_any_requests_are_answered_as_the_role_answers_them(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, place: Place, requests: list[Request]
) -> None:
    async def scenario() -> None:
        fresh = another(place, request, tmp_path_factory)
        model = Model()
        async with opened(fresh) as store:
            for message in requests:
                assert await store.handle(message) == model.ask(message)
        async with opened(fresh) as store:
            for log in ("x", "y"):
                assert await store.handle(Get(log)) == model.ask(Get(log))

    asyncio.run(scenario())


CLIENTS = st.builds(
    lambda start: Register(replace(node("w", start), state=NodeState.CLIENT)),
    st.integers(1, 3),
)
LEAVINGS = st.builds(LeaseExpired, st.sampled_from(["a", "b", "w"]), st.integers(1, 3))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.one_of(REGISTERS, CLIENTS, LEAVINGS), max_size=16))
def test_any_registrations_and_departures_leave_the_registry_that_the_role_has(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    place: Place,
    moves: list[Register | LeaseExpired],
) -> None:
    async def scenario() -> None:
        model = Model()
        async with opened(another(place, request, tmp_path_factory), LONG_MS) as store:
            for move in moves:
                if isinstance(move, LeaseExpired):
                    await store.leave(move.node, move.start)
                    model.ask(move)
                else:
                    await store.handle(move)
                    model.ask(move)
                assert await store.handle(Get("x")) == model.ask(Get("x"))

    asyncio.run(scenario())


def another(place: Place, request: pytest.FixtureRequest, directories: pytest.TempPathFactory) -> Place:
    """A place of the same kind, with nothing in it."""
    if isinstance(place, EtcdPlace):
        return EtcdPlace(request.getfixturevalue("etcd"), f"/{uuid.uuid4()}/")
    return SqlitePlace(directories.mktemp("sqlite"))


def test_m5_a_map_that_cannot_follow_is_not_stored_and_gets_no_answer(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            await store.handle(creation())
            first = first_of()
            for wrong in (
                replace(first, epoch=2, deleted=True),
                replace(first, epoch=2, settings=Settings(replicas=9)),
            ):
                assert await store.handle(Swap("orders", 1, wrong)) is None
            assert await store.handle(Swap("fresh", 0, replace(first_of("fresh"), trim=5))) is None
            assert await store.handle(Get("orders")) == Got("orders", 0, first, ())
            assert await store.logs() == ("orders",)

    asyncio.run(scenario())
