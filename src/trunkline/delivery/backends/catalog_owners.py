"""Who has a catalog in SQLite open in this process: DuckDB's extension, or Python's own library.

Each of the two has its own copy of SQLite. A process has one set of POSIX locks on a file, and closing any handle drops
them all: two libraries that have one file open at the same time take each other's locks away, and corrupt it.

States of a file
    free --attaching--> attached (any number of leases) --released, the last one--> free
    free --direct--> direct (one connection, for one transaction) --closed--> free

Rules
 O1  A lease is taken before ATTACH and released after DETACH, by all that attaches a catalog. Only a file without a
     lease is opened directly, and while it is, ``attaching`` waits: a direct connection lives for one transaction.
 O2  A caller that wants a file directly asks the holders of idle leases to detach. If one is in use, it does not wait:
     it uses the extension too, which is always safe. So no two threads wait for each other.
 O3  A file is identified by device and inode, so that two names of one file are one file; a file that does not exist
     yet, by its real path, until it does.
 O4  Before a direct connection is opened, no handle of this process may refer to the file. This finds a program that
     attaches a catalog without a lease.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, Protocol

from trunkline.errors import Unreachable

HANDLES: Final = "/proc/self/fd"
DIRECT_S_MAX: Final = 60.0  # that ``attaching`` waits for a direct transaction, which has limits of its own

FileId = tuple[int, int] | str  # device and inode; or the real path of a file that does not exist yet


class IdleHolder(Protocol):
    """Keeps leases of lakes that are idle at the moment."""

    def detach_idle(self, file: FileId) -> None:
        """Detach the lakes of this file that are idle, and release their leases."""
        ...


class Lease:
    """That the extension may have a file open. Released once; also when it is forgotten."""

    def __init__(self, owners: CatalogOwners, path: str) -> None:
        self._owners = owners
        self._path = path
        self._file: FileId = file_id(path)
        self._held = True

    @property
    def file(self) -> FileId:
        """It may have been created since (O3)."""
        if isinstance(self._file, str):
            self._file = self._owners.renamed(self._file, file_id(self._path))
        return self._file

    def release(self) -> None:
        if self._held:
            self._held = False
            self._owners.released(self.file)


class CatalogOwners:
    """Of all files of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._leases: Counter[FileId] = Counter()
        self._new: weakref.WeakSet[Lease] = weakref.WeakSet()  # of files that did not exist
        self._direct: set[FileId] = set()
        self._holders: weakref.WeakSet[IdleHolder] = weakref.WeakSet()

    def join(self, holder: IdleHolder) -> None:
        self._holders.add(holder)

    def attaching(self, path: str) -> Lease:
        """Before ATTACH. Waits while a direct connection is open (O1)."""
        lease = Lease(self, path)
        with self._lock:
            if not self._changed.wait_for(lambda: file_id(path) not in self._direct, DIRECT_S_MAX):
                raise Unreachable(f"a direct transaction of {path} did not end for {DIRECT_S_MAX:g} s; retrying")
            lease._file = file_id(path)
            self._leases[lease._file] += 1
            if isinstance(lease._file, str):
                self._new.add(lease)
        return lease

    def released(self, file: FileId) -> None:
        with self._lock:
            self._leases[file] -= 1
            if self._leases[file] <= 0:
                del self._leases[file]
            self._changed.notify_all()

    def renamed(self, old: FileId, new: FileId) -> FileId:
        """A file that did not exist was created."""
        with self._lock:
            if new != old:
                self._leases[new] += 1
                self._leases[old] -= 1
                if self._leases[old] <= 0:
                    del self._leases[old]
        return new

    @contextmanager
    def direct(self, path: str) -> Iterator[bool]:
        """Whether the file may be opened by Python's library, inside of ``with`` (O1, O2, O4)."""
        file = file_id(path)
        if isinstance(file, str):  # there is none
            yield False
            return
        for lease in list(self._new):
            _ = lease.file  # O3
        if self._leases.get(file):
            for holder in list(self._holders):
                holder.detach_idle(file)
        with self._lock:
            free = file not in self._leases and file not in self._direct and not _has_handle(file)
            if free:
                self._direct.add(file)
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._direct.discard(file)
                    self._changed.notify_all()


@cache
def catalog_owners() -> CatalogOwners:
    """Global to the process."""
    return CatalogOwners()


def file_id(path: str) -> FileId:
    try:
        found = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _has_handle(file: FileId) -> bool:
    """Whether this process has the file open (O4); only Linux can tell."""
    try:
        names = os.listdir(HANDLES)
    except OSError:
        return False
    for name in names:
        try:
            found = os.stat(f"{HANDLES}/{name}")
        except OSError:  # of the listing itself, or closed since
            continue
        if (found.st_dev, found.st_ino) == file:
            return True
    return False
