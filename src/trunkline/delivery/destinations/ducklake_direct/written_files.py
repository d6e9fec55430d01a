"""The files that one attempt of a transaction wrote, until it is known what became of it."""

from __future__ import annotations

import os
from typing import Final

import pyarrow as pa

from trunkline.delivery.destinations.ducklake_direct.catalog import Watch
from trunkline.delivery.destinations.ducklake_direct.parquet_file import (
    WrittenFile,
    make_folder,
    remove_files,
    sync_path,
    write_file,
)

OPEN_MAX: Final = 128  # files that are open at a time; more: a process runs out of handles, fewer: more work to sync


class WrittenFiles:
    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._paths: list[str] = []
        self._folders: set[str] = set()
        self._handles: list[int] = []  # of files that are not synced yet

    def write(self, folder: str, name: str, table: pa.Table) -> WrittenFile:
        if folder not in self._folders:
            make_folder(folder)
            self._folders.add(folder)
        self._paths.append(folder + name)
        made = write_file(folder, name, table, self._watch)
        self._handles.append(made.handle)
        if len(self._handles) >= OPEN_MAX:
            self._sync_files()
        return made

    def sync(self) -> None:
        """So that the catalog may name the files."""
        self._sync_files()
        for folder in sorted(self._folders):
            sync_path(folder)

    def _sync_files(self) -> None:
        try:
            for handle in self._handles:
                os.fsync(handle)
        finally:
            self.close()

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()

    def discard(self) -> None:
        """Nothing was committed, for certain."""
        self.close()
        remove_files(self._paths)
