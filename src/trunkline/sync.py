"""The library without ``await``: the same client, on an event loop in a thread of its own.

    with trunkline.sync.connect("127.0.0.1:7400") as cluster:
        log = cluster.log("orders")
        log.append(b"hello")
        for entry in log.subscribe(start=1):
            ...

Every method does what the method of the same name in ``trunkline.Cluster`` or ``trunkline.Log`` does, and raises the
same errors. Clusters and logs may be used by several threads at once; an iterator belongs to one thread at a time.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from trunkline.client import cluster as async_cluster
from trunkline.client import log as async_log
from trunkline.client.arguments import DEFAULT, PolicyName, Timeout
from trunkline.client.bodies import Buffer
from trunkline.client.cluster import DEFAULT_ADDRESS, ClientOptions
from trunkline.client.dedupe import Repeats
from trunkline.client.entries import Batch, Entry
from trunkline.client.log import Ended
from trunkline.client.subscription import Subscription
from trunkline.core.messages import NodeInfo
from trunkline.core.projection import Projection, Settings
from trunkline.core.status import ClusterEvents, ClusterStatus, NodeStatus
from trunkline.errors import ConfigError, OutcomeUnknown
from trunkline.threads import Threads

T = TypeVar("T")
logger = logging.getLogger(__name__)

STOP_S_MAX = 5.0  # for the loop's thread


def connect(
    addresses: str | Sequence[str] = DEFAULT_ADDRESS,
    *,
    options: ClientOptions | None = None,
    tls: ssl.SSLContext | None = None,
) -> Cluster:
    """Connect to a cluster by the addresses of its coordinators.

    ``with trunkline.sync.connect("127.0.0.1:7400") as cluster: ...``
    """
    return Cluster(addresses, options, tls=tls)


class LoopThread:
    """An event loop in a daemon thread. It ends before the interpreter does: a native loop that wakes up later calls
    Python when there is none any more, and the process dies of a segmentation fault."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._stopping = False
        self._lock = threading.Lock()  # work is submitted before the loop stops, which then cancels it
        self._thread = Threads().start("trunkline", self._run)
        atexit.register(self.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopped():
            pass  # an exception outside a task ends run_forever; the other connections continue
        while left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()  # a caller in another thread must not wait forever
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _stopped(self) -> bool:
        """Run until the loop is stopped (True), or raises (False)."""
        try:
            self._loop.run_forever()
        except BaseException:
            logger.critical("the loop of a cluster handle raised, which is a bug; it continues", exc_info=True)
            return False
        return True

    @property
    def runs(self) -> bool:
        return self._thread.is_alive() and not self._loop.is_closed()

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            if self.runs and not self._stopping:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ConfigError("the cluster handle is not open: use `with trunkline.sync.connect(...)`")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop and wait for it. Ctrl-C ends the wait and cancels the work."""
        future = self.begin(work)
        try:
            return result_of(future)
        except BaseException:
            future.cancel()  # no effect on finished work
            raise

    def soon(self, work: Callable[[], object]) -> None:
        """Run work on the loop, if it still runs."""
        if self.runs:
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
        self.soon(self._loop.stop)
        self._thread.join(STOP_S_MAX)
        atexit.unregister(self.stop)


def result_of(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise OutcomeUnknown("the cluster handle was closed meanwhile; open it again to continue") from None


class Cluster:
    """A handle on a cluster. Made by ``trunkline.sync.connect``; use it as a context manager."""

    def __init__(
        self,
        addresses: str | Sequence[str] = DEFAULT_ADDRESS,
        options: ClientOptions | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._cluster = async_cluster.Cluster(addresses, options, tls=tls)
        self._thread: LoopThread | None = None

    def __repr__(self) -> str:
        return f"<sync.{repr(self._cluster).removeprefix('<')}"

    def __enter__(self) -> Cluster:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, *, patient: bool = True) -> None:
        """Connect. Raises ``Unreachable`` if no coordinator answers.

        ``patient``: wait up to ``connect_timeout``, also for a coordinator that is just starting. Otherwise give up as
        soon as every address has failed once.
        """
        if self._thread is not None:
            raise ConfigError("the cluster handle is already open")
        self._thread = LoopThread()
        try:
            self._thread.call(self._cluster.open(patient=patient))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for appends in flight, and disconnect."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.runs:  # a thread that the end of the interpreter stopped has nothing left
            try:
                thread.call(self._cluster.close())
            finally:
                thread.stop()

    @property
    def id(self) -> str:
        """The id of the cluster, once the handle is open."""
        return self._cluster.id

    def log(
        self,
        name: str,
        *,
        create: bool = False,
        policy: PolicyName = "chain",
        replicas: int = 3,
        min_replicas: int = 1,
        groups: int = 1,
        stripe_unit: int = 1024,
    ) -> Log:
        """Open a log. ``create``: create it if it does not exist; ``Refused`` if it exists with other settings."""
        opened = self._cluster.log(
            name,
            create=create,
            policy=policy,
            replicas=replicas,
            min_replicas=min_replicas,
            groups=groups,
            stripe_unit=stripe_unit,
        )
        thread = self._running(opened)
        return Log(thread.call(opened), thread)

    def create_log(self, name: str, settings: Settings) -> int:
        """Create a log, and return its epoch. A log that exists with the same settings stays as it is."""
        return self._call(self._cluster.create_log(name, settings))

    def logs(self) -> tuple[str, ...]:
        """The names of all logs."""
        return self._call(self._cluster.logs())

    def describe(self, name: str) -> Projection:
        """The projection of a log, as the metadata store has it now: settings, segments, replicas, trim point."""
        return self._call(self._cluster.describe(name))

    def nodes(self) -> tuple[NodeInfo, ...]:
        """The registered nodes."""
        return self._call(self._cluster.nodes())

    def set_node_state(self, node: str, state: str) -> None:
        """``rw``, ``draining`` (its segments move to other nodes) or ``gone`` (it never returns)."""
        self._call(self._cluster.set_node_state(node, state))

    def forget_node(self, node: str) -> None:
        """Remove a node from the registry. It must not be live, and no log may name it."""
        self._call(self._cluster.forget_node(node))

    def status(self, *, logs: bool = True, timeout: Timeout = DEFAULT) -> ClusterStatus:
        """The status of the cluster, from a coordinator. Without ``logs`` its size does not grow with their number."""
        return self._call(self._cluster.status(logs=logs, timeout=timeout))

    def events(self, *, book: str = "", after: int = 0, timeout: Timeout = DEFAULT) -> ClusterEvents:
        """Recent events, from the coordinator that answers."""
        return self._call(self._cluster.events(book=book, after=after, timeout=timeout))

    def node_status(self, node: str, *, timeout: Timeout = 2.0) -> NodeStatus:
        """The status of a node, from the node itself."""
        return self._call(self._cluster.node_status(node, timeout=timeout))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._running(work).call(work)

    def _running(self, work: Coroutine[Any, Any, object]) -> LoopThread:
        if self._thread is None:
            work.close()
            raise ConfigError("the cluster handle is not open: use `with trunkline.sync.connect(...)`")
        return self._thread


class Log:
    """One log. Made by ``Cluster.log``; several threads may use it at once."""

    def __init__(self, log: async_log.Log, thread: LoopThread) -> None:
        self.name = log.name
        self._log = log
        self._thread = thread

    def __repr__(self) -> str:
        return f"<sync.{repr(self._log).removeprefix('<')}"

    @property
    def settings(self) -> Settings:
        """The settings that the log was created with; they never change."""
        return self._log.settings

    def append(
        self,
        payload: Buffer | Sequence[Buffer],
        *,
        headers: Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | None = None,
        expect: int | None = None,
        takeover: bool = False,
        timeout: Timeout = DEFAULT,
    ) -> int:
        """Append one entry or a batch. Returns the first GLSN once everything is committed."""
        return self._thread.call(
            self._log.append(payload, headers=headers, expect=expect, takeover=takeover, timeout=timeout)
        )

    def read(self, glsn: int, *, fill_after_ms: int | None = None, timeout: Timeout = DEFAULT) -> Entry:
        """The entry at a position. Raises ``NotWritten``, ``Hole``, ``Trimmed`` or ``EntriesLost`` if it has none."""
        return self._thread.call(self._log.read(glsn, fill_after_ms=fill_after_ms, timeout=timeout))

    def batches(
        self,
        start: int | None = None,
        until: int | None = None,
        *,
        to_tail: bool = False,
        fill_after_ms: int | None = None,
        replica: int = 0,
    ) -> Batches:
        """Batches from ``start`` (None: the oldest entry) through ``until`` (None: endless), without copying.

        ``replica``: any number; readers with different numbers read from different replicas where possible.
        """

        async def begin() -> Subscription:
            return self._log.batches(start, until, to_tail=to_tail, fill_after_ms=fill_after_ms, replica=replica)

        return Batches(self._thread.call(begin()), self._thread)

    def subscribe(
        self,
        start: int | None = None,
        until: int | None = None,
        *,
        to_tail: bool = False,
        fill_after_ms: int | None = None,
        dedupe: bool = False,
    ) -> Iterator[Entry]:
        """Entries in order, one by one. Survives reconfigurations and lost connections, and never skips silently.

        ``dedupe``: leave out rows that a Spark job appended again, if their first copy is part of what is read.
        """
        batches = self.batches(start, until, to_tail=to_tail, fill_after_ms=fill_after_ms)
        return _entries(batches, Repeats() if dedupe else None)

    def tail(self, *, timeout: Timeout = DEFAULT) -> int:
        """The position after the last committed entry; linearizable."""
        return self._thread.call(self._log.tail(timeout=timeout))

    def peek(self, *, timeout: Timeout = DEFAULT) -> int:
        """The next position that will be assigned."""
        return self._thread.call(self._log.peek(timeout=timeout))

    def fill(self, glsn: int, *, timeout: Timeout = DEFAULT) -> bool:
        """Settle a position now: True if it is (or became) a hole, False if it holds an entry."""
        return self._thread.call(self._log.fill(glsn, timeout=timeout))

    def trim(self, glsn: int, *, timeout: Timeout = DEFAULT) -> int:
        """Delete every entry up to ``glsn``. Returns the trim point, lower where ``glsn`` would cut a batch."""
        return self._thread.call(self._log.trim(glsn, timeout=timeout))

    def seal(self, *, timeout: Timeout = DEFAULT) -> Ended:
        """Make the log read-only until ``reopen``."""
        return self._thread.call(self._log.seal(timeout=timeout))

    def reopen(self, *, timeout: Timeout = DEFAULT) -> Ended:
        """Open a sealed log for appends again. On an open log: end its segment and start another (reconfiguration)."""
        return self._thread.call(self._log.reopen(timeout=timeout))

    def declare_lost(self, end: int, *, timeout: Timeout = DEFAULT) -> Ended:
        """The last resort if the open segment has no intact replica left: readers see a gap up to ``end``."""
        return self._thread.call(self._log.declare_lost(end, timeout=timeout))

    def delete(self, *, timeout: Timeout = DEFAULT) -> None:
        """Delete the log. Its name cannot be used again."""
        self._thread.call(self._log.delete(timeout=timeout))

    def close(self) -> None:
        """Wait for appends in flight, and release the log."""
        self._thread.call(self._log.close())


class Batches(Iterator[Batch]):
    """Iterate it for batches. It ends when it is closed, leaves its ``with`` block, or is garbage-collected."""

    def __init__(self, subscription: Subscription, thread: LoopThread) -> None:
        self._subscription = subscription
        self._thread = thread
        self._next: concurrent.futures.Future[Batch | None] | None = None

    @property
    def next_glsn(self) -> int:
        """The position after the last batch that it returned."""
        return self._subscription.next_glsn

    def __next__(self) -> Batch:
        if self._next is None:
            self._next = self._thread.begin(self._take())
        try:
            batch = result_of(self._next)
        except KeyboardInterrupt:
            raise  # the next call returns the batch: nothing is skipped
        except BaseException:
            self._next = None
            raise
        self._next = None
        if batch is None:
            raise StopIteration
        return batch

    def some(self, *, timeout: float | None = None) -> list[Batch]:
        """All batches that have arrived, at least one; an empty list at the end. Faster than one by one.

        Raises ``Unreachable`` if none arrives within ``timeout`` seconds: for a reader that knows that there is more.
        """
        return self._thread.call(self._subscription.some(timeout=timeout))

    async def _take(self) -> Batch | None:
        """None at the end: a future cannot raise StopAsyncIteration."""
        return await anext(self._subscription, None)

    def close(self) -> None:
        """Stop reading, and drop what was read ahead."""
        self._thread.soon(self._subscription.close)

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _entries(batches: Batches, repeats: Repeats | None) -> Iterator[Entry]:
    with batches:
        for batch in batches:
            yield from batch if repeats is None else repeats.without_repeats(batch)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
