"""The register service: order, bounds, and the ration of endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from metadata.places import PATIENCE_S, SqlitePlace, eventually
from metadata.projections import creation, first_of, node, rolled, trim, trimmed
from trunkline.core.effects import Message
from trunkline.core.messages import Get, Got, NodeState, Opened, Register, Registered, Swap, SwapLost, Swapped
from trunkline.core.projection import Projection
from trunkline.metadata.service import ASIDE_MAX, RegisterService, ServiceOptions, ends_segment
from trunkline.metadata.sqlite_store import SqliteStore


@asynccontextmanager
async def serving(directory: Path, options: ServiceOptions | None = None) -> AsyncIterator[RegisterService]:
    store = SqliteStore(directory / "metadata.sqlite")
    await store.start()
    service = RegisterService(store, options)
    try:
        yield service
    finally:
        await service.close()
        await store.close()


async def ask(service: RegisterService, message: Message) -> Message:
    answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    service.submit(message, answered.set_result)
    return await asyncio.wait_for(answered, PATIENCE_S)


def ending(projection: Projection) -> Swap:
    return Swap(projection.log, projection.epoch, rolled(projection))


def test_g1_requests_of_one_log_are_answered_in_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as service:
            answers: list[Message] = []
            first = first_of()
            for message in (creation(), Get("orders", 1), trim(first), Get("orders", 2), trim(first)):
                service.submit(message, answers.append)
            await eventually(holds(lambda: len(answers) == 5))
            assert answers == [
                Swapped("orders", 1),
                Got("orders", 1, first, ()),
                Swapped("orders", 2),
                Got("orders", 2, trimmed(first), ()),
                SwapLost("orders", 1),
            ]
            assert service.counts.answered == 5

    asyncio.run(scenario())


def holds(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return condition()

    return look


def test_g1_a_node_that_leaves_is_not_brought_back_by_what_it_said_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as service:
            answers: list[Message] = []
            for _ in range(3):
                service.submit(Register(node()), answers.append)
            service.leave("a", 1)
            service.submit(Register(node("b")), answers.append)
            await eventually(holds(lambda: len(answers) == 4))
            assert await ask(service, Get("orders")) == Got("orders", 0, None, (replace(node(), live=False), node("b")))

    asyncio.run(scenario())


def test_a_node_that_leaves_while_the_store_is_down_keeps_its_lease_and_nothing_else_happens(tmp_path: Path) -> None:
    async def scenario() -> None:
        place = SqlitePlace(tmp_path)
        async with serving(tmp_path) as service:
            client = replace(node("writer"), state=NodeState.CLIENT)
            await ask(service, Register(client))
            place.break_down()
            service.leave("writer", 1)
            service.submit(Get("orders"), lambda _: None)
            await eventually(holds(lambda: service.counts.unanswered == 1))
            place.mend()
            assert await ask(service, Get("orders")) == Got("orders", 0, None, (client,))

    asyncio.run(scenario())


def test_g1_many_logs_and_nodes_are_served_by_few_workers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ServiceOptions(concurrency_max=3)) as service:
            logs = [ask(service, creation(f"log{n}")) for n in range(50)]
            nodes = [ask(service, Register(node(f"n{n}"))) for n in range(50)]
            answers = await asyncio.gather(*logs, *nodes)
            assert answers[:50] == [Swapped(f"log{n}", 1) for n in range(50)]
            assert answers[50:] == [Registered(f"n{n}", 1) for n in range(50)]

    asyncio.run(scenario())


def test_g2_what_comes_while_too_many_wait_is_dropped_and_the_rest_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ServiceOptions(waiting_max=10)) as service:
            answers: list[Message] = []
            for n in range(15):
                service.submit(Get("orders", n), answers.append)
            await eventually(holds(lambda: len(answers) == 10))
            assert [answer.nonce for answer in answers if isinstance(answer, Got)] == list(range(10))
            assert service.counts.dropped == 5
            assert await ask(service, Get("orders", 99)) == Got("orders", 99, None, ())

    asyncio.run(scenario())


def test_g3_a_request_without_a_known_outcome_gets_no_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        place = SqlitePlace(tmp_path)
        async with serving(tmp_path) as service:
            answers: list[Message] = []
            place.break_down()
            service.submit(creation(), answers.append)
            await eventually(holds(lambda: service.counts.unanswered == 1))
            place.mend()
            assert await ask(service, creation()) == Swapped("orders", 1)
            assert answers == []

    asyncio.run(scenario())


def test_what_no_sender_may_send_is_counted_and_hurts_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as service:
            answers: list[Message] = []
            service.submit(Opened("1.0.0"), answers.append)
            service.submit(Swap("orders", 0, trimmed(first_of())), answers.append)
            service.submit(Swap("orders", 0, replace(first_of(), segments=())), answers.append)
            assert service.counts.malformed == 3
            assert await ask(service, creation()) == Swapped("orders", 1)
            assert answers == []

    asyncio.run(scenario())


def test_g4_only_a_swap_that_opens_the_next_segment_is_an_ending() -> None:
    first = first_of()
    assert ends_segment(ending(first))
    assert not ends_segment(creation())
    assert not ends_segment(trim(first))
    assert not ends_segment(trim(rolled(first)))


def test_g4_a_burst_of_endings_passes_and_a_further_one_waits_its_time(tmp_path: Path) -> None:
    options = ServiceOptions(endings_burst=3, endings_window_ms=700)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(tmp_path, options) as service:
            await ask(service, creation())
            projection = first_of()
            began = loop.time()
            for _ in range(3):
                assert await ask(service, ending(projection)) == Swapped("orders", projection.epoch + 1)
                projection = rolled(projection)
            assert service.counts.delayed == 0
            late = asyncio.create_task(ask(service, ending(projection)))
            await eventually(holds(lambda: service.counts.delayed == 1))
            assert await ask(service, creation("other")) == Swapped("other", 1)
            found = await ask(service, Get("orders"))  # the log itself goes on meanwhile
            assert isinstance(found, Got)
            assert found.projection == projection
            assert await late == Swapped("orders", projection.epoch + 1)
            assert loop.time() - began >= 0.7

    asyncio.run(scenario())


def test_g4_lost_endings_do_not_count(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ServiceOptions(endings_burst=2)) as service:
            await ask(service, creation())
            first = first_of()
            assert await ask(service, ending(first)) == Swapped("orders", 2)
            for _ in range(5):
                assert await ask(service, ending(first)) == SwapLost("orders", 1)
            assert await ask(service, ending(rolled(first))) == Swapped("orders", 3)
            assert service.counts.delayed == 0

    asyncio.run(scenario())


def test_g4_few_endings_are_set_aside_and_a_closing_service_forgets_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        answers: list[Message] = []
        async with serving(tmp_path, ServiceOptions(endings_burst=1)) as service:
            await ask(service, creation())
            await ask(service, ending(first_of()))
            for _ in range(ASIDE_MAX + 2):
                service.submit(ending(rolled(first_of())), answers.append)
            await eventually(holds(lambda: service.counts.dropped == 2))
            assert service.counts.delayed == ASIDE_MAX
        assert answers == []
        service.submit(Get("orders"), answers.append)
        assert service.counts.dropped == 3

    asyncio.run(scenario())
