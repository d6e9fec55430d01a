"""Writes a log of a captured database in memory, entry by entry, as a capture does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.database_entries import (
    CatalogEntry,
    Heading,
    catalog_heading,
    chunk_heading,
    entry_of,
    group_heading,
    mark_heading,
    part_heading,
    position_heading,
    schema_heading,
)
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.changes.groups import (
    Layout,
    RowKind,
    TableRows,
    Transaction,
    encode_chunk,
    encode_group,
    table_rows,
)
from trunkline.delivery.changes.schemas import (
    Catalog,
    Identity,
    SchemaChange,
    SourceColumn,
    TableSchema,
    defaults_of,
    encode_catalog,
    encode_schema,
)

COMMIT_US = 1_790_000_000_000_000

Change = tuple[TableSchema, RowKind, Sequence[Any]] | tuple[TableSchema, RowKind, Sequence[Any], bytes | None]
Work = list[Change]  # of one transaction


def schema_of(number: int, columns: str, key: Sequence[str] = ("id",), **options: Any) -> TableSchema:
    """``columns``: "id BIGINT, note VARCHAR", numbered from 1."""
    named = [text.strip().split(" ", 1) for text in columns.split(", ")]
    found = tuple(SourceColumn(name, kind, place + 1, 20) for place, (name, kind) in enumerate(named))
    identity = Identity.KEY if key else Identity.FULL
    made = TableSchema(number, 1, 1, "public", f"table{number}", found, tuple(key), identity, (SchemaChange.CREATED,))
    return msgspec.structs.replace(made, **options)


def changed(
    schema: TableSchema, *changes: SchemaChange, defaults: dict[str, Any] | None = None, **new: Any
) -> TableSchema:
    """The next version."""
    columns = new.get("columns", schema.columns)
    generation = schema.generation + (SchemaChange.RECAPTURED in changes)
    encoded = defaults_of(columns, defaults or {})
    new = {"version": schema.version + 1, "generation": generation, "changes": changes, "defaults": encoded, **new}
    return msgspec.structs.replace(schema, **new)


def rows_of_work(work: Sequence[Work]) -> tuple[TableRows, ...]:
    """The rows of transactions, by table and version."""
    tables: dict[tuple[int, int], list[tuple[int, int, Change]]] = {}
    seq = 0
    for tx, changes in enumerate(work):
        for change in changes:
            tables.setdefault((change[0].number, change[0].version), []).append((tx, seq, change))
            seq += 1
    return tuple(_table(placed) for placed in tables.values())


def _table(placed: list[tuple[int, int, Change]]) -> TableRows:
    schema = placed[0][2][0]
    types = arrow_schema(schema.vocabulary()).types
    rows = [tuple(change[2]) or (None,) * len(types) for _, _, change in placed]
    columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(types)]
    unchanged = pa.array([change[3] if len(change) == 4 else None for _, _, change in placed], pa.binary())
    return table_rows(
        Layout(schema),
        columns,
        tx=[tx for tx, _, _ in placed],
        seq=[seq for _, seq, _ in placed],
        kind=np.array([change[1] for _, _, change in placed]),
        unchanged=unchanged,
    )


class GroupLog:
    """Positions begin at 1, LSNs at 0 and rise by 10."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.lsn = 0
        self.catalog_glsn: int | None = None
        self.mark()
        self.catalog(Catalog(1, 0, 1, ()))

    @property
    def last(self) -> int:
        return len(self.entries)

    @property
    def position(self) -> str | None:
        return f'{{"lsn":{self.lsn}}}' if self.lsn else None

    def _append(self, heading: Heading, payload: bytes) -> int:
        self.entries.append(Entry(self.last + 1, payload, encoded_headers=encode_headers(heading.headers())))
        return self.last

    def _known(self) -> int:
        assert self.catalog_glsn is not None
        return self.catalog_glsn

    def mark(self) -> int:
        return self._append(mark_heading(), b"")

    def position_mark(self) -> int:
        return self._append(position_heading(f'{{"lsn":{self.lsn + 5}}}', self._known()), b"")

    def catalog(self, catalog: Catalog | None = None) -> int:
        """By default what the entries so far say."""
        self.catalog_glsn = self._append(
            catalog_heading(self.position, self.catalog_glsn), encode_catalog(catalog or self.reader().catalog())
        )
        return self.last

    def schema(self, schema: TableSchema) -> TableSchema:
        self._append(schema_heading(self.position, self._known()), encode_schema(schema))
        return schema

    def group(self, *work: Work) -> int:
        after = self.lsn
        transactions = []
        for changes in work:
            self.lsn += 10
            transactions.append(Transaction(self.lsn, COMMIT_US + self.lsn, self.lsn // 10, len(changes)))
        payload = encode_group(after, transactions, rows_of_work(work))
        return self._append(group_heading(self.position or "", self._known()), payload)

    def part(self, index: int, changes: Work, *, last: bool = False) -> int:
        after, lsn = self.lsn, self.lsn + 10
        payload = encode_group(
            after, [Transaction(lsn, COMMIT_US + lsn, lsn // 10, len(changes))], rows_of_work([changes])
        )
        self.lsn = lsn if last else after
        return self._append(part_heading(self.position, self._known(), index, last=last), payload)

    def chunk(
        self,
        schema: TableSchema,
        number: int,
        rows: Iterable[Sequence[Any]],
        *,
        complete: bool = True,
        unchanged: Sequence[bytes | None] | None = None,
    ) -> int:
        held = list(rows)
        stated = [None] * len(held) if unchanged is None else unchanged
        changes: Work = [(schema, RowKind.READ, row, bits) for row, bits in zip(held, stated, strict=True)]
        nothing = [pa.array([], kind) for kind in arrow_schema(schema.vocabulary()).types]
        [found] = rows_of_work([changes]) or [table_rows(Layout(schema), nothing, tx=[], seq=[], kind=[])]
        cursor = None if complete else str(number).encode()
        payload = encode_chunk(
            self.lsn, found, generation=schema.generation, chunk=number, complete=complete, cursor=cursor
        )
        return self._append(chunk_heading(self.position, self._known()), payload)

    def reader(self) -> DatabaseReader:
        """After all entries so far."""
        found = (entry_of(entry) for entry in self.entries)
        reader = DatabaseReader(next(entry for entry in found if isinstance(entry, CatalogEntry)))
        for entry in found:
            reader.feed(entry)
        return reader
