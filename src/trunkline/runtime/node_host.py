"""The host of a node's roles: disk on one side, connections on the other.

Rules
 O1  A request is looked at before a role sees it (``requests.py``): of a kind that this role takes, within bounds, and
     with bytes that match their checksum. Whoever sends something else is told so, and nothing else happens.
 O2  Records are written as they come; one sync at a time makes everything written before it durable (group commit).
     Under the policies ``interval`` and ``never`` a record is as durable as these promise when it is written.
 O3  Answers with bodies leave as ``bodies.py`` says.
 O4  With more than ``UNSYNCED_BYTES_MAX`` unsynced, nothing more is read from connections until the disk has caught up.
 O5  A failed sync stops the process: nobody knows what the disk has.
 O6  Before a request the role is told what the disk has room for, the request's own bytes counted. What finds no room
     all the same (others took it meanwhile) waits like an unsynced record, and O4 holds until there is some.
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
from trunkline.runtime.bodies import Answer
from trunkline.runtime.links import COORDINATOR, Links
from trunkline.runtime.observing_counts import CountedBodies, NodeCounts
from trunkline.runtime.process import Buffer, Process, Step
from trunkline.runtime.recorder import Recorder
from trunkline.runtime.requests import STORAGE_REQUESTS, checked_request
from trunkline.storage import Engine, StorageError, SyncPolicy

log = logging.getLogger("trunkline.node")

UNSYNCED_BYTES_MAX = 128 * 1024 * 1024
DISK_SILENT_S = 2.0  # a sync that takes longer: the node does not renew its lease
BUSY = "the disk is busy"
COPY_REST_S = 600.0  # after a refused copy no other one is asked for. Too small: one that does not fit comes again
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
        self._bodies = CountedBodies(engine, self.damaged, self.counts)
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
            self._look_at_space(sum(map(len, attachments)))
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
            return  # gone: the answer is lost
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
        raise AssertionError(f"a node has no callers, yet {complete} came from {role}")

    def at_work(self, process: str, within_s: float) -> bool:
        return False  # a node waits for nobody's answers

    def announced(self, role: str, event: Event, step: Step) -> None:
        if self._recorder is not None:
            self._recorder.event(role, event)

    def choose(self, role: str, choose: Choose) -> object:
        raise AssertionError(f"a node asks for no choice, yet {choose.key} was to be made by {role}")

    def broken(self, role: str) -> None:
        self._stopped(f"the role {role} failed; this is a bug")

    # ------------------------------------------------------------------------------------------------------------ sync

    def _schedule_sync(self) -> None:
        if self._sync_began is None and not self._sync_scheduled:
            self._sync_scheduled = True
            self._loop.call_soon(self.sync)  # after everything that this turn of the loop brings

    def sync(self) -> None:
        """Make durable what is written, unless that is under way."""
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
        """Whether a sync, or a write that waits for room, takes so long that the node does not vouch for itself."""
        waiting = [since for since in (self._sync_began, self._stuck_since) if since is not None]
        return bool(waiting) and self._loop.time() - min(waiting) > DISK_SILENT_S

    # ----------------------------------------------------------------------------------------------------------- space

    def _look_at_space(self, size: int) -> None:
        space = self._engine.space(size)
        if space is not self._space:
            self._space = space
            self.process.deliver("storage", Address(self.process.name, "host"), SpaceChanged(space))

    def told_space(self) -> Space:
        """What the registry is to know. A node that refused a copy says for a while that it takes none."""
        space = self._engine.told_space()
        rests = self._copy_refused is not None and self._loop.time() - self._copy_refused < COPY_REST_S
        return max(space, Space.TIGHT) if rests else space

    def tidy_up(self) -> None:
        """Now and then: write what waited for room, note what is on disk, and tell of the room there is."""
        try:
            if self._engine.stuck:
                self._engine.retry()
                self._go_on()
            self._engine.mark_idle()
        except StorageError as error:
            self._stopped(str(error))
            return
        # Each time: the role knows what the registry was told, and others may have asked for it meanwhile.
        self.process.deliver("lease", Address(self.process.name, "host"), SpaceReported(self.told_space()))

    def _go_on(self) -> None:
        if not self._always:
            self.process.durable(self._engine.written)
        if not self._engine.stuck:
            self._stuck_since = None
            log.info("there is room again: the node goes on")
        self._catch_up()

    # ---------------------------------------------------------------------------------------------------------- damage

    def damaged(self, key: Key, frames: tuple[Frame, ...]) -> None:
        """Reading or scrubbing found frames that are not what was written."""
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
    """The stream that a step is about. A subscriber is woken by a step about its own stream."""
    message = step.message
    if isinstance(message, FramesDamaged):
        return message.key
    assert isinstance(message, STORAGE_REQUESTS)
    assert not isinstance(message, Inventory)
    target = message.descriptor.target if isinstance(message, Open | Seal | Finalize) else message.target
    return (target.log, target.stream)
