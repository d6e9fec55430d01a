"""The library without ``await``: the same client, run on one event loop in a thread of its own.

    with trunkline.sync.connect("127.0.0.1:7400") as cluster:
        log = cluster.log("orders")
        log.append(b"hello")
        for entry in log.subscribe(start=1):
            ...

A call means what the call of the same name means in ``trunkline.Cluster`` and ``trunkline.Log``, and raises the same
errors. Clusters and logs may be used by several threads at once; an iterator belongs to one thread at a time.
"""

from __future__ import annotations

import asyncio
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

THREAD_ENDS_IN_S = 5.0  # what the loop's thread is given to stop


def connect(
    addresses: str | Sequence[str] = DEFAULT_ADDRESS,
    *,
    options: ClientOptions | None = None,
    tls: ssl.SSLContext | None = None,
) -> Cluster:
    """A handle on the cluster behind these coordinators: ``with trunkline.sync.connect("127.0.0.1:7400") as c:``."""
    return Cluster(addresses, options, tls=tls)


class LoopThread:
    """An event loop in a thread. It does not keep the interpreter from ending."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._stopping = False
        self._lock = threading.Lock()  # what is begun is begun before the loop stops, and then ended by it
        self._thread = Threads().start("trunkline", self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopped():
            pass  # what is no error of a task breaks off the loop; the connections of others go on
        while left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()  # whoever waits for it in another thread must not wait for ever
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _stopped(self) -> bool:
        """Run until the loop is stopped, or breaks off."""
        try:
            self._loop.run_forever()
        except BaseException:
            logger.critical("the loop of a cluster handle broke off, which is a bug; it goes on", exc_info=True)
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
        """Do it there and wait here. Ctrl-C ends the waiting and asks the work to stop."""
        future = self.begin(work)
        try:
            return result_of(future)
        except BaseException:
            future.cancel()  # of no effect on what is done
            raise

    def soon(self, work: Callable[[], object]) -> None:
        """Have it done there, if there is still a loop to do it."""
        if self.runs:
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile, and with it what was to be done
                self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
        self.soon(self._loop.stop)
        self._thread.join(THREAD_ENDS_IN_S)


def result_of(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise OutcomeUnknown("the cluster handle was closed meanwhile; open it again to go on") from None


class Cluster:
    """Made by ``trunkline.sync.connect``. Use it as a context manager."""

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
        """Connect, and learn which cluster this is. Raises ``Unreachable`` if no coordinator answers.

        ``patient``: one that is just starting is given ``connect_timeout`` to answer. Otherwise it is over as soon as
        every address has failed once.
        """
        if self._thread is not None:
            raise ConfigError("the cluster handle is open already")
        self._thread = LoopThread()
        try:
            self._thread.call(self._cluster.open(patient=patient))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Settle what is under way, and disconnect."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(self._cluster.close())
            finally:
                thread.stop()

    @property
    def id(self) -> str:
        """Which cluster this is: known once it was connected to."""
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
        """Open a log; ``create`` makes it first if it does not exist (with other settings: ``Refused``)."""
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
        """Create a log; answers its epoch. A log that exists with the same settings is left as it is."""
        return self._call(self._cluster.create_log(name, settings))

    def logs(self) -> tuple[str, ...]:
        return self._call(self._cluster.logs())

    def describe(self, name: str) -> Projection:
        """The log's map as the metadata has it now."""
        return self._call(self._cluster.describe(name))

    def nodes(self) -> tuple[NodeInfo, ...]:
        return self._call(self._cluster.nodes())

    def set_node_state(self, node: str, state: str) -> None:
        """``rw``, ``draining`` (nothing new is placed on it, what it has moves away) or ``gone`` (for ever)."""
        self._call(self._cluster.set_node_state(node, state))

    def forget_node(self, node: str) -> None:
        """Take a node that is gone out of the registry: it must not be live, and no log may name it."""
        self._call(self._cluster.forget_node(node))

    def status(self, *, logs: bool = True, timeout: Timeout = DEFAULT) -> ClusterStatus:
        """The coordinator's view of the cluster; without ``logs`` it is short, however many there are."""
        return self._call(self._cluster.status(logs=logs, timeout=timeout))

    def events(self, *, book: str = "", after: int = 0, timeout: Timeout = DEFAULT) -> ClusterEvents:
        """Recent events as the answering coordinator remembers them."""
        return self._call(self._cluster.events(book=book, after=after, timeout=timeout))

    def node_status(self, node: str, *, timeout: Timeout = 2.0) -> NodeStatus:
        """What a node reports about itself."""
        return self._call(self._cluster.node_status(node, timeout=timeout))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._running(work).call(work)

    def _running(self, work: Coroutine[Any, Any, object]) -> LoopThread:
        if self._thread is None:
            work.close()
            raise ConfigError("the cluster handle is not open: use `with trunkline.sync.connect(...)`")
        return self._thread


