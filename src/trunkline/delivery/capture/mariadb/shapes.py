"""What a statement in the binlog does to captured tables: new versions, new generations, new and dropped tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from trunkline.delivery.capture.mariadb.catalog import Name, Patterns, SeenTable
from trunkline.delivery.capture.mariadb.ddl import UNREADABLE, ColumnChange, Statement
from trunkline.delivery.capture.mariadb.tables import Tables, new_number
from trunkline.delivery.capture.mariadb.types import Declared, Family, declared
from trunkline.delivery.capture.mariadb.values import from_texts
from trunkline.delivery.capture.source import SchemaUnit
from trunkline.delivery.changes.columns import widens
from trunkline.delivery.changes.schemas import SchemaChange, SourceColumn, TableSchema, defaults_of
from trunkline.errors import ConfigError

Look = Callable[[Name], SeenTable | None]
# The value of rows that are older than a column which is NOT NULL and has no default.
IMPLICIT: Final = {Family.INTEGER: "0", Family.DECIMAL: "0", Family.FLOAT: "0", Family.DOUBLE: "0", Family.TEXT: ""}
# Lengths and labels of these do not show in their types: a change may cut values.
SIZED: Final = (Family.TEXT, Family.BYTES)
UNCERTAIN: Final = (Family.ENUM, Family.SET, Family.TIME, Family.DATETIME, Family.TIMESTAMP, Family.YEAR, Family.DATE)


class _Unsure(Exception):
    """The rows after the statement are not known from those before it."""


class Shapes:
    """Applies statements to tables."""

    def __init__(self, tables: Tables, patterns: Patterns, look: Look) -> None:
        self._tables, self._patterns, self._look = tables, patterns, look
        self.found: set[int] = set()  # tables that were there when the stream began, maybe created after its beginning

    def units(self, statement: Statement, at: int) -> Iterator[SchemaUnit]:
        """In the order in which they take effect. Raises ``ConfigError`` for a table that cannot be captured."""
        match statement.kind:
            case "CREATE":
                yield from self._created(statement, at)
            case "DROP":
                yield from self._dropped([self._tables.before(name, at) for name in statement.names], at)
            case "DROP DATABASE":
                yield from self._dropped(self._tables.of_database(statement.names[0][0]), at)
            case "RENAME":
                yield from self._renamed(statement, at)
            case "ALTER":
                yield from self._altered(statement, at)
            case _:
                yield from self._doubted(statement, at)

    def _created(self, statement: Statement, at: int) -> Iterator[SchemaUnit]:
        [name] = statement.names
        held = self._tables.find(name)
        if not self._patterns.match(name) or (held is not None and held.storage >= at):
            return
        if held is not None and held.number in self.found and statement.text != "IF NOT EXISTS":
            self.found.discard(held.number)  # this is its creation: it is known since the stream began
            return
        if held is not None and statement.text == "IF NOT EXISTS":
            return
        if held is not None:
            yield self._tables.drop(held, at)
        if (seen := self._look(name)) is not None:
            yield self._tables.create(seen, at)

    def _dropped(self, tables: Sequence[TableSchema | None], at: int) -> Iterator[SchemaUnit]:
        for schema in tables:
            if schema is not None and schema.storage < at:
                yield self._tables.drop(schema, at)

    def _renamed(self, statement: Statement, at: int) -> Iterator[SchemaUnit]:
        """Several renamings in one statement follow each other, and take effect together."""
        ends: dict[Name, Name] = {}
        for old, new in zip(statement.names[::2], statement.names[1::2], strict=True):
            origin = next((first for first, last in ends.items() if last == old), old)
            ends[origin] = new
        moved = [(self._tables.before(old, at), new) for old, new in ends.items()]
        for _, new in moved:
            # The server renames to free names only: the table was seen too early, when the stream began.
            early = self._tables.before(new, at)
            if early is not None and new not in ends:
                yield self._tables.drop(early, at)
        for schema, new in moved:
            if schema is not None and self._patterns.match(new):
                yield self._tables.change(schema, at, [SchemaChange.TABLE_RENAMED], name=new)
            elif schema is not None:
                yield self._tables.drop(schema, at)
            elif self._patterns.match(new):
                held = self._tables.find(new)
                if (held is None or held.storage < at) and (seen := self._look(new)) is not None:
                    yield self._tables.create(seen, at)

    def _altered(self, statement: Statement, at: int) -> Iterator[SchemaUnit]:
        schema = self._tables.find(statement.names[0])
        if schema is None and self._patterns.match(statement.names[0]):
            if len(statement.names) == 1 and (seen := self._look(statement.names[0])) is not None:
                yield self._tables.create(seen, at)
            return
        if schema is None or schema.storage >= at:
            return
        if statement.changes is None:
            yield from self._doubted(statement, at)
            return
        if not statement.changes:
            return
        try:
            yield self._changed(schema, statement, at)
        except _Unsure as unsure:
            yield self._again(schema, at, f"{unsure} ({statement.text[:200]})")

    def _doubted(self, statement: Statement, at: int) -> Iterator[SchemaUnit]:
        """M3: whatever is named in it; a statement that changes rows may also do so through views and triggers."""
        for schema in list(self._tables):
            if statement.kind == "ALTER" and "exchange" not in statement.words:
                named = (schema.schema, schema.name) == statement.names[0]
            else:
                hidden = UNREADABLE in statement.text and not schema.name.isascii()  # its name may be in it
                named = schema.name.lower() in statement.words or statement.kind == "ROWS" or hidden
            if named and schema.storage < at:
                yield self._again(schema, at, f"a statement may have changed it: {statement.text[:200]}")

    def _again(self, schema: TableSchema, at: int, why: str) -> SchemaUnit:
        seen = self._look((schema.schema, schema.name))
        return self._tables.recapture(schema, seen, at, why)

    # ------------------------------------------------------------------------------------------------------- columns

    def _changed(self, schema: TableSchema, statement: Statement, at: int) -> SchemaUnit:
        columns, kinds = list(schema.columns), set[SchemaChange]()
        defaults: dict[str, Any] = {}
        assert statement.changes is not None
        if not statement.strict and any(change.what in ("modify", "change") for change in statement.changes):
            raise _Unsure("values may have been cut, because the session was not strict")
        # A statement names columns as they were before it; so two changes of one column are not understood.
        named = [change.column.lower() for change in statement.changes if change.what != "add"]
        if len(set(named)) < len(named):
            raise _Unsure("it changes a column twice")
        for change in statement.changes:
            self._apply(schema, columns, change, kinds, defaults)
        if len({column.name.lower() for column in columns}) < len(columns) or not columns:
            raise _Unsure("its columns are not those that were known")
        if not kinds:
            kinds.add(SchemaChange.WIDENED)  # the order of its columns, or a length
        packed = defaults_of(columns, defaults)
        return self._tables.change(schema, at, sorted(kinds), columns=tuple(columns), defaults=packed)

    def _apply(
        self,
        schema: TableSchema,
        columns: list[SourceColumn],
        change: ColumnChange,
        kinds: set[SchemaChange],
        defaults: dict[str, Any],
    ) -> None:
        if change.what == "add":
            shape = _shape(change)
            column = shape.column(change.new_name, new_number(schema, len(columns)))
            columns.insert(_place(columns, change.after), column)
            kinds.add(SchemaChange.ADDED)
            if (value := _default(column, change)) is not None:
                defaults[column.name] = value
            return
        place = _found(columns, change.column)
        old = columns[place]
        if change.what == "drop":
            if old.name in schema.key:
                raise _Unsure("a column of its key was dropped")
            del columns[place]
            kinds.add(SchemaChange.DROPPED)
            return
        new = replace(old, name=change.new_name)
        if change.what != "rename":
            new = _retyped(new, _shape(change))
        if new.name != old.name:
            kinds.add(SchemaChange.RENAMED)
        if new.type != old.type:
            kinds.add(SchemaChange.WIDENED)
            if old.name in schema.key:
                kinds.add(SchemaChange.KEY)
        columns[place] = new
        if change.after is not None:
            columns.insert(_place([each for each in columns if each is not new], change.after), columns.pop(place))


def _shape(change: ColumnChange) -> Declared:
    shape = declared(change.type)
    if shape is None:
        raise ConfigError(
            f"column {change.new_name!r} has the type {change.type!r}, which cannot be captured; change it"
        )
    return shape


def _place(columns: Sequence[SourceColumn], after: str | None) -> int:
    if after is None:
        return len(columns)
    if after == "":
        return 0
    return _found(columns, after) + 1


def _found(columns: Sequence[SourceColumn], name: str) -> int:
    """Names of columns are the same in capitals and in small letters."""
    found = next((place for place, column in enumerate(columns) if column.name.lower() == name.lower()), None)
    if found is None:
        raise _Unsure(f"it has no column {name!r}")
    return found


def _retyped(column: SourceColumn, shape: Declared) -> SourceColumn:
    """The column under another type, if every value stays as it is."""
    same = (column.type, column.type_oid) == (shape.type, shape.family)
    if same and shape.family in SIZED and not 0 <= column.modifier <= shape.modifier:
        raise _Unsure(f"values of {column.name!r} may have been cut")
    if (same and shape.family in UNCERTAIN and column.modifier != shape.modifier) or shape.family in (
        Family.ENUM,
        Family.SET,
    ):
        raise _Unsure(f"values of {column.name!r} may have changed")
    families = (column.type_oid, int(shape.family))
    wider = families in ((families[0], families[0]), (Family.FLOAT, Family.DOUBLE)) and widens(column.type, shape.type)
    if not same and not wider:
        raise _Unsure(f"{column.name!r} turned from {column.type} into {shape.type}")
    return replace(column, type=shape.type, type_oid=int(shape.family), modifier=shape.modifier)


def _default(column: SourceColumn, change: ColumnChange) -> Any:
    """The value of rows that are older than the column; ``None``: NULL."""
    if change.default is None and (change.stated or change.nullable):
        return None
    text = change.default if change.stated else IMPLICIT.get(Family(column.type_oid))
    if text is None or column.type_oid in (Family.ENUM, Family.SET, Family.BIT, Family.TIME, Family.BYTES):
        raise _Unsure(f"the value of {column.name!r} in older rows is not known")
    try:
        return from_texts(column, [text], "")[0].as_py()
    except (pa.ArrowException, ValueError):
        raise _Unsure(f"the value of {column.name!r} in older rows is not known") from None
