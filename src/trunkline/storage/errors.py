"""What can go wrong on a disk.

StorageError            the engine cannot start, or cannot go on: the process stops
  NotFormatted            the directory holds no node
  DirectoryInUse          another process has it open
  CorruptDirectory        what every stream depends on is damaged: replace the node
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
