"""Delta tables for the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct

from contract.destination_place import Watch
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.destinations.delta import DeltaDestination


class WatchedDelta(DeltaDestination):
    """Reports each access to the storage to the watcher."""

    def __init__(self, address: DeltaAddress, watch: Watch | None) -> None:
        super().__init__(address)
        self._watch = watch

    def _step(self, name: str) -> None:
        if self._watch is not None:
            self._watch(name)


class DeltaPlace(Struct, frozen=True):
    """A Delta table in a directory."""

    path: str

    def open(self, watch: Watch | None = None) -> DeltaDestination:
        return WatchedDelta(DeltaAddress(self.path), watch)

    def held(self) -> list[dict[str, Any]] | None:
        if not DeltaTable.is_deltatable(self.path):
            return None
        rows: list[dict[str, Any]] = pa.table(DeltaTable(self.path).scan()).to_pylist()
        return rows

    def trace(self) -> object:
        return DeltaTable(self.path).version() if DeltaTable.is_deltatable(self.path) else None

    def make_foreign(self) -> None:
        write_deltalake(self.path, pa.table({"id": pa.array([99], pa.int64())}))

    def forget_marks(self) -> None:
        """A commit without a mark is what an older release made."""

    def lost(self) -> DeltaPlace:
        file = Path(self.path).with_suffix(".txt")
        file.touch()
        return DeltaPlace(str(file / "table"))


class DeltaKind(Struct, frozen=True):
    name: str = "delta"
    widens: bool = True

    def make(self, folder: Path, postgres: Callable[[], Any]) -> DeltaPlace:
        return DeltaPlace(str(folder / "table"))


KINDS: Final = (DeltaKind(),)
