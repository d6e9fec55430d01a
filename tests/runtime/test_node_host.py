"""The host of a node: nothing that a peer sends stops it, and a peer that reads keeps its connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import crc32c
import pytest
from msgspec.structs import replace

from net.wiring import Inbox, dialled, serving, until, within
from trunkline.core.effects import Message
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import (
    Append,
    Descriptor,
    Digest,
    Drop,
    Fetch,
    Fetched,
    FillRun,
    Finalize,
    FindTail,
    Next,
    Open,
    Opened,
    Peek,
    Read,
    ReadFrames,
    Release,
    Seal,
    Stored,
    StreamTarget,
    Subscribe,
    Trim,
    Write,
    Written,
)
from trunkline.core.projection import Member, Owner, Policy, Segment
from trunkline.core.sequencer import Sequencer
from trunkline.core.storage import NodeImage, StorageNode
from trunkline.net.admin import RequestRefused
from trunkline.net.connection import Connection
from trunkline.net.limits import KIB, MIB, Limits
from trunkline.net.packets import Envelope, encode_message
from trunkline.net.server import Server
from trunkline.runtime import node_host
from trunkline.runtime.bodies import WAITING_MAX
from trunkline.runtime.links import Links
from trunkline.runtime.node_host import NodeHost
from trunkline.runtime.requests import COUNT_MAX, POSITION_MAX, SPAN_MAX
from trunkline.storage import Engine, StorageOptions, format_directory
from trunkline.storage.files import Buffer, Files, RealFiles

INCARNATION = 7  # in requests that no role sees; ``Bench`` has the real one
T = StreamTarget("c1", "log", 0, 1, "1.0.0", INCARNATION)
OWNER = Owner("node-1", 1)
D = Descriptor(T, 1, Policy.CHAIN, 1024, (Member("node-1", INCARNATION, "1.0.0"),), OWNER)
SEGMENT = Segment(0, 1, 1, None, False, Policy.CHAIN, 1024, (D.members,), OWNER)
PING = 0  # the token of a message that the server itself answers


class Bench:
    """A node without a coordinator: a real engine and a real server around the host."""

    def __init__(self, engine: Engine, host: NodeHost, stops: list[str]) -> None:
        self.engine = engine
        self.host = host
        self.stops = stops  # why the node would have stopped
        self.delivered: dict[int, int] = {}  # messages by connection
        self.target = replace(T, incarnation=engine.identity.incarnation)
        self.descriptor = replace(D, target=self.target)
        self.server: Server

    def received(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        if envelope.token == PING:
            connection.send("", PING, envelope.message)
            return
        self.delivered[connection.number] = self.delivered.get(connection.number, 0) + 1
        self.host.received(connection, envelope, attachments)

    def write(self, at: int, body: bytes) -> Write:
        return Write(self.target, Frame(at, 1, FrameKind.DATA, "w", at, crc32c.crc32c(body)))


@asynccontextmanager
async def bench(directory: Path, limits: Limits | None = None, files: Files | None = None) -> AsyncIterator[Bench]:
    options = StorageOptions(reserve_bytes=0, margin_bytes=0)
    identity = format_directory(directory, "c1", "node-1")
    engine = Engine.open(directory, options, files)
    links = Links("node-1")
    stops: list[str] = []
    host = NodeHost("node-1", engine, options.sync, links, None, stops.append)
    host.process.add("storage", StorageNode("c1", "node-1", identity.incarnation, NodeImage()))
    host.process.add("sequencer", Sequencer(OWNER))
    made = Bench(engine, host, stops)
    try:
        async with serving(made.received, limits=limits, on_closed=host.disconnected) as made.server:
            yield made
            assert stops == []
    finally:
        host.close()
        await links.peers.close()
        engine.close()


async def ask(
    connection: Connection, inbox: Inbox, message: Message, attachments: Sequence[bytes] = (), role: str = "storage"
) -> tuple[Message, list[bytes]]:
    connection.send(role, 1, message, attachments)
    _, envelope, answered = await inbox.next()
    return envelope.message, [bytes(body) for body in answered]


def run(scene: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(within(scene()))


# ---------------------------------------------------------------------------------------------------------- requests

BAD_REQUESTS: dict[str, Message] = {
    "read nothing": Read(T, 1, 0),
    "read less than nothing": Read(T, 1, -1),
    "subscribe to less than nothing": Subscribe(T, 1, -1),
    "read at a negative position": Read(T, -1, 1),
    "trim everything": Trim(T, 2**64 - 1),
    "trim to a negative position": Trim(T, -5),
    "a huge end": Finalize(D, POSITION_MAX),
    "a huge base": Open(replace(D, base=2**64 - 1)),
    "a huge release": Release(T, OWNER, 2**64 - 1),
    "a digest of everything": Digest(T, 1, 10**9),
    "a run of too many holes": FillRun(T, 1, 2 + SPAN_MAX),
    "a run of no holes": FillRun(T, 5, 5),
    "a run of holes at the end of numbers": FillRun(T, POSITION_MAX - 1, POSITION_MAX),
    "grants to who was beaten less than never": Next("log", SEGMENT, "w", 1, 1, None, -1),
    "a peek at a negative position": Peek("log", SEGMENT, -1),
    "a fetch of a little too much": Fetch(T, 1, 2 + SPAN_MAX),
    "a stream id without numbers": Open(replace(D, target=replace(T, stream="abc"))),
    "a stream id with a line break": Open(replace(D, target=replace(T, stream="1.0.0\n"))),
    "a long log name": Seal(replace(D, target=replace(T, log="x" * 5000))),
    "a long owner": Open(replace(D, owner=Owner("x" * 256, 1))),
    "a stream without members": Open(replace(D, members=())),
    "a stripe of nothing": Open(replace(D, stripe_unit=0)),
    "a tombstone of no stream": Drop(replace(T, stream="\x00/../")),
    "a batch without bytes": Write(T, Frame(4, 1, FrameKind.DATA, "w", 1, 0)),
    "an append with a huge lac": Append(T, OWNER, Frame(1, 1, FrameKind.DATA, "w", 1, crc32c.crc32c(b"x")), 2**64 - 1),
    "grants of nothing": Next("log", SEGMENT, "w", 1, 0),
    "grants of everything": Next("log", SEGMENT, "w", 1, 2**64 - 1),
    "grants of a little too much": Next("log", SEGMENT, "w", 1, COUNT_MAX),
    "grants over stripes of nothing": Next("log", replace(SEGMENT, stripe_unit=0, groups=(D.members,) * 2), "w", 1, 1),
    "grants without members": Next("log", replace(SEGMENT, groups=((), ())), "w", 1, 1),
    "grants from a huge base": Next("log", replace(SEGMENT, base=2**64 - 1), "w", 1, 1),
    "grants to a long writer": Next("log", SEGMENT, "w" * 256, 1, 1),
    "a peek without groups": Peek("log", replace(SEGMENT, groups=())),
    "a peek at a negative base": Peek("log", replace(SEGMENT, base=-1)),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_o1_a_request_out_of_bounds_is_refused_and_its_connection_stays_open(tmp_path: Path, name: str) -> None:
    message = BAD_REQUESTS[name]
    role = "sequencer" if isinstance(message, Next | Peek) else "storage"
    attachments = [b"x"] if isinstance(message, Append) else [b""] if isinstance(message, Write) else []

    async def scene() -> None:
        inbox = Inbox()
        async with bench(tmp_path / "n") as node, dialled(node.server, inbox) as shared:
            assert (await ask(shared, inbox, Open(node.descriptor)))[0] == Opened("1.0.0")
            assert isinstance((await ask(shared, inbox, message, attachments, role=role))[0], RequestRefused)
            assert (await ask(shared, inbox, node.write(1, b"x"), [b"x"]))[0] == Stored(
                "1.0.0", node.write(1, b"x").frame
            )

    run(scene)


def test_o1_whatever_is_within_bounds_is_answered(tmp_path: Path) -> None:
    async def scene() -> None:
        inbox = Inbox()
        async with bench(tmp_path / "n") as node, dialled(node.server, inbox) as peer:
            target, descriptor = node.target, node.descriptor
            for message in (
                Open(descriptor),
                Digest(target, 1, 1 + SPAN_MAX),
                FillRun(target, 1, 1 + SPAN_MAX),
                Fetch(target, 5, 1),
                Read(target, POSITION_MAX - 1, 10**9),
                FindTail(target, 2**64 - 1),
                Trim(target, POSITION_MAX - 1),
                Seal(descriptor),
                Finalize(descriptor, 3),
                Finalize(descriptor, 2),
            ):
                await ask(peer, inbox, message)
            await ask(peer, inbox, Next("log", SEGMENT, "w", 2**64 - 1, COUNT_MAX - 1), role="sequencer")
            await ask(peer, inbox, Peek("log", SEGMENT), role="sequencer")

    run(scene)


def test_the_longest_answer_to_a_digest_or_a_fetch_fits_into_a_packet() -> None:
    frame = Frame(POSITION_MAX, COUNT_MAX - 1, FrameKind.DATA, "w" * 255, 2**63 - 1, 2**32 - 1)
    limits = Limits()
    fetched = Fetched("1.0.0", 1, 1 + SPAN_MAX, (frame,) * SPAN_MAX)
    assert len(encode_message("storage", 2**63, (2**18,) * SPAN_MAX, fetched)) < limits.head_bytes_max
    assert limits.attachments_max >= SPAN_MAX


# ----------------------------------------------------------------------------------------------------------- answers


def test_answers_that_become_due_together_wait_for_room_and_all_arrive(tmp_path: Path) -> None:
    body, count = bytes(400 * KIB), 100

    async def scene() -> None:
        inbox = Inbox()
        limits = Limits(send_buffer_high=MIB, send_buffer_max=8 * MIB)
        async with bench(tmp_path / "n", limits) as node, dialled(node.server, inbox) as peer:
            await ask(peer, inbox, Open(node.descriptor))
            await ask(peer, inbox, node.write(1, body), [body])
            peer.send("storage", 1, node.write(2, b"x"), [b"x"])  # its sync withholds all that follows
            for token in range(count):
                peer.send("storage", 100 + token, Read(node.target, 1, 1))
            tokens = [(await inbox.next())[1].token for _ in range(count + 1)]
            assert sorted(tokens) == [1, *range(100, 100 + count)]

    run(scene)


def test_answers_beyond_those_that_may_wait_are_lost_and_the_connection_stays(tmp_path: Path) -> None:
    body, count = bytes(100 * KIB), 3 * WAITING_MAX

    async def scene() -> None:
        inbox = Inbox()
        limits = Limits(send_buffer_high=256 * KIB, send_buffer_max=8 * MIB)
        async with bench(tmp_path / "n", limits) as node, dialled(node.server, inbox) as peer:
            await ask(peer, inbox, Open(node.descriptor))
            await ask(peer, inbox, node.write(1, body), [body])
            peer.send("storage", 1, node.write(2, b"x"), [b"x"])
            for _ in range(count):
                peer.send("storage", 1, Read(node.target, 1, 1))
            for _ in range(1 + WAITING_MAX):
                await inbox.next()
            peer.send("storage", 9, Read(node.target, 1, 1))  # answers leave in order: after all that waited
            while (await inbox.next())[1].token != 9:
                pass
            assert inbox.count < count
            assert not peer.closed

    run(scene)


class ColdFiles(RealFiles):
    """Nothing is in the page cache."""

    def __init__(self) -> None:
        self.waited_in: list[threading.Thread] = []

    def read_into(self, fd: int, buffer: Buffer, offset: int, *, wait: bool = True) -> int:
        if not wait:
            return 0
        self.waited_in.append(threading.current_thread())
        return super().read_into(fd, buffer, offset)


def test_the_loop_never_waits_for_the_disk_to_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        inbox, files = Inbox(), ColdFiles()
        async with bench(tmp_path / "n", files=files) as node, dialled(node.server, inbox) as peer:
            await ask(peer, inbox, Open(node.descriptor))
            first, other = node.write(1, b"first"), node.write(1, b"other")
            await ask(peer, inbox, first, [b"first"])
            files.waited_in.clear()
            assert await ask(peer, inbox, other, [b"other"]) == (
                Written("1.0.0", other.frame, first.frame),
                [b"first"],
            )
            assert await ask(peer, inbox, Read(node.target, 1, 5)) == (
                ReadFrames("1.0.0", 1, (first.frame,)),
                [b"first"],
            )
            assert files.waited_in
            assert threading.main_thread() not in files.waited_in

    run(scene)


# ------------------------------------------------------------------------------------------------------ a slow disk


class StalledFiles(RealFiles):
    """A disk whose syncs wait for ``go_on``."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()

    def sync(self, fd: int) -> None:
        self.go_on.wait()
        super().sync(fd)


