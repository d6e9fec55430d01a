"""A cluster, as an application uses it."""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec
from msgspec import Struct

from trunkline.client.arguments import (
    DEFAULT,
    Default,
    PolicyName,
    Timeout,
    check_count,
    check_kind,
    check_text,
    check_timeout,
)
from trunkline.client.batcher import BatchOptions
from trunkline.client.log import Log
from trunkline.client.process import ADMIN, ClientProcess
from trunkline.client.session import Session
from trunkline.core.calls import CreateLog
from trunkline.core.effects import Address, Message
from trunkline.core.events import CreateRefused
from trunkline.core.messages import Get, Got, NodeInfo, NodeState
from trunkline.core.names import log_name_fault, may_be_log
from trunkline.core.projection import Policy, Projection, Settings
from trunkline.core.status import ClusterEvents, ClusterStatus, NodeStatus
from trunkline.core.timing import DEFAULT_TIMING, Timing
from trunkline.errors import ConfigError, NoSuchLog, ProtocolError, Refused
from trunkline.net.addresses import format_address, parse_address
from trunkline.net.admin import (
    EventsAnswer,
    EventsRequest,
    ForgetNode,
    ListLogs,
    LogsListed,
    NodeStateSet,
    SetNodeState,
    StatusAnswer,
    StatusRequest,
)
from trunkline.runtime.links import REGISTER

T = TypeVar("T")

DEFAULT_PORT = 7400
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
NOT_OPEN = "the cluster handle is {}: use `async with trunkline.connect(...)`"


class ClientOptions(Struct, frozen=True):
    """How a client behaves; each default suits a local network."""

    timeout: float | None = 30.0  # seconds; too small: calls give up during a fail-over; None: they wait forever
    connect_timeout: float = 5.0
    token: str = ""  # the cluster's shared secret
    suspect_after_ms: int = DEFAULT_TIMING.suspect_after_ms  # a silent node counts as failed after this
    fill_after_ms: int = DEFAULT_TIMING.fill_after_ms  # a reader waits this long before it fills a hole
    lease_ms: int = DEFAULT_TIMING.lease_ms  # of a broadcast writer; too big: others wait this long for a dead one
    batch: BatchOptions = BatchOptions()
    record: Path | None = None  # a directory for recordings, judged by `trunkline check --recording`
    name: str = ""  # shown as the owner of broadcast logs, with a random suffix

    def __post_init__(self) -> None:
        check_timeout(self.timeout)
        check_timeout(self.connect_timeout, "connect_timeout")
        for name in ("token", "name"):
            check_text(name, getattr(self, name))
        for name in ("suspect_after_ms", "fill_after_ms", "lease_ms"):
            check_count(name, getattr(self, name), least=0 if name == "fill_after_ms" else 1)
        check_kind("batch", self.batch, BatchOptions, "a trunkline.BatchOptions")
        if self.record is not None:
            check_kind("record", self.record, Path, "the pathlib.Path of a directory")


class _NoProcess(enum.Enum):
    """The state of a handle that has no process."""

    NOT_OPEN = "not open"
    CLOSED = "closed"


