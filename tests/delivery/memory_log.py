"""A log in memory in place of a cluster's, as ``with_reader`` gives it to a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from trunkline.client.entries import Entry
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources import log_reader
from trunkline.delivery.sources.log_reader import ChangeLogReader, LogBounds
from trunkline.errors import Trimmed


class MemorySegment(Struct, frozen=True):
    epoch: int = 1
    owner: tuple[int, int] = (7, 7)

    def holds(self, version: int) -> bool:
        return version > 0


class MemoryLog(ChangeLogReader):
    """Positions begin at 1. ``upto``: the last one that there is yet; ``read``: how many entries were read."""

    def __init__(self, name: str, entries: Sequence[Entry]) -> None:
        self.address = LogAddress(name, "nowhere:1", table="public.table1")
        self._address = self.address
        self._entries = entries
        self._log = self  # type: ignore[assignment]  # asked for its tail
        self.upto: int | None = None
        self.trimmed = 0
        self.owner = (7, 7)
        self.read = 0
        self.close()

    def close(self) -> None:
        """It stays in use: a source forgets its reader after an error."""
        log_reader._open[log_reader._key(self.address)] = self

    def bounds(self) -> LogBounds:
        return LogBounds("cluster", self.trimmed, self.tail(), (MemorySegment(owner=self.owner),))  # type: ignore[arg-type]

    def tail(self) -> int:
        return (len(self._entries) if self.upto is None else self.upto) + 1

    def at(self, glsn: int) -> Entry | None:
        self.read += 1
        if glsn <= self.trimmed:
            raise Trimmed(self.trimmed)
        return self._entries[glsn - 1]

    def entries(self, first: int, last: int) -> Iterator[Entry]:
        for glsn in range(first, last + 1):
            found = self.at(glsn)
            assert found is not None
            yield found