def test_o4_a_connection_whose_first_request_comes_while_the_disk_is_busy_is_paused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_host, "UNSYNCED_BYTES_MAX", MIB)
    body = bytes(100 * KIB)

    async def scene() -> None:
        files, inbox, later_inbox, pings = StalledFiles(), Inbox(), Inbox(), Inbox()
        async with (
            bench(tmp_path / "n", files=files) as node,
            dialled(node.server, inbox) as peer,
            dialled(node.server, later_inbox) as later,
            dialled(node.server, pings) as bystander,
        ):
            await ask(peer, inbox, Open(node.descriptor))
            files.go_on.clear()
            try:
                for at in range(1, 31):
                    peer.send("storage", 1, node.write(at, body), [body])
                await until(lambda: node.engine.unsynced_bytes > MIB)
                before = sum(node.delivered.values())
                for at in range(31, 41):
                    later.send("storage", 1, node.write(at, body), [body])
                await until(lambda: sum(node.delivered.values()) > before)
                for _ in range(20):  # round trips of another peer: enough time to fail
                    bystander.send("storage", PING, Opened("ping"))
                    await pings.next()
                assert sum(node.delivered.values()) == before + 1
            finally:
                files.go_on.set()
            await until(lambda: inbox.count == 31 and later_inbox.count == 10)

    run(scene)
