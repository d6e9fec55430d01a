"""Entries of a log as a source needs them: by window, in whole transactions, over a connection that is kept open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from msgspec import Struct

import trunkline.sync
from trunkline.client.cluster import ClientOptions
from trunkline.client.entries import Entry
from trunkline.config import ConnectionConfig
from trunkline.delivery.addresses import LogAddress
from trunkline.delivery.changes import Place, place_of
from trunkline.errors import (
    ConfigError,
    CorruptEntry,
    DestinationHalted,
    EntriesLost,
    Hole,
    NoSuchLog,
    NotWritten,
    Refused,
    SourceExpired,
    Trimmed,
    Unreachable,
)

T = TypeVar("T")

TIMEOUT_S: Final = 10.0  # of one question; a fail-over takes about a second
LOOK_AHEAD_MOST: Final = 1000  # entries of a first transaction; one that is longer is begun behind


class Extent(Struct, frozen=True):
    """What there is of a log."""

    cluster: str
    trimmed: int  # positions up to here are gone
    tail: int  # the first position that is not written yet


class LogReading:
    """A log that is read. Used by one thread at a time."""

    def __init__(self, address: LogAddress) -> None:
        self._address = address
        self._cluster = cluster_of(address)
        self._cluster.open()
        try:
            self._log = self._cluster.log(address.log)
        except NoSuchLog as error:
            self._cluster.close()
            raise ConfigError(
                f"there is no log {address.log!r} at {address.connect}; make it with `trunkline log create`, or begin "
                "its capture"
            ) from error

    def close(self) -> None:
        self._cluster.close()

    def extent(self) -> Extent:
        return Extent(self._cluster.id, self._cluster.describe(self._address.log).trim, self._log.tail())

    def tail(self) -> int:
        return self._log.tail()

    def at(self, glsn: int) -> Entry | None:
        """The entry at a position; ``None`` for a hole."""
        try:
            return self._log.read(glsn)
        except Hole:
            return None

    def entries(self, first: int | None, last: int) -> Iterator[Entry]:
        """Every entry up to ``last``, in order; from the oldest one on for ``None``.

        Raises ``Unreachable`` where one does not come in time: a window is read whole or not at all.
        """
        with self._log.batches(first, last) as batches:
            while arrived := batches.some(timeout=TIMEOUT_S):
                for batch in arrived:
                    yield from batch

    def transactions(self, first: int | None, last: int) -> Iterator[list[Entry]]:
        """Whole transactions (X2); those that were broken off are left out (X3)."""
        waiting: list[Entry] = []
        for entry in self.entries(first, last):
            place = self._place(entry)
            if place.index == 0:
                waiting = []
            waiting.append(entry)
            if place.last:
                yield waiting
                waiting = []

    def complete_at(self, glsn: int, oldest: int) -> int:
        """The last position at or before ``glsn`` that ends a transaction; ``oldest - 1`` if there is none."""
        while glsn >= oldest:
            entry = self.at(glsn)
            if entry is not None:
                place = self._place(entry)
                if place.last:
                    return glsn
                glsn -= place.index
            glsn -= 1
        return oldest - 1

    def first_complete(self, first: int, last: int) -> int:
        """The first position that ends a transaction with changes, or ``last`` if there is none nearby."""
        stated = False
        for glsn in range(first, min(last, first + LOOK_AHEAD_MOST)):
            if (entry := self.at(glsn)) is not None:
                stated = stated or bool(entry.payload)
                if stated and self._place(entry).last:
                    return glsn
        return last

    def _place(self, entry: Entry) -> Place:
        """An event of Debezium is a transaction by itself, whatever headers its producer gave it."""
        return Place() if self._address.format == "debezium" else place_of(entry)


Connection = tuple[str, str, str | None, str]  # what of an address says where a log is, and how it is read

_open: dict[Connection, LogReading] = {}
_lock = threading.Lock()


def reading(address: LogAddress, ask: Callable[[LogReading], T]) -> T:
    """Ask something over this process's connection. After an error it is made anew the next time.

    Raises ``Unreachable``, ``SourceExpired`` for what was trimmed, ``DestinationHalted`` for what is lost or corrupt.
    """
    with _lock:
        try:
            kept = _open.get(_connection(address))
            if kept is None:
                kept = _open[_connection(address)] = LogReading(address)
            return ask(kept)
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
                f"the log {address.log} cannot be understood: {error}; capture a new snapshot into it, or into another "
                "log, then reseed"
            ) from error
        except (NotWritten, NoSuchLog, Unreachable) as error:
            forget(address)
            raise Unreachable(f"the log {address.log} cannot be read now: {error}") from error
        except Refused:
            forget(address)
            raise


def forget(address: LogAddress) -> None:
    kept = _open.pop(_connection(address), None)
    if kept is not None:
        kept.close()


def _connection(address: LogAddress) -> Connection:
    return (address.connect, address.log, address.token_env, address.format)


def cluster_of(address: LogAddress) -> trunkline.sync.Cluster:
    """The cluster of a log, not open yet."""
    tls = ConnectionConfig(
        tls_ca=address.tls_ca or "", tls_cert=address.tls_cert or "", tls_key=address.tls_key or ""
    ).tls()
    options = ClientOptions(timeout=TIMEOUT_S, token=token_of(address))
    return trunkline.sync.connect(address.connect.split(","), options=options, tls=tls)


def token_of(address: LogAddress) -> str:
    """The cluster's shared secret."""
    if address.token_env is None:
        return ""
    try:
        return os.environ[address.token_env]
    except KeyError:
        raise ConfigError(
            f"the environment variable {address.token_env} is not set; it must hold the secret of the cluster at "
            f"{address.connect}"
        ) from None
