"""Answers with bodies: reads bodies from the disk and sends them.

Rules
 B1  A body is read when its answer is sent. A body that cannot be read is reported to the role, never sent.
 B2  The event loop never waits for the disk: a thread reads what is not in the page cache.
 B3  An answer is sent only while the connection is not full. Many may become due at once (a sync released them, or the
     disk returned them), and a peer that reads as fast as it can must not be taken for one that does not read.
 B4  At most ``WAITING_MAX`` answers wait for one connection. More are lost, and their callers retry.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from msgspec.structs import replace

from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import Fetched, ReadFrames, Written
from trunkline.core.streams import Key
from trunkline.net.connection import Connection
from trunkline.runtime.node_counts import NodeCounts
from trunkline.runtime.process import Buffer
from trunkline.storage import Engine, FrameDamaged, FrameMissing

log = logging.getLogger("trunkline")

ANSWER_BYTES_MAX = 4 * 1024 * 1024  # of bodies in one answer, unless a single body is larger
WAITING_MAX = 256  # answers that wait for one connection
SENDERS_MAX = 2  # threads that read for one connection
READ_THREADS = 2
ANSWERING = "storage"  # the role that sends bodies

Damaged = Callable[[Key, tuple[Frame, ...]], None]


class Answer(NamedTuple):
    """An answer without its bodies."""

    token: int
    message: ReadFrames | Fetched | Written
    key: Key

    def wanted(self) -> list[Frame]:
        """The frames that have a body."""
        message = self.message
        frames = (message.existing,) if isinstance(message, Written) else message.frames
        return [frame for frame in frames if frame.kind is FrameKind.DATA]


class _Waiting:
    """The answers that wait for one connection."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.senders: set[asyncio.Task[None]] = set()


class BodySender:
    """``damaged`` is called in the event loop with damaged frames."""

    def __init__(self, engine: Engine, damaged: Damaged, counts: NodeCounts) -> None:
        self._engine = engine
        self._damaged = damaged
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(READ_THREADS, "read")
        self._waiting: dict[int, _Waiting] = {}  # by connection number; only where an answer waits

    def send(self, connection: Connection, answer: Answer) -> None:
        """Now if there is room and the page cache has the bodies, else later, or never (B4)."""
        if not connection.full:
            wanted = answer.wanted()
            bodies = self._read(answer.key, wanted, may_block=False) if wanted else []
            if bodies is not None:
                self._send(connection, answer, wanted, bodies)
                return
        waiting = self._waiting.setdefault(connection.number, _Waiting())
        if len(waiting.answers) >= WAITING_MAX:
            return
        waiting.answers.append(answer)
        if len(waiting.senders) < SENDERS_MAX:
            sender = self._loop.create_task(self._send_waiting(connection, waiting))
            waiting.senders.add(sender)
            sender.add_done_callback(_raise_bug)

    def close(self) -> None:
        for waiting in self._waiting.values():
            for sender in waiting.senders:
                sender.cancel()
        self._threads.shutdown(wait=True)

    # ------------------------------------------------------------------------------------------------------- internal

    async def _send_waiting(self, connection: Connection, waiting: _Waiting) -> None:
        try:
            await self._send_all(connection, waiting.answers)
        finally:  # in this step, so that no answer waits for a sender that has ended
            waiting.senders = {sender for sender in waiting.senders if sender is not asyncio.current_task()}
            if not waiting.senders:
                del self._waiting[connection.number]

    async def _send_all(self, connection: Connection, answers: deque[Answer]) -> None:
        while answers and connection.open:
            if connection.full:  # do not read yet: bodies are large
                await connection.drained()
                continue
            answer = answers.popleft()
            wanted = answer.wanted()
            bodies = self._read(answer.key, wanted, may_block=False) if wanted else []
            if bodies is None:
                bodies = await self._read_in_thread(answer.key, wanted)
                while connection.full:  # others filled it in the meantime
                    await connection.drained()
            self._send(connection, answer, wanted, bodies)

    def _read(self, key: Key, frames: list[Frame], *, may_block: bool) -> list[Buffer] | None:
        """Bodies of the first frames; an empty list: lost. None: it would block."""
        try:
            return self._engine.read(key, frames, ANSWER_BYTES_MAX, may_block=may_block)
        except FrameMissing:
            return []
        except FrameDamaged as damage:
            self._loop.call_soon_threadsafe(self._damaged, damage.key, (damage.frame,))
            return []
        except OSError as failure:
            if failure.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            log.warning("an answer is lost: %s", failure)  # the frame is intact
            return []

    async def _read_in_thread(self, key: Key, frames: list[Frame]) -> list[Buffer]:
        found = await self._loop.run_in_executor(self._threads, lambda: self._read(key, frames, may_block=True))
        return found or []

    def _send(self, connection: Connection, answer: Answer, wanted: list[Frame], bodies: list[Buffer]) -> None:
        token, message, _ = answer
        if wanted and not bodies:
            return  # lost: trimmed, dropped or damaged
        if isinstance(message, Written):
            connection.send(ANSWERING, token, message, bodies)
            return
        self._counts.sent(wanted[: len(bodies)], bodies)
        frames, attachments = message.frames, bodies
        if len(bodies) < len(wanted):  # only a prefix is sent, to bound the bytes
            frames = frames[: frames.index(wanted[len(bodies)])]
        if len(frames) > len(bodies):  # junk has no bytes
            following = iter(bodies)
            attachments = [next(following) if frame.kind is FrameKind.DATA else b"" for frame in frames]
        if isinstance(message, ReadFrames):
            connection.send(ANSWERING, token, replace(message, frames=frames), attachments)
        else:
            end = message.end if len(frames) == len(message.frames) else frames[-1].next
            connection.send(ANSWERING, token, replace(message, frames=frames, end=end), attachments)


def _raise_bug(sender: asyncio.Task[None]) -> None:
    """In the event loop, whose handler stops the process."""
    if not sender.cancelled():
        sender.result()
