"""What a shape makes of one table: its checked expressions, and where each column of the destination comes from.

Rules
 N1  Include, exclude, rename, masks and expressions name columns as the source does. ``key`` and ``routing`` name
     columns as the destination does; routing may also name a column that the shape leaves out.
 N2  Expressions see the source's own values, also of columns that are left out or masked.
 N3  A name that is not a column of the table is a problem, never ignored: a mask with a typing error would deliver the
     values that it should hide.
 N4  A key or routing column may be masked by hash only: other masks make all values equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.columns import Column, Columns, check_columns, check_routing
from trunkline.delivery.changes.shape import Mask, Shape
from trunkline.delivery.shapes.evaluation import bound_type
from trunkline.delivery.shapes.expressions import Expression, parsed
from trunkline.delivery.shapes.masks import constant_of, hashable, mask_secret
from trunkline.errors import ConfigError


class PlannedColumn(Struct, frozen=True):
    """A column of the destination."""

    column: Column
    source: Column | None = None  # whose values it has, or had before they were masked
    mask: Mask | None = None
    constant: pa.Scalar | None = None  # of such a mask
    expression: Expression | None = None  # of a computed column

    @property
    def inputs(self) -> tuple[str, ...]:
        """The source columns that its values depend on."""
        if self.expression is not None:
            return self.expression.inputs
        return () if self.source is None or self.fixed else (self.source.name,)

    @property
    def fixed(self) -> bool:
        """All its values are the same."""
        return self.mask is not None and self.mask.kind != "hash"

    @property
    def plain(self) -> bool:
        return self.mask is None and self.expression is None


class ShapePlan(Struct, frozen=True):
    columns: tuple[PlannedColumn, ...]
    key: tuple[PlannedColumn, ...]
    filter: Expression | None = None
    route: PlannedColumn | None = None  # that makes the route; None: there is none, or the source makes it
    routing: str = ""  # the source's routing column; empty: none, or the route is made of other values
    secret_env: str | None = None

    @property
    def hides(self) -> frozenset[str]:
        """Source columns whose values do not reach the destination as they are."""
        masked = {each.source.name for each in self.columns if each.source is not None and each.mask is not None}
        used = {name for each in self.columns if each.expression for name in each.expression.inputs}
        used |= set(self.filter.inputs) if self.filter else set()
        shown = {each.source.name for each in self.columns if each.source is not None and each.plain}
        return frozenset(masked | (used - shown))


def planned(shape: Shape, columns: Columns, key: Sequence[str], routing: str) -> tuple[ShapePlan | None, list[str]]:
    """The plan, or every problem, each with the name of the part of the pipeline's file."""
    problems = _unknown_names(shape, columns)
    found: list[PlannedColumn] = []
    for column in _chosen(shape, columns):
        try:
            found.append(_planned_column(shape, column))
        except ConfigError as error:
            problems.append(f"mask.{column.name}: {error}")
    spelled = {column.name.lower(): column.name for column in columns}
    for name, text in shape.computed.items():
        try:
            expression = parsed(f"computed.{name}", text, spelled)
            found.append(PlannedColumn(Column(name, bound_type(expression, columns)), expression=expression))
        except ConfigError as error:
            problems.append(str(error))
    condition = None
    try:
        condition = _condition(shape, columns, spelled)
    except ConfigError as error:
        problems.append(str(error))
    if any(mask.kind == "hash" for mask in shape.mask.values()):
        try:
            mask_secret(shape.secret_env, shape.secret_mark)
        except ConfigError as error:
            problems.append(str(error))
    problems += _shared_names(found)
    if not found and not problems:
        problems.append("columns: no column is left to deliver")
    if problems:
        return None, problems
    return _with_keys(shape, columns, found, condition, key, routing)


