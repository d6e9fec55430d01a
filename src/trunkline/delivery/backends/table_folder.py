"""Where the files of a Delta table are: a directory, or a prefix of a bucket (``object_folder.py``)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from trunkline.delivery.backends.file_stamp import FileStamp, file_stamp
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.config.object_urls import store_url
from trunkline.errors import ConfigError


class TableFolder(Protocol):
    """Paths are relative to it. Every method but ``options`` may raise ``OSError``, with a message without keys."""

    @property
    def name(self) -> str:
        """The last part."""
        ...

    def __str__(self) -> str:
        """The path or URL, as in an address."""
        ...

    def options(self) -> dict[str, str] | None:
        """Storage options of delta-rs. Raises ``ConfigError`` without keys."""
        ...

    def explained(self, error: Exception) -> Exception:
        """An error of delta-rs about these files, in one line without keys; the same one where there are no keys."""
        ...

    def beside(self) -> Iterator[str]:
        """The paths or URLs of the folders next to it, and its own."""
        ...

    def names(self, folder: str) -> list[str]:
        """Of the files in a folder below; none if there is no such folder."""
        ...

    def stamp(self, path: str) -> FileStamp | None:
        """Differs after each write, and for a file that was recreated; ``None`` without a file."""
        ...

    def read(self, path: str) -> bytes:
        """Raises ``FileNotFoundError``."""
        ...

    def parquet(self, path: str, **options: object) -> pq.ParquetFile:
        """Opens it; ``options`` are those of pyarrow."""
        ...

    def write(self, path: str, rows: pa.Table, **options: object) -> int:
        """Write a Parquet file, which survives a power cut; returns its size."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        ...

    def prepare(self) -> None:
        """Before the first write of a table."""
        ...

    def drop(self) -> Iterator[None]:
        """Remove the table: a crash at any moment leaves it as it was, or gone. The caller continues after each
        step."""
        ...

    def finish_drop(self, log: Collection[str]) -> bool:
        """Complete a removal that a crash interrupted; returns whether there was one. ``log``: names of log files."""
        ...


def table_folder(address: DeltaAddress) -> TableFolder:
    if "%" in address.path:
        raise ConfigError(f"the path {address.path} has a percent sign, which delta-rs unescapes; rename it")
    if store_url(address) is not None:
        from trunkline.delivery.backends.object_folder import ObjectFolder

        return ObjectFolder(address)
    return LocalFolder(Path(address.path).absolute())


class LocalFolder:
    """A directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)

    def options(self) -> None:
        return None

    def explained(self, error: Exception) -> Exception:
        return error

    def beside(self) -> Iterator[str]:
        return map(str, self.path.parent.iterdir())

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.path / folder)
        except FileNotFoundError:
            return []

    def stamp(self, path: str) -> FileStamp | None:
        return file_stamp(self.path / path)

    def read(self, path: str) -> bytes:
        return (self.path / path).read_bytes()

    def parquet(self, path: str, **options: object) -> pq.ParquetFile:
        return pq.ParquetFile(self.path / path, **options)

    def write(self, path: str, rows: pa.Table, **options: object) -> int:
        pq.write_table(rows, self.path / path, **options)
        synced(self.path / path)
        return (self.path / path).stat().st_size

    def remove(self, path: str) -> None:
        (self.path / path).unlink(missing_ok=True)

    def prepare(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def drop(self) -> Iterator[None]:
        """By a rename; a crash after it leaves a hidden directory."""
        hidden = self.path.with_name(f".{self.path.name}.dropped")
        shutil.rmtree(hidden, ignore_errors=True)
        self.path.rename(hidden)
        yield
        shutil.rmtree(hidden, ignore_errors=True)

    def finish_drop(self, log: Collection[str]) -> bool:
        return False


def synced(path: str | Path) -> None:
    """Make a written file, or the names in a directory, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
