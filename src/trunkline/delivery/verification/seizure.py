"""Ownership of destinations for the time of a repair (rule C10 of ``control/contract.py``).

A thread keeps the lease. If that fails, another deliverer takes the destinations when it has expired; the fence of each
destination decides who may write, so nothing here has to be in time.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from trunkline.delivery.config.digests import pipeline_digest
from trunkline.delivery.config.tree import Pipeline
from trunkline.delivery.control.contract import REPAIRER
from trunkline.delivery.control.store import ControlStore
from trunkline.errors import TrunklineError
from trunkline.threads import Threads


class Seizure:
    """``tokens``: of the destinations that are owned now."""

    def __init__(self, store: ControlStore, pipeline: Pipeline, repairer: str, names: Sequence[str]) -> None:
        self._store = store
        self._pipeline = pipeline
        self._repairer = repairer
        self.tokens = self._seize(names)

    def outbid(self, seen: Mapping[str, int]) -> dict[str, int]:
        """Take destinations that have seen a higher token than this store ever granted: it was lost, or is another one.
        Returns their tokens, without those that another deliverer took."""
        granted = {record.name: record.token for record in self._store.destinations(self._pipeline.name)}
        higher = {name: token for name, token in seen.items() if granted.get(name, 0) < token}
        if not higher:
            return {}
        self._store.ownerships.raise_tokens(self._pipeline.name, higher)
        return self._seize(list(higher))

    def renew(self) -> None:
        self._store.ownerships.renew(self._pipeline.name, self._repairer, self._pipeline.control.lease_ms)

    def _seize(self, names: Sequence[str]) -> dict[str, int]:
        digest, lease_ms = pipeline_digest(self._pipeline), self._pipeline.control.lease_ms
        return self._store.ownerships.seize(self._pipeline.name, self._repairer, digest, names, lease_ms)


@contextmanager
def seized(store: ControlStore, pipeline: Pipeline, names: Sequence[str]) -> Iterator[Seizure]:
    """Own destinations; in the end they are released, whatever happens."""
    repairer = f"{REPAIRER}{socket.gethostname()}-{secrets.token_hex(3)}"
    over = threading.Event()
    try:
        seizure = Seizure(store, pipeline, repairer, names)
        keeper = Threads().start("lease", lambda: _keep(seizure, pipeline.control.lease_ms / 3000, over))
        try:
            yield seizure
        finally:
            over.set()
            keeper.join()
    finally:
        store.ownerships.leave(pipeline.name, repairer)


def _keep(seizure: Seizure, every_s: float, over: threading.Event) -> None:
    while not over.wait(every_s):
        with suppress(TrunklineError):  # the next renewal may succeed; if none does, others take over
            seizure.renew()
