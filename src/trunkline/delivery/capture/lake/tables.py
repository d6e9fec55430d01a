"""The tables of a captured lake as they are at a snapshot, and the units that change them.

Rules
 B1  A table is known by its id in the lake (``TableSchema.oid``). What the lake has at a snapshot is compared with what
     the log has, so that a snapshot that is streamed again after a crash changes nothing.
 B2  A lake has no keys: removed rows are whole, and identify themselves.
 B3  Whatever changes the columns, or the rows without a change that can be read, begins a new generation: the table is
     captured again, and the reason is announced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from trunkline.delivery.capture.source import SchemaUnit
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.schemas import Catalog, Identity, SchemaChange, SourceColumn, TableSchema
from trunkline.delivery.sources.lake_tables import TableOfLake

logger = logging.getLogger(__name__)


class CapturedLakeTables:
    """Those that the log has, after everything that was streamed so far."""

    def __init__(self, catalog: Catalog | None) -> None:
        held = [] if catalog is None else [table.newest for table in catalog.tables]
        self._by_number = {schema.number: schema for schema in held}
        self._next = 1 if catalog is None else catalog.next_number

    def get(self, number: int) -> TableSchema | None:
        return self._by_number.get(number)

    def __iter__(self) -> Iterator[TableSchema]:
        return iter(list(self._by_number.values()))

    def numbered(self, name: str) -> TableSchema:
        """The table that has this name."""
        return next(each for each in self._by_number.values() if f"{each.schema}.{each.name}" == name)

    def step(self, tables: Sequence[TableOfLake]) -> list[SchemaUnit]:
        """What the log needs to know before rows of a snapshot with these tables."""
        here = {each.id: each for each in tables}
        units = [self._drop(held) for held in self if held.oid not in here]
        known = {held.oid: held for held in self}
        for each in tables:
            if (held := known.get(each.id)) is None:
                units.append(self._create(each))
            elif held.vocabulary() != each.columns:
                units.append(self.recapture(held, "its columns have changed", each))
            elif (held.schema, held.name) != (each.schema, each.name):
                units.append(self.recapture(held, f"it is {each.schema}.{each.name} now", each))
        return units

    def recapture(self, held: TableSchema, why: str, now: TableOfLake | None = None) -> SchemaUnit:
        schema = replace(
            held,
            generation=held.generation + 1,
            version=held.version + 1,
            schema=held.schema if now is None else now.schema,
            name=held.name if now is None else now.name,
            columns=held.columns if now is None else _numbered(now.columns),
            changes=(SchemaChange.RECAPTURED,),
        )
        logger.warning("%s.%s is captured again: %s", schema.schema, schema.name, why)
        return self._put(schema, why)

    def _create(self, table: TableOfLake) -> SchemaUnit:
        number, self._next = self._next, self._next + 1
        columns, changes = _numbered(table.columns), (SchemaChange.CREATED,)
        return self._put(
            TableSchema(number, 1, 1, table.schema, table.name, columns, (), Identity.FULL, changes, oid=table.id)
        )

    def _drop(self, held: TableSchema) -> SchemaUnit:
        del self._by_number[held.number]
        return SchemaUnit(replace(held, version=held.version + 1, changes=(SchemaChange.TABLE_DROPPED,)))

    def _put(self, schema: TableSchema, why: str = "") -> SchemaUnit:
        self._by_number[schema.number] = schema
        return SchemaUnit(schema, why=why)


def _numbered(columns: Columns) -> tuple[SourceColumn, ...]:
    return tuple(SourceColumn(column.name, column.type, place) for place, column in enumerate(columns, start=1))
