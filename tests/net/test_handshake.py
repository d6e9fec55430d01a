"""Which peers may connect, and which error the others get."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import AsyncExitStack
from typing import Any

import pytest

from net.wiring import STORED, Inbox, Run, bare_socket, dialled, foreign_server, greeting, serving, until
from trunkline.errors import Unreachable
from trunkline.net import refusals
from trunkline.net.complaints import LINES_MAX, Complaints
from trunkline.net.dial import HandshakeRefused, dial
from trunkline.net.limits import HANDSHAKE_BYTES_MAX, Limits
from trunkline.net.packets import VERSION_MAX, PacketKind, RefusalCode, Welcome, decode_refusal, decode_welcome, encode


@pytest.mark.parametrize("cluster", ["", "c1"])
@pytest.mark.parametrize("token", ["", "secret"])
def test_the_right_token_and_cluster_are_welcome(run: Run, token: str, cluster: str) -> None:
    async def scene() -> None:
        async with serving(token=token) as server, dialled(server, token="secret", cluster=cluster) as connection:
            assert connection.open
            assert connection.cluster == "c1"

    run(scene())


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"token": "guess"}, RefusalCode.TOKEN, "the token is missing or wrong; use the one"),
        ({}, RefusalCode.TOKEN, "the token is missing or wrong; use the one"),
        (
            {"token": "secret", "cluster": "c2"},
            RefusalCode.CLUSTER,
            "node-1 belongs to cluster c1, 'x' to cluster 'c2'; check the address",
        ),
    ],
)
def test_a_wrong_token_or_cluster_is_refused_with_a_reason(
    run: Run, options: dict[str, Any], code: RefusalCode, text: str
) -> None:
    async def scene() -> None:
        async with serving(token="secret") as server:
            with pytest.raises(HandshakeRefused, match=re.escape(text)) as refused:
                await dial("127.0.0.1", server.port, name="x", handler=Inbox(), **options)
            assert refused.value.code is code
            await until(lambda: server.refused == 1)
            assert server.accepted == 0

    run(scene())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version_min": 3, "version_max": 9}, RefusalCode.VERSION),
        ({"version_min": 0, "version_max": 0}, RefusalCode.VERSION),
        ({"magic": "kafka"}, RefusalCode.PROTOCOL),
    ],
)
def test_a_peer_of_another_version_or_protocol_is_refused(run: Run, changes: dict[str, Any], code: RefusalCode) -> None:
    async def scene() -> None:
        async with serving() as server, bare_socket(server) as peer:
            answer = await peer.greet(greeting(**changes))
            assert answer.kind == PacketKind.REFUSED
            assert decode_refusal(answer.head).code is code
            await peer.closed()

    run(scene())


def test_the_highest_version_that_both_speak_is_chosen(run: Run) -> None:
    async def scene() -> None:
        async with serving() as server, bare_socket(server) as peer:
            answer = await peer.greet(greeting(version_min=0, version_max=9))
            assert decode_welcome(answer.head).version == VERSION_MAX

    run(scene())


@pytest.mark.parametrize("first", [PacketKind.MESSAGE, PacketKind.WELCOME, PacketKind.PING, PacketKind.PONG])
def test_a_connection_that_does_not_begin_with_hello_is_refused(run: Run, first: PacketKind) -> None:
    async def scene() -> None:
        async with serving() as server, bare_socket(server) as peer:
            await peer.send(encode(first))
            assert (await peer.refusal()).text.startswith("a connection begins with HELLO")
            await peer.closed()

    run(scene())


def test_a_second_hello_is_refused(run: Run) -> None:
    async def scene() -> None:
        async with serving(limits=Limits(linger_ms=20)) as server, bare_socket(server) as peer:
            await peer.greet()
            await peer.send(encode(PacketKind.HELLO, greeting()))
            assert (await peer.refusal()).code is RefusalCode.PROTOCOL
            await peer.closed()
            await until(lambda: server.violations == 1)

    run(scene())


def test_a_hello_that_is_too_long_is_refused_before_it_is_read(run: Run) -> None:
    async def scene() -> None:
        async with serving() as server, bare_socket(server) as peer:
            await peer.send(encode(PacketKind.HELLO, greeting(name="x" * HANDSHAKE_BYTES_MAX)))
            assert "larger than this process accepts" in (await peer.refusal()).text
            await peer.closed()

    run(scene())


@pytest.mark.parametrize("sent", [b"", encode(PacketKind.HELLO, greeting())[:-1]], ids=["silent", "slow"])
def test_a_silent_or_slow_handshake_is_closed_in_time(run: Run, sent: bytes) -> None:
    async def scene() -> None:
        limits = Limits(handshake_ms=50, linger_ms=50)
        async with serving(limits=limits) as server, bare_socket(server) as peer:
            await peer.send(sent)
            assert "no handshake within 50 ms" in (await peer.refusal()).text
            await peer.closed()
            await until(lambda: server.refused == 1)

    run(scene())


def test_the_newest_connection_above_the_limit_is_refused_and_the_others_stay(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with (
            serving(limits=Limits(connections_max=2)) as server,
            dialled(server, inbox) as one,
            dialled(server, inbox) as two,
        ):
            with pytest.raises(HandshakeRefused, match="node-1 has 2 connections, its limit; close some"):
                await dial("127.0.0.1", server.port, name="x", handler=inbox)
            one.send("r", 1, STORED)
            two.send("r", 2, STORED)
            assert {(await inbox.next())[1].token, (await inbox.next())[1].token} == {1, 2}
            one.close()
            await until(lambda: server.connections == 1)
            async with dialled(server, inbox) as three:
                assert three.open

    run(scene())


def test_connections_without_a_handshake_do_not_displace_others(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        limits = Limits(connections_max=2, handshakes_max=3, linger_ms=20)
        async with serving(limits=limits) as server, AsyncExitStack() as open_connections:
            idle = [await open_connections.enter_async_context(bare_socket(server)) for _ in range(8)]
            one = await open_connections.enter_async_context(dialled(server, inbox))
            two = await open_connections.enter_async_context(dialled(server, inbox))
            assert one.open
            assert two.open
            assert (await idle[0].refusal()).code is RefusalCode.BUSY  # the oldest makes room
            await idle[0].closed()
            with pytest.raises(HandshakeRefused, match="node-1 has 2 connections, its limit"):
                await dial("127.0.0.1", server.port, name="x", handler=inbox)

    run(scene())


def test_those_that_are_being_refused_are_bounded_too(run: Run) -> None:
    async def scene() -> None:
        limits = Limits(handshakes_max=3, linger_ms=60_000)  # they would stay for a minute to hear why
        async with serving(limits=limits, token="secret") as server, AsyncExitStack() as open_connections:
            for _ in range(10):
                peer = await open_connections.enter_async_context(bare_socket(server))
                assert (await peer.greet(greeting(token="wrong"))).kind == PacketKind.REFUSED
            await until(lambda: server.refused >= 7)
            async with dialled(server, Inbox(), token="secret") as good:
                assert good.open

    run(scene())


def test_refused_handshakes_are_logged_and_listed_up_to_a_limit(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "complaints", Complaints(logging.getLogger("trunkline.net")))

    async def scene() -> None:
        async with serving(token="secret", limits=Limits(linger_ms=20)) as server:
            for number in range(50):
                with pytest.raises(HandshakeRefused):
                    await dial("127.0.0.1", server.port, name=f"n\n{number}", handler=Inbox(), token="wrong")
            await until(lambda: server.refused == 50)
            recent = server.refusals()
            assert len(recent) == 32
            assert (recent[-1].name, recent[-1].code) == ("n?49", "token")
            assert "the token is missing or wrong" in recent[-1].why

    run(scene())
    lines = [record.getMessage() for record in caplog.records if "refused a connection" in record.getMessage()]
    assert len(lines) == LINES_MAX
    assert lines[0].startswith("node-1 refused a connection of n?0 from 127.0.0.1:")


def test_an_address_without_a_listener_is_unreachable(run: Run) -> None:
    async def scene() -> None:
        async with serving() as server:
            port = server.port
        with pytest.raises(Unreachable, match=r"cannot be reached .*; is it running"):
            await dial("127.0.0.1", port, name="x", handler=Inbox())

    run(scene())


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", encode(PacketKind.WELCOME, Welcome(7, "c", "n", 1))],
    ids=["silence", "http", "version"],
)
def test_a_server_that_is_none_of_ours_is_unreachable_and_never_waited_for_long(run: Run, answer: bytes) -> None:
    async def scene() -> None:
        async with foreign_server(answer) as port:
            with pytest.raises(Unreachable):
                await dial("127.0.0.1", port, name="x", handler=Inbox(), timeout_ms=100)

    run(scene())


def test_dialling_can_be_cancelled_at_any_moment(run: Run) -> None:
    async def scene() -> None:
        async with serving() as server:
            for turns in range(12):
                task = asyncio.ensure_future(dial("127.0.0.1", server.port, name="x", handler=Inbox()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if not task.cancel():
                    (await task).close()
                    continue
                with pytest.raises(asyncio.CancelledError):
                    await task
            await until(lambda: server.connections == 0)

    run(scene())
