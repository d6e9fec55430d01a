"""A malicious writer: it appends what the library would not, under a valid checksum."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

import trunkline
from trunkline.client.bodies import encode
from trunkline.client.log import Log
from trunkline.core.events import Appended

GOOD = {"source": b"shop"}
TEXT = {"source": "shöp", "n": b"\xff"}  # what earlier versions took
GARBAGE: tuple[bytes, ...] = (
    msgspec.msgpack.encode({"n": 1}),
    msgspec.msgpack.encode({"n": {"deep": [b"x"]}}),
    msgspec.msgpack.encode({1: b"x"}),
    msgspec.msgpack.encode([b"x"]),
    b"\xc1 is never used",
    b"\x81\xa1n",
    b"\x81\xa1n\xa1\xff",
    b"\x81\xa1n" + b"\x91" * 100_000,
    b"\xdf\xff\xff\xff\xff",
)
POISONED: tuple[bytes, ...] = (
    msgspec.msgpack.encode(GOOD),
    msgspec.msgpack.encode(TEXT),
    *GARBAGE,
    msgspec.msgpack.encode(GOOD),
)
EXPECTED = [GOOD, {"source": "shöp".encode(), "n": b"\xff"}, *([{}] * len(GARBAGE)), GOOD]


def payload_of(index: int) -> bytes:
    return b"entry %d" % index


def body_of(headers: Sequence[bytes] | None, count: int) -> bytearray:
    return bytearray(encode([payload_of(index) for index in range(count)], headers, 1, 2))


async def append_body(log: Log, body: bytes, count: int) -> int:
    """Append a body as it is; returns its first position."""
    session = log._session
    result = await session.begin_append(session.ensure_writing_role(log._newest()), body, count)
    assert isinstance(result, Appended), result
    return result.glsn


async def append_poison(log: Log) -> None:
    """Entries of which some have invalid headers."""
    await append_body(log, bytes(body_of(POISONED, len(POISONED))), len(POISONED))


async def append_corrupt_batch(log: Log) -> int:
    """Three entries whose offsets go back, so that each would be read from the bytes of others."""
    body = body_of(None, 3)
    body[28:32], body[32:36] = body[32:36], body[28:32]
    return await append_body(log, bytes(body), 3)


def writing(connect: str, name: str, work: Callable[[Log], Awaitable[object]], *, create: bool = True) -> None:
    async def connected() -> None:
        async with trunkline.connect(connect) as handle:
            await work(await handle.log(name, create=create))

    asyncio.run(connected())
