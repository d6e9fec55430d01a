"""The register for the coordinator's network host: requests in, answers through a callback.

Rules
 G1  Requests for one log run in the order of their arrival, and so do those for one node; others run in parallel, at
     most ``concurrency_max`` at once.
 G2  Queues are bounded: while ``waiting_max`` requests wait, further ones are dropped, and their senders retry. Leases
     have ``LEASES_MAX`` more places: many logs must not make live nodes look dead.
 G3  A request whose outcome is unknown gets no answer.
 G4  Reconfigurations are rate-limited. A client with a bad link may see every segment as broken and end one after the
     other; that is safe, but the log would crawl. After ``endings_burst`` endings of a log within the last
     ``endings_window_ms``, a further one waits until the first of them is that old: delayed by at most the window,
     never refused. All other requests for that log proceed. At most ``ASIDE_MAX`` endings of a log wait; only one of
     them can win, so more are dropped.
 G5  A request that is out of bounds (``admission.py``), or a map that cannot follow the stored one, changes nothing;
     its sender receives the reason.
 G6  A swap that does not fit into the store gets no answer, as if it were lost; the status shows the reason until a
     smaller one of that log was stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from trunkline.core.effects import Message
from trunkline.core.messages import Get, LeaseExpired, Register, Swap, Swapped
from trunkline.errors import StorageError
from trunkline.metadata.admission import Places, request_fault
from trunkline.metadata.store import MapTooLarge, MetadataStore, Request, StoreUnavailable

log = logging.getLogger("trunkline.metadata")

LEASES_MAX = 256  # lease requests that may wait beyond ``waiting_max``
ASIDE_MAX = 4  # delayed endings of one log
ENDINGS_LOGS_MAX = 1024  # logs whose endings are remembered before old ones are purged


class ServiceOptions(Struct, frozen=True):
    concurrency_max: int = 32  # fewer: a slow store serves logs one by one; more: it is overloaded
    waiting_max: int = 1024  # fewer: a burst is dropped and retried; more: answers come too late
    endings_burst: int = 10  # at least 1. fewer: real failures in a row are slowed down; more: a storm lasts longer
    endings_window_ms: int = 10_000


class ServiceCounts(Struct):
    """For metrics; they only grow."""

    answered: int = 0
    unanswered: int = 0  # the store was not available, or an earlier start of a node asked
    dropped: int = 0
    malformed: int = 0
    delayed: int = 0


class QueuedRequest(Struct, frozen=True):
    message: Request | LeaseExpired
    answer: Callable[[Message], None]
    refuse: Callable[[str], None]


class RegisterService:
    def __init__(self, store: MetadataStore, options: ServiceOptions | None = None) -> None:
        self.cluster = ""  # set once it is known
        self._store = store
        self._places = Places(store)
        self._options = options if options is not None else ServiceOptions()
        self._endings = Endings(self._options.endings_burst, self._options.endings_window_ms)
        self._queues: dict[
            str, deque[QueuedRequest]
        ] = {}  # per log or node; a line that is here is ready or being served
        self._ready: deque[str] = deque()
        self._waiting = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._aside: dict[asyncio.TimerHandle, str] = {}
        self._closed = False
        self.counts = ServiceCounts()
        self.reconfigurations = 0
        self.refused: dict[str, str] = {}  # why the last swap of a log did not fit into the store (G6)

    def submit(
        self, message: Message, answer: Callable[[Message], None], refuse: Callable[[str], None] | None = None
    ) -> None:
        """Queue a request; ``answer`` is called at most once, in the event loop. Never blocks.

        ``refuse`` receives the reason if the request is invalid (G5), perhaps at once; there is no answer then.
        """
        refuse = refuse if refuse is not None else _ignore
        if not isinstance(message, Get | Swap | Register):
            self._refuse(refuse, f"the metadata store does not accept {type(message).__name__}")
            return
        if fault := request_fault(message, self.cluster):
            self._refuse(refuse, fault)
        else:
            self._submit(QueuedRequest(message, answer, refuse))

    def _refuse(self, refuse: Callable[[str], None], why: str) -> None:
        self.counts.malformed += 1
        refuse(why)

    def leave(self, node: str, start: int) -> None:
        """A node shuts down. It queues behind earlier requests of the node (G1): a renewal must not undo it."""
        self._submit(QueuedRequest(LeaseExpired(node, start), _ignore, _ignore))

    def _submit(self, job: QueuedRequest) -> None:
        self._start_worker()  # first: a dropped request starts none, and waiting ones must not wait for ever
        about_lease = isinstance(job.message, Register | LeaseExpired)
        waiting_max = self._options.waiting_max + (LEASES_MAX if about_lease else 0)
        if self._closed or self._waiting >= waiting_max:
            self.counts.dropped += 1  # G2
            return
        self._waiting += 1
        self._enqueue(job)

    async def close(self) -> None:
        """Stop. Waiting requests get no answer."""
        self._closed = True
        for timer in self._aside:
            timer.cancel()
        self._aside.clear()
        for worker in list(self._workers):
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _enqueue(self, job: QueuedRequest) -> None:
        key = _queue_key(job.message)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._ready.append(key)
        queue.append(job)
        self._start_worker()

    def _start_worker(self) -> None:
        if self._ready and len(self._workers) < self._options.concurrency_max and not self._closed:
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        """Serve queues until none is ready; one worker at a time serves a queue (G1)."""
        me = asyncio.current_task()
        assert me is not None
        try:
            while self._ready:
                await self._serve_next(self._ready.popleft())
        finally:
            self._workers.discard(me)  # now: a request that arrives in this loop iteration needs another worker

    async def _serve_next(self, key: str) -> None:
        queue = self._queues[key]
        try:
            await self._serve(queue.popleft())
        finally:
            if queue:
                self._ready.append(key)
            else:
                del self._queues[key]

    async def _serve(self, job: QueuedRequest) -> None:
        if self._set_aside(job):
            return
        self._waiting -= 1
        if isinstance(job.message, LeaseExpired):
            await self._end_lease(job.message)
            return
        try:
            if isinstance(job.message, Register) and (full := await self._places.fault(job.message.info)):
                self._refuse(job.refuse, full)
                return
            answer = await self._store.handle(job.message)
        except MapTooLarge as error:
            self._on_too_large(job.message, error)
            return
        except (StoreUnavailable, StorageError):
            self.counts.unanswered += 1  # G3
            return
        if answer is None and isinstance(job.message, Swap):
            self._refuse(job.refuse, f"the map of {job.message.log} cannot follow the stored one")  # G5
            return
        if answer is None:
            self.counts.unanswered += 1
            return
        if isinstance(answer, Swapped) and isinstance(job.message, Swap):
            self.refused.pop(answer.log, None)
            if ends_segment(job.message):
                self.reconfigurations += 1
                self._endings.happened(answer.log)
        self.counts.answered += 1
        job.answer(answer)

    def _on_too_large(self, message: Request, error: MapTooLarge) -> None:
        """G6; logged once, as the sender retries."""
        self.counts.unanswered += 1
        if isinstance(message, Swap) and message.log not in self.refused:
            log.error("%s", error)
            self.refused[message.log] = str(error)

    async def _end_lease(self, ended: LeaseExpired) -> None:
        try:
            await self._store.leave(ended.node, ended.start)
        except (StoreUnavailable, StorageError) as error:
            log.warning("%s left, but its lease has to expire: %s", ended.node, error)

    def _set_aside(self, job: QueuedRequest) -> bool:
        """G4: whether an ending has to wait. Afterwards it goes to the end of its log's queue."""
        message = job.message
        if not (isinstance(message, Swap) and ends_segment(message)):
            return False
        delay_s = self._endings.delay_s(message.log)
        if delay_s <= 0:
            return False
        if list(self._aside.values()).count(message.log) >= ASIDE_MAX:
            self.counts.dropped += 1
            self._waiting -= 1
            return True
        self.counts.delayed += 1

        def come_back() -> None:
            del self._aside[timer]
            self._enqueue(job)

        timer = asyncio.get_running_loop().call_later(delay_s, come_back)
        self._aside[timer] = message.log
        return True


