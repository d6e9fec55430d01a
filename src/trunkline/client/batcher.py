"""Joins concurrent appends into batches and keeps several batches in flight.

Appends that are called in one turn of the event loop, or while all slots are taken, leave together. One append is never
split: its entries are neighbours in one batch. Positions are requested when a batch is complete, so they serve only
appends that began before.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from trunkline.client.arguments import check_count, check_milliseconds
from trunkline.client.bodies import BODY_BYTES_MAX, Buffer, check_sizes, encode
from trunkline.client.failures import append_failure
from trunkline.client.session import Session
from trunkline.core.effects import Event
from trunkline.core.events import Appended
from trunkline.core.projection import Policy, Projection
from trunkline.errors import ConfigError, OutcomeUnknown, TrunklineError, Unreachable

SWEEP_S = 0.25  # the precision of time-outs


class BatchOptions(Struct, frozen=True):
    """How appends are joined into batches."""

    batch_bytes: int = 512 * 1024  # too small: more round trips; too big: disks wait for each other along the chain
    batch_entries: int = 65_536  # too big: a reader gets this many entries at once
    in_flight: int = 16  # batches; too small: idle disks; too big: a client that dies leaves that many holes
    linger_ms: float = 0.0  # too big: a lone append waits this long; 0: until the next turn of the event loop
    waiting_bytes: int = 64 * 1024 * 1024  # of appends that wait for a slot; beyond it append() itself waits

    def __post_init__(self) -> None:
        for name in ("batch_bytes", "batch_entries", "in_flight", "waiting_bytes"):
            check_count(name, getattr(self, name))
        if not 1 <= self.batch_bytes <= BODY_BYTES_MAX // 2:
            raise ConfigError(f"batch_bytes is {self.batch_bytes}: choose 1 to {BODY_BYTES_MAX // 2}")
        check_milliseconds("linger_ms", self.linger_ms)


NOT_SENT = "the append waited too long for a slot and was not sent; append less at once, or see `trunkline status`"
NOT_SETTLED = "the append was not settled in time and may still be committed; read the log to find out"


class PendingAppend:
    """One append that is queued or in flight."""

    __slots__ = ("began_ms", "deadline", "expect", "future", "headers", "payloads", "size_bytes", "takeover")

    def __init__(
        self,
        payloads: Sequence[Buffer],
        headers: Sequence[bytes] | None,
        future: asyncio.Future[int],
        expect: int | None,
        takeover: bool,
        size_bytes: int,
        deadline: float | None,
    ) -> None:
        self.payloads = payloads
        self.headers = headers
        self.future = future
        self.expect = expect
        self.takeover = takeover
        self.size_bytes = size_bytes
        self.deadline = deadline  # in the loop's time
        self.began_ms = time.time_ns() // 1_000_000

    def overdue(self, now: float) -> bool:
        return self.deadline is not None and self.deadline <= now and not self.future.done()


class Batcher:
    def __init__(self, session: Session, view: Projection, options: BatchOptions) -> None:
        self._session = session
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._role = session.ensure_writing_role(view)
        chained = view.settings.policy is Policy.CHAIN and view.settings.groups > 1
        self._entries_max = min(options.batch_entries, view.settings.stripe_unit if chained else options.batch_entries)
        self._queue: deque[PendingAppend] = deque()
        self._queued_bytes = 0
        self._in_flight: dict[asyncio.Future[Event], list[PendingAppend]] = {}  # batches, by their results
        self._scheduled = False
        self._sweeping = False
        self._changed = asyncio.Event()  # an append was settled

    async def append(
        self,
        payloads: Sequence[Buffer],
        headers: Sequence[bytes] | None = None,
        *,
        expect: int | None = None,
        takeover: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Return the first GLSN once every entry is committed; ``OutcomeUnknown`` after ``timeout`` seconds."""
        size = check_sizes(payloads, headers)
        deadline = None if timeout is None else self._loop.time() + timeout
        if self._queued_bytes > self._options.waiting_bytes:
            await self._room(timeout)
        if self._session.failed is not None:
            raise self._session.failed
        future: asyncio.Future[int] = self._loop.create_future()
        self._queue.append(PendingAppend(payloads, headers, future, expect, takeover, size, deadline))
        self._queued_bytes += size
        if not self._scheduled:
            self._scheduled = True
            if self._options.linger_ms > 0:
                self._loop.call_later(self._options.linger_ms / 1000, self._leave)
            else:
                self._loop.call_soon(self._leave)
        if timeout is not None:
            self._watch(timeout)
        return await future

    async def _room(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                while self._queued_bytes > self._options.waiting_bytes and self._session.failed is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Unreachable(NOT_SENT) from None

    async def settled(self) -> None:
        """Wait until nothing is queued or in flight."""
        while self._queue or self._in_flight:
            self._changed.clear()
            await self._changed.wait()

    # One timer serves all appends: one for each would cost more than the append.

    def _watch(self, timeout: float) -> None:
        if timeout < SWEEP_S:
            self._loop.call_later(timeout, self._sweep, False)
        elif not self._sweeping:
            self._sweeping = True
            self._loop.call_later(SWEEP_S, self._sweep, True)

    def _sweep(self, again: bool) -> None:
        """Fail overdue appends. Those in flight continue until they are settled, queued ones are never sent."""
        now = self._loop.time()
        for waiting in self._queue:
            if waiting.overdue(now):
                waiting.future.set_exception(Unreachable(NOT_SENT))
        for waiting in (each for batch in self._in_flight.values() for each in batch):
            if waiting.overdue(now):
                waiting.future.set_exception(OutcomeUnknown(NOT_SETTLED))
        if again and (self._queue or self._in_flight):
            self._loop.call_later(SWEEP_S, self._sweep, True)
        elif again:
            self._sweeping = False

    def _leave(self) -> None:
        self._scheduled = False
        while self._queue and len(self._in_flight) < self._options.in_flight:
            batch = self._take()
            if batch:
                self._send(batch)

    def _take(self) -> list[PendingAppend]:
        """As many appends as fit into one batch; a conditional one goes alone. Overdue appends are dropped."""
        while self._queue and self._queue[0].future.done():
            self._queued_bytes -= self._queue.popleft().size_bytes
        if not self._queue:
            self._changed.set()
            return []
        taken = [self._queue.popleft()]
        size, count = taken[0].size_bytes, len(taken[0].payloads)
        while self._queue and taken[0].expect is None:
            following = self._queue[0]
            size, count = size + following.size_bytes, count + len(following.payloads)
            if following.expect is not None or size > self._options.batch_bytes or count > self._entries_max:
                break
            if following.takeover and not taken[0].takeover:
                break  # an append without takeover must not profit from one with it
            self._queue.popleft()
            if following.future.done():
                self._queued_bytes -= following.size_bytes
            else:
                taken.append(following)
        return taken

    def _send(self, batch: list[PendingAppend]) -> None:
        payloads: Sequence[Buffer] = batch[0].payloads
        if len(batch) > 1:
            payloads = [payload for waiting in batch for payload in waiting.payloads]
        body = encode(payloads, _joined_headers(batch), batch[0].began_ms, batch[-1].began_ms)
        expect, takeover = batch[0].expect, any(waiting.takeover for waiting in batch)
        try:
            result = self._session.begin_append(self._role, body, len(payloads), takeover=takeover, expect=expect)
        except TrunklineError as error:  # the session has failed or was closed
            result = self._loop.create_future()
            result.set_exception(error)
        self._in_flight[result] = batch
        result.add_done_callback(self._on_settled)

    def _on_settled(self, done: asyncio.Future[Event]) -> None:
        batch = self._in_flight.pop(done)
        self._queued_bytes -= sum(waiting.size_bytes for waiting in batch)
        error = done.exception() if not done.cancelled() else None
        result = done.result() if error is None and not done.cancelled() else None
        if isinstance(result, Appended):
            glsn = result.glsn
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_result(glsn)
                glsn += len(waiting.payloads)
        else:
            failure = error if isinstance(error, TrunklineError) else append_failure(result)
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_exception(failure)
        self._changed.set()
        self._leave()


def _joined_headers(batch: list[PendingAppend]) -> list[bytes] | None:
    if not any(waiting.headers for waiting in batch):
        return None
    return [header for w in batch for header in (w.headers or [b""] * len(w.payloads))]
