"""A node: stores log streams, and is the sequencer of segments that name it."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from trunkline.core.effects import Address
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import NodeInfo, Space
from trunkline.core.projection import Owner
from trunkline.core.sequencer import Sequencer
from trunkline.core.status import NodeStatus
from trunkline.core.storage import NodeImage, StorageNode
from trunkline.core.timing import DEFAULT_TIMING, Timing
from trunkline.errors import ConfigError
from trunkline.net.addresses import parse_address
from trunkline.net.admin import ClusterAnswer, ClusterRequest, Leaving, StatusAnswer, StatusRequest
from trunkline.net.connection import Connection
from trunkline.net.packets import Envelope
from trunkline.net.server import Server
from trunkline.observing.metrics import Values
from trunkline.observing.readiness import Readiness
from trunkline.runtime.links import COORDINATOR, REGISTER, Links
from trunkline.runtime.node_host import NodeHost
from trunkline.runtime.node_metrics import TABLE, NodeView, node_readiness, node_values
from trunkline.runtime.questions import Questions
from trunkline.runtime.recorder import Recorder
from trunkline.runtime.server_process import Lifetime, file_budget, listen, log_listening, start_number
from trunkline.storage import Engine, NotFormatted, StorageOptions, SyncPolicy, format_directory, make_private

if TYPE_CHECKING:
    from trunkline.observing.server import ObservingServer

log = logging.getLogger("trunkline.node")

TICK_S = 1.0  # between ticks of the host; a stream that is idle for so long gets a mark
NEVER_SYNC_S = 30.0  # how often full extents are closed under the policy `never`
REGISTRATION_CHECK_S = 1.0
UNREGISTERED_LOG_S = 60.0  # how often an unchanged reason is logged again
SCRUB_REST_S = 3600.0  # between two rounds of the scrubber


class NodeConfig(Struct, frozen=True):
    directory: Path
    name: str
    listen: str = "127.0.0.1:7401"
    coordinators: tuple[str, ...] = ("127.0.0.1:7400",)
    advertise: str = ""  # where others reach this node; "": where it listens
    zone: str = ""  # replicas of a group are placed in distinct zones
    token: str = ""
    lease_ms: int = DEFAULT_TIMING.lease_ms  # too small: a busy node looks dead; too big: a dead one is replaced late
    record: Path | None = None  # a directory for recordings
    storage: StorageOptions = StorageOptions()
    observe: str = ""  # where metrics and health are served, host:port; "": nowhere
    allow_hosts: tuple[str, ...] = ()  # host names under which they are served, besides the address


async def run_node(
    config: NodeConfig, *, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
) -> int:
    """Serve until SIGTERM or SIGINT, or until the disk fails. Returns the exit code."""
    node = NodeServer(config, server_tls, client_tls)
    try:
        return await node.lifetime.run(node.start())
    finally:
        await node.close()


class NodeServer:
    def __init__(
        self, config: NodeConfig, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
    ) -> None:
        self.config = config
        self.address = ""
        self.lifetime = Lifetime()
        self._server_tls = server_tls
        self._began = time.monotonic()
        self._start = start_number()
        self._links = Links(config.name, config.coordinators, token=config.token, tls=client_tls)
        self._questions = Questions(f"{config.name}.questions", self._links)
        self._engine: Engine | None = None
        self._server: Server | None = None
        self._recorder: Recorder | None = None
        self._observing: ObservingServer | None = None
        self._serving = False
        self._tasks: list[asyncio.Task[None]] = []
        self.host: NodeHost

    async def start(self) -> None:
        config = self.config
        if config.advertise:
            check_advertised(config.advertise)
        if config.observe:  # first: readiness must show that it waits for a coordinator
            await self._observe()
        engine = self._engine = await self._open_engine()
        identity = engine.identity
        self._links.peers.cluster = identity.cluster  # a coordinator of another cluster refuses this node
        if config.record is not None:
            self._recorder = Recorder(config.record, identity.cluster, config.name, self._start)
        self.host = NodeHost(config.name, engine, config.storage.sync, self._links, self._recorder, self.lifetime.end)
        image, engine.image = engine.image, NodeImage()  # the role takes it: no second copy
        process = self.host.process
        process.add("storage", StorageNode(identity.cluster, config.name, identity.incarnation, image))
        process.add("sequencer", Sequencer(Owner(config.name, self._start)))
        self._server, listens_on = await listen(
            config.listen,
            self._received,
            identity.cluster,
            config.name,
            config.token,
            self._server_tls,
            self.host.disconnected,
        )
        self.address = config.advertise or listens_on
        info = NodeInfo(
            config.name,
            identity.incarnation,
            self._start,
            address=self.address,
            zone=config.zone,
            space=self.host.reported_space(),
        )
        timing = Timing(lease_ms=config.lease_ms)
        process.add("lease", LeaseKeeper(info, REGISTER, retry_ms=timing.renew_ms, lease_ms=timing.lease_ms))
        self._serving = True
        log_listening(log, f"node {config.name}", self.address, self._observe_address)
        self._tasks.append(asyncio.create_task(self._tick()))
        self._tasks.append(asyncio.create_task(self._log_why_unregistered()))
        if config.storage.sync is not SyncPolicy.ALWAYS:
            self._tasks.append(asyncio.create_task(self._sync_periodically()))
        self._tasks.append(asyncio.create_task(self._scrub()))

    async def close(self) -> None:
        if self._observing is not None:
            await self._observing.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self.host.close()
            if self.lifetime.stopped_cleanly:  # only after the roles have stopped: their answers depend on the lease
                self._links.send_to_connected_coordinator(Leaving(self.config.name, self._start))
            await self._server.close()
        await self._links.peers.close()
        if self._engine is not None:
            self._engine.close()
        if self._recorder is not None:
            self._recorder.close()
        self.lifetime.close()

    # ------------------------------------------------------------------------------------------------------- internal

    async def _open_engine(self) -> Engine:
        config = self.config
        make_private(config.directory)
        files_max = file_budget().storage
        try:
            return Engine.open(config.directory, config.storage, files_max=files_max)
        except NotFormatted:
            cluster = await self._ask_cluster()
            format_directory(config.directory, cluster, config.name)
            log.info("formatted %s for node %s of cluster %s", config.directory, config.name, cluster)
            return Engine.open(config.directory, config.storage, files_max=files_max)

    async def _ask_cluster(self) -> str:
        log.info("reading the cluster's id from the coordinator at %s", ", ".join(self.config.coordinators))
        answer = await self._questions.ask(Address(COORDINATOR, "admin"), ClusterRequest())
        assert isinstance(answer, ClusterAnswer)
        return answer.cluster

    def _received(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        if isinstance(envelope.message, StatusRequest):
            connection.send("", envelope.token, StatusAnswer(msgspec.json.encode(self.status())))
        else:
            self.host.received(connection, envelope, attachments)

    def status(self) -> NodeStatus:
        assert self._engine is not None
        engine, config = self._engine.status(), self.config
        lease, counts = self.host.process.roles.get("lease"), self.host.counts
        return NodeStatus(
            node=config.name,
            address=self.address,
            zone=config.zone,
            incarnation=self._engine.identity.incarnation,
            start=self._start,
            sync=config.storage.sync.value,
            streams=engine.streams,
            extents=engine.extents,
            bytes_used=engine.stored_bytes,
            bytes_free=engine.free_bytes,
            full=engine.full,
            tight=self.host.reported_space() >= Space.TIGHT,
            fresh=lease is not None and lease.phase == "fresh",
            unsynced_bytes=engine.unsynced_bytes,
            connections=len(self.host.connections),
            uptime_s=round(self._uptime_s(), 1),
            entries_appended=counts.entries_stored,
            bytes_appended=counts.bytes_stored,
            entries_read=counts.entries_read,
            bytes_read=counts.bytes_read,
            observe=self._observe_address,
        )

    # ------------------------------------------------------------------------------------------------------- observing

    async def _observe(self) -> None:
        from trunkline.observing.pages import ObservedProcess  # loads an HTTP server: only if it is needed
        from trunkline.observing.server import ObservingServer

        process = ObservedProcess("node", self.config.name, TABLE, self._values, self._readiness)
        self._observing = await ObservingServer.start(self.config.observe, process, self.config.allow_hosts)

    @property
    def _observe_address(self) -> str:
        return self._observing.address if self._observing is not None else ""

    async def _values(self) -> Values:
        return node_values(self.config.name, self._uptime_s(), self.view())

    async def _readiness(self) -> Readiness:
        return node_readiness(self.view())

    def view(self) -> NodeView | None:
        """The state for metrics and readiness; None while it starts."""
        if not self._serving:
            return None
        assert self._engine is not None
        assert self._server is not None
        roles = self.host.process.roles
        storage, lease = roles["storage"], roles["lease"]
        assert isinstance(storage, StorageNode)
        assert isinstance(lease, LeaseKeeper)
        return NodeView(
            engine=self._engine.status(),
            counts=self.host.counts,
            registered=lease.phase == "fresh",
            disk_silent=self.host.disk_is_silent(),
            connections=self._server.connections,
            connections_refused=self._server.refused,
            violations=self._server.violations,
            damaged_streams=sum(stream.data_loss for stream in storage.streams.values()),
            damage_found=lease.info.damaged,
        )

    def _uptime_s(self) -> float:
        return time.monotonic() - self._began

    # ------------------------------------------------------------------------------------------------------ background

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.host.tick()

    async def _log_why_unregistered(self) -> None:
        """No log uses an unregistered node: log the reason when it changes, and now and then."""
        lease = self.host.process.roles["lease"]
        logged, logged_at = "", float("-inf")
        while True:
            await asyncio.sleep(REGISTRATION_CHECK_S)
            found = [(each, self._links.peers.error(each)) for each in self.config.coordinators]
            errors = [f"{each}: {error}" for each, error in found if error is not None]
            why = "; ".join(errors) if lease.phase != "fresh" else ""
            now = time.monotonic()
            if why and (why != logged or now - logged_at >= UNREGISTERED_LOG_S):
                log.error("node %s is not registered, and no log uses it: %s", self.config.name, why)
                logged, logged_at = why, now

    async def _sync_periodically(self) -> None:
        """The policy ``never`` needs it, too, though rarely: a sync closes full extents."""
        assert self._engine is not None
        storage = self.config.storage
        period_s = storage.interval_ms / 1000 if storage.sync is SyncPolicy.INTERVAL else NEVER_SYNC_S
        while True:
            await asyncio.sleep(period_s)
            if self._engine.unsynced:
                self.host.sync()

    async def _scrub(self) -> None:
        """Read everything at a bounded rate, round after round."""
        assert self._engine is not None
        rate = self.config.storage.scrub_bytes_per_s
        while True:
            await asyncio.sleep(SCRUB_REST_S)
            for step in self._engine.scrub():
                self.host.counts.scrubbed_bytes += step.bytes_read
                for key, frame in step.damaged:
                    self.host.damaged(key, (frame,))
                await asyncio.sleep(max(step.bytes_read / rate, 0.001))


def check_advertised(address: str) -> None:
    """Raise ``ConfigError`` for an address that cannot be dialled."""
    host, _ = parse_address(address)
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(f"{host!r} in {address!r} is not a valid host name; advertise host:port") from None
