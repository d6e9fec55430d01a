"""A coordinator: serves the metadata, and runs the duties of every log while it is active."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.effects import Address, Message
from trunkline.core.messages import Get, Got, NodeInfo, NodeState, Register, Swap
from trunkline.core.names import NAME_BYTES_MAX, is_bounded
from trunkline.core.projection import Projection
from trunkline.core.status import ClusterStatus, LogStatus, NodeStatus, registered_node
from trunkline.core.timing import DEFAULT_TIMING
from trunkline.errors import ConfigError, StorageError
from trunkline.metadata.service import RegisterService
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.metadata.store import MetadataStore, StoreUnavailable
from trunkline.net.admin import (
    ClusterAnswer,
    ClusterRequest,
    EventsAnswer,
    EventsRequest,
    ForgetNode,
    Leaving,
    ListLogs,
    LogsListed,
    NodeStateSet,
    SetNodeState,
    StatusAnswer,
    StatusRequest,
)
from trunkline.net.connection import Connection
from trunkline.net.packets import BadRequest, Envelope
from trunkline.net.server import Server
from trunkline.observing.metrics import Values
from trunkline.observing.readiness import Readiness
from trunkline.runtime.coordinator_metrics import (
    TABLE,
    CoordinatorView,
    coordinator_readiness,
    coordinator_values,
    log_views,
)
from trunkline.runtime.duties import LogDuties
from trunkline.runtime.duty_runner import RETRY_S, DutyRunner
from trunkline.runtime.event_collector import EventCollector
from trunkline.runtime.event_history import EventHistory
from trunkline.runtime.links import Links
from trunkline.runtime.questions import Questions
from trunkline.runtime.recorder import Recorder
from trunkline.runtime.registry_cleanup import drop_bad_registrations, forget_node
from trunkline.runtime.server_process import Lifetime, listen, log_listening, start_number
from trunkline.runtime.summaries import Summaries, Summary, with_logs
from trunkline.runtime.turns import Turns

if TYPE_CHECKING:
    from trunkline.observing.server import ObservingServer

log = logging.getLogger("trunkline.coordinator")

STORE_S = 2.0  # within which the store must answer for metrics and readiness


class CoordinatorServerConfig(Struct, frozen=True):
    listen: str = "127.0.0.1:7400"
    directory: Path | None = None  # of the embedded store; None with etcd
    etcd: tuple[str, ...] = ()  # endpoints, host:port or a URL
    name: str = "coordinator"
    token: str = ""
    lease_ms: int = DEFAULT_TIMING.lease_ms  # too small: a busy node looks dead; too big: a dead one is replaced late
    tick_ms: int = 500  # too small: idle work; too big: a dead node is replaced late
    record: Path | None = None
    default_policy: str = "chain"
    observe: str = ""  # where metrics and health are served, host:port; "": nowhere
    allow_hosts: tuple[str, ...] = ()  # host names under which they are served, besides the address


async def run_coordinator(
    config: CoordinatorServerConfig,
    *,
    server_tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code."""
    coordinator = CoordinatorServer(config, server_tls, client_tls)
    try:
        return await coordinator.lifetime.run(coordinator.start())
    finally:
        await coordinator.close()


def make_store(config: CoordinatorServerConfig) -> MetadataStore:
    if config.etcd:
        from trunkline.metadata.etcd_gateway import EtcdOptions  # loads its HTTP client only if needed
        from trunkline.metadata.etcd_store import EtcdStore

        endpoints = tuple(each if "://" in each else f"http://{each}" for each in config.etcd)
        return EtcdStore(EtcdOptions(endpoints), lease_ms=config.lease_ms)
    if config.directory is None:
        raise ConfigError("a coordinator needs a directory for its embedded store, or the endpoints of an etcd")
    return SqliteStore(config.directory / "metadata.sqlite", lease_ms=config.lease_ms)


