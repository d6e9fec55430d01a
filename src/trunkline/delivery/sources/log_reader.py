"""Reads the entries of a log by window, in whole transactions, over a connection that stays open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from msgspec import Struct

import trunkline.sync
from trunkline.client.cluster import ClientOptions
from trunkline.client.entries import Entry
from trunkline.config import ConnectionConfig, secret
from trunkline.core.projection import Segment
from trunkline.delivery.changes.captured import EntryPlace, entry_place
from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.database_entries import FORMAT_HEADER, CatalogEntry, EntryKind, entry_of, heading_of
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.config.addresses import LogAddress
from trunkline.errors import (
    ConfigError,
    CorruptEntry,
    DestinationHalted,
    EntriesLost,
    Hole,
    NoSuchLog,
    NotWritten,
    SourceExpired,
    Trimmed,
    TrunklineError,
    Unreachable,
)

T = TypeVar("T")

TIMEOUT_S: Final = 10.0  # of one request; a fail-over takes about a second
NAMES_SHOWN: Final = 5  # tables of a database, in a message
LOOK_AHEAD_MAX: Final = 1000  # entries of a first transaction; if it is longer, delivery begins at the newest version


class LogBounds(Struct, frozen=True):
    """The positions that a log has."""

    cluster: str
    trimmed: int  # positions up to here were trimmed
    tail: int  # the first position that is not written yet
    segments: tuple[Segment, ...] = ()  # those that were not trimmed

    def writer_of(self, version: int) -> tuple[object, ...] | None:
        """What is unique to the segment of a position: one start of one process. ``None`` if it was trimmed."""
        found = [segment for segment in self.segments if segment.holds(version)]
        return (found[0].epoch, *found[0].owner) if found else None


class ChangeLogReader:
    """Used by one thread at a time."""

    def __init__(self, address: LogAddress) -> None:
        self._address = address
        self._cluster = cluster_of(address)
        self._cluster.open()
        try:
            self._log = self._cluster.log(address.log)
        except NoSuchLog as error:
            self._cluster.close()
            raise ConfigError(
                f"there is no log {address.log!r} at {address.connect}; create it with `trunkline log create`, or "
                "start its capture"
            ) from error

    def close(self) -> None:
        self._cluster.close()

    def bounds(self) -> LogBounds:
        view = self._cluster.describe(self._address.log)
        return LogBounds(self._cluster.id, view.trim, self._log.tail(), view.segments)

    def tail(self) -> int:
        return self._log.tail()

    def at(self, glsn: int) -> Entry | None:
        """The entry at a position; ``None`` for a hole."""
        try:
            return self._log.read(glsn)
        except Hole:
            return None

    def entries(self, first: int, last: int) -> Iterator[Entry]:
        """Every entry up to ``last``, in order. Raises ``Unreachable`` if one does not arrive in time."""
        with self._log.batches(first, last) as batches:
            while arrived := batches.some(timeout=TIMEOUT_S):
                for batch in arrived:
                    yield from batch

    def transactions(self, first: int, last: int, *, cut: bool = False) -> Iterator[list[Entry] | CorruptEntry]:
        """Whole transactions (X2), without interrupted ones (X3). ``cut``: a trim may have cut the first one.

        Yields an error in place of corrupt entries: a later truncation may make them irrelevant.
        """
        waiting: list[Entry] = []
        expected = None if cut else 0  # None: unknown, as after a corrupt entry
        while first <= last:
            try:
                for entry in self.entries(first, last):
                    place = self.place(entry)
                    _check_order(entry, place, expected)
                    if place.index == 0:
                        waiting = []
                    waiting.append(entry)
                    first, expected = entry.glsn + 1, 0 if place.last else place.index + 1
                    if place.last:
                        yield waiting
                        waiting = []
            except CorruptEntry as error:
                yield error
                first, expected, waiting = max(error.end, first + 1), None, []
            else:
                return

    def complete_at(self, glsn: int, oldest: int) -> int:
        """The last position at or before ``glsn`` that ends a transaction; ``oldest - 1`` if there is none.

        A corrupt entry counts as an end: the read up to there reports it. The index of an entry is not trusted: the
        entry before it must agree, and no other transaction may end where this one begins.
        """
        while glsn >= oldest:
            try:
                place = self._place_at(glsn)
                if place is not None and not place.last and place.index > 0:
                    before = self._before(glsn, oldest)
                    if before is not None and (before.last or before.index != place.index - 1):
                        return glsn
                    begin = self._place_at(glsn - place.index) if glsn - place.index >= oldest else None
                    if (oldest == 1 and glsn - place.index < 1) or (begin is not None and begin.last):
                        return glsn
                    glsn -= place.index
                    continue
            except CorruptEntry:
                return glsn
            if place is not None and place.last:
                return glsn
            glsn -= 1
        return oldest - 1

    def _before(self, glsn: int, oldest: int) -> EntryPlace | None:
        """The place of the entry before a position."""
        for earlier in range(glsn - 1, oldest - 1, -1):
            if (place := self._place_at(earlier)) is not None:
                return place
        return None

    def _place_at(self, glsn: int) -> EntryPlace | None:
        entry = self.at(glsn)
        return None if entry is None else self.place(entry)

    def first_complete(self, first: int, last: int) -> int:
        """The first position that ends a transaction with changes, or ``last`` if there is none nearby."""
        stated = False
        for glsn in range(first, min(last, first + LOOK_AHEAD_MAX)):
            if (entry := self.at(glsn)) is not None:
                stated = stated or bool(entry.payload)
                if stated and self.place(entry).last:
                    return glsn
        return last

    def place(self, entry: Entry) -> EntryPlace:
        """An event of Debezium is a transaction of its own, whatever its headers."""
        if self._address.format == "debezium":
            return EntryPlace()
        if FORMAT_HEADER in entry.headers:
            raise self._of_a_database(entry)
        return entry_place(entry)

    def _of_a_database(self, entry: Entry) -> ConfigError:
        """Without ``table`` a source reads a log of one table."""
        heading, names = heading_of(entry), list[str]()
        at = 0 if heading is None else entry.glsn if heading.kind is EntryKind.CATALOG else heading.catalog
        found = self.at(at) if at else None
        if found is not None and isinstance(catalog := entry_of(found), CatalogEntry):
            reader = DatabaseReader(catalog)
            for each in self.entries(catalog.glsn + 1, entry.glsn) if catalog.glsn < entry.glsn else ():
                reader.feed(entry_of(each), rows=False)
            names = sorted(qualified(table.newest) for table in reader.tables())
        some = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
        return ConfigError(
            f"the log {self._address.log} has all tables of a database; name one in `table` of the source"
            f"{f', such as {some}' if some else ''}"
        )


def _check_order(entry: Entry, place: EntryPlace, expected: int | None) -> None:
    """A transaction's entries are numbered from 0, and adjacent (X2)."""
    if expected is not None and place.index not in (0, expected):
        raise CorruptEntry(
            f"entry {entry.glsn} is number {place.index} of its transaction, but number {expected} or a new "
            "transaction must follow here",
            entry.glsn,
            entry.glsn + 1,
        )