class Cluster:
    """A handle on a cluster. Made by ``trunkline.connect``; use it as an async context manager."""

    def __init__(
        self, addresses: str | Sequence[str] = DEFAULT_ADDRESS, options: ClientOptions | None = None, *,
        tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        if options is not None:
            check_kind("options", options, ClientOptions, "a trunkline.ClientOptions")
        if tls is not None:
            check_kind("tls", tls, ssl.SSLContext, "an ssl.SSLContext")
        self.addresses = _address_list(addresses)
        self.options = options or ClientOptions()
        self._tls = tls
        self._process: ClientProcess | _NoProcess = _NoProcess.NOT_OPEN
        self._id = ""
        self._sessions = 0
        self._logs: list[Log] = []

    def __repr__(self) -> str:
        return f"<Cluster at {','.join(self.addresses)}, {self._state}>"

    async def __aenter__(self) -> Cluster:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, *, patient: bool = True) -> None:
        """Connect. Raises ``Unreachable`` if no coordinator answers.

        ``patient``: wait up to ``connect_timeout``, also for a coordinator that is just starting. Otherwise give up as
        soon as every address has failed once.
        """
        if isinstance(self._process, ClientProcess):
            raise ConfigError("the cluster handle is already open")
        process = self._process = ClientProcess(self.addresses, self.options.name, self.options.token, self._tls)
        try:
            self._id = await process.find_cluster(self.options.connect_timeout, patient=patient)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Wait for appends in flight, and disconnect."""
        if isinstance(self._process, ClientProcess):
            process, self._process = self._process, _NoProcess.CLOSED
            await asyncio.gather(*(log.close() for log in self._logs))
            await process.close()

    @property
    def id(self) -> str:
        """The id of the cluster, once the handle is open."""
        if not self._id:
            raise ConfigError(NOT_OPEN.format(self._state))
        return self._id

    # ------------------------------------------------------------------------------------------------------------ logs

    async def log(
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
        if create:
            view = await self._create(name, log_settings(policy, replicas, min_replicas, groups, stripe_unit))
        else:
            view = await self.describe(name)
        log = Log(self._session(name), view, self.options.batch, self.options.timeout, lambda: self._session(name))
        self._logs.append(log)
        return log

    async def create_log(self, name: str, settings: Settings) -> int:
        """Create a log, and return its epoch. A log that exists with the same settings stays as it is."""
        return (await self._create(name, settings)).epoch

    async def logs(self) -> tuple[str, ...]:
        """The names of all logs."""
        answer = await self._ask(ADMIN, ListLogs(), "the list of logs")
        assert isinstance(answer, LogsListed)
        return answer.names

    async def describe(self, name: str) -> Projection:
        """The projection of a log, as the metadata store has it now: settings, segments, replicas, trim point."""
        check_text("name", name)
        if not may_be_log(name):
            raise NoSuchLog(log_name_fault(name))
        answer = await self._ask(REGISTER, Get(name), f"the description of {name}")
        assert isinstance(answer, Got)
        if answer.projection is None or answer.projection.deleted:
            why = "was deleted" if answer.projection is not None else "does not exist; create it first"
            raise NoSuchLog(f"log {name} {why}")
        return answer.projection

    # ----------------------------------------------------------------------------------------------------------- nodes

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """The registered nodes."""
        answer = await self._ask(REGISTER, Get(""), "the list of nodes")
        assert isinstance(answer, Got)
        return tuple(info for info in answer.nodes if info.state is not NodeState.CLIENT)

    async def set_node_state(self, node: str, state: str) -> None:
        """``rw``, ``draining`` (its segments move to other nodes) or ``gone`` (it never returns)."""
        check_text("node", node)
        try:
            wanted = NodeState(state)
        except ValueError:
            raise ConfigError(f"{state!r} is not a node state; choose rw, draining or gone") from None
        answer = await self._ask(ADMIN, SetNodeState(node, wanted), f"the state of {node}")
        assert isinstance(answer, NodeStateSet)
        if not answer.done:
            raise Refused(answer.why or f"there is no node {node}")

    async def forget_node(self, node: str) -> None:
        """Remove a node from the registry. It must not be live, and no log may name it."""
        check_text("node", node)
        answer = await self._ask(ADMIN, ForgetNode(node), f"forgetting {node}")
        assert isinstance(answer, NodeStateSet)
        if not answer.done:
            raise Refused(answer.why)

    async def status(self, *, logs: bool = True, timeout: Timeout = DEFAULT) -> ClusterStatus:
        """The status of the cluster, from a coordinator. Without ``logs`` its size does not grow with their number."""
        answer = await self._ask(ADMIN, StatusRequest(bool(logs)), "the status", timeout)
        assert isinstance(answer, StatusAnswer)
        return _decoded(answer.json, ClusterStatus, "the status")

    async def events(self, *, book: str = "", after: int = 0, timeout: Timeout = DEFAULT) -> ClusterEvents:
        """Recent events as the answering coordinator remembers them. ``book`` and ``after``, from an earlier answer and
        the number of its last event, leave out what was in it.
        """
        answer = await self._ask(ADMIN, EventsRequest(book, after), "the events", timeout)
        assert isinstance(answer, EventsAnswer)
        return _decoded(answer.json, ClusterEvents, "the answer about events")

    async def node_status(self, node: str, *, timeout: Timeout = 2.0) -> NodeStatus:
        """The status of a node, from the node itself."""
        check_text("node", node)
        if node not in [info.node for info in await self.nodes()]:
            raise Refused(f"there is no node {node}; `trunkline node list` lists them")
        answer = await self._ask(Address(node, "admin"), StatusRequest(), f"the status of node {node}", timeout)
        assert isinstance(answer, StatusAnswer)
        return _decoded(answer.json, NodeStatus, f"the status of node {node}")

    # ---------------------------------------------------------------------------------------------------------- inside

    @property
    def _state(self) -> str:
        return self._process.value if isinstance(self._process, _NoProcess) else "open"

    def _opened(self) -> ClientProcess:
        if isinstance(self._process, _NoProcess):
            raise ConfigError(NOT_OPEN.format(self._state))
        self._process.check_loop()
        return self._process

    def _session(self, log: str) -> Session:
        process, options = self._opened(), self.options
        self._sessions += 1
        timing = Timing(
            suspect_after_ms=options.suspect_after_ms, fill_after_ms=options.fill_after_ms, lease_ms=options.lease_ms
        )
        name = f"{process.name}.{self._sessions}"
        return Session(name, process.start, self.id, log, process.links, timing, options.record)

    async def _create(self, name: str, settings: Settings) -> Projection:
        check_log_name(name)
        check_kind("settings", settings, Settings, "a Settings, as trunkline.client.cluster.log_settings makes it")
        session = self._session(name)
        try:
            async with self._opened().within(self.options.timeout, f"creating {name}"):
                role = session.ensure_administrator()
                result = await session.begin(role, lambda operation: CreateLog(operation, name, settings))
        finally:
            session.close()
        if isinstance(result, CreateRefused):
            raise Refused(f"{name}: {result.why}")
        assert session.view is not None, "the administrator reads a log that it created"
        return session.view

    async def _ask(self, to: Address, message: Message, what: str, timeout: Timeout = DEFAULT) -> Message:
        process = self._opened()
        check_timeout(timeout)
        return await process.ask(to, message, what, self.options.timeout if isinstance(timeout, Default) else timeout)


def connect(
    addresses: str | Sequence[str] = DEFAULT_ADDRESS,
    *,
    options: ClientOptions | None = None,
    tls: ssl.SSLContext | None = None,
) -> Cluster:
    """Connect to a cluster by the addresses of its coordinators.

    ``async with trunkline.connect("127.0.0.1:7400") as cluster: ...``
    """
    return Cluster(addresses, options, tls=tls)


def log_settings(
    policy: PolicyName = "chain", replicas: int = 3, min_replicas: int = 1, groups: int = 1, stripe_unit: int = 1024
) -> Settings:
    """The settings of a new log. Raises ``ConfigError`` for invalid ones."""
    try:
        kind = Policy(policy)
    except ValueError:
        raise ConfigError(f"{policy!r} is not a policy; choose chain or broadcast") from None
    counts = {"replicas": replicas, "min_replicas": min_replicas, "groups": groups, "stripe_unit": stripe_unit}
    for name, value in counts.items():
        check_count(name, value)
    if not 1 <= min_replicas <= replicas:
        raise ConfigError(f"min_replicas ({min_replicas}) must be between 1 and replicas ({replicas})")
    if kind is Policy.BROADCAST and groups > 1:
        raise ConfigError(f"groups must be 1 for a broadcast log; it is {groups}")
    return Settings(kind, replicas, min_replicas, groups, stripe_unit)


def check_log_name(name: str) -> None:
    """Raise ``ConfigError`` for a name that a new log cannot have."""
    check_text("name", name)
    if fault := log_name_fault(name):
        raise ConfigError(fault)


def _decoded(answer: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{what} cannot be read ({error}); upgrade the older peer") from None


def _address_list(addresses: str | Sequence[str]) -> list[str]:
    """Raises ``ConfigError`` for an invalid address."""
    given: object = addresses
    if not isinstance(given, str | Sequence):
        kind = type(given).__name__
        raise ConfigError(f"addresses are a str such as {DEFAULT_ADDRESS!r}, or a list of them, not {kind}")
    found = []
    for each in addresses.split(",") if isinstance(addresses, str) else addresses:
        check_text("an address", each)
        if each.strip():
            found.append(format_address(*parse_address(each, DEFAULT_PORT)))
    if not found:
        raise ConfigError(f"give the address of a coordinator, such as {DEFAULT_ADDRESS}")
    return list(dict.fromkeys(found))