class Endings:
    """Times of the recent endings of each log, by the clock of the event loop."""

    def __init__(self, burst: int, window_ms: int) -> None:
        self._burst = burst
        self._window_s = window_ms / 1000
        self._times: dict[str, deque[float]] = {}

    def happened(self, log: str) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._times) >= ENDINGS_LOGS_MAX:
            self._times = {name: times for name, times in self._times.items() if times[-1] + self._window_s > now}
        self._times.setdefault(log, deque(maxlen=self._burst)).append(now)

    def delay_s(self, log: str) -> float:
        """How long another ending has to wait; never more than the window."""
        times = self._times.get(log)
        if times is None or len(times) < self._burst:
            return 0.0
        return times[0] + self._window_s - asyncio.get_running_loop().time()


def ends_segment(swap: Swap) -> bool:
    """Whether the swap ends a segment and opens the next. (One that leaves the log read-only causes no storm.)"""
    last = swap.projection.last
    return last.epoch == swap.projection.epoch and last.index > 0


def _queue_key(message: Request | LeaseExpired) -> str:
    match message:
        case Register(info):
            return f"node {info.node}"
        case LeaseExpired(node):
            return f"node {node}"
        case Get(log_name) | Swap(log_name):
            return f"log {log_name}"


def _ignore(answer: object) -> None: ...