ReaderKey = tuple[str, str, str | None, str]  # the fields of an address that a reader depends on

_open: dict[ReaderKey, ChangeLogReader] = {}
_lock = threading.Lock()


def with_reader(address: LogAddress, ask: Callable[[ChangeLogReader], T]) -> T:
    """Call ``ask`` with this process's reader of a log. After an error the next call opens another.

    Raises ``Unreachable``, ``SourceExpired`` for trimmed entries, ``DestinationHalted`` for lost or corrupt ones.
    """
    with _lock:
        try:
            reader = _open.get(_key(address))
            if reader is None:
                reader = _open[_key(address)] = ChangeLogReader(address)
            return ask(reader)
        except Trimmed as error:
            raise SourceExpired(
                f"the log {address.log} was trimmed up to {error.point}; the destination is seeded again"
            ) from error
        except EntriesLost as error:
            raise DestinationHalted(
                f"the log {address.log} has lost entries: {error}; capture a new snapshot into it, then reseed"
            ) from error
        except CorruptEntry as error:
            raise DestinationHalted(
                f"the log {address.log} is corrupt: {error}; capture a new snapshot into it, or into another log, then "
                "reseed"
            ) from error
        except (NotWritten, NoSuchLog, Unreachable) as error:
            forget_reader(address)
            raise Unreachable(f"the log {address.log} cannot be read now: {error}") from error
        except BaseException:
            forget_reader(address)  # its thread may have failed
            raise


def forget_reader(address: LogAddress) -> None:
    reader = _open.pop(_key(address), None)
    if reader is not None:
        with suppress(TrunklineError):  # after a failure, closing may fail as well
            reader.close()


def _key(address: LogAddress) -> ReaderKey:
    return (address.connect, address.log, address.token_env, address.format)


def cluster_of(address: LogAddress) -> trunkline.sync.Cluster:
    """The cluster of a log; not opened."""
    tls = ConnectionConfig(
        tls_ca=address.tls_ca or "", tls_cert=address.tls_cert or "", tls_key=address.tls_key or ""
    ).tls()
    options = ClientOptions(timeout=TIMEOUT_S, token=token_of(address))
    return trunkline.sync.connect(address.connect.split(","), options=options, tls=tls)


def token_of(address: LogAddress) -> str:
    """The cluster's shared secret."""
    if address.token_env is None:
        return ""
    return secret(address.token_env, f"the token of the cluster at {address.connect}")
