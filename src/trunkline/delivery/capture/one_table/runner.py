"""Runs a capture: takes the log over, and writes every transaction of the source to it, until it is stopped.

Rules
 N1  A transient failure (the source or the log is unreachable, an outcome is unknown) restarts the capture: it takes
     the log over again and reads its position from it (W2). Waits between retries grow up to a limit.
 N2  A capture whose log was taken over by another one stops with an error.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import trunkline.sync
from trunkline.client.cluster import ClientOptions
from trunkline.delivery.capture.one_table.capture_log import CaptureLog, Transaction
from trunkline.errors import (
    OutcomeUnknown,
    OwnedByAnother,
    SourceExpired,
    StorageError,
    TrunklineError,
    Unreachable,
)

logger = logging.getLogger(__name__)

WAIT_FIRST_S: Final = 0.2
WAIT_MAX_S: Final = 10.0


class ChangeSource(Protocol):
    """What is captured."""

    def reach(self) -> None:
        """Raise if a capture could not start. Called before the take-over: a long outage leaves no marks in the log."""
        ...

    def begin(self, position: str | None) -> None: ...

    def transactions(self) -> Iterator[Transaction]:
        """All new transactions; each must be written before the next is requested."""
        ...

    def close(self) -> None: ...


class CaptureProgress:
    """The progress of a capture. Other threads read it."""

    def __init__(self) -> None:
        self.transactions = 0
        self.rows = 0
        self.position: str | None = None
        self.error = ""
        self.failures = 0  # how often it had to restart
        self.running = False  # the log is taken over, without a failure since
        self.wrote_at: float | None = None  # of time.monotonic(): when the last transaction was written


class Capture:
    """One capture. Any thread may call ``stop``."""

    def __init__(
        self,
        source: ChangeSource,
        connect: Sequence[str],
        log: str,
        *,
        poll_ms: int,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        report: Callable[[CaptureProgress], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._connect = connect
        self._log = log
        self._poll_ms = poll_ms
        self._token = token
        self._tls = tls
        self._report = report
        self._stopping = threading.Event()
        self.captured = CaptureProgress()

    def stop(self) -> None:
        """Stop after the transaction in flight."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> CaptureProgress:
        """Capture until stopped, or (``once``) everything up to now."""
        wait_s = WAIT_FIRST_S
        while not self._stopping.is_set():
            before = self.captured.transactions
            try:
                self._session(once=once)
                if once:
                    break
            except OwnedByAnother:
                raise
            except (Unreachable, OutcomeUnknown, StorageError, SourceExpired) as error:
                wait_s = WAIT_FIRST_S if self.captured.transactions > before else min(wait_s * 2, WAIT_MAX_S)
                if str(error) != self.captured.error:
                    logger.warning("the capture restarts: %s", error)
                self._note(error)
                if once and wait_s >= WAIT_MAX_S:
                    raise
                self._stopping.wait(wait_s)
            finally:
                self._source.close()
        return self.captured

    def _session(self, *, once: bool) -> None:
        """From one take-over to the next failure."""
        options = ClientOptions(token=self._token, name=f"capture-{self._log}")
        with trunkline.sync.connect(list(self._connect), options=options, tls=self._tls) as cluster:
            log = CaptureLog(cluster, self._log)
            self._source.reach()
            self._source.begin(log.take_over())
            self._note(None)
            while not self._stopping.is_set():
                for transaction in self._source.transactions():
                    rows = log.write(transaction)
                    self.captured.transactions += 1
                    self.captured.rows += rows
                    self.captured.position = transaction.position
                    self.captured.wrote_at = time.monotonic()
                    self._note(None)
                    if self._stopping.is_set():
                        return
                if once:
                    return
                self._stopping.wait(self._poll_ms / 1000)

    def _note(self, error: TrunklineError | None) -> None:
        self.captured.error = "" if error is None else str(error)
        self.captured.failures += error is not None
        self.captured.running = error is None
        self._report(self.captured)
