"""The host of a node's roles: disk on one side, connections on the other.

Rules
 O1  A request is looked at before a role sees it: of a kind that this role takes, within bounds, and with bytes that
     match their checksum. Whoever sends something else loses the connection, and nothing else happens.
 O2  Records are written as they come; one sync at a time makes everything written before it durable (group commit).
     Under the policies ``interval`` and ``never`` a record is as durable as these promise when it is written.
 O3  Bodies are read from the disk when an answer leaves. What cannot be read is told to the role, never sent.
 O4  With more than ``UNSYNCED_BYTES_MAX`` unsynced, nothing more is read from connections until the disk has caught up.
 O5  A failed sync stops the process: nobody knows what the disk has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import crc32c
from msgspec.structs import replace

from trunkline.core.effects import Address, Choose, Complete, Event, Message, Record
from trunkline.core.entries import Frame, Kind, junk
from trunkline.core.messages import (
    Append,
    Digest,
    Drop,
    Fetch,
    Fetched,
    Finalize,
    FindTail,
    Inventory,
    Next,
    Open,
    Peek,
    Read,
    ReadFrames,
    Register,
    Release,
    Seal,
    Subscribe,
    Trim,
    Write,
    Written,
)
from trunkline.core.siblings import DamageFound
from trunkline.core.storage import FramesDamaged, SpaceChanged, SubscriberGone
from trunkline.core.streams import FrameWritten, Key
from trunkline.net.connection import Connection
from trunkline.net.packets import Envelope, ProtocolViolation
from trunkline.runtime.links import COORDINATOR, Links
from trunkline.runtime.process import Attachments, Buffer, Process, Step
from trunkline.runtime.recorder import Recorder
from trunkline.storage import Engine, FrameDamaged, FrameMissing, StorageError, SyncPolicy, frame_fits

UNSYNCED_BYTES_MAX = 128 * 1024 * 1024
READ_FRAMES_MAX = 1024  # frames looked at for one answer
ANSWER_BYTES_MAX = 4 * 1024 * 1024  # of bodies in one answer, unless one body alone is larger
DISK_SILENT_S = 2.0  # a sync that takes longer: the node does not renew its lease

STORAGE_REQUESTS = (
    Append, Digest, Drop, Fetch, Finalize, FindTail, Inventory, Open, Read, Release, Seal, Subscribe, Trim, Write,
)  # fmt: skip
SEQUENCER_REQUESTS = (Next, Peek)
BUSY = "the disk is busy"
ANSWERING = "storage"  # the role that sends bodies


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
        self._engine = engine
        self._links = links
        self._recorder = recorder
        self._stopped = stopped
        self._loop = asyncio.get_running_loop()
        self._sync_thread = ThreadPoolExecutor(1, "sync")
        self._read_threads = ThreadPoolExecutor(2, "read")
        self._sync_began: float | None = None
        self._sync_scheduled = False
        self._always = sync is SyncPolicy.ALWAYS
        self._full = False
        self._busy = False
        self._closing = False

    # ------------------------------------------------------------------------------------------------ from connections

    def received(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        role = envelope.role
        message: Message = envelope.message
        if role == "storage" and isinstance(message, STORAGE_REQUESTS):
            message = _checked(message, attachments)
            self._look_at_space()
        elif not (role == "sequencer" and isinstance(message, SEQUENCER_REQUESTS)):
            raise ProtocolViolation(f"a {type(message).__name__} is nothing for {role!r} of a node")  # O1
        key = f"#{connection.number}"
        if key not in self.connections:
            self.connections[key] = connection
        self.process.deliver(role, Address(key, str(envelope.token)), message, attachments)

    def disconnected(self, connection: Connection) -> None:
        key = f"#{connection.number}"
        if self.connections.pop(key, None) is not None:
            self.process.deliver("storage", Address(self.process.name, "host"), SubscriberGone(key))

    # -------------------------------------------------------------------------------------------------- surroundings

    def send(self, role: str, to: Address, message: Message, step: Step) -> None:
        if to.process == COORDINATOR:
            if not (isinstance(message, Register) and self._disk_is_silent()):
                self._links.send(self.process, role, to, message)
            return
        connection = self.connections.get(to.process)
        if connection is None:
            return  # gone: the answer is lost
        token = int(to.role)
        if isinstance(message, ReadFrames | Fetched):
            self._send_frames(connection, token, message, _key_of(step))
        elif isinstance(message, Written) and message.existing.kind is Kind.DATA:
            self._send_existing(connection, token, message, _key_of(step))
        else:
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
        if self._always:  # O2
            self._schedule_sync()
        else:
            self.process.durable(ticket)
        if not self._busy and self._engine.unsynced_bytes > UNSYNCED_BYTES_MAX:  # O4
            self._busy = True
            for connection in self.connections.values():
                connection.pause(BUSY)
            self._schedule_sync()
        return ticket

    def completed(self, role: str, complete: Complete) -> None:
        raise AssertionError(f"a node has no callers, yet {complete} came from {role}")

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
        self._sync_began = self._loop.time()

        def done(future: asyncio.Future[None]) -> None:
            self._sync_began = None
            error = future.exception()
            if error is not None:  # O5
                self.process.stop()
                self._stopped(f"the disk failed: {error}")
                return
            self._engine.end_sync(batch)
            self.process.durable(batch.ticket)
            self._catch_up()

        self._loop.run_in_executor(self._sync_thread, batch.run).add_done_callback(done)

    def _catch_up(self) -> None:
        if self._busy and self._engine.unsynced_bytes < UNSYNCED_BYTES_MAX // 2:
            self._busy = False
            for connection in self.connections.values():
                connection.resume(BUSY)
        if self._engine.unsynced and (self._always or self._busy or self.process.withheld):
            self._schedule_sync()

    def _disk_is_silent(self) -> bool:
        return self._sync_began is not None and self._loop.time() - self._sync_began > DISK_SILENT_S

    def _look_at_space(self) -> None:
        full = self._engine.full()
        if full != self._full:
            self._full = full
            self.process.deliver("storage", Address(self.process.name, "host"), SpaceChanged(full))

    # --------------------------------------------------------------------------------------------------------- reading

    def _send_frames(self, connection: Connection, token: int, message: ReadFrames | Fetched, key: Key) -> None:
        """An answer with bodies: at once if the page cache has them, else from a thread (O3)."""
        wanted = [frame for frame in message.frames if frame.kind is Kind.DATA]
        if not wanted:
            connection.send(ANSWERING, token, message, (b"",) * len(message.frames))
            return
        bodies = self._read(key, wanted, may_block=False)
        if bodies is not None:
            self._answer(connection, token, message, wanted, bodies)
            return
        reading = self._loop.run_in_executor(self._read_threads, lambda: self._read_quietly(key, wanted))

        def done(future: asyncio.Future[list[Buffer] | FrameDamaged | None]) -> None:
            found = future.result()
            if isinstance(found, FrameDamaged):
                self.damaged(found.key, (found.frame,))
            elif found is not None:
                self._answer(connection, token, message, wanted, found)

        reading.add_done_callback(done)

    def _read(self, key: Key, frames: list[Frame], *, may_block: bool) -> list[Buffer] | None:
        try:
            return self._engine.read(key, frames, ANSWER_BYTES_MAX, may_block=may_block)
        except FrameMissing:
            return []
        except FrameDamaged as damage:
            self._loop.call_soon(self.damaged, damage.key, (damage.frame,))
            return []

    def _read_quietly(self, key: Key, frames: list[Frame]) -> list[Buffer] | FrameDamaged | None:
        """In a thread: what went wrong is handed to the loop as a value."""
        try:
            return self._engine.read(key, frames, ANSWER_BYTES_MAX, may_block=True)
        except FrameMissing:
            return None
        except FrameDamaged as damage:
            return damage

    def _answer(
        self,
        connection: Connection,
        token: int,
        message: ReadFrames | Fetched,
        wanted: list[Frame],
        bodies: list[Buffer],
    ) -> None:
        if not bodies:
            return  # lost: it was trimmed or dropped meanwhile, or is damaged
        frames, attachments = message.frames, bodies
        if len(bodies) < len(wanted):  # a prefix is sent, to bound the bytes
            frames = frames[: frames.index(wanted[len(bodies)])]
        if len(frames) > len(bodies):  # JUNK among them has no bytes
            following = iter(bodies)
            attachments = [next(following) if frame.kind is Kind.DATA else b"" for frame in frames]
        if isinstance(message, ReadFrames):
            connection.send(ANSWERING, token, replace(message, frames=frames), attachments)
        else:
            end = message.end if len(frames) == len(message.frames) else frames[-1].next
            connection.send(ANSWERING, token, replace(message, frames=frames, end=end), attachments)

    def _send_existing(self, connection: Connection, token: int, message: Written, key: Key) -> None:
        bodies = self._read(key, [message.existing], may_block=True)
        if bodies:
            connection.send(ANSWERING, token, message, bodies)

    def damaged(self, key: Key, frames: tuple[Frame, ...]) -> None:
        """Reading or scrubbing found frames that are not what was written."""
        host = Address(self.process.name, "host")
        self.process.deliver("storage", host, FramesDamaged(key, frames))
        self.process.deliver("lease", host, DamageFound())

    def close(self) -> None:
        self._closing = True
        self.process.stop()
        self._sync_thread.shutdown(wait=True)
        self._read_threads.shutdown(wait=True)


def _key_of(step: Step) -> Key:
    """The stream that a step is about. A subscriber is woken by a step about its own stream."""
    message = step.message
    if isinstance(message, FramesDamaged):
        return message.key
    assert isinstance(message, STORAGE_REQUESTS)
    assert not isinstance(message, Inventory)
    target = message.descriptor.target if isinstance(message, Open | Seal | Finalize) else message.target
    return (target.log, target.stream)


def _checked(message: Message, attachments: Attachments) -> Message:
    """The request, bounded, or ``ProtocolViolation`` (O1)."""
    if isinstance(message, Write | Append):
        _check_frame(message.frame, attachments)
    elif attachments:
        raise ProtocolViolation(f"a {type(message).__name__} has no attachments")
    elif isinstance(message, Read | Subscribe) and message.limit > READ_FRAMES_MAX:
        return replace(message, limit=READ_FRAMES_MAX)
    return message


def _check_frame(frame: Frame, attachments: Attachments) -> None:
    if not frame_fits(frame, sum(map(len, attachments))):
        raise ProtocolViolation(f"there is no such batch: {frame}")
    if frame.kind is Kind.JUNK:
        if frame != junk(frame.first) or any(map(len, attachments)):
            raise ProtocolViolation(f"a hole is filled in one form only, not as {frame}")
        return
    if len(attachments) != 1 or crc32c.crc32c(attachments[0]) != frame.checksum:
        raise ProtocolViolation(f"the bytes of {frame.brief()} do not match their checksum")
