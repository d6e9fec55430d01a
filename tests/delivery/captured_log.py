"""A captured log for tests: the capture in this process, and what a pipeline would read from the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import trunkline.sync
from trunkline.client.cluster import ClientOptions
from trunkline.delivery.capture.one_table.capture_log import CaptureLog, Transaction
from trunkline.delivery.capture.one_table.runner import Capture, ChangeSource
from trunkline.delivery.changes.captured import entry_place
from trunkline.delivery.changes.rows import ROUTE_COLUMN
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.log import LogSource
from trunkline.delivery.sources.log_reader import forget_reader
from trunkline.errors import OutcomeUnknown, Unreachable

Row = dict[str, Any]
T = TypeVar("T")

PATIENCE_S = 120.0  # on a loaded machine
LOOK_AGAIN_S = 0.05


class CapturedLog:
    def __init__(self, connect: str, log: str, key: Sequence[str] = ("id",), routing: str = "tenant") -> None:
        self.connect = connect
        self.log = log
        self.source = LogSource(LogAddress(log, connect))
        self._key = tuple(key)
        self._routing = routing

    def close(self) -> None:
        """Close the source's connection: it would redial its cluster after that has ended."""
        forget_reader(self.source.address)

    def capture(self, source: ChangeSource) -> int:
        """All that there is now; returns how many transactions came."""
        return Capture(source, [self.connect], self.log, poll_ms=10).run(once=True).transactions

    def capture_with_a_lost_append(self, source: ChangeSource, monkeypatch: pytest.MonkeyPatch) -> int:
        """As ``capture``, but the first append does not happen, and its outcome is unknown."""
        write, lost = CaptureLog.write, list[str]()

        def losing(log: CaptureLog, transaction: Transaction) -> int:
            if not lost:
                lost.append(transaction.position)
                raise OutcomeUnknown("made up")
            return write(log, transaction)

        with monkeypatch.context() as patched:
            patched.setattr(CaptureLog, "write", losing)
            found = self.capture(source)
        assert lost
        return found

    def tail(self) -> int:
        found = _patiently(self.source.change_hint)
        assert isinstance(found, int)
        return found

    def version(self) -> int:
        return _patiently(lambda: self.source.state(0).version)

    def asked(self, version: int) -> ReadRequest:
        return ReadRequest(_patiently(lambda: self.source.columns(version)), self._key, self._routing)

    def batches(self, version: int | None = None) -> list[pa.RecordBatch]:
        """The state at a version; by default the newest."""
        at = self.version() if version is None else version
        asked = self.asked(at)
        return _patiently(lambda: list(self.source.scan(at, asked, ALL_ROUTES)))

    def rows(self, version: int | None = None) -> list[Row]:
        return [row for batch in self.batches(version) for row in batch.drop_columns([ROUTE_COLUMN]).to_pylist()]

    def positions(self) -> dict[int, str]:
        """The source's position after each version that ends a transaction with changes."""
        found = {}
        options = ClientOptions(timeout=PATIENCE_S, connect_timeout=PATIENCE_S)
        with trunkline.sync.connect(self.connect, options=options) as cluster:
            for entry in cluster.log(self.log).subscribe(to_tail=True):
                place = entry_place(entry)
                if place.last and place.position is not None:
                    found[entry.glsn] = place.position
        return found


def _patiently(ask: Callable[[], T]) -> T:
    """Retry a source that timed out: other tests may keep the machine busy."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_AGAIN_S)


def same(rows: Sequence[Row]) -> list[str]:
    """Rows in a form that compares as a multiset."""
    return sorted(repr(sorted(row.items())) for row in rows)
