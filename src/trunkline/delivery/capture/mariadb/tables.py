"""The tables of a captured MariaDB database as they are at a place in the stream, and the units that change them.

Rules
 B1  ``TableSchema.storage`` is the position in the binlog of what made the version. Units are written in the order of
     the stream: if the log has a version from a position, it has all from before. What is streamed again after a crash
     therefore changes nothing.
 B2  MariaDB has no numbers of columns. A column that a statement does not drop keeps its number; a new one has a number
     that no earlier version of the table had.
 B3  What is not known for certain is captured again: the table begins a new generation, and the reason is announced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from trunkline.delivery.capture.mariadb.catalog import Name, SeenTable
from trunkline.delivery.capture.mariadb.tablemap import TableMap
from trunkline.delivery.capture.mariadb.types import fits, from_wire, may_be_key, unfit_type
from trunkline.delivery.capture.source import SchemaUnit
from trunkline.delivery.changes.schemas import Catalog, Identity, SchemaChange, SourceColumn, TableSchema

logger = logging.getLogger(__name__)

NUMBERS_OF_VERSION: Final = 1 << 16  # more than a table has columns


class Tables:
    """Those that the log has, after everything that was streamed so far."""

    def __init__(self, catalog: Catalog | None, *, replaced: bool = False) -> None:
        """``replaced``: the positions in the catalog are those of another source."""
        held = [] if catalog is None else [table.newest for table in catalog.tables]
        self._by_number: dict[int, TableSchema] = {}
        self._named: dict[Name, set[int]] = {}
        for schema in held:
            self._hold(schema)
        self._next = 1 if catalog is None else catalog.next_number
        self.applied = 0 if replaced else max((schema.storage for schema in held), default=0)  # B1

    def __iter__(self) -> Iterator[TableSchema]:
        return iter(list(self._by_number.values()))

    def find(self, name: Name) -> TableSchema | None:
        """Of two with one name, in the middle of a renaming, the one that has it already."""
        return max(self._all(name), key=lambda each: each.storage, default=None)

    def before(self, name: Name, at: int) -> TableSchema | None:
        """The table that had this name before what happens at this position."""
        return next((each for each in self._all(name) if each.storage < at), None)

    def _all(self, name: Name) -> list[TableSchema]:
        return [self._by_number[number] for number in sorted(self._named.get(name, ()))]

    def _hold(self, schema: TableSchema) -> None:
        self._release(schema.number)
        self._by_number[schema.number] = schema
        self._named.setdefault((schema.schema, schema.name), set()).add(schema.number)

    def _release(self, number: int) -> None:
        if (held := self._by_number.pop(number, None)) is not None:
            self._named[held.schema, held.name].discard(number)

    def get(self, number: int) -> TableSchema | None:
        return self._by_number.get(number)

    def of_database(self, database: str) -> list[TableSchema]:
        return [each for each in self._by_number.values() if each.schema == database]

    def create(self, seen: SeenTable, at: int) -> SchemaUnit:
        number, self._next = self._next, self._next + 1
        schema = TableSchema(
            number, 1, 1, seen.schema, seen.name, seen.columns, seen.key, identity(seen.key), (SchemaChange.CREATED,),
            storage=at,
        )  # fmt: skip
        return self._put(schema)

    def change(
        self,
        schema: TableSchema,
        at: int,
        changes: Sequence[SchemaChange],
        *,
        columns: tuple[SourceColumn, ...] | None = None,
        name: Name | None = None,
        defaults: bytes = b"",
    ) -> SchemaUnit:
        """The next version of the same generation."""
        names = {column.number: column.name for column in columns or schema.columns}
        numbers = {column.name: column.number for column in schema.columns}
        new = replace(
            schema,
            version=schema.version + 1,
            columns=columns or schema.columns,
            key=tuple(names[numbers[part]] for part in schema.key),
            schema=name[0] if name else schema.schema,
            name=name[1] if name else schema.name,
            changes=tuple(changes),
            defaults=defaults,
            storage=at,
        )
        return self._put(new)

    def recapture(self, schema: TableSchema, seen: SeenTable | None, at: int, why: str) -> SchemaUnit:
        """A new generation, under the shape that was seen, or the present one (B3)."""
        columns = schema.columns if seen is None else renumbered(schema, seen.columns)
        key = schema.key if seen is None else seen.key
        new = replace(
            schema,
            generation=schema.generation + 1,
            version=schema.version + 1,
            columns=columns,
            key=key,
            identity=identity(key),
            changes=(SchemaChange.RECAPTURED,),
            defaults=b"",
            storage=at,
        )
        logger.warning("%s.%s is captured again: %s", schema.schema, schema.name, why)
        return self._put(new, why)

    def drop(self, schema: TableSchema, at: int) -> SchemaUnit:
        self._release(schema.number)
        dropped = replace(
            schema, version=schema.version + 1, changes=(SchemaChange.TABLE_DROPPED,), defaults=b"", storage=at
        )
        return SchemaUnit(dropped)

    def _put(self, schema: TableSchema, why: str = "") -> SchemaUnit:
        self._hold(schema)
        return SchemaUnit(schema, why=why)


def identity(key: Sequence[str]) -> Identity:
    return Identity.KEY if key else Identity.FULL


def renumbered(schema: TableSchema, columns: Sequence[SourceColumn]) -> tuple[SourceColumn, ...]:
    """Columns of a new generation; those that have not changed keep their numbers (B2)."""
    known = {(each.name, each.type): each.number for each in schema.columns}
    return tuple(
        replace(each, number=known.get((each.name, each.type)) or new_number(schema, place))
        for place, each in enumerate(columns)
    )


def new_number(schema: TableSchema, place: int) -> int:
    return (schema.version + 1) * NUMBERS_OF_VERSION + place


def described(schema: TableSchema | SeenTable, seen: TableMap) -> bool:
    """Whether rows under this table map have the columns and the key of this schema."""
    if len(seen.columns) != len(schema.columns) or not all(map(fits, seen.columns, schema.columns)):
        return False
    usable = may_be_key([column for column in schema.columns if column.name in seen.key])
    return schema.key == (seen.key if usable else ())


def seen_in(seen: TableMap) -> SeenTable:
    """As much as a table map says. Raises ``ConfigError`` for a type that cannot be captured."""
    columns = []
    for number, wire in enumerate(seen.columns, 1):
        shape = from_wire(wire)
        if shape is None:
            raise unfit_type(f"{seen.schema}.{seen.name}", wire.name, f"number {wire.type} of the binlog")
        columns.append(shape.column(wire.name, number))
    usable = may_be_key([column for column in columns if column.name in seen.key])
    return SeenTable(seen.schema, seen.name, tuple(columns), seen.key if usable else ())
