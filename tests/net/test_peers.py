"""One connection for each address: dialled on first use, dialled again after a failure, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from net.wiring import STORED, Inbox, Run, bare_socket, echo, foreign_server, serving, until
from trunkline.errors import Unreachable
from trunkline.net.dial import Fault, dial
from trunkline.net.peers import Peers, PeerSettings
from trunkline.net.server import Server

QUICK = PeerSettings(backoff_ms_first=5, backoff_ms_max=20, dial_ms=2_000)


@asynccontextmanager
async def peers_with(handler: Any, settings: PeerSettings = QUICK, **options: Any) -> AsyncIterator[Peers]:
    peers = Peers(handler, name="client-1", settings=settings, **options)
    try:
        yield peers
    finally:
        await peers.close()


def address_of(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def fault(peers: Peers, address: str) -> Fault | None:
    error = peers.error(address)
    return error.fault if error is not None else None


def connected(peers: Peers, address: str) -> bool:
    connection = peers.connection(address)
    return connection is not None and connection.open


async def sent(peers: Peers, address: str, token: int) -> None:
    """Send again until it is taken, as roles do."""
    await until(lambda: peers.send(address, "r", token, STORED))


async def answered(peers: Peers, address: str, token: int, inbox: Inbox) -> None:
    """Ask again until there is an answer."""
    while not inbox.received:
        peers.send(address, "r", token, STORED)
        await asyncio.sleep(0.002)


def test_messages_sent_while_dialling_arrive_in_order_over_one_connection(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with serving() as server, peers_with(inbox) as peers:
            address = address_of(server)
            assert not connected(peers, address)
            for token in range(100):
                assert peers.send(address, "r", token, STORED, [bytes(token)])
            await until(lambda: inbox.count == 100)
            assert [envelope.token for _, envelope, _ in inbox.received] == list(range(100))
            assert connected(peers, address)
            assert peers.error(address) is None
            assert server.accepted == 1

    run(scene())


def test_what_waits_for_a_connection_is_bounded_in_number_and_bytes(run: Run) -> None:
    async def scene() -> None:
        settings = PeerSettings(waiting_max=5, waiting_bytes_max=1_000)
        inbox = Inbox()
        async with serving() as server, peers_with(inbox, settings) as peers:
            address = address_of(server)
            assert peers.send(address, "r", 0, STORED, [bytes(900)])
            assert not peers.send(address, "r", 1, STORED, [bytes(101)])
            assert [peers.send(address, "r", token, STORED) for token in range(2, 8)] == [True] * 4 + [False] * 2
            await until(lambda: inbox.count == 5)
            assert peers.send(address, "r", 9, STORED, [bytes(5_000)])

    run(scene())


def test_a_server_that_restarts_is_found_again(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with peers_with(inbox) as peers:
            async with serving() as server:
                address = address_of(server)
                await answered(peers, address, 1, inbox)
            await until(lambda: fault(peers, address) is Fault.LOST)
            assert not connected(peers, address)
            inbox.received.clear()
            await until(lambda: dialled_in_vain(peers, address))
            async with serving(port=server.port):
                await answered(peers, address, 2, inbox)
                assert peers.error(address) is None

    def dialled_in_vain(peers: Peers, address: str) -> bool:
        peers.send(address, "r", 0, STORED)
        return fault(peers, address) is Fault.NOT_LISTENING

    run(scene())


def test_after_a_failure_messages_are_dropped_until_the_next_try(run: Run) -> None:
    async def scene() -> None:
        async with serving() as server:
            address = address_of(server)
        settings = PeerSettings(backoff_ms_first=60_000, backoff_ms_max=60_000)
        async with peers_with(echo, settings) as peers:
            assert peers.send(address, "r", 1, STORED)
            await until(lambda: peers.error(address) is not None)
            assert not peers.send(address, "r", 2, STORED)

    run(scene())


def test_a_refusal_and_a_bad_address_are_reported_as_errors(run: Run) -> None:
    async def scene() -> None:
        async with serving(token="secret") as server, peers_with(echo, token="guess") as peers:
            peers.send(address_of(server), "r", 1, STORED)
            peers.send("nonsense:port", "r", 1, STORED)
            await until(lambda: fault(peers, address_of(server)) is Fault.REFUSED)
            await until(lambda: fault(peers, "nonsense:port") is Fault.BAD_ADDRESS)
            assert "the token is missing or wrong" in str(peers.error(address_of(server)))
            assert "is not a valid port; write a number" in str(peers.error("nonsense:port"))

    run(scene())


def test_a_dead_peer_does_not_delay_another(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with foreign_server() as port, serving() as server, peers_with(inbox) as peers:
            assert peers.send(f"127.0.0.1:{port}", "r", 1, STORED)
            assert peers.send(address_of(server), "r", 2, STORED)
            assert (await inbox.next())[1].token == 2
            assert not connected(peers, f"127.0.0.1:{port}")

    run(scene())


def test_idle_connections_are_closed_and_dialled_again_when_needed(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with serving() as server, peers_with(inbox, PeerSettings(idle_ms=20)) as peers:
            address = address_of(server)
            await sent(peers, address, 1)
            await inbox.next()
            await until(lambda: server.connections == 0)
            assert peers.error(address) is None  # nothing went wrong
            await sent(peers, address, 2)
            assert (await inbox.next())[1].token == 2
            await until(lambda: server.accepted == 2)

    run(scene())


def test_the_number_of_addresses_is_bounded(run: Run) -> None:
    async def scene() -> None:
        settings = PeerSettings(peers_max=1)
        async with serving() as server, peers_with(Inbox(), settings) as peers:
            assert peers.send(address_of(server), "r", 1, STORED)
            assert not peers.send("127.0.0.1:1", "r", 1, STORED)

    run(scene())


def test_closing_while_dialling_leaves_nothing_behind(run: Run) -> None:
    async def scene() -> None:
        async with serving() as server:
            for turns in range(8):
                async with peers_with(echo) as peers:
                    peers.send(address_of(server), "r", 1, STORED)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                assert not peers.send(address_of(server), "r", 2, STORED)
            await until(lambda: server.connections == 0)
            async with bare_socket(server) as peer:
                await peer.greet()

    run(scene())


@pytest.mark.parametrize("address", ["a..b:7401", "." + "x" * 64 + ":7401", "\u0000:7401", "no address"])
def test_an_address_that_cannot_be_dialled_is_an_error_and_no_exception(run: Run, address: str) -> None:
    async def scene() -> None:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        async with peers_with(Inbox()) as peers:
            assert peers.send(address, "r", 1, STORED)
            await until(lambda: peers.error(address) is not None)
            await sent(peers, address, 2)  # it is tried again
        assert unhandled == []

    run(scene())


def test_dialling_a_host_that_no_resolver_accepts_raises_unreachable(run: Run) -> None:
    async def scene() -> None:
        with pytest.raises(Unreachable, match=r"a\.\.b:7401 cannot be reached"):
            await dial("a..b", 7401, name="client-1", handler=Inbox())

    run(scene())
