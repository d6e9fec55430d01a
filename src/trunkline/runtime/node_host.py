"""The host of a node's roles, between disk and connections.

Rules
 O1  A request is checked before a role sees it (``requests.py``): the role accepts its kind, it is within bounds, and
     its bytes match their checksum. Otherwise the sender receives the reason, and nothing else happens.
 O2  Records are written as they arrive; one sync at a time makes everything written before it durable (group commit).
     Under the policies ``interval`` and ``never`` a written record is as durable as the policy promises.
 O3  ``bodies.py`` sends answers with bodies.
 O4  With more than ``UNSYNCED_BYTES_MAX`` unsynced, nothing is read from connections until the disk has caught up.
 O5  A failed sync stops the process: the content of the disk is unknown.
 O6  Before each request the role learns the space level, with the request's own bytes counted. A record that finds no
     room all the same (another program took it) waits like an unsynced record, and O4 holds until there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from trunkline.core.effects import Address, Choose, Complete, Event, Message, Record
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import (
    Fetched,
    Finalize,
    Inventory,
    NotGranted,
    Open,
    ReadFrames,
    Reason,
    Register,
    Rejected,
    Seal,
    Space,
    Write,
    Written,
)
from trunkline.core.siblings import DamageFound, SpaceReported
from trunkline.core.storage import FramesDamaged, SpaceChanged, SubscriberGone
from trunkline.core.streams import FrameWritten, JunkWritten, Key, StreamSealing
from trunkline.net.connection import Connection
from trunkline.net.packets import Envelope
from trunkline.runtime.bodies import Answer, BodySender
from trunkline.runtime.links import COORDINATOR, Links
from trunkline.runtime.node_counts import NodeCounts
from trunkline.runtime.process import Buffer, Process, Step
from trunkline.runtime.recorder import Recorder
from trunkline.runtime.requests import STORAGE_REQUESTS, checked_request
from trunkline.storage import Engine, StorageError, SyncPolicy

log = logging.getLogger("trunkline.node")

UNSYNCED_BYTES_MAX = 128 * 1024 * 1024
DISK_SILENT_S = 2.0  # during a longer sync the node does not renew its lease
BUSY = "the disk is busy"
COPY_REST_S = 600.0  # for so long after a refused copy the node reports TIGHT. Too small: the same copy comes again
REFUSALS = (Rejected, NotGranted)


class NodeHost:
    """Implements ``Surroundings`` of the node's process."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        sync: SyncPolicy,
        links: Links,
        recorder: Recorder | None,
        stopped: Callable[[str], None],
    ) -> None:
        self.process = Process(name, self)
        self.connections: dict[str, Connection] = {}
        self.counts = NodeCounts()
        self._engine = engine
        self._links = links
        self._recorder = recorder
        self._stopped = stopped
        self._loop = asyncio.get_running_loop()
        self._sync_thread = ThreadPoolExecutor(1, "sync")
        self._bodies = BodySender(engine, self.damaged, self.counts)
        self._sync_began: float | None = None
        self._sync_scheduled = False
        self._always = sync is SyncPolicy.ALWAYS
        self._space = Space.ROOMY
        self._copy_refused: float | None = None  # when
        self._stuck_since: float | None = None
        self._busy = False
        self._closing = False

    # ------------------------------------------------------------------------------------------------ from connections

    def received(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        role = envelope.role
        message = checked_request(role, envelope.message, attachments)  # O1
        self.counts.requests[type(message)] += 1
        if role == "storage":
            self._update_space(sum(map(len, attachments)))
        key = f"#{connection.number}"
        if key not in self.connections:
            self.connections[key] = connection
            if self._busy:  # O4
                connection.pause(BUSY)
        self.process.deliver(role, Address(key, str(envelope.token)), message, attachments)

    def disconnected(self, connection: Connection) -> None:
        key = f"#{connection.number}"
        if self.connections.pop(key, None) is not None:
            self.process.deliver("storage", Address(self.process.name, "host"), SubscriberGone(key))

    # -------------------------------------------------------------------------------------------------- surroundings

    def send(self, role: str, to: Address, message: Message, step: Step) -> None:
        if to.process == COORDINATOR:
            if not (isinstance(message, Register) and self.disk_is_silent()):
                self._links.send(self.process, role, to, message)
            return
        connection = self.connections.get(to.process)
        if connection is None:
            return  # disconnected: the answer is lost
        token = int(to.role)
        self.counts.answers += 1
        if isinstance(message, ReadFrames | Fetched) or (
            isinstance(message, Written) and message.existing.kind is FrameKind.DATA
        ):
            self._bodies.send(connection, Answer(token, message, _key_of(step)))  # O3
            return
        if isinstance(message, REFUSALS):
            self.counts.refused[message.reason] += 1
            if message.reason is Reason.NO_SPACE and isinstance(step.message, Write) and step.message.repair:
                self._copy_refused = self._loop.time()
        connection.send(role, token, message)

    def persist(self, record: Record, step: Step) -> int:
        body: Buffer | None = None
        if isinstance(record, FrameWritten) and step.attachments:
            body = step.attachments[0]
        try:
            ticket = self._engine.put(record, body)
        except StorageError as error:
            self._stopped(str(error))
            raise
        if isinstance(record, FrameWritten):
            self.counts.stored(record.frame, 0 if body is None else len(body))
        elif isinstance(record, JunkWritten):
            self.counts.fills += record.end - record.first
        elif isinstance(record, StreamSealing):
            self.counts.seals += 1
        if self._always:  # O2
            self._schedule_sync()
        else:
            self.process.durable(self._engine.written)
        if self._engine.stuck and self._stuck_since is None:  # O6
            self._stuck_since = self._loop.time()
            log.error("no space left, the reserve is used up, or no file can be opened: the node waits; free some")
        if not self._busy and (self._engine.unsynced_bytes > UNSYNCED_BYTES_MAX or self._engine.stuck):  # O4
            self._busy = True
            for connection in self.connections.values():
                connection.pause(BUSY)
            self._schedule_sync()
        return ticket

    def completed(self, role: str, complete: Complete) -> None:
        raise AssertionError(f"a node has no callers, but {role} returned {complete}")

    def at_work(self, process: str, within_s: float) -> bool:
        return False  # a node waits for no answers

    def announced(self, role: str, event: Event, step: Step) -> None:
        if self._recorder is not None:
            self._recorder.event(role, event)

    def choose(self, role: str, choose: Choose) -> object:
        raise AssertionError(f"roles of a node make no choices, but {role} asked for {choose.key}")

    def broken(self, role: str) -> None:
        self._stopped(f"the role {role} failed; this is a bug")

    # ------------------------------------------------------------------------------------------------------------ sync

    def _schedule_sync(self) -> None:
        if self._sync_began is None and not self._sync_scheduled:
            self._sync_scheduled = True
            self._loop.call_soon(self.sync)  # after all messages of this loop iteration

    def sync(self) -> None:
        """Start a group commit, unless one is running."""
        self._sync_scheduled = False
        if self._sync_began is not None or self._closing:
            return
        batch = self._engine.begin_sync()
        began = self._sync_began = self._loop.time()

        def done(future: asyncio.Future[None]) -> None:
            self._sync_began = None
            error = future.exception()
            if error is not None:  # O5
                self.process.stop()
                self._stopped(f"the disk failed: {error}")
                return
            self.counts.sync_seconds.observe(self._loop.time() - began)
            self._engine.end_sync(batch)
            self.process.durable(batch.ticket)
            self._catch_up()

        self._loop.run_in_executor(self._sync_thread, batch.run).add_done_callback(done)

    def _catch_up(self) -> None:
        if self._busy and self._engine.unsynced_bytes < UNSYNCED_BYTES_MAX // 2 and not self._engine.stuck:
            self._busy = False
            for connection in self.connections.values():
                connection.resume(BUSY)
        if self._engine.unsynced and (self._always or self._busy or self.process.withheld):
            self._schedule_sync()

    def disk_is_silent(self) -> bool:
        """Whether a sync, or a write that waits for room, takes too long: the node then does not renew its lease."""
        waiting = [since for since in (self._sync_began, self._stuck_since) if since is not None]
        return bool(waiting) and self._loop.time() - min(waiting) > DISK_SILENT_S

    # ----------------------------------------------------------------------------------------------------------- space

    def _update_space(self, size: int) -> None:
        space = self._engine.space(size)
        if space is not self._space:
            self._space = space
            self.process.deliver("storage", Address(self.process.name, "host"), SpaceChanged(space))

    def reported_space(self) -> Space:
        """The level for the registry. A node that refused a copy reports TIGHT for a while."""
        space = self._engine.reported_space()
        rests = self._copy_refused is not None and self._loop.time() - self._copy_refused < COPY_REST_S
        return max(space, Space.TIGHT) if rests else space

    def tick(self) -> None:
        """Periodically: write what waits for room, mark idle streams, and report the space level."""
        try:
            if self._engine.stuck:
                self._engine.retry()
                self._continue()
            self._engine.mark_idle()
        except StorageError as error:
            self._stopped(str(error))
            return
        # Each time: the role knows what it last reported.
        self.process.deliver("lease", Address(self.process.name, "host"), SpaceReported(self.reported_space()))

    def _continue(self) -> None:
        if not self._always:
            self.process.durable(self._engine.written)
        if not self._engine.stuck:
            self._stuck_since = None
            log.info("there is room again: the node continues")
        self._catch_up()

    # ---------------------------------------------------------------------------------------------------------- damage

    def damaged(self, key: Key, frames: tuple[Frame, ...]) -> None:
        """Reading or scrubbing found damaged frames."""
        host = Address(self.process.name, "host")
        self.process.deliver("storage", host, FramesDamaged(key, frames))
        self.process.deliver("lease", host, DamageFound())

    def close(self) -> None:
        self._closing = True
        self.process.stop()
        self._engine.give_up()
        self._sync_thread.shutdown(wait=True)
        self._bodies.close()


def _key_of(step: Step) -> Key:
    """The stream of a step. A subscriber is woken by a step for its own stream."""
    message = step.message
    if isinstance(message, FramesDamaged):
        return message.key
    assert isinstance(message, STORAGE_REQUESTS)
    assert not isinstance(message, Inventory)
    target = message.descriptor.target if isinstance(message, Open | Seal | Finalize) else message.target
    return (target.log, target.stream)