class CoordinatorServer:
    def __init__(
        self,
        config: CoordinatorServerConfig,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.config = config
        self.address = ""
        self.cluster = ""
        self.lifetime = Lifetime()
        self._server_tls = server_tls
        self._start = start_number()
        self._began = time.monotonic()
        self._store = make_store(config)
        self._register = RegisterService(self._store)
        self._links = Links(config.name, token=config.token, tls=client_tls)
        self._questions = Questions(f"{config.name}.questions", self._links)
        self._events = EventHistory(config.directory)
        self._duties = DutyRunner(config.name, self._store, self._make_duties)
        self._summaries = Summaries()
        self._recorder: Recorder | None = None
        self._server: Server | None = None
        self._observing: ObservingServer | None = None
        self._requests: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        config = self.config
        if config.observe:  # first: readiness must show that it waits for its store
            await self._observe()
        if config.record is not None:
            self._recorder = Recorder(config.record, "", config.name, self._start)
            self._store.events(partial(self._recorder.event, "register"))
        await self._store.start()
        self.cluster = self._register.cluster = self._links.peers.cluster = await self._cluster_id()
        self._server, self.address = await listen(
            config.listen, self._received, self.cluster, config.name, config.token, self._server_tls
        )
        log_listening(log, f"coordinator {config.name}", self.address, self._observe_address)
        self._begin(self._duties.run())
        collector = EventCollector(
            config.name, self._store, self._events, self._duties.blocked, self._ask_node, lease_ms=config.lease_ms
        )
        self._begin(collector.run())

    async def close(self) -> None:
        if self._observing is not None:
            await self._observing.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._duties.close()
        if self._server is not None:
            await self._server.close()
        await self._register.close()
        await self._links.peers.close()
        await self._store.close()
        if self._recorder is not None:
            self._recorder.close()
        self.lifetime.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # now, not when the task happens to be garbage-collected
            context = {"message": "a task of the coordinator failed", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _cluster_id(self) -> str:
        """Waits for the store. Cleans its registry before it is first served."""
        while True:
            try:
                cluster = await self._store.create_cluster(secrets.token_hex(8))
                await drop_bad_registrations(self._store)
                return cluster
            except StoreUnavailable as error:
                log.warning("the metadata store is not available yet: %s", error)
                await asyncio.sleep(RETRY_S)

    # -------------------------------------------------------------------------------------------------------- requests

    def _received(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        message, token = envelope.message, envelope.token
        self._requests[type(message).__name__] += 1

        def answer(message: Message) -> None:
            connection.send("", token, message)

        if isinstance(message, Get | Swap | Register):
            self._register.submit(message, answer, lambda why: connection.refuse_request(token, why))
        elif isinstance(message, Leaving) and is_bounded(message.node):
            self._register.leave(message.node, message.start)
        elif isinstance(message, ClusterRequest):
            answer(ClusterAnswer(self.cluster))
        elif isinstance(message, EventsRequest):
            answer(EventsAnswer(msgspec.json.encode(self._events.since(message.book, message.after))))
        elif isinstance(message, StatusRequest | ListLogs | SetNodeState | ForgetNode):
            self._begin(self._administer(message, connection, token))
        else:
            raise BadRequest(f"a coordinator does not accept {type(message).__name__}")

    async def _administer(
        self, message: StatusRequest | ListLogs | SetNodeState | ForgetNode, connection: Connection, token: int
    ) -> None:
        try:
            match message:
                case StatusRequest(logs):
                    answer: Message = StatusAnswer(msgspec.json.encode(await self._status(logs=logs)))
                case ListLogs():
                    answer = LogsListed(tuple(view.log for view in await self._views()))
                case SetNodeState(node, state):
                    done = state is not NodeState.CLIENT and await self._store.set_node_state(node, state)
                    answer = NodeStateSet(node, done, "" if done else f"there is no node {node[:NAME_BYTES_MAX]}")
                case ForgetNode(node):
                    why = await forget_node(self._store, node, await self._views())
                    answer = NodeStateSet(node, not why, why)
        except StoreUnavailable as error:
            log.warning("the metadata store is not available: %s", error)
            return  # no answer: the caller retries
        connection.send("", token, answer)

    async def _views(self) -> list[Projection]:
        """Of all logs except deleted ones."""
        return [view for view in await self._store.projections() if not view.deleted]

    async def _status(self, *, logs: bool = True) -> ClusterStatus:
        nodes = [info for info in await self._store.nodes() if info.state is not NodeState.CLIENT]
        summaries = self._summaries.of_all(await self._views())
        named: Counter[str] = Counter()
        for summary in summaries:
            named.update(summary.named)
        status = ClusterStatus(
            cluster=self.cluster,
            name=self.config.name,
            address=self.address,
            active=self._store.active(),
            active_coordinator=await self._store.active_coordinator(),
            default_policy=self.config.default_policy,
            observe=self._observe_address,
            nodes=tuple(registered_node(info, named[info.node]) for info in nodes),
            logs_total=len(summaries),
            refused=self._server.refusals() if self._server is not None else (),
        )
        return with_logs(status, [self._log_status(summary) for summary in summaries] if logs else [])

    def _log_status(self, summary: Summary) -> LogStatus:
        name = summary.projection.log
        duties, refused = self._duties.logs.get(name), self._register.refused.get(name, "")
        if duties is None:
            return replace(summary.status, refused=refused)
        return replace(summary.status, blocked=duties.blocked, duty=duties.duty, refused=refused)

    def _make_duties(self, log: str, turns: Turns, finished: Callable[[str], None]) -> LogDuties:
        config = self.config
        return LogDuties(
            config.name,
            start_number(),  # elected again, it is another process: its roles restart
            self.cluster,
            log,
            config.tick_ms,
            turns,
            self._register,
            self._links,
            config.record,
            finished,
        )

    async def _ask_node(self, info: NodeInfo) -> NodeStatus:
        self._links.learn(Got("", 0, None, (info,)))
        answer = await self._questions.ask(Address(info.node, "admin"), StatusRequest())
        assert isinstance(answer, StatusAnswer)
        return msgspec.json.decode(answer.json, type=NodeStatus)

    # ------------------------------------------------------------------------------------------------------- observing

    async def _observe(self) -> None:
        from trunkline.observing.pages import ObservedProcess  # loads an HTTP server: only if it is needed
        from trunkline.observing.server import ObservingServer

        process = ObservedProcess("coordinator", self.config.name, TABLE, self._values, self._readiness)
        self._observing = await ObservingServer.start(self.config.observe, process, self.config.allow_hosts)

    @property
    def _observe_address(self) -> str:
        return self._observing.address if self._observing is not None else ""

    async def _values(self) -> Values:
        return coordinator_values(self.config.name, time.monotonic() - self._began, await self.view())

    async def _readiness(self) -> Readiness:
        return coordinator_readiness(await self.view())

    async def view(self) -> CoordinatorView | None:
        """The state for metrics and readiness, which reads the store; None while it starts."""
        if self._server is None:
            return None
        nodes, active_coordinator, store_error = None, "", ""
        try:
            async with asyncio.timeout(STORE_S):
                nodes, active_coordinator = await self._store.nodes(), await self._store.active_coordinator()
        except TimeoutError:
            store_error = f"no answer within {STORE_S:.0f} s"
        except (StoreUnavailable, StorageError) as error:
            store_error = str(error)
        return CoordinatorView(
            active=self._store.active(),
            active_coordinator=active_coordinator,
            nodes=nodes,
            store_error=store_error,
            logs=log_views(self._duties.logs, self._summaries),
            register=self._register.counts,
            requests=self._requests,
            reconfigurations=self._register.reconfigurations,
            connections=self._server.connections,
            connections_refused=self._server.refused,
        )
