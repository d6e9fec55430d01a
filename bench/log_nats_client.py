"""A small JetStream publisher, so that the baseline is not slowed down by its client.

It uses the text protocol of NATS and has three ways to publish a batch; the benchmark uses the fastest one:

    pipelined   every message requests its own acknowledgement, like `publish_async` of the usual clients does
    atomic      one acknowledgement for the batch, which is stored as a whole (`allow_atomic`)
    fast        one acknowledgement for the batch, whose messages are stored as they arrive (`allow_batched`)

The messages of a batch are laid out once and sent with one write; only the batch's number is put in each time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any, cast

WAYS = ("pipelined", "atomic", "fast")
SUBJECT = "bench.records"
ANSWER_WITHIN_S = 1.0  # a server without a leader does not answer: retry
NUMBER = b"@@@@@@@@@@"  # where a batch's number goes, 10 digits
CONNECTIONS_MAX = 100

_HEAD = re.compile(rb"(?:MSG (\S+) \d+ (\d+)|HMSG (\S+) \d+ \d+ (\d+)|PING|PONG|\+OK|-ERR [^\r]*|INFO [^\r]*)\r\n")


class NatsRefused(Exception):
    """NATS rejected a request, which ends the benchmark."""


class Connection(asyncio.Protocol):
    """Requests with futures for their answers; an answer's subject ends in the request's number."""

    def __init__(self, index: int) -> None:
        assert index < CONNECTIONS_MAX
        self.inbox = f"_A.{index}"
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[asyncio.Future[bytes], int]] = {}  # and the number of outstanding answers
        self._numbers = itertools.count((CONNECTIONS_MAX + index) * 10_000_000)  # no two connections use the same

    @classmethod
    async def open(cls, port: int, index: int = 0) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(index), "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        hello = 'CONNECT {"verbose":false,"headers":true,"no_responders":true}'
        self._transport.write(f"{hello}\r\nSUB {self.inbox}.> 1\r\n".encode())

    def connection_lost(self, exc: Exception | None) -> None:
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(NatsRefused(f"the connection to nats-server was lost: {exc}"))

    def close(self) -> None:
        assert self._transport is not None
        self._waiting.clear()
        self._transport.close()

    # ------------------------------------------------------------------------------------------------------- requests

    async def ask(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        """A request to JetStream's own interface."""
        payload = json.dumps(request).encode()
        head = f"PUB {subject} {self.inbox}.{NUMBER.decode()} {len(payload)}\r\n".encode()
        answer = json.loads(await asyncio.wait_for(self.publish(head + payload + b"\r\n"), ANSWER_WITHIN_S))
        if "error" in answer:
            raise NatsRefused(f"{subject}: {answer['error']}")
        return dict(answer)

    def publish(self, template: bytes, answers: int = 1) -> asyncio.Future[bytes]:
        """Send what ``batch_template`` made; the future has the last of the expected answers."""
        assert self._transport is not None
        number = next(self._numbers)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (future, answers)
        self._transport.write(template.replace(NUMBER, b"%d" % number))
        return future

    # -------------------------------------------------------------------------------------------------------- answers

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        received, at = self._received + data, 0
        while (head := _HEAD.match(received, at)) is not None:
            subject, size = head[1] or head[3], head[2] or head[4]
            end = head.end()
            if subject is not None:
                end += int(size) + 2
                if end > len(received):
                    break
                self._answered(subject, received[head.end() : end - 2])
            elif head[0] == b"PING\r\n":
                self._transport.write(b"PONG\r\n")
            elif head[0].startswith(b"-ERR"):
                raise NatsRefused(f"nats-server says {head[0].decode().strip()}")
            at = end
        self._received = received[at:]

    def _answered(self, subject: bytes, payload: bytes) -> None:
        if payload.startswith(b'{"type":"ack"'):
            return  # of a fast batch: flow control, which a batch of this size does not need
        number = int(subject.split(b".")[2])
        future, answers = self._waiting.get(number, (None, 0))
        if future is None or future.done():
            return
        if answers > 1 and b'"error"' not in payload:
            self._waiting[number] = (future, answers - 1)
            return
        del self._waiting[number]
        if b'"error"' in payload or payload.startswith(b"NATS/1.0 503"):
            future.set_exception(NatsRefused(f"nats-server refused: {payload.decode()}"))
        else:
            future.set_result(payload)


def batch_template(way: str, count: int, payload: bytes, inbox: str) -> tuple[bytes, int]:
    """The bytes of a batch, with ``NUMBER`` in them, and how many answers it gets."""
    reply, numbers = f"{inbox}.{NUMBER.decode()}", range(1, count + 1)
    if way == "pipelined":
        return _message(payload, reply) * count, count
    if way == "fast":
        return b"".join(_message(payload, _fast_reply(reply, number, count)) for number in numbers), 1
    parts = [_message(payload, reply if number == count else "", _atomic_headers(number, count)) for number in numbers]
    return b"".join(parts), 1


def _atomic_headers(number: int, count: int) -> str:
    commit = "Nats-Batch-Commit: 1\r\n" if number == count else ""
    return f"NATS/1.0\r\nNats-Batch-Id: {NUMBER.decode()}\r\nNats-Batch-Sequence: {number}\r\n{commit}\r\n"


def _fast_reply(reply: str, number: int, count: int) -> str:
    """The reply subject of a message in a fast batch contains: flow, gap handling, number and part."""
    part = 2 if number == count else 0 if number == 1 else 1
    return f"{reply}.{count}.fail.{number}.{part}.$FI"


def _message(payload: bytes, reply: str, headers: str = "") -> bytes:
    if not headers:
        return f"PUB {SUBJECT} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"
    head = f"HPUB {SUBJECT} {reply} {len(headers)} {len(headers) + len(payload)}\r\n"
    return head.encode() + headers.encode() + payload + b"\r\n"
