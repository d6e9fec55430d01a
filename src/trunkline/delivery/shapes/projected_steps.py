"""Steps of a source's columns as steps of a shaped table's.

Rules
 P1  A column that the shape names and that has another name now, or is not there, halts the destination: else a mask or
     an exclusion would no longer hide it.
 P2  Columns that the shape does not name follow the source: renamed, dropped, added with their defaults, widened.
 P3  Values that a shape computed from a column that was widened may be others now (a DECIMAL has more digits as text):
     the destination is seeded again. Hashes stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from msgspec.structs import replace

from trunkline.delivery.changes.column_steps import NEW, ColumnSteps
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.shape import Shape
from trunkline.delivery.shapes.expressions import parsed
from trunkline.delivery.shapes.plan import PlannedColumn, ShapePlan, planned
from trunkline.errors import ConfigError, SourceExpired


def projected_steps(shape: Shape, plan: ShapePlan, steps: ColumnSteps) -> ColumnSteps:
    """``plan``: of the columns after the steps."""
    check_shape_names(shape, steps)
    if steps.unchanged:
        columns = tuple(each.column for each in plan.columns)
        return ColumnSteps(columns, columns, tuple(range(len(columns))))
    _check_widened(plan, steps)
    before = _before(shape, steps)
    place = {_identity(each): at for at, each in enumerate(before.columns)}
    older = {new.name: old.name for old, new in steps.kept}
    origins = tuple(place.get(_identity_before(each, older), NEW) for each in plan.columns)
    new = [each for each, at in zip(plan.columns, origins, strict=True) if at == NEW]
    found = ColumnSteps(
        tuple(each.column for each in before.columns), tuple(each.column for each in plan.columns), origins
    )
    return replace(found, defaults=_defaults(found, new, steps))


def check_shape_names(shape: Shape, steps: ColumnSteps) -> None:
    """P1, before a table is shaped under the columns after the steps. Raises ``ConfigError`` with the line."""
    before, names = ({column.name for column in columns} for columns in (steps.before, steps.after))
    for line, name in _named(shape, steps):
        if (now := steps.now(name)) == name or name not in before:
            continue
        what = "was dropped from the source; remove it" if now is None else f"is {now!r} in the source now; write {now}"
        other = " (another column has its name)" if name in names else ""
        raise ConfigError(
            f"{line}: column {name!r} {what} there in the pipeline's file{other} and restart the deliverer, which "
            "seeds the destination again"
        )


def _named(shape: Shape, steps: ColumnSteps) -> Iterator[tuple[str, str]]:
    """The lines of a shape and the columns that they name, as they were before the steps."""
    lines = (("columns.include", shape.include), ("columns.exclude", shape.exclude))
    for line, names in (*lines, ("columns.rename", tuple(shape.rename)), ("mask", tuple(shape.mask))):
        yield from ((line, name) for name in names)
    spelled = {column.name.lower(): column.name for column in steps.before}
    for line, text in (
        ("filter", shape.filter),
        *((f"computed.{name}", text) for name, text in shape.computed.items()),
    ):
        try:
            inputs = () if text is None else parsed(line, text, spelled).inputs
        except ConfigError:
            continue  # it names columns that were not there
        yield from ((line, name) for name in inputs)


def _before(shape: Shape, steps: ColumnSteps) -> ShapePlan:
    found, problems = planned(shape, steps.before, (), "")
    if found is None:
        raise SourceExpired(
            f"the shape does not fit the columns before ({problems[0]}); the destination is seeded again"
        )
    return found


def _check_widened(plan: ShapePlan, steps: ColumnSteps) -> None:
    """P3; also a column of an expression that is another one now, though it has the name."""
    expressions = [each.expression for each in plan.columns if each.expression is not None]
    changed = {new.name for old, new in steps.kept if (old.name, old.type) != (new.name, new.type)} | {
        new.name for new in steps.added
    }
    for expression in [*expressions, *([plan.filter] if plan.filter else [])]:
        if odd := [name for name in expression.inputs if name in changed]:
            raise SourceExpired(
                f"{expression.name}: column {odd[0]!r} of the source has changed, and with it values of old rows; the "
                "destination is seeded again"
            )


def _identity(column: PlannedColumn) -> tuple[str, str]:
    """Of a column before the steps: the source's column, or the computed one."""
    return ("computed", column.column.name) if column.source is None else ("source", column.source.name)


def _identity_before(column: PlannedColumn, older: dict[str, str]) -> tuple[str, str]:
    """Of a column after the steps, as it was before."""
    if column.source is None:
        return "computed", column.column.name
    return ("source", older[column.source.name]) if column.source.name in older else ("new", column.source.name)


def _defaults(found: ColumnSteps, new: Sequence[PlannedColumn], steps: ColumnSteps) -> bytes:
    """Of new columns, which no shape names (P1) and no mask hides."""
    if not steps.defaults:
        return b""
    given, schema = steps.default_row(), arrow_schema(found.after)
    sources = {each.column.name: each.source.name for each in new if each.source is not None}
    arrays = [
        given.column(sources[field.name]).cast(field.type) if field.name in sources else pa.nulls(1, field.type)
        for field in schema
    ]
    if all(array.null_count for array in arrays):
        return b""
    encoded: bytes = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()
    return encoded
