"""Real servers and clients on the loopback, and bare sockets that misbehave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import ReadFrames, Stored
from trunkline.net.connection import Connection
from trunkline.net.dial import dial
from trunkline.net.packets import (
    MAGIC,
    VERSION_MAX,
    VERSION_MIN,
    Envelope,
    Hello,
    PacketKind,
    Refusal,
    decode_refusal,
    encode,
)
from trunkline.net.parser import Packet, PacketParser
from trunkline.net.server import Server

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, None]], None]
Received = tuple[Connection, Envelope, tuple[memoryview, ...]]

PATIENCE_S = 20  # only a test that fails waits so long
FRAME = Frame(7, 3, FrameKind.DATA, "w1", 5, 4_000_000_000)
STORED = Stored("stream", FRAME)


async def within(awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE_S):
        return await awaitable


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def frames(count: int) -> ReadFrames:
    return ReadFrames("stream", 7, tuple(Frame(7 + at, 1, FrameKind.DATA, "w1", at, at) for at in range(count)))


class Inbox:
    """A handler that keeps what arrives."""

    def __init__(self) -> None:
        self.received: deque[Received] = deque()
        self.count = 0
        self._arrived = asyncio.Event()

    def __call__(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        self.received.append((connection, envelope, attachments))
        self.count += 1
        self._arrived.set()

    async def next(self) -> Received:
        while not self.received:
            self._arrived.clear()
            await self._arrived.wait()
        return self.received.popleft()


def echo(connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
    connection.send(envelope.role, envelope.token, envelope.message, attachments)


@asynccontextmanager
async def serving(handler: Any = echo, port: int = 0, **options: Any) -> AsyncIterator[Server]:
    server = await Server.start("127.0.0.1", port, handler, **{"cluster": "c1", "name": "node-1", **options})
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def dialled(server: Server, handler: Any = echo, **options: Any) -> AsyncIterator[Connection]:
    connection = await dial("127.0.0.1", server.port, handler=handler, **{"name": "client-1", **options})
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


class BareSocket:
    """Speaks bytes instead of the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
        await self.writer.drain()

    async def greet(self, hello: Hello | None = None) -> Packet:
        """Say HELLO and return the answer."""
        await self.send(encode(PacketKind.HELLO, hello or greeting()))
        return await self.packet()

    async def packet(self) -> Packet:
        parser = PacketParser(1 << 20, 1 << 20)
        while (packet := parser.next()) is None:
            byte = await self.reader.readexactly(1)
            parser.room()[:1] = byte
            parser.received(1)
        return packet

    async def refusal(self) -> Refusal:
        packet = await self.packet()
        assert packet.kind == PacketKind.REFUSED
        return decode_refusal(packet.head)

    async def closed(self) -> None:
        """Wait until the server has closed."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass


@asynccontextmanager
async def bare_socket(server: Server) -> AsyncIterator[BareSocket]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield BareSocket(reader, writer)
    finally:
        writer.transport.abort()
        await until(writer.transport.is_closing)


def greeting(**changes: Any) -> Hello:
    return Hello(
        **{
            "magic": MAGIC,
            "version_min": VERSION_MIN,
            "version_max": VERSION_MAX,
            "cluster": "",
            "token": "",
            "name": "bare",
            "packet_bytes_max": 1 << 20,
            **changes,
        }
    )


@asynccontextmanager
async def foreign_server(answer: bytes = b"") -> AsyncIterator[int]:
    """Accepts one connection and sends one answer. Yields its port."""
    done = asyncio.Event()

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        done.set()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    await done.wait()
    server.close()
    await server.wait_closed()
