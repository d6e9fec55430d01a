"""Small disks for tests that need one to be full or to lose power. They need root."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType

import pytest

from outside import program

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2  # unsynced data is lost, as after a power cut
MIB = 1 << 20


def need_root(what: str) -> None:
    """Skips the test without root, but fails it in continuous integration."""
    if os.geteuid() != 0:
        reason = f"{what} need root: run the tests as root"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


class Volumes:
    """Mounts that are removed with the test, also when it failed."""

    def __init__(self, directory: Path) -> None:
        need_root("mounts")
        self._directory = directory
        self._mounted: list[Path] = []
        directory.mkdir(parents=True)

    def __enter__(self) -> Volumes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._mounted:
            subprocess.run([program("umount"), "--lazy", path], check=False, capture_output=True)

    def memory(self, name: str, size_bytes: int) -> Path:
        """A disk of this size, in memory."""
        return self._mount(name, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs")

    def ext4(self, name: str, size_bytes: int) -> Path:
        """A disk with a journal, in a file."""
        image = self._directory / f"{name}.img"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run(program("mkfs.ext4"), "-q", "-F", str(image))
        return self._mount(name, "-o", "loop", str(image))

    def cut_power(self, path: Path) -> None:
        """Nothing that was not synced will be found; every write and sync from now on fails."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def power_on(self, path: Path) -> None:
        """No process may have files open there.

        The disk comes back as a copy. Another test may have made a namespace with a copy of the mount: the file system
        without power lives on there, and a mount of the same image would be that one.
        """
        _run(program("umount"), str(path))
        image = self._directory / f"{path.name}.img"
        copied = image.with_suffix(".copy")
        shutil.copyfile(image, copied)
        copied.replace(image)
        _run(program("mount"), "-o", "loop", str(image), str(path))

    def _mount(self, name: str, *arguments: str) -> Path:
        path = self._directory / name
        path.mkdir()
        _run(program("mount"), *arguments, str(path))
        self._mounted.append(path)
        return path


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
