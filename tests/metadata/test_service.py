"""The register service: order, bounds, and the limit of reconfigurations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from metadata.places import PATIENCE_S, SqlitePlace, eventually
from metadata.projections import OPENING, creation, first_of, node, rolled, trim, trimmed
from trunkline.core.effects import Message
from trunkline.core.messages import Get, Got, NodeInfo, NodeState, Opened, Register, Registered, Swap, SwapLost, Swapped
from trunkline.core.projection import EndSegment, Gap, Projection, Segment, apply
from trunkline.core.transitions import transition_fault
from trunkline.metadata import admission
from trunkline.metadata.admission import registration_fault
from trunkline.metadata.service import ASIDE_MAX, LEASES_MAX, RegisterService, ServiceOptions, ends_segment
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.net.limits import Limits


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


def test_g1_requests_for_one_log_are_answered_in_order(tmp_path: Path) -> None:
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


def test_g1_an_earlier_renewal_does_not_bring_back_a_node_that_left(tmp_path: Path) -> None:
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


def test_invalid_requests_are_counted_and_have_no_effect(tmp_path: Path) -> None:
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


def test_g4_a_burst_of_endings_passes_and_a_further_one_waits(tmp_path: Path) -> None:
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
            found = await ask(service, Get("orders"))  # other requests for the log proceed
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


def test_g2_requests_that_come_in_the_turn_in_which_all_workers_end_are_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = ServiceOptions(concurrency_max=4, waiting_max=20)
        async with serving(tmp_path, options) as service:
            answers: list[Message] = []

            def flood() -> None:
                for n in range(options.waiting_max + 5):
                    service.submit(Get(f"late{n}"), answers.append)

            def answered(answer: Message) -> None:
                answers.append(answer)
                if len(answers) == options.concurrency_max:
                    flood()
                    asyncio.get_running_loop().call_soon(flood)

            for n in range(options.concurrency_max):
                service.submit(Get(f"early{n}"), answered)
            asyncio.get_running_loop().call_soon(flood)
            await eventually(holds(lambda: len(answers) >= options.concurrency_max + options.waiting_max))
            assert service.counts.dropped >= 5
            assert await ask(service, Get("afterwards")) == Got("afterwards", 0, None, ())

    asyncio.run(scenario())


def test_g2_a_dropped_request_still_starts_a_worker_for_what_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ServiceOptions(concurrency_max=1, waiting_max=2)) as service:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            answers: list[Message] = []

            def failing(answer: Message) -> None:
                service.submit(Get("b"), answers.append)
                service.submit(Get("c"), answers.append)
                raise ArithmeticError  # the only worker is lost while as many wait as may

            service.submit(Get("a"), failing)
            await eventually(holds(lambda: service.counts.answered == 1))
            service.submit(Get("d"), answers.append)
            assert service.counts.dropped == 1
            await eventually(holds(lambda: len(answers) == 2))

    asyncio.run(scenario())


def test_g2_many_logs_do_not_crowd_out_leases(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ServiceOptions(waiting_max=10)) as service:
            answers: list[Message] = []
            for n in range(15):
                service.submit(Get(f"log{n}"), lambda _: None)
            for n in range(LEASES_MAX + 1):
                service.submit(Register(node(f"n{n}")), answers.append)
            assert service.counts.dropped == 5 + 1
            await eventually(holds(lambda: len(answers) == LEASES_MAX))

    asyncio.run(scenario())


def test_a_swap_to_a_projection_that_no_role_could_use_is_malformed(tmp_path: Path) -> None:
    first = first_of()
    segment = first.last
    nameless = replace(segment.members()[0], stream="")
    closed = rolled(first).segments[0]
    shapes: dict[str, tuple[Segment, ...]] = {
        "no groups": (replace(segment, groups=()),),
        "an empty group": (replace(segment, groups=((),)),),
        "a member without a stream": (replace(segment, groups=((nameless,),)),),
        "a stripe unit of 0": (replace(segment, stripe_unit=0),),
        "numbers out of order": (replace(closed, index=2), replace(segment, index=1)),
        "a number twice": (closed, closed),
        "an open one before the last": (segment, replace(segment, index=1)),
        "an empty ended group without a gap": (replace(closed, groups=((),)), replace(segment, index=1)),
    }

    async def scenario() -> None:
        async with serving(tmp_path) as service:
            reasons: list[str] = []

            async def all_refused() -> bool:
                return len(reasons) == len(shapes)

            for segments in shapes.values():
                swap = Swap("orders", 0, replace(first, segments=segments))
                service.submit(swap, lambda _: None, reasons.append)
            await eventually(all_refused)
            assert service.counts.malformed == len(shapes)

    asyncio.run(scenario())


def test_a_segment_whose_members_an_operator_gave_up_is_sound() -> None:
    first = first_of()
    lost = apply(first, EndSegment(0, 4, ((),), OPENING, Gap(1, 4)))
    assert transition_fault(first, lost) == ""


# ------------------------------------------------------------------------------------------------------- admission


def test_g5_an_invalid_request_is_refused_with_the_reason_and_not_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as service:
            service.cluster = "cluster"
            reasons: list[str] = []
            answers: list[Message] = []
            for message in (
                Opened("1.0.0"),
                Get("x" * 513),
                Register(replace(node(), address="x" * 300)),
                Swap("orders", 0, replace(first_of(), cluster="another")),
                creation("a b"),
            ):
                service.submit(message, answers.append, reasons.append)
            assert len(reasons) == 5
            assert "is for cluster 'another', this is cluster" in reasons[3]
            assert await ask(service, creation()) == Swapped("orders", 1)
            service.submit(
                Swap("orders", 1, replace(first_of(), epoch=2, deleted=True)), answers.append, reasons.append
            )
            await eventually(holds(lambda: len(reasons) == 6))
            assert "cannot follow" in reasons[5]
            assert answers == []
            assert service.counts.malformed == 6

    asyncio.run(scenario())


def test_a2_a_log_with_a_name_of_an_older_rule_still_works(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as service:
            old = first_of("日本 ?")
            await service._store.handle(Swap(old.log, 0, old))
            assert await ask(service, Get(old.log)) == Got(old.log, 0, old, ())
            assert await ask(service, trim(old)) == Swapped(old.log, 2)

    asyncio.run(scenario())


@pytest.mark.parametrize("state", [NodeState.RW, NodeState.CLIENT])
def test_a1_places_are_bounded_and_a3_a_registered_process_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: NodeState
) -> None:
    monkeypatch.setattr(admission, "NODES_MAX", 3)
    monkeypatch.setattr(admission, "CLIENTS_MAX", 3)
    monkeypatch.setattr(admission, "COUNT_AGE_S_MAX", 0.0)

    async def scenario() -> None:
        async with serving(tmp_path) as service:
            infos = [replace(node(f"n{number}"), state=state) for number in range(4)]
            for info in infos[:3]:
                assert await ask(service, Register(info)) == Registered(info.node, 1)
            reasons: list[str] = []
            service.submit(Register(infos[3]), lambda _: None, reasons.append)
            await eventually(holds(lambda: len(reasons) == 1))
            assert "the limit; `trunkline node forget`" in reasons[0]
            assert await ask(service, Register(infos[0])) == Registered("n0", 1)
            await service._store.forget_node("n1")
            assert await ask(service, Register(infos[3])) == Registered("n3", 1)

    asyncio.run(scenario())


def test_a1_the_fullest_registry_fits_an_answer_beside_the_largest_map() -> None:
    info = NodeInfo("n" * 255, 2**63 - 1, 2**63 - 1, address="a" * 262, zone="z" * 128, damaged=2**63 - 1)
    assert registration_fault(info) == ""
    nodes = len(msgspec.msgpack.encode(info)) * admission.NODES_MAX
    client = NodeInfo("c" * 20, 2**63 - 1, 2**63 - 1, NodeState.CLIENT)
    clients = len(msgspec.msgpack.encode(client)) * (admission.CLIENTS_BYTES_MAX // admission._entry_bytes(client))
    assert nodes + clients <= admission.REGISTRY_BYTES_MAX
    assert Limits().head_bytes_max - 4096 > admission.REGISTRY_BYTES_MAX + admission.MAP_BYTES_MAX
