"""The log that the capture of a database writes: the only thing that it remembers.

Rules
 W1  A capture is the only writer of a broadcast log. It takes the log over with a mark; an earlier writer can append
     nothing after it, so the entries before the mark are final, and say where the capture goes on (``log_survey``).
 W2  Whether the log can be captured into is known before the mark, as far as the log says it.
 W3  The log is taken by force only if the role says so, or from an earlier connection of this very capture.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence

import pyarrow as pa

import trunkline.sync
from trunkline.client.cluster import ClientOptions
from trunkline.core.capture_messages import AppendEntry, TableCursor
from trunkline.delivery.capture.append_chain import AppendChain, Ended
from trunkline.delivery.capture.entry_writer import EntryWriter
from trunkline.delivery.capture.log_survey import LogState, check_log, survey
from trunkline.delivery.capture.source import Changes, ChunkRows, SchemaUnit
from trunkline.delivery.changes.database_entries import mark_heading
from trunkline.errors import ConfigError, NoSuchLog, OwnedByAnother, TrunklineError
from trunkline.threads import Threads


class DatabaseLog:
    """Used by one thread; ``take_over`` begins a session."""

    def __init__(
        self,
        connect: Sequence[str],
        name: str,
        kind: str,
        *,
        writer: str,
        threads: Threads,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        replicas: int = 3,
    ) -> None:
        self.name = name
        self._connect = connect
        self._kind = kind
        self._client = f"capture-{name}-{writer}"
        self._threads = threads
        self._options = ClientOptions(token=token, name=self._client)
        self._tls = tls
        self._replicas = replicas
        self._cluster: trunkline.sync.Cluster | None = None
        self._log: trunkline.sync.Log | None = None
        self._chain: AppendChain | None = None
        self.writer: EntryWriter | None = None  # of the session

    def take_over(self, *, force: bool, ended: Callable[[Ended], None]) -> LogState:
        """Become the writer (W1). ``ended`` is called in another thread, with the outcomes of appends.

        Raises ``OwnedByAnother`` and ``ConfigError``, and other errors for what passes by itself.
        """
        self.end_session()
        try:
            log = self._opened()
            check_log(log, log.tail() - 1, self._kind)  # W2
            mark = self._mark(log, force=force)
            state = survey(log, mark, self._kind)  # with the mark: it ends parts without a last one
        except TrunklineError:
            self.close()  # another connection may work
            raise
        self.writer = EntryWriter(self._kind, state, mark)
        self._chain = AppendChain(log.append, state.catalog_glsn, ended, self._threads)
        return state

    def append(
        self, request: AppendEntry, unit: Changes | SchemaUnit | ChunkRows | None, touched: Sequence[pa.Table] = ()
    ) -> int:
        """Returns about how many bytes the log grows."""
        assert self.writer is not None
        assert self._chain is not None
        encoded = self.writer.encode(request, unit, touched)
        self._chain.add(encoded)
        return sum(len(each.payload) for each in encoded)

    def end_session(self) -> None:
        """Wait for the append in flight. Nothing is appended after it."""
        if self._chain is not None:
            self._chain.close()
        self._chain = self.writer = None

    def close(self) -> None:
        self.end_session()
        cluster, self._cluster, self._log = self._cluster, None, None
        if cluster is not None:
            with contextlib.suppress(TrunklineError):  # there is nothing left to do for it
                cluster.close()

    def _opened(self) -> trunkline.sync.Log:
        if self._log is None:
            self._cluster = trunkline.sync.connect(list(self._connect), options=self._options, tls=self._tls)
            self._cluster.open()
            self._log = opened_log(self._cluster, self.name, self._replicas)
        return self._log

    def _mark(self, log: trunkline.sync.Log, *, force: bool) -> int:
        headers = mark_heading().headers()
        try:
            return log.append(b"", headers=headers, takeover=force)
        except OwnedByAnother as error:
            if not error.owner.startswith(self._client):
                raise
        return log.append(b"", headers=headers, takeover=True)  # W3


def opened_log(cluster: trunkline.sync.Cluster, name: str, replicas: int) -> trunkline.sync.Log:
    """The log, created if it does not exist. Raises ``ConfigError`` if it has several writers."""
    try:
        log = cluster.log(name)
    except NoSuchLog:
        nodes = max(1, min(replicas, len(cluster.nodes())))
        log = cluster.log(name, create=True, policy="broadcast", replicas=nodes)
    policy = log.settings.policy.value
    if policy != "broadcast":
        raise ConfigError(
            f"the log {name} has the policy {policy}; a capture needs one with a single writer: "
            f"`trunkline log create {name} --policy broadcast`, or another name"
        )
    return log


def cursors_in(state: LogState) -> tuple[TableCursor, ...]:
    """How far the snapshots of the tables are."""
    tables = () if state.reader is None else state.reader.tables()
    return tuple(
        TableCursor(
            table.newest.number,
            table.newest.generation,
            table.cursor or b"",
            table.complete,
            bool(table.newest.key),
            table.chunks,
        )
        for table in tables
    )
