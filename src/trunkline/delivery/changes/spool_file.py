"""A temporary file for rows that are too many to hold. It has no name: nothing of it outlives the process.

A write that fails, as on a full disk, may have written a part: from then on the file is of no use, and every call
raises the same ``Unreachable``. So no row is ever read from a place where another one is.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import IO

import pyarrow as pa

from trunkline.errors import Unreachable


class SpoolFile:
    """It is closed with its last reader."""

    def __init__(self) -> None:
        self.size = 0
        self._failure = ""
        self._file: IO[bytes] = BytesIO()
        with self._translated():
            self._file = tempfile.TemporaryFile(prefix="trunkline-")  # noqa: SIM115  `finalize` closes it
        weakref.finalize(self, _close, self._file)

    def write(self, content: bytes | bytearray) -> int:
        """Append; returns where it begins."""
        start = self.size
        with self._translated():
            self._file.write(content)
        self.size += len(content)
        return start

    def mapped(self, size: int) -> pa.Buffer:
        """The first bytes, as long as anything refers to them."""
        with self._translated():
            self._file.flush()
            return pa.py_buffer(mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ))

    def read(self, start: int, size: int) -> bytes:
        with self._translated():
            self._file.flush()
            return os.pread(self._file.fileno(), size, start)

    def close(self) -> None:
        _close(self._file)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        if self._failure:
            raise Unreachable(self._failure)
        try:
            yield
        except OSError as error:
            self._failure = (
                f"rows cannot be written to a temporary file in {tempfile.gettempdir()} ({error.strerror}); free its "
                "disk, or let TMPDIR name another directory; retrying"
            )
            self.close()  # the room that it took is free at once
            raise Unreachable(self._failure) from error


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # of what was not written yet, and no one reads any more
        file.close()
