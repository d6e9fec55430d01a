"""A model of one PostgreSQL table: its catalog, its rows, and the stream that a publication of it sends.

Alterations and writes happen in transactions; the catalog of each moment is kept, so that a reader of the stream can
look it up late. What the model does follows PostgreSQL: `tests/delivery/test_postgres_catalog.py` compares.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from msgspec import structs

from trunkline.delivery.capture.postgres.catalog import DefinedColumn, TableDefinition, relation_of
from trunkline.delivery.capture.postgres.pgoutput import Relation

OID, CONSTRAINT = 16_400, 16_500
INTEGER, VARCHAR = 23, 1043
Values = dict[int, str | None]
Rows = dict[int, Values]


@dataclass(frozen=True)
class Write:
    """One message of the stream, after the relation if the server sends one first."""

    relation: Relation | None
    kind: str  # insert, update, delete, truncate
    key: int = 0
    row: tuple[str | None, ...] = ()  # without the key, in the order of the relation


@dataclass(frozen=True)
class Committed:
    """A transaction, and the table after it."""

    lsn: int
    writes: tuple[Write, ...]
    definition: TableDefinition
    rows: Rows
    settled: bool  # its last alteration comes before its last write


@dataclass
class ModelTable:
    lsn: int = 0
    xid: int = 1
    storage: int = 1
    columns: list[DefinedColumn] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    history: list[Committed] = field(default_factory=list)
    _stale: bool = True  # the server has to send the relation before the next row
    _writes: list[Write] = field(default_factory=list)
    _settled: bool = False

    def __post_init__(self) -> None:
        self.columns = [DefinedColumn(1, "id", INTEGER, -1, self.xid, not_null=True)]
        self.add("a")
        self.add("b")
        self.commit()

    def definition(self) -> TableDefinition:
        return TableDefinition(
            OID, "public", "orders", self.storage, "d", tuple(self.columns), self.lsn + 5, CONSTRAINT, (1,)
        )

    def commit(self) -> None:
        self.lsn += 10
        self.history.append(
            Committed(self.lsn, tuple(self._writes), self.definition(), copy.deepcopy(self.rows), self._settled)
        )
        self._writes, self._settled = [], False
        self.xid += 1

    def live(self) -> list[DefinedColumn]:
        return [column for column in self.columns[1:] if column.sent]

    # --- alterations ---

    def add(self, name: str, default: str = "null") -> None:
        """``default``: null, constant, volatile (each row has its own value) or generated."""
        if any(column.name == name for column in self.columns):
            return
        number = len(self.columns) + 1
        constant = f"constant {self.xid}" if default == "constant" else None
        made = DefinedColumn(
            number, name, VARCHAR, 14, self.xid,
            generated=default == "generated", has_missing=constant is not None, missing=constant,
        )  # fmt: skip
        self.columns.append(made)
        for key, row in self.rows.items():
            own = f"{default} {self.xid} of {key}"
            row[number] = constant if default in ("null", "constant") else own
        if default in ("volatile", "generated"):
            self.rewrite()
        self._altered()

    def drop(self, column: DefinedColumn) -> None:
        self._replace(DefinedColumn(column.number, f"...{column.number}...", 0, -1, self.xid, dropped=True))
        for row in self.rows.values():
            row.pop(column.number, None)

    def rename(self, column: DefinedColumn, name: str) -> None:
        if not any(other.name == name for other in self.columns):
            self._replace(structs.replace(column, name=name, stamp=self.xid))

    def widen(self, column: DefinedColumn) -> None:
        self._replace(structs.replace(column, modifier=column.modifier + 1, stamp=self.xid))

    def recompute(self, column: DefinedColumn, *, modifier: int = 0) -> None:
        """ALTER ... TYPE ... USING, to the same type or to another length."""
        self._replace(structs.replace(column, modifier=column.modifier + modifier, stamp=self.xid))
        for row in self.rows.values():
            row[column.number] = f"{row[column.number]}, {self.xid}"
        self.rewrite()

    def drop_expression(self) -> None:
        for column in self.columns:
            if column.generated and not column.dropped:
                self._replace(structs.replace(column, generated=False, stamp=self.xid))
                return

    def touch(self, column: DefinedColumn) -> None:
        """SET NOT NULL, SET STATISTICS and the like."""
        self._replace(structs.replace(column, stamp=self.xid))

    def rewrite(self) -> None:
        """VACUUM FULL; values are in all rows then."""
        self.storage += 1
        self.columns = [
            structs.replace(column, has_missing=False, missing=None, stamp=self.xid) if column.has_missing else column
            for column in self.columns
        ]
        self._altered()

    def invalidate(self) -> None:
        self._stale = True

    def _replace(self, column: DefinedColumn) -> None:
        self.columns[column.number - 1] = column
        self._altered()

    def _altered(self) -> None:
        self._stale, self._settled = True, False

    # --- rows ---

    def insert(self, key: int) -> None:
        kind = "update" if key in self.rows else "insert"
        self.rows[key] = {
            column.number: f"value {self.xid} of {key}.{column.number}"
            for column in self.columns[1:]
            if not column.dropped
        }
        self._write(kind, key)

    def delete(self, key: int) -> None:
        if self.rows.pop(key, None) is not None:
            self._write("delete", key)

    def truncate(self) -> None:
        self.rows.clear()
        self.storage += 1
        self._write("truncate", 0)
        self._stale = True

    def _write(self, kind: str, key: int) -> None:
        relation = relation_of(self.definition()) if self._stale else None
        row = tuple(self.rows[key][column.number] for column in self.live()) if key in self.rows else ()
        self._writes.append(Write(relation, kind, key, row))
        self._stale, self._settled = False, True
