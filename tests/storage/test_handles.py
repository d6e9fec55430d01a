"""Open files: bounded, with a clear error when there are too many."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage.workloads import SMALL, descriptor, frame_of, key_of
from trunkline.core.streams import FrameWritten, StreamOpened
from trunkline.storage import Engine, StorageError, format_directory
from trunkline.storage.files import RealFiles
from trunkline.storage.handles import Handles


class FewFiles(RealFiles):
    """A process that may have only so many files."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.open_now = 0
        self.synced: list[int] = []
        self.sync_fails = False

    def sync(self, fd: int) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        self.synced.append(fd)
        super().sync(fd)

    def open(self, path: Path, *, create: bool = False) -> int:
        if self.open_now == self.allowed:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        fd = super().open(path, create=create)
        self.open_now += 1
        return fd

    def close(self, fd: int) -> None:
        self.open_now -= 1
        super().close(fd)


def test_idle_files_beyond_the_limit_are_closed_the_oldest_first(tmp_path: Path) -> None:
    files = FewFiles(100)
    handles = Handles(files, files_max=2)
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        handles.take(path, create=True)
        handles.give_back(path)
    assert files.open_now == 2
    handles.take(paths[4])
    assert files.open_now == 2
    handles.close()
    assert files.open_now == 0


def test_idle_files_make_room_when_the_process_may_have_no_more(tmp_path: Path) -> None:
    files = FewFiles(3)
    handles = Handles(files)
    for number in range(3):
        handles.take(tmp_path / str(number), create=True)
    handles.give_back(tmp_path / "0")
    handles.take(tmp_path / "3", create=True)
    assert files.open_now == 3
    handles.close()


def test_too_many_files_in_use_is_an_error_with_advice(tmp_path: Path) -> None:
    files = FewFiles(1)
    handles = Handles(files)
    handles.take(tmp_path / "0", create=True)
    with pytest.raises(OSError, match=r"raise the limit \(ulimit -n") as raised:
        handles.take(tmp_path / "1", create=True)
    assert raised.value.errno == errno.EMFILE
    handles.close()


def test_f2_a_file_with_unsynced_bytes_is_closed_last_and_only_after_a_sync(tmp_path: Path) -> None:
    files = FewFiles(100)
    handles = Handles(files, files_max=2)
    dirty = handles.take(tmp_path / "dirty", create=True)
    handles.give_back(tmp_path / "dirty", written=True)
    for name in ("a", "b", "c"):
        handles.take(tmp_path / name, create=True)
        handles.give_back(tmp_path / name)
    assert files.synced == []
    handles.take(tmp_path / "d", create=True)
    handles.give_back(tmp_path / "d", written=True)
    handles.take(tmp_path / "e", create=True)
    handles.give_back(tmp_path / "e", written=True)
    assert files.synced == [dirty]
    assert files.open_now == 2
    handles.close()


def test_f2_a_synced_file_is_closed_without_another_sync_unless_it_was_written_meanwhile(tmp_path: Path) -> None:
    files = FewFiles(100)
    handles = Handles(files, files_max=8)
    for name in ("a", "b"):
        handles.take(tmp_path / name, create=True)
        handles.give_back(tmp_path / name, written=True)
        handles.sync(tmp_path / name)
    handles.take(tmp_path / "b")
    handles.give_back(tmp_path / "b", written=True)
    assert len(files.synced) == 2
    assert handles.close_some()
    assert len(files.synced) == 2
    assert handles.close_some()
    assert len(files.synced) == 3
    assert not handles.close_some()


def test_f3_a_sync_that_failed_when_a_file_was_closed_is_not_forgotten(tmp_path: Path) -> None:
    files = FewFiles(100)
    handles = Handles(files, files_max=1)
    handles.take(tmp_path / "a", create=True)
    handles.give_back(tmp_path / "a", written=True)
    handles.take(tmp_path / "b", create=True)
    files.sync_fails = True
    with pytest.raises(StorageError, match="check its disk"):
        handles.give_back(tmp_path / "b", written=True)
    files.sync_fails = False
    for path in (tmp_path / "a", tmp_path / "b"):
        with pytest.raises(StorageError, match="check its disk"):
            handles.sync(path)
    handles.close()


def test_an_engine_serves_more_streams_than_it_may_have_files(tmp_path: Path) -> None:
    format_directory(tmp_path / "node", "cluster", "n1")
    files = FewFiles(20)
    engine = Engine.open(tmp_path / "node", SMALL, files, files_max=8)
    frame, body = frame_of(1, 1, 300)
    for number in range(40):
        engine.put(StreamOpened(descriptor(f"s{number}")))
        engine.put(FrameWritten(key_of(f"s{number}"), frame), body)
    batch = engine.begin_sync()
    batch.run()
    engine.end_sync(batch)
    assert not engine.stuck
    assert files.open_now <= 8 + 4  # and the directory's own
    for number in range(40):
        assert engine.read(key_of(f"s{number}"), [frame], 1 << 20, may_block=True) == [body]
    engine.close()
    again = Engine.open(tmp_path / "node", SMALL, files, files_max=8)
    assert [list(stream.frames) for stream in again.image.streams] == [[frame]] * 40
    again.close()
    assert files.open_now == 0
