"""Second names of a transaction's new files, until it is known what became of it.

DuckLake removes the files of a commit that failed. If the connection to a catalog in PostgreSQL breaks after the server
committed, and before it said so, DuckLake takes the commit for failed: the catalog would name files that do not exist.

Rules
 N1  Before a commit every new file gets a second name: a hard link in the folder KEPT of the lake. It is removed when
     the outcome is known.
 N2  If the outcome is unknown, a file that was removed gets its name back once the catalog names it. Every process
     looks when it attaches the lake, and the one that lost the answer looks at once: a commit may come late.
 N3  A second name is removed after ``KEPT_S_MAX``: its file is there, or no commit named it. The process that made it
     may have been killed.
 N4  This needs a lake in a directory, on a file system with hard links. Without hard links nothing is kept: if a
     catalog names a file that was removed, the destination must be seeded again. Objects are kept otherwise
     (``ducklake_store.py``).
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT: Final = "_trunkline_kept"
SUFFIX: Final = ".kept"  # DuckLake's own cleaning looks for files that end in .parquet
KEPT_S_MAX: Final = 3600  # a commit whose answer was lost is over long before
CLOCKS_S_MAX: Final = 300  # by which the clock of a file server may differ
# DuckLake names a file by a UUID of version 7, which begins with the milliseconds since 1970.
NEW_FILE: Final = re.compile(r"ducklake-([0-9a-f]{8})-([0-9a-f]{4})-7.*")

log = logging.getLogger(__name__)


class KeptFiles:
    """Of one lake. ``data_path``: as its catalog has it."""

    def __init__(self, data_path: str) -> None:
        self._root = None if "://" in data_path else Path(data_path)  # N4
        self._warned = False
        self.undecided = self._root is not None  # no look yet, or a removed file that no commit named so far

    def keep(self, since_s: float) -> list[Path]:
        """Give every file since then a second name (N1); returns those names."""
        kept: list[Path] = []
        if self._root is None:
            return kept
        for file in self._new_files(self._root, since_s):
            second = self._root / KEPT / file.relative_to(self._root).with_name(file.name + SUFFIX)
            try:
                second.parent.mkdir(parents=True, exist_ok=True)
                second.hardlink_to(file)
            except OSError as error:
                self._warn(error)
            else:
                kept.append(second)
        return kept

    def _new_files(self, root: Path, since_s: float) -> Iterator[Path]:
        """Tables are two folders deep; one that did not change for long has no new file."""
        for table in (table for schema in _folders(root) if schema.name != KEPT for table in _folders(schema)):
            if table.stat().st_mtime < since_s - CLOCKS_S_MAX:
                continue
            for name in os.listdir(table):
                found = NEW_FILE.fullmatch(name)
                if found and int(found[1] + found[2], 16) >= int(since_s * 1000):
                    yield Path(table) / name

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            log.warning(
                "files of %s get no second names (%s): if the connection to its catalog breaks during a commit, files "
                "may be lost",
                self._root,
                error.strerror,
            )
        self._warned = True

    def settle(self, named: Callable[[Collection[str]], set[str]]) -> None:
        """Give removed files that the catalog names their names back (N2), and forget old ones (N3)."""
        left = list((self._root / KEPT).rglob(f"*{SUFFIX}")) if self._root is not None else []
        gone = {second: first for second in left if not (first := self._first(second)).exists()}
        wanted = named([first.name for first in gone.values()]) if gone else set[str]()
        self.undecided = len(wanted) < len(gone)
        for second, first in gone.items():
            if first.name in wanted:
                with suppress(FileExistsError):  # another process was faster
                    first.hardlink_to(second)
                log.warning("the file %s is there again: the answer to a commit that named it was lost", first)
        old = time.time() - KEPT_S_MAX
        forget([second for second in left if (self._first(second).name in wanted) or _made_at(second) < old])

    def _first(self, second: Path) -> Path:
        assert self._root is not None
        path = second.relative_to(self._root / KEPT)
        return self._root / path.with_name(path.name.removesuffix(SUFFIX))


def _folders(parent: os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(parent) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except FileNotFoundError:  # nothing was written yet
        return []


def forget(kept: Collection[Path]) -> None:
    """Remove second names."""
    for path in kept:
        path.unlink(missing_ok=True)


def _made_at(second: Path) -> float:
    try:
        return second.stat().st_mtime
    except FileNotFoundError:
        return time.time()
