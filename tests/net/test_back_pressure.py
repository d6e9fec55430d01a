"""Pausing stops delivery at once and loses nothing."""

from __future__ import annotations

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
            accepted.resume("another")
            async with dialled(server) as other:  # a round trip of another client: time enough for an error
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
