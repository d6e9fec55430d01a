"""What can go wrong on a disk.

StorageError            the engine cannot start, or cannot go on: the process stops
  NotFormatted            the directory holds no node
  DirectoryInUse          another process has it open
  CorruptDirectory        what every stream depends on is damaged: replace the node
  AnotherVersion          what is there is whole, and of a version that this program does not read
  NoRoom                  there is no space for what has to be written first of all
ReadError               one frame cannot be returned; everything else goes on
  FrameDamaged            it was stored and does not match its checksum any more
  FrameMissing            it was trimmed or dropped meanwhile
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
    """Nothing is wrong with the data: it is neither changed nor replaced."""

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
    """Tell the storage role: the stream has lost acknowledged data."""


class FrameMissing(ReadError):
    """Ask the storage role again: it no longer has the frame."""
