"""Follows the steps of a source's columns in a table of PostgreSQL, inside the transaction of a flush (T6).

Nothing is rewritten but a column whose type changes. The default of an added column is the server's own: rows that are
there already have it without being touched, and it is removed again, because every later row comes whole.
"""

from __future__ import annotations

import pyarrow as pa

from trunkline.delivery.backends.postgres_session import REBUILD_MS, PostgresSession
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.column_steps import ColumnSteps, renaming
from trunkline.delivery.destinations.postgres_copy import fields, shared_encoder
from trunkline.delivery.destinations.postgres_types import stored_type


def follow_steps(session: PostgresSession, table: str, steps: ColumnSteps) -> None:
    """Raises ``SchemaMismatch`` for a column that PostgreSQL cannot hold."""
    plan = renaming(steps)
    defaults = _defaults(session, steps)
    session.run(f"SET LOCAL statement_timeout = {REBUILD_MS}")
    for old, new in plan.renames:
        session.run(f"ALTER TABLE {table} RENAME COLUMN {identifier(old)} TO {identifier(new)}")
    actions = [
        f"ADD COLUMN {identifier(column.name)} {stored_type(column)}"
        + (f" DEFAULT {defaults[column.name]}::{stored_type(column)}" if column.name in defaults else "")
        for column in steps.added
    ]
    actions += [
        f"ALTER COLUMN {identifier(new.name)} TYPE {stored_type(new)}"
        for old, new in steps.widened
        if stored_type(old) != stored_type(new)
    ]
    actions += [f"DROP COLUMN {identifier(name)}" for name in plan.drops]
    if actions:
        session.run(f"ALTER TABLE {table} {', '.join(actions)}", wait_ms=REBUILD_MS)
    if defaults:
        gone = ", ".join(f"ALTER COLUMN {identifier(name)} DROP DEFAULT" for name in defaults)
        session.run(f"ALTER TABLE {table} {gone}")


def _defaults(session: PostgresSession, steps: ColumnSteps) -> dict[str, str]:
    """Literals for the defaults that are not NULL. They are encoded as rows are, so that their values are the same."""
    row = steps.default_row()
    columns = tuple(column for column in steps.added if row.column(column.name).null_count == 0)
    if not columns:
        return {}
    with shared_encoder().chunk(pa.Table.from_batches([row])) as chunk:
        values = fields(chunk.rows(columns, staged=False))
    listed = ", ".join(f"quote_literal((%b::{stored_type(column)})::text)" for column in columns)
    found = session.run(f"SELECT {listed}", values).fetchone()
    assert found is not None
    return {column.name: text for column, text in zip(columns, found, strict=True)}
