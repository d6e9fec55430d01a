"""The files that one attempt of a transaction wrote, until it is known what became of it."""

from __future__ import annotations

import pyarrow as pa

from trunkline.delivery.destinations.ducklake_direct.catalog import Watch
from trunkline.delivery.destinations.ducklake_direct.parquet_file import (
    WrittenFile,
    make_folder,
    remove_files,
    sync_path,
    write_file,
)


class WrittenFiles:
    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._paths: list[str] = []
        self._folders: set[str] = set()

    def write(self, folder: str, name: str, table: pa.Table) -> WrittenFile:
        if folder not in self._folders:
            make_folder(folder)
            self._folders.add(folder)
        self._paths.append(folder + name)
        return write_file(folder, name, table, self._watch)

    def sync(self) -> None:
        """So that the catalog may name the files."""
        for path in (*self._paths, *sorted(self._folders)):
            sync_path(path)

    def discard(self) -> None:
        """Nothing was committed, for certain."""
        remove_files(self._paths)
