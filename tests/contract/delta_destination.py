"""Delta tables for the contract suite."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from msgspec import Struct

from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.destinations import delta_files
from trunkline.delivery.destinations.contract import MemberResult, MemberWrite, Standing
from trunkline.delivery.destinations.delta import DeltaPlace
from trunkline.delivery.destinations.delta_record import MARK, MARKED, POSITION, TOKEN
from trunkline.delivery.destinations.delta_vectors import PROPERTY
from trunkline.destination_suite.place import Part, Watch


class WatchedDelta(DeltaPlace):
    """Reports each access to the storage to the watcher."""

    def __init__(self, watch: Watch | None = None, properties: dict[str, str] | None = None) -> None:
        super().__init__(properties)
        self._watch = watch

    def apply(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        """Tables of tests are small: with vectors, as many of their rows as possible are marked."""
        with patch.object(delta_files, "MARKED_SHARE", 1):
            return super().apply(writes)

    def _step(self, name: str) -> None:
        if self._watch is not None:
            self._watch(name)


class DeltaSite(Struct, frozen=True):
    """A directory of Delta tables."""

    folder: str
    home: str = ""
    vectors: bool = False  # its tables have deletion vectors

    def open(self, watch: Watch | None = None) -> WatchedDelta:
        return WatchedDelta(watch, {PROPERTY: "true"} if self.vectors else {})

    def address(self, name: str) -> DeltaAddress:
        return DeltaAddress(self.path(name))

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def held(self, name: str) -> list[dict[str, Any]] | None:
        if not DeltaTable.is_deltatable(self.path(name)):
            return None
        rows: list[dict[str, Any]] = pa.table(DeltaTable(self.path(name)).scan()).to_pylist()
        return rows

    def held_together(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]] | None]:
        return {name: self.held(name) for name in names}

    def trace(self) -> object:
        """The version of each table."""
        found = [path for path in Path(self.folder).glob("*") if DeltaTable.is_deltatable(str(path))]
        return {path.name: DeltaTable(str(path)).version() for path in found}

    def make_foreign(self, name: str) -> None:
        write_deltalake(self.path(name), pa.table({"id": pa.array([99], pa.int64())}))

    def drop(self, name: str) -> None:
        shutil.rmtree(self.path(name))

    def make_old_record(self, name: str, standing: Standing, *, marks: bool) -> None:
        """The commits of an older release: they name a position and a token, perhaps a mark, and nothing else."""
        table = DeltaTable(self.path(name))
        version = self.path(name)
        rows = pa.table(table.scan())
        schema = pa.schema(table.schema())
        Path(version).rename(f"{version} of a newer release")
        numbers = {POSITION: standing.position, TOKEN: standing.token}
        if marks:
            numbers |= {MARK: int(standing.mark or "0", 16), MARKED: standing.position if standing.mark else -1}
        write_deltalake(
            version,
            rows.cast(schema),
            commit_properties=CommitProperties(app_transactions=[Transaction(*each) for each in numbers.items()]),
        )

    def old_token(self, name: str) -> int | None:
        return DeltaTable(self.path(name)).transaction_version(TOKEN)

    def old_source(self, name: str) -> str:
        """Its records are those of every release."""
        return ""

    def lost(self) -> DeltaSite:
        file = Path(self.folder).with_suffix(".txt")
        file.touch()
        return DeltaSite(str(file / "tables"))


class DeltaKind(Struct, frozen=True):
    name: str = "delta"
    lacks: frozenset[Part] = frozenset()
    widens: bool = True
    adds_lists: bool = True
    server_fixture: str = "postgres"
    commits_alone: bool = True
    vectors: bool = False

    def make(self, folder: Path, postgres: Callable[[], Any]) -> DeltaSite:
        return DeltaSite(str(folder / "tables"), vectors=self.vectors)


KINDS: Final = (DeltaKind(), DeltaKind("delta-vectors", vectors=True))
