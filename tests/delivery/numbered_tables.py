"""A judge of a stream for tests: every table has the number that the server gives it, and a version for each shape."""

from __future__ import annotations

from collections.abc import Collection

from trunkline.delivery.capture.postgres.change_batches import Table
from trunkline.delivery.capture.postgres.decoder import Cut, Mark
from trunkline.delivery.capture.postgres.pgoutput import Relation
from trunkline.delivery.capture.postgres.values import type_of
from trunkline.delivery.capture.source import SchemaUnit, Watermark
from trunkline.delivery.changes.schemas import Identity, SchemaChange, SourceColumn, TableSchema


class NumberedTables:
    def __init__(self) -> None:
        self.shapes: list[Relation] = []
        self.commits: list[int] = []  # the LSN of each shape
        self._newest: dict[int, Relation] = {}
        self._versions: dict[int, int] = {}

    def expect(self, oids: Collection[int], xids: Collection[int]) -> None:
        pass

    def relation(self, relation: Relation, lsn: int) -> Cut | None:
        self.shapes.append(relation)
        self.commits.append(lsn)
        if self._newest.get(relation.oid) == relation:
            return None
        self._newest[relation.oid] = relation
        self._versions[relation.oid] = self._versions.get(relation.oid, 0) + 1
        schema = schema_of(relation, self._versions[relation.oid])
        return Cut((SchemaUnit(schema),), ((relation.oid, Table(schema, relation.key)),))

    def mark(self, mark: Mark) -> Cut | None:
        """A watermark that names the text and the LSN of the message."""
        return Cut((Watermark(mark.content.decode(), mark.lsn, mark.transactional),))


def schema_of(relation: Relation, version: int = 1) -> TableSchema:
    columns = [
        SourceColumn(each.name, type_of(each), number, each.type_oid, each.modifier)
        for number, each in enumerate(relation.columns, 1)
    ]
    full = relation.identity == "f"
    key = () if full else tuple(relation.columns[each].name for each in relation.key)
    identity = Identity.FULL if full else Identity.KEY
    change = SchemaChange.CREATED if version == 1 else SchemaChange.ADDED
    return TableSchema(
        relation.oid, 1, version, relation.schema, relation.name, tuple(columns), key, identity, (change,)
    )
