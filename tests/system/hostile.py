"""A hostile peer that speaks the protocol: it sends anything over a real connection."""

from __future__ import annotations

import asyncio
import enum
import random
import struct
import types
import typing
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import crc32c
import msgspec

from net.wiring import Inbox, within
from trunkline.core.effects import Message
from trunkline.net.addresses import parse_address
from trunkline.net.connection import Connection
from trunkline.net.dial import dial
from trunkline.net.packets import PacketKind
from trunkline.net.wire import StorageRequest, WireMessage

NUMBERS = (0, 1, 2, 7, -1, 255, 2**31, 2**32, 2**62 - 1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
TEXTS = ("", "x", "evil", "1.0.0", "2.0.1", "99999999999999999999.1.1", "日" * 90, "y" * 300, "z" * 70_000, "\x00\n")
STREAMS = ("1.0.0", "1.0.1", "7.1.0")
ROLES = ("storage", "storage", "sequencer", "register", "admin", "lease", "", "unknown")


class Peer:
    """One connection, and its answers."""

    def __init__(self, connection: Connection, inbox: Inbox) -> None:
        self.connection = connection
        self._inbox = inbox

    async def ask(self, message: Message, role: str = "") -> Message:
        assert self.connection.send(role, 1, message)
        answer: Message = (await within(self._inbox.next()))[1].message
        return answer

    def say(self, head: bytes) -> None:
        """A packet that is whole, around any head."""
        fields = struct.pack("<IIBBH", len(head), len(head), PacketKind.MESSAGE, 0, 0)
        self.connection.write(fields + struct.pack("<I", crc32c.crc32c(head, crc32c.crc32c(fields))) + head)

    def answered(self) -> int:
        """How many answers came so far. They are discarded."""
        self._inbox.received.clear()
        return self._inbox.count


@asynccontextmanager
async def peer_of(address: str, name: str = "evil") -> AsyncIterator[Peer]:
    inbox = Inbox()
    host, port = parse_address(address)
    connection = await dial(host, port, name=name, handler=inbox)
    try:
        yield Peer(connection, inbox)
    finally:
        connection.close()
        await connection.wait_closed()


def ask(address: str, *messages: Message) -> list[Message]:
    """The answers to some requests, asked over one connection."""

    async def asked() -> list[Message]:
        async with peer_of(address) as peer:
            return [await peer.ask(message) for message in messages]

    return asyncio.run(asked())


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scene)


def memory_kib(pid: int) -> int:
    """What a process has in memory now."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


# ------------------------------------------------------------------------------------------------- random messages


def random_head(drawn: random.Random, known: Mapping[str, Any]) -> bytes:
    """The head of a message: of the right types or not quite, for a role that may take it or not.

    ``known`` are values of fields by their names: with the right ones a message goes further.
    """
    wild = drawn.random() < 0.5  # otherwise it looks right
    message = typing.cast(Any, built(drawn, drawn.choice(typing.get_args(WireMessage)), known, wild=wild))
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    for _ in range(drawn.choice((0, 1, 1, 3)) if wild else 0):
        plain = mutated(drawn, plain)
    token = drawn.randrange(1, 1000)
    role = drawn.choice(ROLES) if wild else "storage" if isinstance(message, StorageRequest) else "sequencer"
    return msgspec.msgpack.encode((role, token, drawn.choice((0, 1000)), (), plain))


def built(drawn: random.Random, kind: Any, known: Mapping[str, Any], *, wild: bool) -> Any:
    """Any value of a type that messages are made of."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return built(drawn, drawn.choice(typing.get_args(kind)), known, wild=wild)
    if origin is tuple:
        return tuple(
            built(drawn, typing.get_args(kind)[0], known, wild=wild) for _ in range(drawn.choice((0, 1, 1, 2, 3)))
        )
    if kind is type(None):
        return None
    if kind is bool:
        return drawn.random() < 0.5
    if kind is int:
        return drawn.choice(NUMBERS) if wild and drawn.random() < 0.5 else drawn.randrange(6)
    if kind is bytes:
        return drawn.randbytes(drawn.randrange(20))
    if kind is str:
        own = (*STREAMS, f"evil-{drawn.randrange(3000)}", "evil")
        return drawn.choice((*own, *TEXTS) if wild else own)
    if issubclass(kind, enum.Enum):
        return drawn.choice(list(kind))
    hints = typing.get_type_hints(kind)
    fields = getattr(kind, "_fields", None) or kind.__struct_fields__
    given = {} if wild else known
    return kind(*(given[name] if name in given else built(drawn, hints[name], known, wild=wild) for name in fields))


def mutated(drawn: random.Random, value: Any) -> Any:
    """The same with one thing changed somewhere."""
    if isinstance(value, list) and value and drawn.random() < 0.8:
        at = drawn.randrange(len(value))
        return [*value[:at], mutated(drawn, value[at]), *value[at + 1 :]]
    return drawn.choice(
        (None, drawn.choice(NUMBERS), drawn.choice(TEXTS), [], [value], {}, {"a": value}, 1.5, [0] * 5000)
    )
