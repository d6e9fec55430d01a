"""Schemas of the tables of a captured database, and the catalog of all of them, as payloads of entries.

Rules
 S1  A table has a number that is never used again. Each change of its columns, key or name is a new version, the next
     number. A version is never changed, and rows name theirs.
 S2  A generation is a snapshot and the changes after it. A new generation replaces all rows of the one before.
 S3  Columns of two versions are the same if their number in the source is the same, whatever their names. Within a
     generation the type of a column may widen and nothing else. A row that is older than a column has its default.
 S4  A catalog holds all that is needed to read the entries after it, so that nothing before it is needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct

from trunkline.delivery.changes.arrow_stream import read_batch
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema, arrow_type, widens
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.errors import ConfigError

COLUMNS_MAX: Final = 4_096  # of a table; PostgreSQL and MariaDB have lower limits
NAME_LETTERS_MAX: Final = 256
DEFAULTS_BYTES_MAX: Final = 1024 * 1024  # of all defaults of a table
CATALOG_BYTES_MAX: Final = 32 * 1024 * 1024  # decompressed: about 20,000 tables of 50 columns
PACKED_BYTES_MAX: Final = 15 * 1024 * 1024  # compressed; a log takes entries of up to 16 MiB
PACKING_LEVEL: Final = 1

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LETTERS_MAX)]


class SchemaChange(StrEnum):
    CREATED = "created"
    ADDED = "added"
    DROPPED = "dropped"
    RENAMED = "renamed"
    WIDENED = "widened"
    KEY = "key"  # or the identity
    TABLE_RENAMED = "table renamed"
    TABLE_DROPPED = "table dropped"
    RECAPTURED = "recaptured"  # a new generation (S2)


class Identity(StrEnum):
    """Which columns the source records of rows that are removed."""

    KEY = "key"
    FULL = "full"
    NOTHING = "nothing"  # then rows can only be added


class SourceColumn(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: Name
    type: Name  # in our vocabulary
    number: Natural  # in the source: PostgreSQL's attnum; it stays when the column is renamed
    type_oid: Natural = 0
    modifier: int = -1
    stamp: Natural = 0  # of its definition in the source, where it is known; another one: it was altered


class TableSchema(Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a table. ``key``: the columns that identify the row of a removal; empty: all of them do."""

    number: Positive
    generation: Positive
    version: Positive
    schema: Name
    name: Name
    columns: Annotated[tuple[SourceColumn, ...], Meta(min_length=1, max_length=COLUMNS_MAX)]
    key: tuple[str, ...]
    identity: Identity
    changes: Annotated[tuple[SchemaChange, ...], Meta(min_length=1, max_length=len(SchemaChange))]
    defaults: bytes = b""  # a batch of one row: the values of rows that are older than a column; empty: all are NULL
    storage: Natural = 0  # of its rows in the source: PostgreSQL's relfilenode; another one: the rows were rewritten
    oid: Natural = 0  # of the table in the source, whatever its name
    attributes: Natural = 0  # numbers of columns that the source has used up to here; 0: numbers of columns are made up
    generated: tuple[Natural, ...] = ()  # numbers of columns that the source computes and does not send
    constraint: Natural = 0  # oid of the primary key in the source

    def vocabulary(self) -> Columns:
        return tuple(Column(column.name, column.type) for column in self.columns)

    @property
    def dropped(self) -> bool:
        return SchemaChange.TABLE_DROPPED in self.changes


class CatalogTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table in a catalog: the versions that later rows may have, oldest first, and how far its snapshot is."""

    schemas: Annotated[tuple[TableSchema, ...], Meta(min_length=1)]
    complete: bool = False
    chunks: Natural = 0  # of this generation, so far
    cursor: bytes | None = None  # where the next chunk begins
    rows: Natural = 0  # changes and read rows of this generation, so far

    @property
    def newest(self) -> TableSchema:
        return self.schemas[-1]


class Catalog(Struct, frozen=True, forbid_unknown_fields=True):
    """All tables. A source that was replaced begins the next ``epoch``: only then may its positions go back."""

    epoch: Positive
    lsn: Natural  # of the last transaction before
    next_number: Positive  # of a table
    tables: tuple[CatalogTable, ...]


class Malformed(ValueError):
    """A schema or a catalog that no capture writes."""


REFUSALS: Final = (
    pa.ArrowException, msgspec.MsgspecError, zlib.error, OSError, LookupError, ValueError, TypeError, OverflowError,
    RecursionError, ConfigError,
)  # fmt: skip


def defaults_of(columns: Sequence[SourceColumn], values: dict[str, Any]) -> bytes:
    """The encoded defaults of columns, from those that are not NULL, by name."""
    schema = arrow_schema([Column(column.name, column.type) for column in columns])
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    found: bytes = pa.record_batch(arrays, schema=schema).serialize().to_pybytes() if values else b""
    return found


def defaults_in(schema: TableSchema) -> pa.RecordBatch | None:
    """One row under the schema; ``None`` if all defaults are NULL."""
    if not schema.defaults:
        return None
    found = read_batch(memoryview(schema.defaults), arrow_schema(schema.vocabulary()), DEFAULTS_BYTES_MAX)
    if found.num_rows != 1:
        raise Malformed("the defaults of its columns are not one row")
    return found


def encode_schema(schema: TableSchema) -> bytes:
    """The payload of a schema entry. Raises ``Malformed``, or ``ConfigError`` for a type that cannot be captured."""
    check_schema(schema)
    return msgspec.msgpack.encode(schema)


def decode_schema(payload: bytes) -> TableSchema:
    """Raises one of ``REFUSALS``."""
    schema = _schema.decode(payload)
    check_schema(schema)
    return schema


def encode_catalog(catalog: Catalog) -> bytes:
    """The payload of a catalog entry. Raises ``ConfigError`` if it is too large."""
    check_catalog(catalog)
    whole = msgspec.msgpack.encode(catalog)
    packed = zlib.compress(whole, PACKING_LEVEL)
    if len(whole) > CATALOG_BYTES_MAX or len(packed) > PACKED_BYTES_MAX:
        raise ConfigError(
            f"the schemas of {len(catalog.tables):,} tables have {len(whole):,} bytes, and an entry of a log holds "
            f"{CATALOG_BYTES_MAX:,}; capture fewer tables into one log"
        )
    return packed


def decode_catalog(payload: bytes) -> Catalog:
    """Raises one of ``REFUSALS``."""
    unpacking = zlib.decompressobj()
    whole = unpacking.decompress(payload, CATALOG_BYTES_MAX)
    if not unpacking.eof or unpacking.unused_data:
        raise Malformed("it is truncated, too large, or followed by something else")
    catalog = _catalog.decode(whole)
    check_catalog(catalog)
    return catalog


_schema: Final = msgspec.msgpack.Decoder(TableSchema)
_catalog: Final = msgspec.msgpack.Decoder(Catalog)


def check_schema(schema: TableSchema) -> None:
    """Raises ``Malformed``, and ``ConfigError`` for a type that is not in the vocabulary."""
    names = [column.name for column in schema.columns]
    if len(set(names)) < len(names) or len({column.number for column in schema.columns}) < len(names):
        raise Malformed("two of its columns have one name or number")
    if any(name.lower().startswith(RESERVED_PREFIX) for name in names):
        raise Malformed(f"a column begins with {RESERVED_PREFIX}, which is reserved")
    if len(set(schema.key)) < len(schema.key) or not set(schema.key) <= set(names):
        raise Malformed("its key is not of its columns")
    if not schema.key and schema.identity is Identity.KEY:
        raise Malformed("its rows are identified by a key, and it has none")
    if SchemaChange.CREATED in schema.changes and (schema.version, schema.generation) != (1, 1):
        raise Malformed("it is created, and not the first version")
    for kind in {column.type for column in schema.columns}:
        arrow_type(Column(schema.name, kind))
    defaults_in(schema)


def check_catalog(catalog: Catalog) -> None:
    seen: set[int] = set()
    for table in catalog.tables:
        newest = table.newest
        if newest.number in seen or newest.number >= catalog.next_number or newest.dropped:
            raise Malformed(f"table {newest.number} is there twice, was dropped, or has a number of the future")
        seen.add(newest.number)
        for schema in table.schemas:
            check_schema(schema)
        for older, newer in pairwise(table.schemas):
            check_step(older, newer)
            if older.generation != newer.generation:
                raise Malformed(f"table {newest.number} has versions of an earlier generation")
        if table.complete and not table.chunks:
            raise Malformed(f"table {newest.number} is complete without a chunk")


def check_step(older: TableSchema, newer: TableSchema) -> None:
    """Raises ``Malformed`` unless ``newer`` may follow ``older`` (S1 to S3)."""
    recaptured = SchemaChange.RECAPTURED in newer.changes
    if newer.number != older.number or newer.version != older.version + 1 or SchemaChange.CREATED in newer.changes:
        raise Malformed(f"version {newer.version} of table {newer.number} does not follow version {older.version}")
    if newer.generation != older.generation + recaptured:
        raise Malformed(f"generation {newer.generation} does not follow generation {older.generation}")
    types = {column.number: column.type for column in older.columns}
    for column in newer.columns:
        before = types.get(column.number, column.type)
        if not recaptured and before != column.type and not widens(before, column.type):
            raise Malformed(f"column {column.name!r:.80} turns from {before:.80} into {column.type:.80}")


def stepped(rows: pa.RecordBatch, older: TableSchema, newer: TableSchema) -> pa.RecordBatch:
    """Rows of one version, without other columns, under the next version of their generation (S3).

    A column that is new has its default in every row.
    """
    places = {column.number: place for place, column in enumerate(older.columns)}
    schema, defaults = arrow_schema(newer.vocabulary()), defaults_in(newer)
    arrays = []
    for place, (column, field) in enumerate(zip(newer.columns, schema, strict=True)):
        if (found := places.get(column.number)) is not None:
            arrays.append(rows.column(found).cast(field.type))
        elif defaults is None:
            arrays.append(pa.nulls(rows.num_rows, field.type))
        else:
            arrays.append(defaults.column(place).take(pa.array([0] * rows.num_rows, pa.int32())))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
