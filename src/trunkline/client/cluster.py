"""A connection to a cluster."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

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
from trunkline.client.session import Session
from trunkline.core.calls import CreateLog
from trunkline.core.effects import Address, Message
from trunkline.core.events import Created, CreateRefused
from trunkline.core.messages import (
    Get,
    Got,
    NodeInfo,
    NodeState,
)
from trunkline.core.names import log_name_fault, may_be_log
from trunkline.core.projection import Policy, Projection, Settings
from trunkline.core.status import ClusterEvents, ClusterStatus, NodeStatus
from trunkline.core.timing import DEFAULT_TIMING, Timing
from trunkline.errors import ConfigError, NoSuchLog, ProtocolError, Refused, Unreachable
from trunkline.net.addresses import format_address, parse_address
from trunkline.net.admin import (
    ClusterAnswer,
    ClusterRequest,
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
from trunkline.net.dial import NOBODY_LISTENS
from trunkline.net.peers import Peers
from trunkline.runtime.links import COORDINATOR, REGISTER, Links
from trunkline.runtime.questions import Questions

T = TypeVar("T")

DEFAULT_PORT = 7400
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
NOT_OPEN = "the cluster handle is {}: use `async with trunkline.connect(...)`"
LOOK_S = 0.02  # while the first answer is waited for without patience
START_IT = "Start one with `trunkline up`, or give the address of the one that runs"
ADMIN = Address(COORDINATOR, "admin")


class ClientOptions(Struct, frozen=True):
    """How a client behaves; each default suits a local network."""

    timeout: float | None = 30.0  # seconds; too small: calls give up during a fail-over; None: they wait for ever
    connect_timeout: float = 5.0
    token: str = ""  # the cluster's shared secret
    suspect_after_ms: int = DEFAULT_TIMING.suspect_after_ms  # a silent node counts as failed after this
    fill_after_ms: int = DEFAULT_TIMING.fill_after_ms  # a reader waits this long before it fills a hole
    lease_ms: int = DEFAULT_TIMING.lease_ms  # of a broadcast writer; too big: others wait this long for a dead one
    batch: BatchOptions = BatchOptions()
    record: Path | None = None  # a directory for recordings, judged by `trunkline check --recording`
    name: str = ""  # shown as the owner of broadcast logs; a random part is added

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


class Cluster:
    """Made by ``trunkline.connect``. Use it as an async context manager."""

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
        self._state = "not open"
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
        """Connect, and learn which cluster this is. Raises ``Unreachable`` if no coordinator answers.

        ``patient``: one that is just starting is given ``connect_timeout`` to answer. Otherwise it is over as soon as
        every address has failed once.
        """
        if self._state == "open":
            raise ConfigError("the cluster handle is open already")
        options = self.options
        self._loop = asyncio.get_running_loop()
        self._start = time.time_ns()
        self._name = f"{options.name or 'client'}-{secrets.token_hex(4)}"
        self._peers = Peers(self._received, name=self._name, token=options.token, tls=self._tls)
        self._links = Links(self._peers, self.addresses)
        self._questions = Questions(f"{self._name}.questions", self._links)
        self._state = "open"
        try:
            async with self._within(options.connect_timeout):
                answer = await (self._first_answer() if patient else self._first_answer_or_failure())
        except BaseException:
            await self.close()
            raise
        assert isinstance(answer, ClusterAnswer)
        self._id = self._peers.cluster = answer.cluster

    @property
    def id(self) -> str:
        """Which cluster this is: known once it was connected to."""
        if not self._id:
            raise ConfigError(NOT_OPEN.format(self._state))
        return self._id

    async def _first_answer(self) -> Message:
        return await self._questions.ask(ADMIN, ClusterRequest())

    async def _first_answer_or_failure(self) -> Message:
        """Raises ``TimeoutError`` as soon as there is nothing left to wait for."""
        asking = asyncio.ensure_future(self._first_answer())
        try:
            while not asking.done():
                if all(self._peers.error(address) for address in self.addresses):
                    raise TimeoutError
                await asyncio.wait((asking,), timeout=LOOK_S)
            return asking.result()
        finally:
            asking.cancel()

    async def close(self) -> None:
        """Settle what is under way, and disconnect."""
        if self._state == "open":
            self._state = "closed"
            await asyncio.gather(*(log.close() for log in self._logs))
            await self._peers.close()

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
        """Open a log; ``create`` makes it first if it does not exist (with other settings: ``Refused``)."""
        if create:
            await self.create_log(name, log_settings(policy, replicas, min_replicas, groups, stripe_unit))
        view = await self.describe(name)
        log = Log(self._session(name), view, self.options.batch, self.options.timeout, lambda: self._session(name))
        self._logs.append(log)
        return log

    async def create_log(self, name: str, settings: Settings) -> int:
        """Create a log; answers its epoch. A log that exists with the same settings is left as it is."""
        check_log_name(name)
        check_kind("settings", settings, Settings, "a Settings, as trunkline.client.cluster.log_settings makes it")
        session = self._session(name)
        try:
            async with self._within(self.options.timeout, f"creating {name}"):
                role = session.ensure_administrator()
                result = await session.operate(role, lambda operation: CreateLog(operation, name, settings))
        finally:
            session.close()
        if isinstance(result, CreateRefused):
            raise Refused(f"{name}: {result.why}")
        assert isinstance(result, Created)
        return result.epoch

    async def logs(self) -> tuple[str, ...]:
        answer = await self._ask(ADMIN, ListLogs(), "the list of logs")
        assert isinstance(answer, LogsListed)
        return answer.names

    async def describe(self, name: str) -> Projection:
        """The log's map as the metadata has it now."""
        check_text("name", name)
        if not may_be_log(name):
            raise NoSuchLog(log_name_fault(name))
        answer = await self._ask(REGISTER, Get(name), f"the description of {name}")
        assert isinstance(answer, Got)
        if answer.projection is None or answer.projection.deleted:
            gone = "was deleted" if answer.projection is not None else "does not exist; create it first"
            raise NoSuchLog(f"log {name} {gone}")
        return answer.projection

    # ----------------------------------------------------------------------------------------------------------- nodes

    async def nodes(self) -> tuple[NodeInfo, ...]:
        answer = await self._ask(REGISTER, Get(""), "the list of nodes")
        assert isinstance(answer, Got)
        return tuple(info for info in answer.nodes if info.state is not NodeState.CLIENT)

    async def set_node_state(self, node: str, state: str) -> None:
        """``rw``, ``draining`` (nothing new is placed on it, what it has moves away) or ``gone`` (for ever)."""
        check_text("node", node)
        try:
            wanted = NodeState(state)
        except ValueError:
            raise ConfigError(f"{state!r} is no state of a node: rw, draining, gone") from None
        answer = await self._ask(ADMIN, SetNodeState(node, wanted), f"the state of {node}")
        assert isinstance(answer, NodeStateSet)
        if not answer.done:
            raise Refused(answer.why or f"there is no node {node}")

    async def forget_node(self, node: str) -> None:
        """Take a node that is gone out of the registry: it must not be live, and no log may name it."""
        check_text("node", node)
        answer = await self._ask(ADMIN, ForgetNode(node), f"forgetting {node}")
        assert isinstance(answer, NodeStateSet)
        if not answer.done:
            raise Refused(answer.why)

    async def status(self, *, logs: bool = True, timeout: Timeout = DEFAULT) -> ClusterStatus:
        """The coordinator's view of the cluster; without ``logs`` it is short, however many there are."""
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
        """What a node reports about itself."""
        check_text("node", node)
        if node not in [info.node for info in await self.nodes()]:
            raise Refused(f"there is no node {node}; `trunkline node list` lists them")
        answer = await self._ask(Address(node, "admin"), StatusRequest(), f"the status of node {node}", timeout)
        assert isinstance(answer, StatusAnswer)
        return _decoded(answer.json, NodeStatus, f"the status of node {node}")

    # ---------------------------------------------------------------------------------------------------------- inside

    def _session(self, log: str) -> Session:
        self._check_open()
        self._sessions += 1
        options = self.options
        timing = Timing(
            suspect_after_ms=options.suspect_after_ms, fill_after_ms=options.fill_after_ms, lease_ms=options.lease_ms
        )
        name = f"{self._name}.{self._sessions}"
        return Session(name, self._start, self.id, log, self._links, timing, options.record)

    def _received(self, *arguments: Any) -> None:
        self._links.received(*arguments)

    def _check_open(self) -> None:
        if self._state != "open":
            raise ConfigError(NOT_OPEN.format(self._state))
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError("the cluster handle belongs to another event loop: connect again in this one")

    async def _ask(self, to: Address, message: Message, what: str, timeout: Timeout = DEFAULT) -> Message:
        self._check_open()
        check_timeout(timeout)
        async with self._within(self.options.timeout if isinstance(timeout, Default) else timeout, what):
            return await self._questions.ask(to, message)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _within(self, timeout: float | None, what: str = "") -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout):
                yield
        except TimeoutError:
            raise Unreachable(self._why_unreachable(what)) from None

    def _why_unreachable(self, what: str) -> str:
        """Each address once, with what is wrong with it."""
        known = {address: self._peers.error(address) or "no answer" for address in self.addresses}
        asked = f"{what}: " if what else ""
        if set(known.values()) == {NOBODY_LISTENS}:
            where = f"{' and '.join(known)} ({NOBODY_LISTENS})"
            return f"{asked}no coordinator answered at {where}; is the cluster up? {START_IT}"
        reasons = "; ".join(f"{address}: {why}" for address, why in known.items())
        return f"{asked}no coordinator answered ({reasons}); is the cluster up? (`trunkline status`)"


