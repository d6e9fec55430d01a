"""The engine on real files."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.recording_files import RecordingFiles
from storage.workloads import BOOT, ROOT, SMALL, Desk, body_of, descriptor, formatted, frame_of, key_of
from trunkline.core.entries import Frame, junk
from trunkline.core.storage import NodeImage
from trunkline.core.streams import FrameWritten, StreamDropping, StreamOpened, StreamSealing, StreamTrimming
from trunkline.storage import (
    CorruptDirectory,
    DirectoryInUse,
    Engine,
    FrameDamaged,
    FrameMissing,
    NotFormatted,
    StorageError,
    format_directory,
    frame_fits,
    read_identity,
)

KEY = key_of("s1")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    formatted(root=tmp_path / "node")
    return tmp_path / "node"


@pytest.fixture
def engine(directory: Path) -> Iterator[Engine]:
    opened = Engine.open(directory, SMALL)
    opened.put(StreamOpened(descriptor("s1")))
    sync(opened)
    yield opened
    opened.close()


def sync(engine: Engine) -> int:
    batch = engine.begin_sync()
    batch.run()
    engine.end_sync(batch)
    return batch.ticket


def write(engine: Engine, first: int, size: int = 300) -> Frame:
    frame, body = frame_of(first, 1, size)
    engine.put(FrameWritten(KEY, frame), body)
    return frame


# ----------------------------------------------------------------------------------------------------------- directory


def test_a_directory_is_formatted_once(tmp_path: Path) -> None:
    identity = format_directory(tmp_path / "node", "cluster", "n1")
    assert (identity.cluster, identity.node) == ("cluster", "n1")
    assert 0 <= identity.incarnation < 1 << 63
    assert read_identity(tmp_path / "node") == identity
    with pytest.raises(StorageError, match="already formatted"):
        format_directory(tmp_path / "node", "cluster", "n1")


def test_two_formatted_directories_are_two_incarnations(tmp_path: Path) -> None:
    one, two = (format_directory(tmp_path / name, "cluster", "n1") for name in ("one", "two"))
    assert one.incarnation != two.incarnation


def test_a_directory_that_is_not_empty_is_not_formatted(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(StorageError, match=r"not empty .*letter"):
        format_directory(tmp_path, "cluster", "n1")


def test_a_directory_that_is_not_formatted_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(NotFormatted, match="format it first"):
        Engine.open(tmp_path, SMALL)
    with pytest.raises(NotFormatted, match="format it first"):
        Engine.open(tmp_path / "nothing", SMALL)


def test_a_directory_is_used_by_one_process(directory: Path, engine: Engine) -> None:
    with pytest.raises(DirectoryInUse, match="another process"):
        Engine.open(directory, SMALL)
    program = (
        "import sys, pathlib\nfrom trunkline.storage import *\n"
        "try:\n    Engine.open(pathlib.Path(sys.argv[1]), StorageOptions())\n"
        "except DirectoryInUse:\n    sys.exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(directory)], check=False).returncode == 9


def test_a_closed_directory_can_be_opened_again(directory: Path) -> None:
    for _ in range(3):
        Engine.open(directory, SMALL).close()


def test_a_damaged_identity_is_reported_with_advice(directory: Path) -> None:
    (directory / "identity").write_bytes(b"{}\n00000000\n")
    with pytest.raises(CorruptDirectory, match="replace the node"):
        Engine.open(directory, SMALL)


# ------------------------------------------------------------------------------------------------------------- writing


def test_what_was_put_is_there_after_a_restart(directory: Path, engine: Engine) -> None:
    frames = [write(engine, first, size) for first, size in ((1, 0), (2, 1), (3, 5000), (4, 70_000), (5, 8))]
    engine.put(FrameWritten(KEY, junk(6)))
    engine.close()
    again = Engine.open(directory, SMALL)
    (image,) = again.image.streams
    assert list(image.frames) == [*frames, junk(6)]
    assert (image.sealed, image.data_loss, image.uncertain) == (False, False, False)
    bodies = again.read(KEY, image.frames, 1 << 20, may_block=True)
    assert bodies == [body_of(1, 0), body_of(2, 1), body_of(3, 5000), body_of(4, 70_000), body_of(5, 8), b""]
    again.close()


def test_the_image_can_be_released(directory: Path, engine: Engine) -> None:
    engine.image = NodeImage()
    assert engine.read(KEY, [write(engine, 1)], 100, may_block=True) == [body_of(1, 300)]


def test_tickets_grow_and_a_batch_covers_what_was_put_before_it(engine: Engine) -> None:
    tickets = [engine.put(FrameWritten(KEY, junk(first))) for first in (1, 2, 3)]
    assert tickets == sorted(set(tickets))
    batch = engine.begin_sync()
    late = engine.put(FrameWritten(KEY, junk(4)))
    assert tickets[-1] == batch.ticket < late
    assert engine.unsynced
    batch.run()
    engine.end_sync(batch)
    assert sync(engine) == late
    assert not engine.unsynced


def test_one_group_commit_runs_at_a_time(engine: Engine) -> None:
    batch = engine.begin_sync()
    with pytest.raises(RuntimeError, match="is running"):
        engine.begin_sync()
    batch.run()
    engine.end_sync(batch)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_may_be_any_buffer(engine: Engine, kind: type) -> None:
    frame, body = frame_of(1, 1, 1001)
    engine.put(FrameWritten(KEY, frame), kind(body))
    assert engine.read(KEY, [frame], 1, may_block=True) == [body]


def test_an_engine_whose_sync_failed_writes_nothing_more() -> None:
    files = RecordingFiles(ROOT)
    formatted(files)
    desk = Desk(files)
    desk.open("s1")
    files.fail_sync = errno.EIO
    batch = desk.engine.begin_sync()
    with pytest.raises(StorageError, match="check its disk"):
        batch.run()
    with pytest.raises(StorageError, match="failed"):
        desk.engine.end_sync(batch)
    files.fail_sync = None
    before = len(files.operations)
    with pytest.raises(StorageError, match="restart the node"):
        desk.write("s1", 1)
    desk.engine.close()
    assert len(files.operations) == before


def test_a_frame_that_does_not_fit_is_known_before_it_is_put() -> None:
    frame, body = frame_of(1, 1, 10)
    assert frame_fits(frame, len(body))
    assert frame_fits(junk(1), 0)
    assert not frame_fits(junk(1), 1)
    assert not frame_fits(frame, (32 << 20) + 1)
    for wrong in ({"first": 0}, {"count": 0}, {"seq": -1}, {"checksum": 1 << 32}, {"writer": "ä" * 128}):
        fields = {name: getattr(frame, name) for name in frame.__struct_fields__}
        assert not frame_fits(Frame(**{**fields, **wrong}), len(body)), wrong


# ------------------------------------------------------------------------------------------------------------- reading


def test_a_read_returns_what_fits_and_at_least_one_body(engine: Engine) -> None:
    frames = [write(engine, first, 1000) for first in range(1, 11)]
    assert [len(engine.read(KEY, frames, size, may_block=True) or ()) for size in (0, 999, 2000, 3500, 1 << 20)] == [
        1,
        1,
        2,
        3,
        10,
    ]


def test_frames_that_were_just_written_are_read_without_blocking(engine: Engine) -> None:
    frames = [write(engine, first, 1000) for first in range(1, 11)]
    assert engine.read(KEY, frames, 1 << 20, may_block=False) == [body_of(first, 1000) for first in range(1, 11)]


def test_frames_written_out_of_order_are_read_in_order(engine: Engine) -> None:
    frames = {first: write(engine, first, 900) for first in (5, 1, 4, 9, 2, 8, 3, 7, 6)}
    wanted = [frames[first] for first in sorted(frames)]
    assert engine.read(KEY, wanted, 1 << 20, may_block=True) == [body_of(first, 900) for first in sorted(frames)]


def test_an_unknown_frame_is_missing(engine: Engine) -> None:
    with pytest.raises(FrameMissing):
        engine.read(KEY, [junk(1)], 1, may_block=True)
    frame = write(engine, 1)
    engine.put(StreamDropping(KEY))
    with pytest.raises(FrameMissing):
        engine.read(KEY, [frame], 1, may_block=True)


@pytest.mark.parametrize("closed", [True, False])
def test_a_damaged_body_is_never_returned(directory: Path, engine: Engine, closed: bool) -> None:
    frames = [write(engine, first, 3000) for first in (1, 2, 3)]
    if closed:
        engine.put(StreamSealing(KEY))
    sync(engine)
    (path,) = directory.glob("streams/*/00000001.extent")
    content = bytearray(path.read_bytes())
    content[content.index(body_of(2, 3000)) + 1500] ^= 4
    path.write_bytes(content)
    assert engine.read(KEY, frames[:1], 1 << 20, may_block=True) == [body_of(1, 3000)]
    with pytest.raises(FrameDamaged) as damaged:
        engine.read(KEY, frames[1:], 1 << 20, may_block=True)
    assert damaged.value.frame == frames[1]
    found = [each for step in engine.scrub() for each in step.damaged]
    assert found == [(KEY, frames[1])]


def test_a_missing_extent_is_damage_and_not_a_trim(directory: Path, engine: Engine) -> None:
    frames = [write(engine, first, 3000) for first in range(1, 6)]
    sync(engine)
    engine.close()
    again = Engine.open(directory, SMALL)
    for path in directory.glob("streams/*/00000001.extent"):
        path.unlink()
    with pytest.raises(FrameDamaged):
        again.read(KEY, frames[:1], 1, may_block=True)
    again.close()


def test_readers_on_other_threads_get_right_bodies_while_frames_come_in(engine: Engine) -> None:
    frames = [write(engine, first, 500) for first in range(2, 400, 2)]
    wrong: list[str] = []
    done = threading.Event()

    def read_on() -> None:
        while not done.is_set():
            wrong.extend(
                frame.brief()
                for frame in frames[::17]
                if engine.read(KEY, [frame], 1, may_block=True) != [body_of(frame.first, 500)]
            )

    thread = threading.Thread(target=read_on)
    thread.start()
    for first in range(1, 400, 2):  # between the others: their indexes move
        write(engine, first, 500)
        if first % 50 == 1:
            sync(engine)
    done.set()
    thread.join()
    assert wrong == []


# ----------------------------------------------------------------------------------------------- trimming and dropping


def extents(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("streams/*/*.extent"))


def test_a_trim_removes_the_extents_that_hold_nothing_else(directory: Path, engine: Engine) -> None:
    frames = [write(engine, first, 3000) for first in range(1, 10)]
    sync(engine)
    assert len(extents(directory)) == 5
    engine.put(StreamTrimming(KEY, 5))
    assert len(extents(directory)) == 5  # until the manifest is durable
    sync(engine)
    assert extents(directory) == ["00000003.extent", "00000004.extent", "00000005.extent"]
    with pytest.raises(FrameMissing):
        engine.read(KEY, frames[:1], 1, may_block=True)
    assert engine.read(KEY, frames[5:], 1 << 20, may_block=True) == [body_of(first, 3000) for first in range(6, 10)]
    engine.close()
    again = Engine.open(directory, SMALL)
    assert list(again.image.streams[0].frames) == frames[5:]
    assert not again.image.streams[0].data_loss
    again.close()


def test_a_dropped_stream_leaves_a_tombstone_and_no_files(directory: Path, engine: Engine) -> None:
    write(engine, 1)
    engine.put(StreamDropping(KEY))
    sync(engine)
    assert list((directory / "streams").iterdir()) == []
    engine.close()
    again = Engine.open(directory, SMALL)
    assert again.image == NodeImage((), (KEY,))
    again.close()


def test_a_stream_that_is_not_in_the_manifest_is_removed(directory: Path) -> None:
    orphan = directory / "streams" / "orders~s9"
    orphan.mkdir()
    (orphan / "00000001.extent").write_bytes(b"x")
    Engine.open(directory, SMALL).close()
    assert not orphan.exists()


# -------------------------------------------------------------------------------------------------------------- others


def test_the_scrubber_reads_everything_that_is_stored(engine: Engine) -> None:
    for first in range(1, 30):
        write(engine, first, 3000)
    engine.put(FrameWritten(KEY, junk(30)))
    sync(engine)
    steps = list(engine.scrub())
    assert sum(step.bytes_read for step in steps) >= 29 * 3000
    assert not any(step.damaged for step in steps)


def test_a_scrub_continues_while_streams_are_trimmed_and_dropped(engine: Engine) -> None:
    for first in range(1, 30):
        write(engine, first, 3000)
    sync(engine)
    steps = engine.scrub()
    next(steps)
    engine.put(StreamTrimming(KEY, 20))
    sync(engine)
    assert not next(steps).damaged
    engine.put(StreamDropping(KEY))
    sync(engine)
    assert not any(step.damaged for step in steps)


def test_the_status_counts_what_is_stored(engine: Engine) -> None:
    write(engine, 1, 3000)
    status = engine.status()
    assert (status.sync.value, status.streams, status.extents, status.full) == ("always", 1, 1, False)
    assert 3000 < status.unsynced_bytes < status.stored_bytes < 3200
    assert status.free_bytes > 0


def test_a_sealed_stream_is_not_scanned_again() -> None:
    files = RecordingFiles(ROOT)
    formatted(files)
    desk = Desk(files)
    desk.open("s1")
    for first in range(1, 6):
        desk.write("s1", first, 1, 100)
    desk.seal("s1")
    desk.sync()
    again = Engine.open(ROOT, SMALL, RecordingFiles(ROOT, files.now()), boot=BOOT)
    stream = again._streams[KEY]
    assert [extent.closed for extent in stream.extents] == [True]
    assert len(again.image.streams[0].frames) == 5
