"""What a log says about the capture that wrote it: how far it is, and all tables with their snapshots.

Rules
 Y1  The newest entry but the marks of take-overs names a catalog; everything is read from there on, rows excepted.
 Y2  A log with entries that are not of a captured database, or of another kind of database, is refused before anything
     is written to it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct

import trunkline.sync
from trunkline.client.cluster import ClientOptions
from trunkline.client.entries import Entry
from trunkline.core.capture_messages import Origin
from trunkline.delivery.changes.database_entries import (
    CatalogEntry,
    EntryKind,
    Heading,
    corrupt,
    entry_of,
    heading_of,
)
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.errors import ConfigError, EntriesLost, Trimmed

BLOCK_FIRST: Final = 4  # entries that are read back at once: most often the last one is enough
BLOCK_MAX: Final = 256


class SourcePosition(Struct, frozen=True, omit_defaults=True):
    """The header of a position. ``lsn``: after the last whole transaction; ``commit_us``: when that committed."""

    kind: str
    system: str
    timeline: int
    lsn: int
    commit_us: int = 0

    @property
    def origin(self) -> Origin:
        return Origin(self.system, self.timeline)

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class LogState(Struct, frozen=True):
    """A log up to a position. ``reader`` is None if it has no catalog: nothing was captured yet."""

    position: SourcePosition | None = None
    reader: DatabaseReader | None = None
    catalog_glsn: int = 0


_position: Final = msgspec.json.Decoder(SourcePosition)


def position_in(glsn: int, heading: Heading) -> SourcePosition | None:
    if heading.position is None:
        return None
    try:
        return _position.decode(heading.position)
    except msgspec.MsgspecError as error:
        corrupt(glsn, f"its position cannot be read: {error}", error)


def check_log(log: trunkline.sync.Log, upto: int, kind: str | None) -> int:
    """The catalog that the entries after it need; 0: the log has none. Raises ``ConfigError`` (Y2)."""
    for entry in _backwards(log, upto):
        heading = heading_of(entry)
        if heading is None:
            raise ConfigError(
                f"the log {log.name} has entries that are not of a captured database: entry {entry.glsn} is of a "
                "capture of one table, or of another writer; capture the database into another log"
            )
        position = position_in(entry.glsn, heading)
        if position is not None and kind is not None and position.kind != kind:
            raise ConfigError(
                f"the log {log.name} has changes of a {position.kind}, not of a {kind}; capture into another log"
            )
        if heading.kind is EntryKind.CATALOG:
            return entry.glsn
        if heading.catalog is not None:
            return heading.catalog
    return 0


def survey(log: trunkline.sync.Log, upto: int, kind: str | None) -> LogState:
    """The state after the entry ``upto``, which is committed. Raises ``ConfigError`` (Y2) and ``CorruptEntry``."""
    catalog = check_log(log, upto, kind)
    if not catalog:
        return LogState()
    reader: DatabaseReader | None = None
    position: SourcePosition | None = None
    for entry in _forwards(log, catalog, upto):
        found = entry_of(entry)
        if reader is None:
            if not isinstance(found, CatalogEntry):
                corrupt(entry.glsn, "a later entry names it as a catalog")
            reader = DatabaseReader(found)
        else:
            reader.feed(found, rows=False)
        if isinstance(found, CatalogEntry):
            catalog = entry.glsn
        heading = heading_of(entry)
        if heading is not None:
            position = position_in(entry.glsn, heading) or position
    return LogState(position, reader, catalog)


def surveyed(
    connect: Sequence[str], name: str, *, token: str = "", tls: ssl.SSLContext | None = None, timeout: float | None
) -> LogState:
    """The state of a log now."""
    options = ClientOptions(timeout=timeout, token=token, name="cli")
    with trunkline.sync.connect(list(connect), options=options, tls=tls) as cluster:
        log = cluster.log(name)
        return survey(log, log.tail() - 1, None)


def _forwards(log: trunkline.sync.Log, catalog: int, upto: int) -> Iterator[Entry]:
    try:
        yield from log.subscribe(catalog, upto, to_tail=True)
    except (Trimmed, EntriesLost) as error:
        raise ConfigError(
            f"the catalog of the log {log.name}, entry {catalog}, or an entry after it was removed ({error}), and no "
            "reader can go on without it; capture the database into another log"
        ) from None


def _backwards(log: trunkline.sync.Log, upto: int) -> Iterator[Entry]:
    """Entries from ``upto`` on back to the first. Raises ``ConfigError`` where some were removed."""
    size = BLOCK_FIRST
    while upto > 0:
        start = max(1, upto - size + 1)
        try:
            block = list(log.subscribe(start, upto, to_tail=True))
        except (Trimmed, EntriesLost) as error:
            if isinstance(error, Trimmed) and error.point < upto:
                block = list(log.subscribe(error.point + 1, upto, to_tail=True))
            else:
                block = []
            yield from reversed(block)
            raise ConfigError(
                f"the log {log.name} has lost its catalog: {error}; capture the database into another log"
            ) from None
        yield from reversed(block)
        upto, size = start - 1, min(4 * size, BLOCK_MAX)
