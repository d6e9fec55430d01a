"""A coordinator: the metadata's front, and the background duties of every log while it is the active one."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.effects import Address, Event, Message
from trunkline.core.messages import Get, Got, NodeInfo, NodeState, Register, Swap
from trunkline.core.names import NAME_BYTES_MAX, is_bounded
from trunkline.core.projection import Projection
from trunkline.core.status import ClusterStatus, LogStatus, NodeStatus, registered_node
from trunkline.core.timing import DEFAULT_TIMING
from trunkline.errors import ConfigError, StorageError
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.metadata.store import NODES_CHANGED, MetadataStore, StoreUnavailable
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
from trunkline.net.limits import Limits
from trunkline.net.packets import BadRequest, Envelope
from trunkline.net.server import Server
from trunkline.observing.metrics import Values
from trunkline.observing.readiness import Readiness
from trunkline.runtime.chronicle import Chronicle
from trunkline.runtime.chronicler import Chronicler
from trunkline.runtime.coordinator_metrics import (
    TABLE,
    CoordinatorView,
    CountedRegister,
    coordinator_readiness,
    coordinator_values,
    log_views,
)
from trunkline.runtime.duties import TURN_S, TURNS_MAX, LogDuties
from trunkline.runtime.links import Links
from trunkline.runtime.questions import Questions
from trunkline.runtime.recorder import Recorder
from trunkline.runtime.registry_cleanup import drop_bad_registrations, forget_node
from trunkline.runtime.server_process import Lifetime, file_budget, split_address, start_number
from trunkline.runtime.summaries import Summaries, Summary, with_logs
from trunkline.runtime.turns import Turns

if TYPE_CHECKING:
    from trunkline.observing.server import ObservingServer

log = logging.getLogger("trunkline.coordinator")

LOOK_AGAIN_S = 2.0  # after the store was not available, or a watch ended
STORE_S = 2.0  # what the store is given to answer who looks at this coordinator


class CoordinatorConfig(Struct, frozen=True):
    listen: str = "127.0.0.1:7400"
    directory: Path | None = None  # of the embedded store; None with etcd
    etcd: tuple[str, ...] = ()  # endpoints, host:port or a URL
    etcd_login: str = ""  # user:password
    name: str = "coordinator"
    token: str = ""
    lease_ms: int = DEFAULT_TIMING.lease_ms  # too small: a busy node looks dead; too big: a dead one is replaced late
    tick_ms: int = 500  # too small: idle work; too big: a dead node is replaced late
    record: Path | None = None
    default_policy: str = "chain"
    observe: str = ""  # where metrics and health are served, host:port; "": nowhere
    allow_hosts: tuple[str, ...] = ()  # names by which those may be asked for, besides the address


async def run_coordinator(
    config: CoordinatorConfig, *, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
) -> int:
    """Serve until SIGTERM or SIGINT. Answers the exit code."""
    coordinator = CoordinatorServer(config, server_tls, client_tls)
    try:
        return await coordinator.lifetime.run(coordinator.start())
    finally:
        await coordinator.close()


def make_store(config: CoordinatorConfig) -> MetadataStore:
    if config.etcd:
        from trunkline.metadata.etcd_gateway import EtcdOptions  # its HTTP client is loaded only if it is needed
        from trunkline.metadata.etcd_store import EtcdStore

        endpoints = tuple(each if "://" in each else f"http://{each}" for each in config.etcd)
        user, _, password = config.etcd_login.partition(":")
        return EtcdStore(EtcdOptions(endpoints, user=user, password=password), lease_ms=config.lease_ms)
    if config.directory is None:
        raise ConfigError("a coordinator needs a directory for its embedded store, or the endpoints of an etcd")
    return SqliteStore(config.directory / "metadata.sqlite", lease_ms=config.lease_ms)


class CoordinatorServer:
    def __init__(
        self,
        config: CoordinatorConfig,
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
        self._register = CountedRegister(self._store)
        self._links = Links(config.name, token=config.token, tls=client_tls)
        self._questions = Questions(f"{config.name}.questions", self._links)
        self._chronicle = Chronicle(config.directory)
        self._duties: dict[str, LogDuties] = {}
        self._summaries = Summaries()
        self._turns = Turns(TURNS_MAX, TURN_S)
        self._recorder: Recorder | None = None
        self._server: Server | None = None
        self._observing: ObservingServer | None = None
        self._requests: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        config = self.config
        if config.observe:  # first of all: who waits for its store says so
            await self._observe()
        if config.record is not None:
            self._recorder = Recorder(config.record, "", config.name, self._start)
            self._store.events(self._announced)
        await self._store.start()
        self.cluster = self._register.cluster = self._links.peers.cluster = await self._cluster_id()
        host, port = split_address(config.listen)
        try:
            self._server = await Server.start(
                host,
                port,
                self._received,
                cluster=self.cluster,
                name=config.name,
                token=config.token,
                limits=Limits(connections_max=file_budget().connections),
                tls=self._server_tls,
            )
        except OSError as error:
            raise StorageError(f"cannot listen on {config.listen}: {error.strerror or error}") from None
        self.address = f"{host}:{self._server.port}"
        self._say_listening()
        self._begin(self._look_after_logs())
        chronicler = Chronicler(
            config.name, self._store, self._chronicle, self._blocked, self._ask_node, lease_ms=config.lease_ms
        )
        self._begin(chronicler.run())

    async def close(self) -> None:
        if self._observing is not None:
            await self._observing.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._drop_duties()
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
        if error is not None:  # said now, and not when the task happens to be collected
            context = {"message": "a task of the coordinator failed", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _cluster_id(self) -> str:
        """As soon as the store answers. Its registry is put in order before anybody is told of it."""
        while True:
            try:
                cluster = await self._store.create_cluster(secrets.token_hex(8))
                await drop_bad_registrations(self._store)
                return cluster
            except StoreUnavailable as error:
                log.warning("the metadata store is not available yet: %s", error)
                await asyncio.sleep(LOOK_AGAIN_S)

    def _announced(self, event: Event) -> None:
        if self._recorder is not None:
            self._recorder.event("register", event)

    # -------------------------------------------------------------------------------------------------------- requests

    def _received(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        message, token = envelope.message, envelope.token
        self._requests[type(message).__name__] += 1  # of the kinds that the wire knows

        def answer(message: Message) -> None:
            connection.send("", token, message)

        if isinstance(message, Get | Swap | Register):
            self._register.submit(message, answer, lambda why: connection.refuse_request(token, why))
        elif isinstance(message, Leaving) and is_bounded(message.node):
            self._register.leave(message.node, message.start)
        elif isinstance(message, ClusterRequest):
            answer(ClusterAnswer(self.cluster))
        elif isinstance(message, EventsRequest):
            answer(EventsAnswer(msgspec.json.encode(self._chronicle.since(message.book, message.after))))
        elif isinstance(message, StatusRequest | ListLogs | SetNodeState | ForgetNode):
            self._begin(self._administer(message, connection, token))
        else:
            raise BadRequest(f"a {type(message).__name__} is nothing for a coordinator")

    async def _administer(
        self, message: StatusRequest | ListLogs | SetNodeState | ForgetNode, connection: Connection, token: int
    ) -> None:
        try:
            match message:
                case StatusRequest(logs):
                    answer: Message = StatusAnswer(msgspec.json.encode(await self._status(logs=logs)))
                case ListLogs():
                    answer = LogsListed(await self._names())
                case SetNodeState(node, state):
                    done = state is not NodeState.CLIENT and await self._store.set_node_state(node, state)
                    answer = NodeStateSet(node, done, "" if done else f"there is no node {node[:NAME_BYTES_MAX]}")
                case ForgetNode(node):
                    why = await forget_node(self._store, node, await self._views())
                    answer = NodeStateSet(node, not why, why)
        except StoreUnavailable as error:
            log.warning("the metadata store is not available: %s", error)
            return  # no answer: the caller asks again
        connection.send("", token, answer)

    async def _names(self) -> tuple[str, ...]:
        return tuple(view.log for view in await self._views())

    async def _views(self) -> list[Projection]:
        """Of all logs but the deleted ones."""
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
            observe=self._observing.address if self._observing is not None else "",
            nodes=tuple(registered_node(info, named[info.node]) for info in nodes),
            logs_total=len(summaries),
            refused=self._server.refusals() if self._server is not None else (),
        )
        return with_logs(status, [self._log_status(summary) for summary in summaries] if logs else [])

    def _log_status(self, summary: Summary) -> LogStatus:
        name = summary.projection.log
        duties, refused = self._duties.get(name), self._register.refused.get(name, "")
        if duties is None:
            return replace(summary.status, refused=refused)
        return replace(summary.status, blocked=duties.blocked, duty=duties.duty, refused=refused)

    def _blocked(self) -> list[str] | None:
        """The logs that wait for a node; None where others know."""
        return [name for name, duties in self._duties.items() if duties.blocked] if self._store.active() else None

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

    def _say_listening(self) -> None:
        fields = {"address": self.address, "observe": self._observing.address if self._observing is not None else ""}
        seen = f", observed at http://{fields['observe']}/metrics" if self._observing is not None else ""
        log.info("coordinator %s listens on %s%s", self.config.name, self.address, seen, extra={"fields": fields})

    async def _values(self) -> Values:
        return coordinator_values(self.config.name, time.monotonic() - self._began, await self.view())

    async def _readiness(self) -> Readiness:
        return coordinator_readiness(await self.view())

    async def view(self) -> CoordinatorView | None:
        """One look at the coordinator, for which the store is asked; None while it starts."""
        if self._server is None:
            return None
        nodes, active_coordinator, store_error = None, "", ""
        try:
            async with asyncio.timeout(STORE_S):
                nodes, active_coordinator = await self._store.nodes(), await self._store.active_coordinator()
        except TimeoutError:
            store_error = f"there was no answer within {STORE_S:.0f} s"
        except (StoreUnavailable, StorageError) as error:
            store_error = str(error)
        return CoordinatorView(
            active=self._store.active(),
            active_coordinator=active_coordinator,
            nodes=nodes,
            store_error=store_error,
            logs=log_views(self._duties, self._summaries),
            register=self._register.counts,
            requests=self._requests,
            reconfigurations=self._register.reconfigurations,
            connections=self._server.connections,
            connections_refused=self._server.refused,
        )

    # ---------------------------------------------------------------------------------------------------------- duties

    async def _look_after_logs(self) -> None:
        """Campaign, do the duties while active, and campaign again."""
        while True:
            try:
                await self._store.campaign(self.config.name)
                log.info("coordinator %s is active", self.config.name)
                await self._do_duties()
            except StoreUnavailable as error:
                log.warning("the metadata store is not available: %s", error)
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _do_duties(self) -> None:
        """Until deposed, or until the watch ends. Raises what ended it otherwise."""
        following, deposed = asyncio.create_task(self._follow_logs()), asyncio.create_task(self._store.deposed())
        tasks = (following, deposed)
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._drop_duties()
        for task in ended:
            task.result()
        if following in ended:  # a store that ends its watches at once must not be asked all the time
            log.warning("the metadata store ended its watch; looking again")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _follow_logs(self) -> None:
        """Look after every log there is, and those that come."""
        changes = self._store.watch()
        for name in await self._store.logs():
            self._look_after(name)
        nodes = await self._nodes()
        async for name in changes:
            if name != NODES_CHANGED:
                self._look_after(name)
            elif (found := await self._nodes()) is None or found != nodes:
                nodes = found
                for duties in self._duties.values():
                    duties.wake()

    async def _nodes(self) -> tuple[NodeInfo, ...] | None:
        """As far as duties depend on them: clients come and go. None: the store did not say."""
        try:
            return tuple(info for info in await self._store.nodes() if info.state is not NodeState.CLIENT)
        except StoreUnavailable:
            return None

    def _look_after(self, name: str) -> None:
        if name in self._duties:
            self._duties[name].wake()
        else:
            config = self.config
            self._duties[name] = LogDuties(
                config.name,
                start_number(),  # elected again, it is another process: its roles begin anew
                self.cluster,
                name,
                config.tick_ms,
                self._turns,
                self._register,
                self._links,
                config.record,
                self._finished,
            )

    def _finished(self, name: str) -> None:
        """A deleted log: nothing is left of it. It is looked after again should the watch name it."""
        self._duties.pop(name).close()

    def _drop_duties(self) -> None:
        for duties in self._duties.values():
            duties.close()
        self._duties.clear()
