"""Cheap detection of changes to a file."""

from __future__ import annotations

import os
from pathlib import Path

FileStamp = tuple[int | float | str, ...]  # inode or digest, size, time of the last modification


def file_stamp(path: str | Path) -> FileStamp | None:
    """Differs after each write, and for a file that was recreated; ``None`` without a file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
