"""The rows of one table step: removes and copies them, in chunks, inside the transaction of a place.

Rules
 R1  In mode mirror the table has a unique index on its key in which NULL equals NULL; in mode history such an index has
     only open versions. Rows are copied straight into the table: an existing key violates the index, and the member
     fails (T4, policy halt).
 R2  Keys are removed chunk by chunk, each before its rows are written. A key is in one chunk only, because it is
     unique. In mode history, where a key may have several rows, all versions that end are closed first. A version
     that is open after that, and whose key comes again, is a duplicate, also if what comes has an end.
 R3  Keys are compared with ``=``, so that the index is used. Rows whose key has NULLs are removed by one statement for
     each set of columns that are NULL.
 R4  A history whose present state is given keeps what equals it. Whole rows are compared as text: so NULL equals NULL,
     a type needs no equality of its own, and the server can join by hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.backends.postgres_session import BULK_MS, REBUILD_MS, PostgresSession
from trunkline.delivery.backends.sql import identifier, identifiers
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.history import (
    CURRENT,
    HISTORY_NAMES,
    VALID_FROM,
    VALID_FROM_TIME,
    VALID_TO,
    VALID_TO_TIME,
)
from trunkline.delivery.changes.rows import OP_COLUMN, RESERVED_PREFIX, Op
from trunkline.delivery.destinations.contract import Applied, Batches, TableStep
from trunkline.delivery.destinations.postgres_copy import RowChunk, chunks, filled_columns, shared_encoder
from trunkline.delivery.destinations.postgres_lookup import held_rows
from trunkline.delivery.destinations.postgres_table import closing, open_version, removal
from trunkline.delivery.destinations.unstated import completed
from trunkline.errors import DestinationHalted, DuplicateKey

PRESENT: Final = f"pg_temp.{identifier(f'{RESERVED_PREFIX}_present')}"


class PostgresRows:
    """``what`` names the table in messages."""

    def __init__(self, session: PostgresSession, step: TableStep, table: str, through: int, what: str) -> None:
        self._session = session
        self._step = step
        self._table = table
        self._through = through
        self._what = what
        self._key = tuple(column for column in step.columns if column.name in step.key)

    def apply(self, rows: Batches, index: str | None) -> Applied:
        """Staged rows (T3). A violation of ``index`` is a duplicate key; without a name, that of any index."""
        applied = Applied(self._through)
        whole = completed(rows(), self._step, self._held, self._what)  # reads what the table has, before that changes
        if self._step.mode == "history":
            for close in (self._closed, self._superseded):
                for part in self._chunked(rows()):
                    applied = applied.plus(close(part))
        for part in self._chunked(whole):
            applied = applied.plus(self._applied(part, index))
        return applied

    def copy(self, target: str, rows: Iterable[pa.RecordBatch], index: str | None) -> int:
        """All rows of a table into this one."""
        written = 0
        for part in chunks(rows, [column.name for column in self._step.columns]):
            with shared_encoder().chunk(part) as chunk:
                content = self._encoded(chunk, staged=False)
            written += self._copied(target, content, index)
        return written

    def duplicate(self, error: psycopg.Error) -> DuplicateKey:
        return self._duplicate(error.diag.message_detail or error.diag.message_primary)

    def _duplicate(self, detail: str | None) -> DuplicateKey:
        return DuplicateKey(
            f"{self._what}: two rows of the source share a key: {detail} "
            "Remove one of them in the source, or set duplicates: warn"
        )

    # ---------------------------------------------------------------------------------------------------------- chunks

    def _chunked(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        return chunks(rows, [OP_COLUMN, *(column.name for column in self._step.columns)])

    def _applied(self, rows: pa.Table, index: str | None) -> Applied:
        """Remove the keys of a chunk, then write its rows (R2)."""
        removed = duplicates = missing = 0
        kept = len(rows) - _counted(rows)[Op.REMOVE]
        with shared_encoder().chunk(rows) as chunk:
            if self._step.mode == "mirror":
                removed, duplicates, missing = self._removed(rows, chunk)
            content = self._encoded(chunk, staged=True) if kept else None
        written = 0 if content is None else self._copied(self._table, content, index)
        return Applied(self._through, removed, written, duplicates, missing)

    def _removed(self, rows: pa.Table, chunk: RowChunk) -> tuple[int, int, int]:
        """The numbers of removed rows, of those that an INSERT removed, and of keys that were not there."""
        removes, replaces, _ = _counted(rows)
        inserts = self._step.duplicates == "warn"
        if not removes and not replaces and not inserts:
            return 0, 0, 0
        removed, duplicates, _ = self._by_keys(rows, chunk, inserts=inserts)
        missing = removes + replaces - (removed - duplicates)
        return removed, duplicates, missing if self._step.counts_missing else 0

    def _by_keys(self, rows: pa.Table, chunk: RowChunk, *, inserts: bool, end: Columns = ()) -> tuple[int, int, int]:
        """Rows removed, or with ``end`` closed: all, those due to an INSERT, and those due to a REMOVE (R3)."""
        counted = (0, 0, 0)
        for filled in filled_columns(rows, self._key):
            arrays = chunk.keys(self._key, filled, inserts=inserts, beside=end)
            if arrays[0]:
                how = closing(self._table, self._key, filled, end) if end else removal(self._table, self._key, filled)
                found = self._session.run(how, arrays, wait_ms=BULK_MS).fetchone()
                assert found is not None
                counted = (counted[0] + found[0], counted[1] + found[1], counted[2] + found[2])
        return counted

    def _encoded(self, chunk: RowChunk, *, staged: bool) -> bytes:
        try:
            return chunk.rows(self._step.columns, staged=staged)
        except DestinationHalted as error:
            raise DestinationHalted(f"{self._what} at {self._session.place}: {error}") from error

    def _copied(self, target: str, content: bytes, index: str | None) -> int:
        names = identifiers(column.name for column in self._step.columns)
        try:
            return self._session.copy_in(f"COPY {target} ({names}) FROM STDIN (FORMAT binary)", content)
        except psycopg.errors.UniqueViolation as error:
            if index is not None and error.diag.constraint_name != index:
                raise
            raise self.duplicate(error) from error

    def _held(self, keys: pa.Table, key: Columns, columns: Columns) -> pa.Table:
        where = CURRENT if self._step.mode == "history" else ""
        return held_rows(self._session, self._table, keys, key, columns, where=where)

    # --------------------------------------------------------------------------------------------------------- history

    def _closed(self, rows: pa.Table) -> Applied:
        """Close the versions that end (T11)."""
        removes, replaces, _ = _counted(rows)
        assert not replaces, "a history has no rows that replace others"
        if not removes:
            return Applied(self._through)
        ends = rows.filter(pc.equal(rows[OP_COLUMN], int(Op.REMOVE)))
        with shared_encoder().chunk(ends) as chunk:
            closed, _, _ = self._by_keys(ends, chunk, inserts=False, end=self._columns(VALID_TO, VALID_TO_TIME))
        missing = removes - closed if self._step.counts_missing else 0
        return Applied(self._through, removed=closed, missing=missing)

    def _superseded(self, rows: pa.Table) -> Applied:
        """Versions that are still open, of keys that come again (T4): they end where the first of those begins. With
        policy halt the index finds those that come to stay."""
        halts = self._step.duplicates == "halt"
        chosen = pc.equal(rows[OP_COLUMN], int(Op.INSERT))
        coming = rows.filter(pc.and_not(chosen, rows[CURRENT]) if halts else chosen)
        if not len(coming):
            return Applied(self._through)
        firsts = coming.group_by(list(self._step.key)).aggregate([(VALID_FROM, "min"), (VALID_FROM_TIME, "min")])
        firsts = firsts.rename_columns({f"{name}_min": name for name in (VALID_FROM, VALID_FROM_TIME)})
        firsts = firsts.append_column(OP_COLUMN, pa.array(np.full(len(firsts), Op.INSERT, np.int8)))
        with shared_encoder().chunk(firsts) as chunk:
            if halts:
                self._refuse_open(firsts, chunk)
                return Applied(self._through)
            begins = self._columns(VALID_FROM, VALID_FROM_TIME)
            closed, _, _ = self._by_keys(firsts, chunk, inserts=True, end=begins)
        return Applied(self._through, removed=closed, duplicates=closed)

    def _refuse_open(self, keys: pa.Table, chunk: RowChunk) -> None:
        for filled in filled_columns(keys, self._key):
            arrays = chunk.keys(self._key, filled, inserts=True)
            found = self._session.run(open_version(self._table, self._key, filled), arrays, wait_ms=BULK_MS).fetchone()
            if found is not None:
                raise self._duplicate(f"Key ({', '.join(self._step.key)})={found[0]} has an open version.")

    def _columns(self, *names: str) -> Columns:
        known = {column.name: column for column in self._step.columns}
        return tuple(known[name] for name in names)

    def compare(self, rows: Iterable[pa.RecordBatch]) -> Applied:
        """Make the open versions of a history equal to these rows (R4)."""
        names = [column.name for column in self._step.columns]
        listed = identifiers(names)
        own = [name for name in names if name not in HISTORY_NAMES]
        before, now = (f"ROW({', '.join(f'{each}.{identifier(name)}' for name in own)})::text" for each in "tp")
        self._session.run(
            f"CREATE TEMPORARY TABLE {PRESENT} ON COMMIT DROP AS SELECT {listed} FROM {self._table} LIMIT 0"
        )
        self.copy(PRESENT, rows, None)
        try:  # two rows of one key may both equal an open version, and must not pass for one
            key = identifiers(self._step.key)
            self._session.run(f"CREATE UNIQUE INDEX ON {PRESENT} ({key}) NULLS NOT DISTINCT", wait_ms=REBUILD_MS)
        except psycopg.errors.UniqueViolation as error:
            raise self.duplicate(error) from error
        self._session.run(f"ANALYZE {PRESENT}", wait_ms=REBUILD_MS)
        ended = (
            f"UPDATE {self._table} t "
            f"SET {VALID_TO} = coalesce((SELECT max({VALID_FROM}) FROM {PRESENT}), {self._through}), "
            f"{VALID_TO_TIME} = (SELECT max({VALID_FROM_TIME}) FROM {PRESENT}), {CURRENT} = false "
            f"WHERE t.{CURRENT} AND NOT EXISTS (SELECT FROM {PRESENT} p WHERE {now} = {before})"
        )
        closed = self._session.run(ended, wait_ms=REBUILD_MS).rowcount
        begun = (
            f"INSERT INTO {self._table} ({listed}) SELECT {listed} FROM {PRESENT} p "
            f"WHERE NOT EXISTS (SELECT FROM {self._table} t WHERE t.{CURRENT} AND {before} = {now})"
        )
        written = self._session.run(begun, wait_ms=REBUILD_MS).rowcount
        self._session.run(f"DROP TABLE {PRESENT}")
        return Applied(self._through, removed=closed, written=written)


def _counted(rows: pa.Table) -> list[int]:
    """How many rows have each ``Op``."""
    found: list[int] = np.bincount(rows[OP_COLUMN].to_numpy(), minlength=len(Op)).tolist()
    return found