def connect(
    addresses: str | Sequence[str] = DEFAULT_ADDRESS,
    *,
    options: ClientOptions | None = None,
    tls: ssl.SSLContext | None = None,
) -> Cluster:
    """A handle on the cluster behind these coordinators: ``async with trunkline.connect("127.0.0.1:7400") as c:``."""
    return Cluster(addresses, options, tls=tls)


def log_settings(
    policy: PolicyName = "chain", replicas: int = 3, min_replicas: int = 1, groups: int = 1, stripe_unit: int = 1024
) -> Settings:
    """Checked settings of a log; ``ConfigError`` names what is wrong."""
    try:
        kind = Policy(policy)
    except ValueError:
        raise ConfigError(f"{policy!r} is no policy: chain, broadcast") from None
    counts = {"replicas": replicas, "min_replicas": min_replicas, "groups": groups, "stripe_unit": stripe_unit}
    for name, value in counts.items():
        check_count(name, value)
    if not 1 <= min_replicas <= replicas:
        raise ConfigError(f"min_replicas ({min_replicas}) must be between 1 and replicas ({replicas})")
    if kind is Policy.BROADCAST and groups > 1:
        raise ConfigError(f"groups must be 1 for a broadcast log; it is {groups}")
    return Settings(kind, replicas, min_replicas, groups, stripe_unit)


def check_log_name(name: str) -> None:
    """Raise ``ConfigError`` for a name under which no log is made."""
    check_text("name", name)
    if fault := log_name_fault(name):
        raise ConfigError(fault)


def _decoded(answer: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{what} cannot be read ({error}); upgrade the older peer") from None


def _address_list(addresses: str | Sequence[str]) -> list[str]:
    """Raises ``ConfigError`` for what is no address: nobody should wait for it."""
    given: object = addresses
    if not isinstance(given, str | Sequence):
        kind = type(given).__name__
        raise ConfigError(f"addresses are a str such as {DEFAULT_ADDRESS!r}, or a list of such, not {kind}")
    found = []
    for each in addresses.split(",") if isinstance(addresses, str) else addresses:
        check_text("an address", each)
        if each.strip():
            found.append(format_address(*parse_address(each, DEFAULT_PORT)))
    if not found:
        raise ConfigError(f"no address of a coordinator was given, such as {DEFAULT_ADDRESS}")
    return list(dict.fromkeys(found))
