"""Peers that send garbage, stall, do not read or vanish: they are closed, and others are not affected."""

from __future__ import annotations

import asyncio
import socket
import struct

import crc32c
import msgspec
import pytest

from net.wiring import STORED, Inbox, Run, bare_socket, dialled, frames, greeting, serving, until
from trunkline.core.siblings import Refresh
from trunkline.errors import Unreachable
from trunkline.net.admin import RequestRefused
from trunkline.net.connection import Connection
from trunkline.net.limits import MIB, Limits
from trunkline.net.packets import (
    BadRequest,
    Envelope,
    PacketKind,
    RefusalCode,
    decode_message,
    decode_refusal,
    encode,
    encode_message,
)


def encode_head(head: bytes) -> bytes:
    """A packet that is whole, around any head."""
    fields = struct.pack("<IIBBH", len(head), len(head), PacketKind.MESSAGE, 0, 0)
    return fields + struct.pack("<I", crc32c.crc32c(head, crc32c.crc32c(fields))) + head


GOOD = encode_message("r", 1, (), STORED)
WITH_BODY = encode_message("r", 1, (5,), STORED) + b"12345"


def flipped(packet: bytes, at: int) -> bytes:
    return packet[:at] + bytes([packet[at] ^ 0x40]) + packet[at + 1 :]


BAD_BYTES = {
    "garbage": b"\xff" * 64,
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(64),
    "flags": flipped(GOOD, 9),
    "crc of the header": flipped(GOOD, 13),
    "head": flipped(GOOD, len(GOOD) - 3),
    "oversized": struct.pack("<IIBBHI", 65 * MIB, 100, PacketKind.MESSAGE, 0, 0, 0),
    "oversized head": struct.pack("<IIBBHI", 18 * MIB, 17 * MIB, PacketKind.MESSAGE, 0, 0, 0),
    "head beyond the packet": struct.pack("<IIBBHI", 10, 11, PacketKind.MESSAGE, 0, 0, 0),
    "unknown kind": struct.pack("<IIBBHI", 10, 10, 77, 0, 0, 0),
    "no message": encode(PacketKind.MESSAGE),
    "no address": encode_head(msgspec.msgpack.encode("r")),
    "a token that is not a number": encode_head(msgspec.msgpack.encode(("r", "1", 0, (), STORED))),
}

