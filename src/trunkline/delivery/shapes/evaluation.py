"""Values of expressions, computed by DuckDB over Arrow tables.

Rules
 V1  Columns have their own types in expressions: a UUID, which travels as text, is a UUID. JSON is text.
 V2  A value for each row, in the order of the rows. There is never a WHERE: DuckDB would hand parts of it to Arrow,
     which compares some values differently.
 V3  A row for which an expression fails halts the destination; nothing becomes NULL because of an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from trunkline.delivery.backends.duckdb_pool import registered
from trunkline.delivery.backends.sql import first_line, identifier
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema, arrow_type
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.shapes.expressions import Expression
from trunkline.delivery.shapes.sealed_duckdb import sealed_duckdb
from trunkline.errors import ConfigError, DestinationHalted

ROW: Final = f"{RESERVED_PREFIX}_row"
NOT_OF_A_ROW: Final = (duckdb.OutOfMemoryException, duckdb.InterruptException)


def bound_type(expression: Expression, columns: Columns) -> str:
    """The type of an expression by DuckDB's own binding. Raises ``ConfigError`` that begins with its name."""
    rows = pa.schema([pa.field(ROW, pa.int64()), *arrow_schema(_inputs([expression], columns))]).empty_table()
    try:
        with sealed_duckdb() as connection, registered(connection, shape_rows=rows):
            query = f"SELECT ({expression.text}\n) AS value FROM ({_typed_rows([expression], columns)})"
            kind = str(connection.sql(query).types[0])
            if not expression.inputs:
                connection.execute(f"SELECT ({expression.text}\n)").fetchall()  # a constant that fails, fails now
    except duckdb.Error as error:
        raise ConfigError(f"{expression.name}: {first_line(error)}") from error
    try:
        arrow_type(Column("", kind))
    except ConfigError:
        raise ConfigError(f"{expression.name}: its type is {kind:.100}, which cannot be delivered; cast it") from None
    return kind


def evaluated(
    expressions: Sequence[Expression], types: Sequence[str], columns: Columns, rows: pa.Table, hidden: Sequence[str]
) -> list[pa.ChunkedArray]:
    """A column for each expression, under its type. ``columns``: of the table. Raises ``DestinationHalted`` (V3), with
    the reason unless the expression uses a column that is ``hidden``: a reason may have a value."""
    if not expressions:
        return []
    used = _inputs(expressions, columns)
    given = [pa.array(np.arange(rows.num_rows)), *(rows.column(column.name) for column in used)]
    table = pa.table(given, names=[ROW, *(column.name for column in used)])
    try:
        found = _query(expressions, types, columns, table)
    except duckdb.Error as error:
        if isinstance(error, NOT_OF_A_ROW):
            raise
        if len(expressions) > 1:  # which one?
            for expression, kind in zip(expressions, types, strict=True):
                evaluated([expression], [kind], columns, rows, hidden)
        failed = expressions[0]
        secret = not set(failed.inputs).isdisjoint(hidden)
        reason = f"{type(error).__name__}, of a column that is not delivered as it is" if secret else first_line(error)
        raise DestinationHalted(
            f"{failed.name} fails on a row of the source: {reason}; change the expression (TRY_CAST, CASE) or the row, "
            "then resume"
        ) from (None if secret else error)
    at = found.column(ROW).to_numpy()
    if (at[1:] < at[:-1]).any():
        found = found.take(np.argsort(at))
    wanted = arrow_schema([Column(str(place), kind) for place, kind in enumerate(types)])
    return [found.column(field.name).cast(field.type) for field in wanted]


def _query(expressions: Sequence[Expression], types: Sequence[str], columns: Columns, rows: pa.Table) -> pa.Table:
    values = [
        f"CAST(({each.text}\n) AS {_carried(kind)}) AS {identifier(str(place))}"
        for place, (each, kind) in enumerate(zip(expressions, types, strict=True))
    ]
    with sealed_duckdb() as connection, registered(connection, shape_rows=rows):
        listed = ", ".join([identifier(ROW), *values])
        return connection.sql(f"SELECT {listed} FROM ({_typed_rows(expressions, columns)})").to_arrow_table()


def _inputs(expressions: Sequence[Expression], columns: Columns) -> Columns:
    used = {name for expression in expressions for name in expression.inputs}
    return tuple(column for column in columns if column.name in used)


def _typed_rows(expressions: Sequence[Expression], columns: Columns) -> str:
    """V1."""
    items = [identifier(ROW)]
    for column in _inputs(expressions, columns):
        name = identifier(column.name)
        items.append(f"CAST({name} AS {column.type}) AS {name}" if column.type.startswith("UUID") else name)
    return f"SELECT {', '.join(items)} FROM shape_rows"


def _carried(kind: str) -> str:
    """UUID and JSON values travel as text."""
    plain = kind.rstrip("[]")
    return kind.replace(plain, "VARCHAR") if plain in ("UUID", "JSON") else kind
