"""Messages and their attachments arrive as they were sent, on both event loops."""

from __future__ import annotations

import asyncio

import pytest

from net.wiring import FRAME, STORED, Inbox, Run, dialled, echo, frames, serving, until
from trunkline.core.entries import junk
from trunkline.core.messages import Get, Got, Written
from trunkline.net.admin import StatusAnswer
from trunkline.net.connection import Connection
from trunkline.net.limits import MIB, Limits
from trunkline.net.packets import Envelope


@pytest.mark.parametrize(
    "sizes", [(), (0,), (1,), (0, 0, 5), (8_000,), (65_536,), (200_000, 0, 1, 70_000), (3,) * 2_000]
)
def test_attachments_of_any_number_and_size_come_back_as_they_were(run: Run, sizes: tuple[int, ...]) -> None:
    bodies = [bytes([at % 251]) * size for at, size in enumerate(sizes)]

    async def scene() -> None:
        inbox = Inbox()
        async with serving() as server, dialled(server, inbox) as connection:
            for token in range(3):
                assert connection.send("storage:x", token, frames(len(sizes)), bodies)
            for token in range(3):
                _, envelope, attachments = await inbox.next()
                assert envelope == Envelope("storage:x", token, 0, sizes, frames(len(sizes)))
                assert [bytes(view) for view in attachments] == bodies

    run(scene())


def test_a_body_of_32_mib_comes_back_while_small_messages_go_on_behind_it(run: Run) -> None:
    body = bytes(range(256)) * (32 * MIB // 256)

    async def scene() -> None:
        inbox = Inbox()
        async with serving() as server, dialled(server, inbox) as connection:
            assert connection.send("r", 1, STORED, [body])
            assert connection.send("r", 2, STORED)
            await connection.drained()
            _, first, (view,) = await inbox.next()
            _, second, _ = await inbox.next()
            assert (first.token, second.token) == (1, 2)
            assert view == body

    run(scene())


def test_views_of_a_packet_are_never_overwritten_by_later_packets(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with serving(inbox) as server, dialled(server) as connection:
            for number in range(200):
                connection.send("r", number, STORED, [bytes([number]) * (1 + number * 997)])
            await until(lambda: inbox.count == 200)
            for _, envelope, (view,) in inbox.received:
                assert view == bytes([envelope.token]) * (1 + envelope.token * 997)
                assert view.readonly

    run(scene())


def test_thousands_of_pipelined_messages_arrive_once_and_in_order(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with serving() as server, dialled(server, inbox) as connection:
            for token in range(5_000):
                assert connection.send("r", token, STORED, [b"x" * (token % 50)] if token % 3 else [])
            await until(lambda: inbox.count == 5_000)
            assert [envelope.token for _, envelope, _ in inbox.received] == list(range(5_000))

    run(scene())


def test_messages_with_nothing_enums_and_bytes_in_them_keep_their_values(run: Run) -> None:
    messages = [Got("log", 3, None, ()), Written("s", FRAME, junk(8)), StatusAnswer(b'{"a": 1}'), Get("log")]

    async def scene() -> None:
        inbox = Inbox()
        async with serving() as server, dialled(server, inbox) as connection:
            for message in messages:
                connection.send("r", 0, message)
            assert [(await inbox.next())[1].message for _ in messages] == messages

    run(scene())


def test_both_sides_know_each_other_after_the_handshake(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with serving(inbox) as server, dialled(server, name="client-7") as connection:
            connection.send("r", 0, STORED)
            seen, _, _ = await inbox.next()
            assert (connection.peer_name, connection.cluster) == ("node-1", "c1")
            assert (seen.peer_name, seen.cluster) == ("client-7", "c1")
            assert seen.number != connection.number
            assert server.connections == 1

    run(scene())


def test_closing_flushes_what_was_sent_and_notifies_both_sides_once(run: Run) -> None:
    async def scene() -> None:
        inbox, closed_here, closed_there = Inbox(), list[Connection](), list[Connection]()
        async with serving(inbox, on_closed=closed_there.append) as server:
            async with dialled(server, on_closed=closed_here.append) as connection:
                connection.send("r", 1, STORED, [bytes(5 * MIB)])
                connection.close()
                assert connection.closed
                assert not connection.send("r", 2, STORED)
            await until(lambda: len(closed_there) == 1)
            assert inbox.count == 1
            assert closed_here == [connection]
            assert server.connections == 0

    run(scene())


def test_a_message_that_the_peer_could_never_take_is_an_error_of_the_sender(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with serving(limits=Limits(packet_bytes_max=MIB)) as server, dialled(server, inbox) as connection:
            with pytest.raises(ValueError, match="larger than node-1 accepts; send less at once"):
                connection.send("r", 1, STORED, [bytes(MIB + 1)])
            assert connection.send("r", 2, STORED, [bytes(MIB - 1000)])
            assert (await inbox.next())[1].token == 2

    run(scene())


def test_closing_a_server_closes_its_connections(run: Run) -> None:
    async def scene() -> None:
        gone = asyncio.Event()
        async with serving(echo) as server, dialled(server, on_closed=lambda _: gone.set()) as connection:
            await server.close()
            await gone.wait()
            assert connection.closed

    run(scene())
