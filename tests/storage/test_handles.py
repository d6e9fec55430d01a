"""Open files: bounded, and what is said when there are too many."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trunkline.storage.files import RealFiles
from trunkline.storage.handles import Handles


class FewFiles(RealFiles):
    """A process that may have only so many files."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.open_now = 0

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


def test_too_many_files_in_use_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    files = FewFiles(1)
    handles = Handles(files)
    handles.take(tmp_path / "0", create=True)
    with pytest.raises(OSError, match=r"raise the limit \(ulimit -n") as raised:
        handles.take(tmp_path / "1", create=True)
    assert raised.value.errno == errno.EMFILE
    handles.close()
