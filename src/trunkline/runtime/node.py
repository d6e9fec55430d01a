"""A storage node: keeps log streams, and orders the segments that name it as sequencer."""

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
from trunkline.errors import ConfigError, StorageError
from trunkline.net.addresses import parse_address
from trunkline.net.admin import ClusterAnswer, ClusterRequest, Leaving, StatusAnswer, StatusRequest
from trunkline.net.connection import Connection
from trunkline.net.limits import Limits
from trunkline.net.packets import Envelope
from trunkline.net.server import Server
from trunkline.observing.metrics import Values
from trunkline.observing.readiness import Readiness
from trunkline.runtime.links import COORDINATOR, REGISTER, Links
from trunkline.runtime.node_host import NodeHost
from trunkline.runtime.node_metrics import TABLE, NodeView, node_readiness, node_values
from trunkline.runtime.questions import Questions
from trunkline.runtime.recorder import Recorder
from trunkline.runtime.server_process import Lifetime, file_budget, split_address, start_number
from trunkline.storage import Engine, NotFormatted, StorageOptions, SyncPolicy, format_directory, make_private

if TYPE_CHECKING:
    from trunkline.observing.server import ObservingServer

log = logging.getLogger("trunkline.node")

IDLE_MARK_S = 1.0  # a stream that was idle for so long notes that all of it is on disk
NEVER_SYNC_S = 30.0  # how often files are tidied up under the policy `never`
UNREGISTERED_LOOK_S = 1.0  # how often a node asks itself whether it is registered
UNREGISTERED_AGAIN_S = 60.0  # how often it says why it is not, where nothing has changed
SCRUB_REST_S = 3600.0  # between two rounds of the scrubber


class NodeConfig(Struct, frozen=True):
    directory: Path
    name: str
    listen: str = "127.0.0.1:7401"
    coordinators: tuple[str, ...] = ("127.0.0.1:7400",)
    advertise: str = ""  # where others reach this node; "" is where it listens
    zone: str = ""  # members of a group are put into distinct zones
    token: str = ""
    lease_ms: int = DEFAULT_TIMING.lease_ms  # too small: a busy node looks dead; too big: a dead one is replaced late
    record: Path | None = None  # a directory for recordings
    storage: StorageOptions = StorageOptions()
    scrub: bool = True
    observe: str = ""  # where metrics and health are served, host:port; "": nowhere
    allow_hosts: tuple[str, ...] = ()  # names by which those may be asked for, besides the address


async def run_node(
    config: NodeConfig, *, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
) -> int:
    """Serve until SIGTERM or SIGINT, or until the disk fails. Answers the exit code."""
    node = Node(config, server_tls, client_tls)
    try:
        return await node.lifetime.run(node.start())
    finally:
        await node.close()


class Node:
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
        if config.observe:  # first of all: who waits for a coordinator says so
            await self._observe()
        engine = self._engine = await self._open_engine()
        identity = engine.identity
        self._links.peers.cluster = identity.cluster  # a coordinator of another one refuses this node
        if config.record is not None:
            self._recorder = Recorder(config.record, identity.cluster, config.name, self._start)
        self.host = NodeHost(config.name, engine, config.storage.sync, self._links, self._recorder, self.lifetime.end)
        image, engine.image = engine.image, NodeImage()  # the role takes it over: no second copy
        process = self.host.process
        process.add("storage", StorageNode(identity.cluster, config.name, identity.incarnation, image))
        process.add("sequencer", Sequencer(Owner(config.name, self._start)))
        listen_host, port = split_address(config.listen)
        try:
            self._server = await Server.start(
                listen_host,
                port,
                self._received,
                cluster=identity.cluster,
                name=config.name,
                token=config.token,
                limits=Limits(connections_max=file_budget().connections),
                tls=self._server_tls,
                on_closed=self.host.disconnected,
            )
        except OSError as error:
            raise StorageError(f"cannot listen on {config.listen}: {error.strerror or error}") from None
        self.address = config.advertise or f"{listen_host}:{self._server.port}"
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
        self._say_listening()
        self._tasks.append(asyncio.create_task(self._tidy_up()))
        self._tasks.append(asyncio.create_task(self._say_why_unregistered()))
        if config.storage.sync is not SyncPolicy.ALWAYS:
            self._tasks.append(asyncio.create_task(self._sync_now_and_then()))
        if config.scrub:
            self._tasks.append(asyncio.create_task(self._scrub()))

    async def close(self) -> None:
        if self._observing is not None:
            await self._observing.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self.host.close()
            if self.lifetime.orderly:  # not before the roles have stopped: they vouch for what they say by the lease
                self._links.send_to_connected_coordinator(Leaving(self.config.name, self._start))
            await self._server.close()
        await self._links.peers.close()
        if self._engine is not None:
            self._engine.close()
        if self._recorder is not None:
            self._recorder.close()
        self.lifetime.close()

    # --------------------------------------------------------------------------------------------------------- inside

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
        log.info("asking the coordinator at %s which cluster this is", ", ".join(self.config.coordinators))
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
            observe=self._observing.address if self._observing is not None else "",
        )

    # ------------------------------------------------------------------------------------------------------- observing

    async def _observe(self) -> None:
        from trunkline.observing.pages import ObservedProcess  # loads an HTTP server: only if it is needed
        from trunkline.observing.server import ObservingServer

        process = ObservedProcess("node", self.config.name, TABLE, self._values, self._readiness)
        self._observing = await ObservingServer.start(self.config.observe, process, self.config.allow_hosts)

    def _say_listening(self) -> None:
        fields = {"address": self.address, "observe": self._observing.address if self._observing is not None else ""}
        seen = f", observed at http://{fields['observe']}/metrics" if self._observing is not None else ""
        log.info("node %s listens on %s%s", self.config.name, self.address, seen, extra={"fields": fields})

    async def _values(self) -> Values:
        return node_values(self.config.name, self._uptime_s(), self.view())

    async def _readiness(self) -> Readiness:
        return node_readiness(self.view())

    def view(self) -> NodeView | None:
        """One look at the node; None while it starts."""
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

    async def _tidy_up(self) -> None:
        while True:
            await asyncio.sleep(IDLE_MARK_S)
            self.host.tidy_up()

    async def _say_why_unregistered(self) -> None:
        """A node that no coordinator lets in takes no part in anything: it says so when it begins, and now and then."""
        lease = self.host.process.roles["lease"]
        said, said_at = "", float("-inf")
        while True:
            await asyncio.sleep(UNREGISTERED_LOOK_S)
            found = [(each, self._links.peers.error(each)) for each in self.config.coordinators]
            errors = [f"{each}: {error}" for each, error in found if error is not None]
            why = "; ".join(errors) if lease.phase != "fresh" else ""
            now = time.monotonic()
            if why and (why != said or now - said_at >= UNREGISTERED_AGAIN_S):
                log.error("node %s is not registered, and no log uses it: %s", self.config.name, why)
                said, said_at = why, now

    async def _sync_now_and_then(self) -> None:
        """Policy ``never`` needs it, too, though seldom: full extents are closed by a sync."""
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
    """Raise ``ConfigError`` for an address that nobody could dial: whoever learns it from the metadata cannot help."""
    host, _ = parse_address(address)
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(f"{host!r} in {address!r} is no name of a host; advertise host:port") from None
