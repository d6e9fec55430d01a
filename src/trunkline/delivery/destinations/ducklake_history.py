"""Statements for a table with the history of its rows (T11): versions are closed and added, never removed."""

from __future__ import annotations

from trunkline.delivery.backends.sql import identifier, identifiers
from trunkline.delivery.changes.history import (
    CURRENT,
    HISTORY_NAMES,
    VALID_FROM,
    VALID_FROM_TIME,
    VALID_TO,
    VALID_TO_TIME,
)
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.destinations.ducklake_stage import TableStage, key_text


def close_statement(stage: TableStage, table: str) -> str:
    """A REMOVE row ends the open version of its key."""
    return (
        f"UPDATE {table} AS t SET {VALID_TO} = s.{VALID_TO}, {VALID_TO_TIME} = s.{VALID_TO_TIME}, {CURRENT} = false "
        f"FROM {stage.name} AS s WHERE s.{OP_COLUMN} = {int(Op.REMOVE)} AND t.{CURRENT} AND {stage.same_key()}"
    )


def second_open_statement(stage: TableStage, table: str) -> str:
    """After that: a key of INSERT rows that has an open version still, if there is one (T4, halt)."""
    return (
        f"SELECT {key_text(stage.step.key, 's.')} FROM {stage.name} AS s SEMI JOIN {table} AS t "
        f"ON t.{CURRENT} AND {stage.same_key()} WHERE s.{OP_COLUMN} = {int(Op.INSERT)} LIMIT 1"
    )


def supersede_statement(stage: TableStage, table: str) -> str:
    """Or such versions end where the first of the INSERT rows begins (T4, warn)."""
    key = identifiers(stage.step.key)
    firsts = (
        f"SELECT {key}, min({VALID_FROM}) AS {VALID_FROM}, min({VALID_FROM_TIME}) AS {VALID_FROM_TIME} "
        f"FROM {stage.name} WHERE {OP_COLUMN} = {int(Op.INSERT)} GROUP BY {key}"
    )
    return (
        f"UPDATE {table} AS t SET {VALID_TO} = s.{VALID_FROM}, {VALID_TO_TIME} = s.{VALID_FROM_TIME}, "
        f"{CURRENT} = false FROM ({firsts}) AS s WHERE t.{CURRENT} AND {stage.same_key()}"
    )


def close_gone_statement(stage: TableStage, table: str, through: int) -> str:
    """Open versions without an equal row in the present state end there."""
    return (
        f"UPDATE {table} AS t SET {VALID_TO} = coalesce((SELECT max({VALID_FROM}) FROM {stage.name}), {through}), "
        f"{VALID_TO_TIME} = (SELECT max({VALID_FROM_TIME}) FROM {stage.name}), {CURRENT} = false "
        f"WHERE t.{CURRENT} AND NOT EXISTS (SELECT 1 FROM {stage.name} AS s WHERE {_equal(stage)})"
    )


def insert_new_statement(stage: TableStage, table: str) -> str:
    """Then rows of the present state without an equal open version are added."""
    names = identifiers(column.name for column in stage.step.columns)
    return (
        f"INSERT INTO {table} ({names}) SELECT {names} FROM {stage.name} AS s "
        f"WHERE NOT EXISTS (SELECT 1 FROM {table} AS t WHERE t.{CURRENT} AND {_equal(stage)})"
    )


def _equal(stage: TableStage) -> str:
    names = [column.name for column in stage.step.columns if column.name not in HISTORY_NAMES]
    return " AND ".join(f"t.{identifier(name)} IS NOT DISTINCT FROM s.{identifier(name)}" for name in names)