BAD_REQUESTS = {
    "sizes do not fit": encode_message("r", 8, (7, -2), STORED) + b"12345",
    "sizes of nothing": encode_head(msgspec.msgpack.encode(("r", 8, 0, (3,), STORED))),
    "a message that stays inside a process": encode_message("r", 8, (), Refresh("log")),
    "an unknown message": encode_head(msgspec.msgpack.encode(("r", 8, 0, (), ("Unheard", 1)))),
    "a field of another type": encode_head(msgspec.msgpack.encode(("r", 8, 0, (), ("Stored", 1, 2)))),
    "no message behind the address": encode_head(msgspec.msgpack.encode(("r", 8))),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bad_bytes_are_refused_at_once_and_counted_and_do_no_harm(run: Run, name: str) -> None:
    async def scene() -> None:
        served, inbox = Inbox(), Inbox()
        limits = Limits(linger_ms=20)
        async with (
            serving(served, limits=limits) as server,
            dialled(server, inbox) as other,
            bare_socket(server) as peer,
        ):
            await peer.greet()
            await peer.send(GOOD, BAD_BYTES[name], GOOD)
            assert (await peer.refusal()).code is RefusalCode.PROTOCOL
            await peer.closed()
            await until(lambda: server.violations == 1)
            assert other.send("r", 2, STORED)
            await until(lambda: served.count == 2)
            assert [envelope.token for _, envelope, _ in served.received] == [
                1,
                2,
            ]  # the good one before it came through

    run(scene())


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_request_that_means_nothing_is_answered_and_the_connection_goes_on(run: Run, name: str) -> None:
    async def scene() -> None:
        served = Inbox()
        async with serving(served) as server, bare_socket(server) as peer:
            await peer.greet()
            await peer.send(GOOD, BAD_REQUESTS[name], GOOD)
            envelope, _ = decode_message((await peer.packet()).head, memoryview(b""), 0)
            assert envelope.token == 8
            assert isinstance(envelope.message, RequestRefused)
            await until(lambda: served.count == 2)
            assert (server.connections, server.violations) == (1, 1)

    run(scene())


def test_an_answer_that_means_nothing_is_dropped_and_the_connection_goes_on(run: Run) -> None:
    def answering(connection: Connection, envelope: Envelope, _attachments: tuple[memoryview, ...]) -> None:
        connection.write(BAD_REQUESTS["an unknown message"])
        connection.send("r", envelope.token, STORED)

    async def scene() -> None:
        inbox = Inbox()
        async with serving(answering) as server, dialled(server, inbox) as connection:
            connection.send("r", 1, STORED)
            assert (await inbox.next())[1].token == 1
            assert connection.open
            assert connection.violations == 1

    run(scene())


def test_a_handler_that_finds_a_bad_request_has_it_answered(run: Run) -> None:
    def strict(_connection: Connection, _envelope: Envelope, _attachments: tuple[memoryview, ...]) -> None:
        raise BadRequest("no such role; upgrade the older of the two")

    async def scene() -> None:
        inbox = Inbox()
        async with serving(strict) as server, dialled(server, inbox) as connection:
            for token in (1, 2):
                connection.send("unknown", token, STORED)
                envelope = (await inbox.next())[1]
                assert envelope.token == token
                assert envelope.message == RequestRefused("no such role; upgrade the older of the two")
            assert connection.open

    run(scene())


@pytest.mark.parametrize("cut", [1, 15, 16, 20, len(WITH_BODY) - 1])
def test_a_connection_that_ends_inside_a_packet_delivers_nothing_of_it(run: Run, cut: int) -> None:
    async def scene() -> None:
        served = Inbox()
        async with serving(served) as server:
            async with bare_socket(server) as peer:
                await peer.greet()
                await peer.send(GOOD, WITH_BODY[:cut])
                await until(lambda: served.count == 1)
                peer.writer.write_eof()
                await peer.closed()
            await until(lambda: server.connections == 0)
            assert served.count == 1

    run(scene())


def test_a_reset_connection_is_reported_once(run: Run) -> None:
    async def scene() -> None:
        gone: list[Connection] = []
        async with serving(on_closed=gone.append) as server, bare_socket(server) as peer:
            await peer.greet()
            sock = peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.writer.transport.abort()
            await until(lambda: len(gone) == 1)

    run(scene())


def test_a_packet_that_trickles_is_given_up_and_others_are_served_meanwhile(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        limits = Limits(ping_ms=20, packet_ms=60, linger_ms=50)
        large = encode_message("r", 1, (MIB,), STORED)
        async with serving(limits=limits) as server, dialled(server, inbox) as other, bare_socket(server) as peer:
            await peer.greet()
            await peer.send(large)
            refusal = asyncio.ensure_future(peer.refusal())
            while not refusal.done():
                await peer.send(b"x")
                other.send("r", 2, STORED)
                await inbox.next()
            assert "a packet took longer than 60 ms" in refusal.result().text

    run(scene())


def test_a_peer_that_reads_nothing_is_first_not_served_then_closed(run: Run) -> None:
    answer = bytes(256 * 1024)

    def generous(connection: Connection, envelope: Envelope, _attachments: tuple[memoryview, ...]) -> None:
        served.append(connection)
        connection.send("r", envelope.token, STORED, [answer])

    served: list[Connection] = []

    async def scene() -> None:
        inbox = Inbox()
        limits = Limits(send_buffer_high=MIB, send_buffer_max=16 * MIB)
        async with serving(generous, limits=limits) as server, bare_socket(server) as peer:
            await peer.greet()
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.writer.write(GOOD * 20_000)
            await until(lambda: bool(served) and served[0].buffered_bytes > MIB)
            stopped_at = len(served)
            async with dialled(server, inbox) as other:  # the others are served
                other.send("r", 2, STORED)
                await inbox.next()
                await inbox_quiet(other, inbox)
            assert len(served) - stopped_at <= 11  # what the other asked; requests of the slow one wait
            assert served[0].buffered_bytes < 3 * MIB
            while served[0].send("r", 1, STORED, [answer]):  # answers that were under way
                pass
            assert served[0].closed
            await until(lambda: server.connections == 0)

    async def inbox_quiet(connection: Connection, inbox: Inbox) -> None:
        for token in range(10):
            connection.send("r", token, STORED)
            await inbox.next()

    run(scene())


def test_what_a_slow_reader_asked_is_served_when_it_reads_again(run: Run) -> None:
    requests = 300

    async def scene() -> None:
        inbox = Inbox()
        async with serving(limits=Limits(send_buffer_high=MIB)) as server, dialled(server, inbox) as connection:
            connection.pause()
            for token in range(requests):
                assert connection.send("r", token, STORED, [bytes(100_000)])
            await until(lambda: connection.buffered_bytes > MIB)  # the server has stopped to read
            assert inbox.count == 0
            connection.resume()
            await until(lambda: inbox.count == requests)
            assert [envelope.token for _, envelope, _ in inbox.received] == list(range(requests))

    run(scene())


def test_a_server_that_reads_nothing_makes_send_say_so_and_keeps_the_connection(run: Run) -> None:
    async def scene() -> None:
        served = Inbox()
        limits = Limits(send_buffer_high=MIB, send_buffer_max=4 * MIB)
        async with serving(served) as server, dialled(server, limits=limits) as connection:
            connection.send("r", 0, STORED)
            accepted = (await served.next())[0]
            accepted.pause()
            sent = 0
            while connection.send("r", sent, STORED, [bytes(MIB)]):
                sent += 1
                await asyncio.sleep(0)
            assert connection.buffered_bytes <= 4 * MIB
            waiting = asyncio.ensure_future(connection.drained())
            await asyncio.sleep(0)
            assert not waiting.done()
            accepted.resume()
            await waiting
            assert connection.buffered_bytes <= MIB
            assert connection.send("r", sent, STORED)
            await until(lambda: served.count == sent + 2)

    run(scene())


def test_a_stopped_server_is_noticed_by_its_silence(run: Run) -> None:
    async def scene() -> None:
        served, gone = Inbox(), asyncio.Event()
        limits = Limits(ping_ms=20, silent_ms=60)
        async with (
            serving(served) as server,
            dialled(server, limits=limits, on_closed=lambda _: gone.set()) as connection,
        ):
            connection.send("r", 0, STORED)
            (await served.next())[0].pause("stopped")
            await gone.wait()
            assert connection.reason == "node-1 was silent for 60 ms; is it suspended?"

    run(scene())


def test_pings_keep_a_quiet_connection(run: Run) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with serving() as server, dialled(server, inbox, limits=Limits(ping_ms=5, silent_ms=500)) as connection:
            first = connection.received_at
            for _ in range(5):
                before = connection.received_at
                await until(lambda before=before: connection.received_at > before)  # type: ignore[misc]
            assert connection.received_at > first
            assert connection.open

    run(scene())


def test_a_peer_that_takes_only_tiny_packets_is_refused_before_it_can_ask(run: Run) -> None:
    async def scene() -> None:
        async with serving() as server, bare_socket(server) as peer:
            packet = await peer.greet(greeting(packet_bytes_max=16))
            assert packet.kind == PacketKind.REFUSED
            assert decode_refusal(packet.head).text == "a packet limit of 16 bytes is too small; accept 1048576 or more"
            await until(lambda: server.refused == 1)
            assert server.accepted == 0

    run(scene())


def test_a_server_that_takes_only_tiny_packets_is_not_used(run: Run) -> None:
    async def scene() -> None:
        async with serving(limits=Limits(packet_bytes_max=16, linger_ms=20)) as server:
            with pytest.raises(Unreachable, match="a packet limit of 16 bytes is too small"):
                async with dialled(server):
                    pass

    run(scene())


@pytest.mark.parametrize("what", ["packet", "head"])
def test_an_answer_that_is_too_large_becomes_an_error_and_the_connection_stays_open(run: Run, what: str) -> None:
    sent: list[bool] = []

    def generous(connection: Connection, envelope: Envelope, _attachments: tuple[memoryview, ...]) -> None:
        if envelope.token != 1:
            connection.send("r", envelope.token, STORED)
        elif what == "packet":
            sent.append(connection.send("r", 1, STORED, [bytes(MIB + 1)]))
        else:
            sent.append(connection.send("r", 1, frames(1000)))

    async def scene() -> None:
        inbox = Inbox()
        limits = Limits(head_bytes_max=10_000, linger_ms=20)
        async with (
            serving(generous, limits=limits) as server,
            dialled(server, inbox) as other,
            bare_socket(server) as peer,
        ):
            await peer.greet()
            await peer.send(GOOD)
            envelope, _ = decode_message((await peer.packet()).head, memoryview(b""), 0)
            assert isinstance(envelope.message, RequestRefused)
            assert envelope.message.why.endswith("is larger than bare accepts; request less at once")
            assert (envelope.token, sent, server.connections) == (1, [False], 2)
            other.send("r", 2, STORED)
            assert (await inbox.next())[1].token == 2

    run(scene())
