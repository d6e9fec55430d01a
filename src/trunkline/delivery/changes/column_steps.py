"""What happened to the columns of a table between two positions of its source, so that a destination can follow.

A source that knows it hands ``ColumnSteps`` to a flush with the survey of its window (``Survey.steps``). With ``None``
a destination compares columns by name: then it follows added and wider columns, and halts at any other difference.

Rules
 C1  A column is the same if its number in the source is the same (S3): so names may be swapped, and a column that is
     dropped and added again under its name is another one.
 C2  Steps are one difference, whatever happened in between: they compose, and a column that came and went is not there.
 C3  A row that is older than a column has the column's default. Rows of a window come whole, under the columns at its
     end.
 C4  A table of another generation is another table: there are no steps to it, and destinations are seeded again.
 C5  Only names and types count. Where two orders differ, a destination keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.changes.schemas import TableSchema, check_step, defaults_in
from trunkline.errors import ConfigError

NEW: Final = -1  # the origin of a column that is new
ON_THE_WAY: Final = f"{RESERVED_PREFIX}_column_"  # the name of a column while another one has its next name


class ColumnSteps(Struct, frozen=True):
    """From the columns ``before`` to the columns ``after``. A value that is sent to tasks."""

    before: Columns  # at the position that a destination has
    after: Columns
    origins: tuple[int, ...]  # of each column of `after`: its place in `before`, or NEW
    defaults: bytes = b""  # a batch of one row under `after`: what older rows have in new columns; empty: all are NULL

    @property
    def unchanged(self) -> bool:
        return len(self.before) == len(self.after) and not (self.added or self.renamed or self.widened)

    @property
    def kept(self) -> tuple[tuple[Column, Column], ...]:
        """The columns of both sides, before and after."""
        return tuple((self.before[at], new) for at, new in zip(self.origins, self.after, strict=True) if at != NEW)

    @property
    def renamed(self) -> tuple[tuple[Column, Column], ...]:
        return tuple((old, new) for old, new in self.kept if old.name != new.name)

    @property
    def widened(self) -> tuple[tuple[Column, Column], ...]:
        return tuple((old, new) for old, new in self.kept if old.type != new.type)

    @property
    def added(self) -> Columns:
        return tuple(new for at, new in zip(self.origins, self.after, strict=True) if at == NEW)

    @property
    def dropped(self) -> Columns:
        return tuple(old for at, old in enumerate(self.before) if at not in self.origins)

    def default_row(self) -> pa.RecordBatch:
        """One row under the columns ``added``."""
        schema = arrow_schema(self.added)
        if not self.defaults:
            return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        return _decoded(self.defaults, self.after).select(schema.names)

    def spelled(self) -> str:
        """For the operator."""
        parts = [f"renamed {old.name!r} to {new.name!r}" for old, new in self.renamed]
        parts += [f"dropped {old.name!r}" for old in self.dropped]
        parts += [f"added {new.name!r}" for new in self.added]
        parts += [f"widened {new.name!r} to {new.type}" for _, new in self.widened]
        return ", ".join(parts)

    def now(self, name: str) -> str | None:
        """The present name of a column that was ``name`` before; ``None`` if it was dropped, or never was."""
        return next((new.name for old, new in self.kept if old.name == name), None)

    def followed(self, held: Columns) -> Columns:
        """The columns of a destination that holds those ``before``, in its own order, after the steps (C5)."""
        names = {old.name: new for old, new in self.kept}
        return (*(names[column.name] for column in held if column.name in names), *self.added)


class Renaming(NamedTuple):
    """Renames in an order in which no two columns share a name, whatever its case; and what is left to drop then."""

    renames: tuple[tuple[str, str], ...]
    drops: tuple[str, ...]


def renaming(steps: ColumnSteps) -> Renaming:
    """A name that is still taken is reached by way of a reserved one. Columns are dropped last: none may be the only
    one of its table."""
    held = {column.name.lower() for column in steps.before}
    wanted = {column.name.lower() for column in steps.after}
    away: list[tuple[str, str]] = []
    straight: list[tuple[str, str]] = []
    home: list[tuple[str, str]] = []
    drops: list[str] = []
    for old, new in steps.renamed:
        if new.name.lower() in held:
            away.append((old.name, f"{ON_THE_WAY}{len(away)}"))
            home.append((away[-1][1], new.name))
        else:
            straight.append((old.name, new.name))
    for old in steps.dropped:
        if old.name.lower() in wanted:
            away.append((old.name, f"{ON_THE_WAY}{len(away)}"))
            drops.append(away[-1][1])
        else:
            drops.append(old.name)
    return Renaming((*away, *straight, *home), tuple(drops))


def unknown_changes(steps: ColumnSteps, held: Columns) -> tuple[str, ...]:
    """The differences between a destination and the columns that the source had at its position: another program
    changed the table, and the steps do not fit it."""
    types = {column.name: column.type for column in held}
    expected = {column.name for column in steps.before}
    problems = [f"column {column.name!r} is missing" for column in steps.before if column.name not in types]
    problems += [
        f"column {column.name!r} is {types[column.name]} here and was {column.type} in the source"
        for column in steps.before
        if types.get(column.name, column.type) != column.type
    ]
    problems += [f"column {column.name!r} is not in the source" for column in held if column.name not in expected]
    return tuple(problems)


def check_names(steps: ColumnSteps, key: Sequence[str], routing: str) -> None:
    """Raises ``ConfigError`` that names the line to change if a column of the configuration has another name now."""
    names = {column.name for column in steps.after}
    for line, name in (*(("key", name) for name in key), ("routing.column", routing)):
        if name in names or name not in {column.name for column in steps.before}:
            continue
        if (now := steps.now(name)) is not None:
            raise ConfigError(
                f"{line}: column {name!r} is {now!r} in the source now; write {now} there in the pipeline's file and "
                "restart the deliverer, which seeds the destination again"
            )
        raise ConfigError(
            f"{line}: column {name!r} was dropped from the source; name another one there in the pipeline's file and "
            "restart the deliverer, which seeds the destination again"
        )


def no_steps(columns: Columns) -> ColumnSteps:
    """The columns stay as they are."""
    return ColumnSteps(columns, columns, tuple(range(len(columns))))


def steps_of(versions: Sequence[TableSchema]) -> ColumnSteps | None:
    """The steps from the first to the last of some versions of a table, each the next of the one before.

    ``None`` if they are of several generations (C4). Raises ``Malformed`` if one does not follow the other.
    """
    if versions[0].generation != versions[-1].generation:
        return None
    steps = (_step(older, newer) for older, newer in pairwise(versions))
    return reduce(composed, steps, no_steps(versions[0].vocabulary()))


def composed(first: ColumnSteps, second: ColumnSteps) -> ColumnSteps:
    """First these steps, then those (C2)."""
    if first.after != second.before:
        raise ValueError("the second steps do not begin where the first ones end")
    origins = tuple(NEW if at == NEW else first.origins[at] for at in second.origins)
    if not first.defaults and not second.defaults:
        return ColumnSteps(first.before, second.after, origins)
    schema = arrow_schema(second.after)
    older, newer = _defaults(first), _defaults(second)
    arrays = [
        (newer.column(place) if at == NEW else older.column(at)).cast(field.type)
        for place, (at, field) in enumerate(zip(second.origins, schema, strict=True))
    ]
    return ColumnSteps(first.before, second.after, origins, _encoded(arrays, schema))


def stepped_rows(rows: pa.Table, steps: ColumnSteps) -> pa.Table:
    """Rows with the columns ``before``, in any order, as rows with the columns ``after`` (C3)."""
    schema, added = arrow_schema(steps.after), steps.default_row()
    columns = []
    for at, field in zip(steps.origins, schema, strict=True):
        if at != NEW:
            columns.append(rows.column(steps.before[at].name).cast(field.type))
        else:
            columns.append(pa.chunked_array([pa.repeat(added.column(field.name)[0], rows.num_rows)], field.type))
    return pa.table(columns, schema=schema)


def _step(older: TableSchema, newer: TableSchema) -> ColumnSteps:
    check_step(older, newer)
    places = {column.number: place for place, column in enumerate(older.columns)}
    origins = tuple(places.get(column.number, NEW) for column in newer.columns)
    defaults = defaults_in(newer) if NEW in origins else None
    if defaults is None:
        return ColumnSteps(older.vocabulary(), newer.vocabulary(), origins)
    arrays = [
        column if at == NEW else pa.nulls(1, column.type) for at, column in zip(origins, defaults.columns, strict=True)
    ]
    return ColumnSteps(older.vocabulary(), newer.vocabulary(), origins, _encoded(arrays, defaults.schema))


def _defaults(steps: ColumnSteps) -> pa.RecordBatch:
    """One row under ``after``; NULL in columns that are not new."""
    if steps.defaults:
        return _decoded(steps.defaults, steps.after)
    schema = arrow_schema(steps.after)
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)


def _decoded(defaults: bytes, columns: Columns) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(defaults), arrow_schema(columns))


def _encoded(arrays: Sequence[pa.Array], schema: pa.Schema) -> bytes:
    """Nothing if all of them are NULL, so that equal steps are equal values."""
    if all(array.null_count for array in arrays):
        return b""
    found: bytes = pa.RecordBatch.from_arrays(list(arrays), schema=schema).serialize().to_pybytes()
    return found