def _unknown_names(shape: Shape, columns: Columns) -> list[str]:
    """N3."""
    known = {column.name for column in columns}
    listed = ", ".join(column.name for column in columns)
    chosen = {column.name for column in _chosen(shape, columns)}
    lines = (("columns.include", shape.include), ("columns.exclude", shape.exclude))
    problems = []
    for line, names in (*lines, ("columns.rename", tuple(shape.rename)), ("mask", tuple(shape.mask))):
        for name, count in Counter(names).items():
            if name not in known:
                problems.append(f"{line}: {name!r:.200} is not a column of the source table, which has {listed:.1000}")
            elif count > 1:
                problems.append(f"{line}: {name!r:.200} is there {count} times")
            elif line in ("columns.rename", "mask") and name not in chosen:
                problems.append(f"{line}: column {name!r:.200} is not delivered, so it needs no entry")
    return problems


def _chosen(shape: Shape, columns: Columns) -> Columns:
    included = [column for column in columns if not shape.include or column.name in shape.include]
    return tuple(column for column in included if column.name not in shape.exclude)


def _planned_column(shape: Shape, source: Column) -> PlannedColumn:
    name, mask = shape.rename.get(source.name, source.name), shape.mask.get(source.name)
    if mask is None:
        return PlannedColumn(Column(name, source.type, source.nullable), source)
    if mask.kind == "hash":
        if not hashable(source.type):
            raise ConfigError(f"{source.type} values cannot be hashed; mask them with null, or exclude the column")
        return PlannedColumn(Column(name, "VARCHAR", source.nullable), source, mask)
    if mask.kind == "null":
        return PlannedColumn(Column(name, source.type), source, mask)
    if mask.constant is None:
        raise ConfigError("a constant needs a value; write {constant: TEXT}, or null to remove the values")
    return PlannedColumn(Column(name, source.type), source, mask, constant_of(source, mask.constant))


def _condition(shape: Shape, columns: Columns, spelled: dict[str, str]) -> Expression | None:
    if shape.filter is None:
        return None
    expression = parsed("filter", shape.filter, spelled)
    if (kind := bound_type(expression, columns)) != "BOOLEAN":
        raise ConfigError(f"filter: it is {kind}, not BOOLEAN; write a condition, such as status <> 'draft'")
    return expression


def _shared_names(found: Sequence[PlannedColumn]) -> list[str]:
    counts = Counter(each.column.name.lower() for each in found)
    return [
        f"columns: {count} columns would have the name {name!r:.200}; rename or exclude one of them"
        for name, count in counts.items()
        if count > 1
    ]


def _with_keys(
    shape: Shape,
    columns: Columns,
    found: Sequence[PlannedColumn],
    condition: Expression | None,
    key: Sequence[str],
    routing: str,
) -> tuple[ShapePlan | None, list[str]]:
    """N1, N4."""
    names = {each.column.name: each for each in found}
    sources = {column.name: column for column in columns}
    problems: list[str] = []
    try:
        check_columns([each.column for each in found], key, None)
    except ConfigError as error:
        moved = [f"{name} is {shape.rename[name]} there" for name in key if name in shape.rename and name not in names]
        problems.append(f"key: {error} after `columns`, `mask` and `computed`" + "".join(f"; {each}" for each in moved))
    used = [(f"key: column {name!r}", names[name]) for name in key if name in names]
    route = names.get(routing)
    if route is not None:
        used.append((f"routing: column {routing!r}", route))
    elif routing and routing in shape.rename:
        problems.append(f"routing: column {routing!r:.200} is {shape.rename[routing]!r:.200} after `columns.rename`")
    elif routing and routing not in sources:
        problems.append(f"routing: {routing!r:.200} is neither a column of the source table nor a computed one")
    for line, each in used:
        if each.fixed:
            problems.append(f"{line} is masked; a key or routing column can be masked by hash only")
        elif each.expression is not None and not each.inputs:
            problems.append(f"{line} is computed from no column, so it is the same for all rows")
    try:
        check_routing([route.column] if route is not None else columns, routing)
    except ConfigError as error:
        problems.append(str(error))
    if problems:
        return None, problems
    if route is not None and route.plain and route.source is not None:
        routing, route = route.source.name, None
    elif route is not None:
        routing = ""
    keys = tuple(names[name] for name in key)
    return ShapePlan(tuple(found), keys, condition, route, routing, shape.secret_env), []
