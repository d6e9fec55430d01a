"""Pausing stops delivery at once and loses nothing; budgets run while messages wait."""

from __future__ import annotations

import asyncio

from net.wiring import STORED, Inbox, Run, dialled, serving, until
from trunkline.net.connection import Connection
from trunkline.net.packets import Envelope


def test_a_handler_that_pauses_gets_not_one_message_more_until_it_resumes(run: Run) -> None:
    seen: list[int] = []

    def one_at_a_time(connection: Connection, envelope: Envelope, _attachments: tuple[memoryview, ...]) -> None:
        seen.append(envelope.token)
        connection.pause()
        waiting.append(connection)

    waiting: list[Connection] = []

    async def scene() -> None:
        async with serving(one_at_a_time) as server, dialled(server) as connection:
            for token in range(20):
                connection.send("r", token, STORED, [bytes(10_000)])
            for turn in range(20):
                await until(lambda: bool(waiting))
                assert seen == list(range(turn + 1))
                waiting.pop().resume()

    run(scene())


def test_a_connection_reads_only_when_no_reason_to_pause_is_left(run: Run) -> None:
    async def scene() -> None:
        served = Inbox()
        async with serving(served) as server, dialled(server) as connection:
            connection.send("r", 0, STORED)
            accepted = (await served.next())[0]
            accepted.pause("disk")
            accepted.pause("disk")
            accepted.pause("queue")
            connection.send("r", 1, STORED)
            accepted.resume("disk")
            accepted.resume("never said")
            async with dialled(server) as other:  # a round trip of somebody else: time enough to do wrong
                other.send("r", 7, STORED)
                assert (await served.next())[1].token == 7
            assert served.count == 2
            accepted.resume("queue")
            assert (await served.next())[1].token == 1

    run(scene())


def test_pausing_and_resuming_within_a_handler_loses_and_reorders_nothing(run: Run) -> None:
    seen: list[int] = []

    def restless(connection: Connection, envelope: Envelope, _attachments: tuple[memoryview, ...]) -> None:
        connection.pause()
        seen.append(envelope.token)
        connection.resume()

    async def scene() -> None:
        async with serving(restless) as server, dialled(server) as connection:
            for token in range(500):
                connection.send("r", token, STORED, [bytes(token * 10)])
            await until(lambda: len(seen) == 500)
            assert seen == list(range(500))

    run(scene())


def test_a_request_whose_budget_ended_during_a_pause_is_dropped(run: Run) -> None:
    seen: list[int] = []

    def pausing(connection: Connection, envelope: Envelope, _attachments: tuple[memoryview, ...]) -> None:
        seen.append(envelope.token)
        if envelope.token == 0:
            connection.pause()
            waiting.append(connection)

    waiting: list[Connection] = []

    async def scene() -> None:
        async with serving(pausing) as server, dialled(server) as connection:
            for token, budget_ms in enumerate((0, 20, 60_000, 0)):  # they leave, and arrive, together
                connection.send("r", token, STORED, budget_ms=budget_ms)
            await until(lambda: bool(waiting))
            accepted = waiting.pop()
            clock = asyncio.get_running_loop()
            await until(lambda: clock.time() > accepted.received_at + 0.03)
            accepted.resume()
            await until(lambda: len(seen) == 3)
            assert seen == [0, 2, 3]

    run(scene())


def test_a_budget_of_zero_never_ends() -> None:
    patient, hasty = (Envelope("r", 1, budget_ms, (), STORED) for budget_ms in (0, 10))
    assert not patient.expired(1e9)
    assert not hasty.expired(0.0099)
    assert hasty.expired(0.0101)
