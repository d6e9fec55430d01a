"""Encodes the entries of a captured database, each after the one before.

Rules
 B1  What a reader of the log would refuse is not written: every entry is first given to a reader of its own. So a
     mistake of a source ends the capture, and the log stays readable.
 B2  An entry that the log cannot take ends the capture with the name of its table and its key. Nothing is confirmed to
     the source, so nothing is lost.
 B3  When the source was replaced, a catalog of the next epoch begins a new generation of every table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from trunkline.client.bodies import ENTRY_BYTES_MAX
from trunkline.core.capture_messages import AppendEntry, EntryKind
from trunkline.delivery.capture.append_chain import Encoded
from trunkline.delivery.capture.chunk_rows import written_rows
from trunkline.delivery.capture.held_units import TRUNCATION
from trunkline.delivery.capture.log_survey import LogState, SourcePosition
from trunkline.delivery.capture.source import Changes, ChunkRows, SchemaUnit
from trunkline.delivery.changes import database_entries as entries
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.changes.groups import TableRows, chunk_head, encode_chunk, encode_group, group_head
from trunkline.delivery.changes.schemas import (
    Catalog,
    CatalogTable,
    Malformed,
    SchemaChange,
    TableSchema,
    encode_catalog,
    encode_schema,
)
from trunkline.errors import ConfigError, CorruptEntry, TrunklineError

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024  # of rows in one entry; larger rows go alone
VERSIONS_KEPT: Final = 4  # in a catalog; rows that follow are of the newest, unless a transaction is streamed again
EMPTY: Final = Catalog(1, 0, 1, ())


def replaced(catalog: Catalog) -> Catalog:
    """Of a source that was replaced: each table begins a new generation (B3)."""
    tables = tuple(CatalogTable((_again(table.newest),)) for table in catalog.tables)
    return Catalog(catalog.epoch + 1, 0, catalog.next_number, tables)


def _again(schema: TableSchema) -> TableSchema:
    return replace(
        schema,
        generation=schema.generation + 1,
        version=schema.version + 1,
        changes=(SchemaChange.RECAPTURED,),
        defaults=b"",
    )


class EntryWriter:
    """The entries of one session. ``state``: of the log, after its take-over."""

    def __init__(self, kind: str, state: LogState, glsn: int) -> None:
        self._kind = kind
        self._reader = state.reader
        self._glsn = glsn  # any that rises: that of an entry is known only when it is committed
        self._commit_us = 0 if state.position is None else state.position.commit_us

    @property
    def catalog(self) -> Catalog | None:
        """After all entries so far."""
        return None if self._reader is None else self._reader.catalog()

    @property
    def commit_us(self) -> int:
        """When the last transaction committed."""
        return self._commit_us

    def encode(
        self, request: AppendEntry, unit: Changes | SchemaUnit | ChunkRows | None, touched: Sequence[pa.Table] = ()
    ) -> list[Encoded]:
        """The entries of one request: one, or several of a large chunk. Raises ``ConfigError`` (B2)."""
        try:
            return self._encoded(request, unit, touched)
        except (Malformed, CorruptEntry) as error:  # B1
            raise TrunklineError(
                f"the capture made an entry that no reader would take, which is a bug ({error}); it was not written"
            ) from error

    def _encoded(
        self, request: AppendEntry, unit: Changes | SchemaUnit | ChunkRows | None, touched: Sequence[pa.Table]
    ) -> list[Encoded]:
        match request.kind, unit:
            case EntryKind.GROUP | EntryKind.PART, Changes():
                return [self._changes(request, unit)]
            case EntryKind.CHUNK, ChunkRows():
                return self._chunk(request, unit, touched)
            case EntryKind.SCHEMA, SchemaUnit():
                payload = encode_schema(unit.schema)
                heading = entries.Heading(entries.EntryKind.SCHEMA, self._position(request))
                return [self._checked(request, payload, entries.SchemaEntry(self._next(), heading, unit.schema))]
            case EntryKind.CATALOG, None:
                return [self._catalog(request)]
            case EntryKind.MARK, None:
                heading = entries.Heading(entries.EntryKind.MARK, self._position(request), end=True)
                return [self._checked(request, b"", entries.Mark(self._next(), heading))]
        raise AssertionError(f"{request.kind} of {type(unit)}")

    # ------------------------------------------------------------------------------------------------------ the kinds

    def _changes(self, request: AppendEntry, unit: Changes) -> Encoded:
        if request.last:
            self._commit_us = unit.transactions[-1].commit_us
        payload = encode_group(self._known.lsn, unit.transactions, unit.tables)
        self._check_size(payload, unit.tables)
        head, begin = group_head(payload)
        batches = memoryview(payload)[begin:]
        if request.kind is EntryKind.GROUP:
            heading = entries.Heading(entries.EntryKind.GROUP, self._position(request), end=True)
            return self._checked(request, payload, entries.Group(self._next(), heading, batches, head))
        heading = entries.Heading(
            entries.EntryKind.PART, self._position(request), index=request.index, end=request.last
        )
        return self._checked(request, payload, entries.Part(self._next(), heading, batches, head))

    def _chunk(self, request: AppendEntry, unit: ChunkRows, touched: Sequence[pa.Table]) -> list[Encoded]:
        [cursor] = request.tables
        table = self._known.table(cursor.table)
        assert request.chunk is not None
        batch = unit.rows.batch.slice(0, 0) if TRUNCATION in request.chunk.touched else unit.rows.batch
        pieces = written_rows(batch, table.newest, touched, CHUNK_BYTES_MAX)
        return [self._chunk_entry(request, unit, rows, last=rows is pieces[-1]) for rows in pieces]

    def _chunk_entry(self, request: AppendEntry, unit: ChunkRows, rows: TableRows, *, last: bool) -> Encoded:
        """The cursor moves with the last piece: a crash before it reads the chunk again, which replaces its rows."""
        table = self._known.table(rows.number)
        payload = encode_chunk(
            self._known.lsn,
            rows,
            generation=table.newest.generation,
            chunk=table.chunks,
            complete=unit.last and last,
            cursor=unit.cursor if last else table.cursor,
        )
        self._check_size(payload, [rows])
        head, begin = chunk_head(payload)
        heading = entries.Heading(entries.EntryKind.CHUNK, self._position(request), end=True)
        return self._checked(request, payload, entries.Chunk(self._next(), heading, memoryview(payload)[begin:], head))

    def _catalog(self, request: AppendEntry) -> Encoded:
        if self._reader is None:
            catalog = EMPTY
        elif request.epoch > self._reader.epoch:
            catalog = replaced(self._reader.catalog())
        else:
            known = self._reader.catalog()
            tables = tuple(replace(table, schemas=table.schemas[-VERSIONS_KEPT:]) for table in known.tables)
            catalog = replace(known, tables=tables)
        payload = encode_catalog(catalog)
        heading = entries.Heading(entries.EntryKind.CATALOG, self._position(request))
        entry = entries.CatalogEntry(self._next(), heading, catalog)
        if self._reader is None:
            self._reader = DatabaseReader(entry)
            return Encoded(request.number, heading, payload)
        return self._checked(request, payload, entry)

    # -------------------------------------------------------------------------------------------------------- checks

    @property
    def _known(self) -> DatabaseReader:
        assert self._reader is not None, "the first entry is a catalog"
        return self._reader

    def _next(self) -> int:
        self._glsn += 1
        return self._glsn

    def _position(self, request: AppendEntry) -> str:
        origin = request.origin
        return SourcePosition(self._kind, origin.system, origin.timeline, request.position, self._commit_us).text()

    def _checked(self, request: AppendEntry, payload: bytes, entry: entries.DatabaseEntry) -> Encoded:
        self._known.feed(entry)
        return Encoded(request.number, entry.heading, payload)

    def _check_size(self, payload: bytes, tables: Sequence[TableRows]) -> None:
        if len(payload) <= ENTRY_BYTES_MAX:
            return
        largest = max(tables, key=lambda rows: rows.batch.nbytes)
        schema = self._known.table(largest.number).newest
        sizes = [largest.batch.slice(at, 1).nbytes for at in range(largest.batch.num_rows)]
        row = largest.batch.slice(sizes.index(max(sizes)), 1)
        key = ", ".join(f"{name} = {row.column(name)[0].as_py()!r:.100}" for name in schema.key) or "it has no key"
        raise ConfigError(
            f"a change of the table {schema.schema}.{schema.name} ({key}) has {len(payload):,} bytes, and an entry of "
            f"a log holds {ENTRY_BYTES_MAX:,}; nothing after it is captured: make the value smaller and capture into "
            "another log, or exclude the table"
        )
