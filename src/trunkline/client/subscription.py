"""A subscription: batches of a log in order, from a position on, as fast as the application takes them.

The reader role reads ahead; it is paused while the application has ``AHEAD_BYTES`` of batches to process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from msgspec.structs import replace

from trunkline.client.arguments import check_timeout
from trunkline.client.bodies import Buffer, checksum
from trunkline.client.entries import Batch
from trunkline.client.failures import request_failure
from trunkline.client.session import Session
from trunkline.core.calls import SubscribeRequested
from trunkline.core.effects import Event
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.events import EntriesRead, PositionsSkipped, RequestRefused
from trunkline.core.messages import Reason
from trunkline.core.projection import Projection
from trunkline.core.reader import Reader, ReaderConfig
from trunkline.errors import (
    EntriesLost,
    Hole,
    NotWritten,
    ProtocolError,
    Trimmed,
    TrunklineError,
    Unreachable,
)
from trunkline.runtime.links import REGISTER
from trunkline.runtime.process import Step

AHEAD_BYTES = 8 * 1024 * 1024  # too small: the application waits for the network; too big: memory
READ_FRAMES = 256  # frames per request; a node returns fewer if they are large


class Subscription(AsyncIterator[Batch]):
    """Iterate it for batches. ``next_glsn`` is the position after the last batch that it returned."""

    def __init__(
        self,
        session: Session,
        view: Projection,
        start: int | None,
        until: int | None,
        *,
        to_tail: bool = False,
        fill_after_ms: int | None = None,
        read_frames: int = READ_FRAMES,
        replica: int = 0,
    ) -> None:
        self.next_glsn = start if start is not None else 1
        self.holes = 0  # filled holes that were skipped
        self._session = session
        self._from_oldest = start is None
        self._until = until
        self._found: deque[tuple[Batch | TrunklineError, int]] = deque()  # with their sizes
        self._ahead = 0
        self._arrived = asyncio.Event()
        self._paused = False
        self._closed = False
        timing = session.timing
        config = ReaderConfig(
            REGISTER,
            session.log,
            timing if fill_after_ms is None else replace(timing, fill_after_ms=fill_after_ms),
            read_limit=read_frames,
            replica=replica,
        )
        self._role = session.add_role("reader", Reader(config, view), self._on_event)
        first, log = self.next_glsn, session.log
        self.done = session.begin(
            self._role, lambda operation: SubscribeRequested(operation, log, first, until, to_tail=to_tail)
        )
        self.done.add_done_callback(lambda _: self._arrived.set())

    # ------------------------------------------------------------------------------------------------ from the reader

    def _on_event(self, event: Event, step: Step) -> None:
        match event:
            case EntriesRead(_, position, frame):
                self._from_oldest = False
                if frame.kind is FrameKind.JUNK:
                    self.holes += 1
                    return
                body = self._session.received_body(frame, step)
                assert body is not None, f"the body of {frame} is missing"
                self._push(self._batch(frame, body, position), len(body))
            case PositionsSkipped(_, first, end, Reason.TRIMMED):
                if not self._from_oldest:
                    self._push(Trimmed(end - 1), 0)
            case PositionsSkipped(_, first, end, _):
                self._push(EntriesLost(first, end), 0)

    def _batch(self, frame: Frame, body: Buffer, position: int) -> Batch | TrunklineError:
        if checksum(body) != frame.checksum:
            return ProtocolError(f"the batch at position {frame.first} was damaged in transit; read it again")
        try:
            return Batch(frame, body, position, self._until, self._session.log)
        except ProtocolError as error:
            return error

    def _push(self, found: Batch | TrunklineError, size: int) -> None:
        self._found.append((found, size))
        self._ahead += size
        self._arrived.set()
        if self._ahead >= AHEAD_BYTES and not self._paused:
            self._paused = True
            self._session.process.pause(self._role)

    # --------------------------------------------------------------------------------------------- to the application

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Batch:
        while not self._found:
            if self.done.done() or self._closed:
                self.close()
                if self.done.done() and not self.done.cancelled():
                    result = self.done.result()
                    if isinstance(result, RequestRefused):
                        raise request_failure(result)
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        found, size = self._found.popleft()
        if isinstance(found, TrunklineError):
            self.close()
            raise found
        return self._taken(found, size)

    def _taken(self, found: Batch, size: int) -> Batch:
        self._ahead -= size
        self.next_glsn = found.last + 1
        if self._paused and self._ahead < AHEAD_BYTES // 2:
            self._paused = False
            self._session.process.resume(self._role)
        return found

    async def some(self, *, timeout: float | None = None) -> list[Batch]:
        """All batches that have arrived, at least one; an empty list at the end.

        Raises ``Unreachable`` if none arrives within ``timeout`` seconds: for a reader that knows that there is more.
        """
        check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                first = await anext(self, None)
        except TimeoutError:
            self.close()
            name, position = self._session.log, self.next_glsn
            raise Unreachable(f"position {position} of {name} did not arrive in time; see `trunkline status`") from None
        if first is None:
            return []
        batches = [first]
        while self._found:
            found, size = self._found[0]
            if isinstance(found, TrunklineError):
                break  # the next call raises it
            self._found.popleft()
            batches.append(self._taken(found, size))
        return batches

    def close(self) -> None:
        """Stop reading, and drop what was read ahead."""
        if not self._closed:
            self._closed = True
            self._session.remove_role(self._role)
            self._found.clear()
            self._arrived.set()
            if not self.done.done():
                self.done.cancel()

    async def one(self) -> Batch:
        """The first batch, for a read of a single position."""
        try:
            async for batch in self:
                return batch
        finally:
            self.close()
        if self.holes:
            raise Hole(f"position {self.next_glsn} is a hole; read the next one")
        raise NotWritten(f"position {self.next_glsn} is not written yet; subscribe to wait for it")