class Log:
    """One log. Made by ``Cluster.log``; all calls may be made by several threads at once."""

    def __init__(self, log: async_log.Log, thread: LoopThread) -> None:
        self.name = log.name
        self._log = log
        self._thread = thread

    def __repr__(self) -> str:
        return f"<sync.{repr(self._log).removeprefix('<')}"

    def append(
        self,
        payload: Buffer | Sequence[Buffer],
        *,
        headers: Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | None = None,
        expect: int | None = None,
        takeover: bool = False,
        timeout: Timeout = DEFAULT,
    ) -> int:
        """Append one entry or a batch, and answer the first GLSN once everything is committed."""
        return self._thread.call(
            self._log.append(payload, headers=headers, expect=expect, takeover=takeover, timeout=timeout)
        )

    def read(self, glsn: int, *, fill_after_ms: int | None = None, timeout: Timeout = DEFAULT) -> Entry:
        """The entry at a position. Raises ``NotWritten``, ``Hole``, ``Trimmed`` or ``EntriesLost`` if there is none."""
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

        ``replica``: any number; those that differ read from different replicas where several may be read.
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
        """Entries in order, one by one. It survives reconfigurations and lost connections, and never skips silently.

        ``dedupe``: leave out rows that a Spark job appended again, as far as the first lies in what is read.
        """
        batches = self.batches(start, until, to_tail=to_tail, fill_after_ms=fill_after_ms)
        return _entries(batches, Repeats() if dedupe else None)

    def tail(self, *, timeout: Timeout = DEFAULT) -> int:
        """The position after the last committed entry, linearizable."""
        return self._thread.call(self._log.tail(timeout=timeout))

    def peek(self, *, timeout: Timeout = DEFAULT) -> int:
        """The next position that will be handed out."""
        return self._thread.call(self._log.peek(timeout=timeout))

    def fill(self, glsn: int, *, timeout: Timeout = DEFAULT) -> bool:
        """Settle a position now: True if it is (or became) a hole, False if it holds an entry."""
        return self._thread.call(self._log.fill(glsn, timeout=timeout))

    def trim(self, glsn: int, *, timeout: Timeout = DEFAULT) -> int:
        """Delete every entry up to ``glsn``; answers the point, lowered where it would have cut a batch."""
        return self._thread.call(self._log.trim(glsn, timeout=timeout))

    def seal(self, *, timeout: Timeout = DEFAULT) -> Ended:
        """Make the log read-only until ``reopen``."""
        return self._thread.call(self._log.seal(timeout=timeout))

    def reopen(self, *, timeout: Timeout = DEFAULT) -> Ended:
        """Let a sealed log be appended to again; on an open log: end its segment and begin another (reconfigure)."""
        return self._thread.call(self._log.reopen(timeout=timeout))

    def declare_lost(self, end: int, *, timeout: Timeout = DEFAULT) -> Ended:
        """An operator's last resort: the open segment has no intact member left. Readers see a gap up to ``end``."""
        return self._thread.call(self._log.declare_lost(end, timeout=timeout))

    def delete(self, *, timeout: Timeout = DEFAULT) -> None:
        """Delete the log. Its name is not used again."""
        self._thread.call(self._log.delete(timeout=timeout))

    def close(self) -> None:
        """Wait for appends that are under way, and let the log go."""
        self._thread.call(self._log.close())


class Batches(Iterator[Batch]):
    """Iterate it for batches. It ends when it is closed, left as a context manager, or nobody holds it any more."""

    def __init__(self, subscription: Subscription, thread: LoopThread) -> None:
        self._subscription = subscription
        self._thread = thread
        self._next: concurrent.futures.Future[Batch | None] | None = None

    @property
    def next_glsn(self) -> int:
        """The position after the last batch that was taken."""
        return self._subscription.next_glsn

    def __next__(self) -> Batch:
        if self._next is None:
            self._next = self._thread.begin(self._take())
        try:
            batch = result_of(self._next)
        except KeyboardInterrupt:
            raise  # the batch is kept for the next call: nothing is skipped
        except BaseException:
            self._next = None
            raise
        self._next = None
        if batch is None:
            raise StopIteration
        return batch

    def some(self, *, timeout: float | None = None) -> list[Batch]:
        """What has arrived since, at least one batch; an empty list at the end. Quicker than one after the other.

        Raises ``Unreachable`` if nothing comes in ``timeout`` seconds: for a reader that knows that there is more.
        """
        return self._thread.call(self._subscription.some(timeout=timeout))

    async def _take(self) -> Batch | None:
        """None at the end: a StopAsyncIteration cannot leave a future."""
        return await anext(self._subscription, None)

    def close(self) -> None:
        """Stop reading; what was read ahead is dropped."""
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
