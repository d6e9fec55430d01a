"""A node whose disk has no room, or that can open no file: requests are refused or wait, and it never stops."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from net.wiring import dialled, until
from runtime import test_node_host as node
from trunkline.core.effects import Address, Effects, Message
from trunkline.core.messages import Open, Opened, Read, ReadFrames, Reason, Rejected, Space, Stored
from trunkline.core.siblings import SpaceReported
from trunkline.net.connection import Connection
from trunkline.net.packets import Envelope
from trunkline.runtime import node_host
from trunkline.storage.files import Buffer, RealFiles


class ScarceFiles(RealFiles):
    """Files of a system on which other programs take the space."""

    def __init__(self) -> None:
        self.no_space = False
        self.no_files = False

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.no_space:
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().write(fd, buffers, offset)

    def open(self, path: Path, *, create: bool = False) -> int:
        if self.no_files:
            raise OSError(errno.EMFILE, "too many open files")
        return super().open(path, create=create)

    def sync_directory(self, path: Path) -> None:
        if self.no_files:
            raise OSError(errno.EMFILE, "too many open files")
        super().sync_directory(path)


class Answers:
    """Received messages, in order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, connection: Connection, envelope: Envelope, attachments: tuple[memoryview, ...]) -> None:
        self.messages.append(envelope.message)


class Telling:
    """Replaces the lease keeper, and records its messages."""

    phase = "telling"

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def on_start(self) -> Effects:
        return []

    def on_timer(self, key: str) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        return []

    def on_message(self, source: Address, message: Message) -> Effects:
        self.messages.append(message)
        return []


@pytest.mark.parametrize("what", ["no_space", "no_files"])
def test_o6_what_finds_no_room_waits_and_is_answered_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def scene() -> None:
        monkeypatch.setattr(node_host, "DISK_SILENT_S", 0.0)
        files, inbox = ScarceFiles(), Answers()
        async with node.bench(tmp_path, files=files) as bench, dialled(bench.server, inbox) as connection:
            connection.send("storage", 1, Open(bench.descriptor))
            await until(lambda: inbox.messages == [Opened("1.0.0")])
            other = replace(bench.descriptor, target=replace(bench.target, stream="2.0.0"))
            setattr(files, what, True)
            connection.send("storage", 2, Open(other))
            await until(lambda: bench.engine.stuck)
            connection.send("storage", 3, bench.write(1, b"x"), [b"x"])
            bench.host.tick()
            await asyncio.sleep(0)
            assert bench.host.disk_is_silent()
            assert len(inbox.messages) == 1
            setattr(files, what, False)
            bench.host.tick()
            await until(lambda: len(inbox.messages) == 3)
            assert inbox.messages[1] == Opened("2.0.0")
            assert isinstance(inbox.messages[2], Stored | Rejected)  # the free space is read now and then
            await asyncio.to_thread(bench.engine._space.check)
            connection.send("storage", 4, bench.write(2, b"y"), [b"y"])
            await until(lambda: len(inbox.messages) == 4)
            assert isinstance(inbox.messages[3], Stored)
            await until(lambda: not bench.host.disk_is_silent())

    node.run(scene)


def test_o6_a_request_is_judged_with_its_own_bytes(tmp_path: Path) -> None:
    async def scene() -> None:
        files, inbox = ScarceFiles(), Answers()
        async with node.bench(tmp_path, files=files) as bench, dialled(bench.server, inbox) as connection:
            connection.send("storage", 1, Open(bench.descriptor))
            await until(lambda: len(inbox.messages) == 1)
            files.free_bytes = lambda path: 1 << 20  # type: ignore[method-assign]
            await asyncio.to_thread(bench.engine._space.check)
            connection.send("storage", 2, bench.write(1, b"x" * (2 << 20)), [b"x" * (2 << 20)])
            connection.send("storage", 3, bench.write(2, b"y"), [b"y"])
            await until(lambda: len(inbox.messages) == 3)
            assert inbox.messages[1] == Rejected("1.0.0", 1, Reason.NO_SPACE)
            assert isinstance(inbox.messages[2], Stored)

    node.run(scene)


def test_a_read_that_cannot_open_its_file_is_lost_and_nothing_else_happens(tmp_path: Path) -> None:
    async def scene() -> None:
        files, inbox = ScarceFiles(), Answers()
        async with node.bench(tmp_path, files=files) as bench, dialled(bench.server, inbox) as connection:
            connection.send("storage", 1, Open(bench.descriptor))
            connection.send("storage", 2, bench.write(1, b"x"), [b"x"])
            await until(lambda: len(inbox.messages) == 2)
            while bench.engine._handles.close_some():
                pass
            files.no_files = True
            connection.send("storage", 3, Read(bench.target, 1, 1))
            connection.send("storage", 4, Read(bench.target, 9, 1))
            await until(lambda: len(inbox.messages) == 3)  # of the second only
            files.no_files = False
            connection.send("storage", 5, Read(bench.target, 1, 1))
            await until(lambda: len(inbox.messages) == 4)
            assert isinstance(inbox.messages[3], ReadFrames)

    node.run(scene)


def test_the_registry_learns_of_less_room_and_of_a_refused_copy(tmp_path: Path) -> None:
    async def scene() -> None:
        async with node.bench(tmp_path) as bench:
            lease = Telling()
            bench.host.process.add("lease", lease)
            bench.host.tick()
            assert lease.messages == [SpaceReported(Space.ROOMY)]
            bench.host._copy_refused = asyncio.get_running_loop().time()
            assert bench.host.reported_space() is Space.TIGHT  # an earlier status does not suppress the report
            bench.host.tick()
            assert lease.messages[1:] == [SpaceReported(Space.TIGHT)]
            bench.host._copy_refused -= node_host.COPY_REST_S
            bench.host.tick()
            assert lease.messages[2:] == [SpaceReported(Space.ROOMY)]

    node.run(scene)
