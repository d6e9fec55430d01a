"""Errors of storage.

StorageError            the engine cannot start or continue: the process stops
  NotFormatted            the directory does not belong to a node
  DirectoryInUse          another process uses it
  CorruptDirectory        shared files are damaged: replace the node
  AnotherVersion          the data is intact, in a format that this version does not read
  NoRoom                  there is no space for the manifest
ReadError               one frame cannot be returned; the engine continues
  FrameDamaged            it no longer matches its checksum
  FrameMissing            it was trimmed or dropped in the meantime
"""

from __future__ import annotations

from trunkline.core.entries import Frame
from trunkline.core.streams import Key
from trunkline.errors import StorageError as StorageError


class NotFormatted(StorageError):
    pass


class DirectoryInUse(StorageError):
    pass


class CorruptDirectory(StorageError):
    pass


class AnotherVersion(StorageError):
    """The data is intact and is left alone."""

    def __init__(self, what: str, found: int | None, known: int) -> None:
        number = "another version" if found is None else f"version {found}"
        newer = "newer" if found is None or found > known else "older"
        advice = "upgrade this program" if newer == "newer" else "start the node with that one"
        super().__init__(
            f"{what} has {number}, this program reads version {known}: it was written by a {newer} version of "
            f"Trunkline; {advice}. The data is intact"
        )


class NoRoom(StorageError):
    pass


class ReadError(Exception):
    def __init__(self, key: Key, frame: Frame, why: str) -> None:
        super().__init__(f"frame at {frame.first} of stream {key[1]} of log {key[0]} {why}")
        self.key = key
        self.frame = frame


class FrameDamaged(ReadError):
    """Report it to the storage role: the stream lost acknowledged data."""


class FrameMissing(ReadError):
    """Ask the storage role again: the frame was removed."""
