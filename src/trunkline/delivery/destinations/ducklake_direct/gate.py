"""Which flushes are ordinary. Everything else is the extension's, which knows the whole format.

The gate asks the step first, then the catalog itself, inside the transaction that writes.

    step       a flush, or a repair, of members that have a position; mode mirror or append; no table is replaced, none
               leaves, no column changes; every value is stated; not too many rows
    lake       format 1.0, without encryption; files in a local directory; no setting that is not known here
    table      listed in the member's record; neither partitioned nor sorted; the columns of the step, none of them
               nested; files of its own, none added from elsewhere; no rows or deletions inlined in the catalog
    records    inlined in the catalog, under the member's own name
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.columns import arrow_schema, evolution
from trunkline.delivery.changes.rows import OP_COLUMN, ORIGIN_COLUMN, UNCHANGED_COLUMN
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.contract import MemberStep, MemberWrite, TableStep, checked_steps
from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual
from trunkline.delivery.destinations.ducklake_direct.catalog import Catalog
from trunkline.delivery.destinations.ducklake_direct.table_state import TYPES, Head, TableState
from trunkline.delivery.destinations.ducklake_member import check_step
from trunkline.errors import SchemaMismatch, TrunklineError

FORMAT: Final = "1.0"
SETTINGS: Final = frozenset(  # that say nothing about how a flush is written, or what is looked at here
    {
        "version",
        "created_by",
        "data_path",
        "encrypted",
        "data_inlining_row_limit",
        "expire_older_than",
        "delete_older_than",
        "rewrite_delete_threshold",
        "auto_compact",
        "target_file_size",
    }
)
MEMBER_BYTES_MAX: Final = (
    64 * 2**20
)  # of the rows of one member; more are staged by the extension, which spills to disk
CALL_BYTES_MAX: Final = 256 * 2**20  # of the rows of all members of one call


class StagedRows(Struct, frozen=True):
    """The rows of one table of a member: OP_COLUMN and every column."""

    step: TableStep
    rows: pa.Table


class OrdinaryMember(Struct, frozen=True):
    """A member that may be written directly."""

    step: MemberStep
    tables: tuple[StagedRows, ...]
    size_bytes: int


def ordinary(write: MemberWrite, bytes_max: int) -> OrdinaryMember:
    """The member with its rows. Raises ``Unusual``, and errors of reading the rows."""
    step = write.step
    try:
        check_step(step)
    except TrunklineError as error:
        raise Unusual("a step that is refused") from error
    if step.seeds or step.leaving or not step.expected or not step.tables:
        raise Unusual("a step other than a flush")
    for table in step.tables:
        if table.replaces or table.mode not in ("mirror", "append"):
            raise Unusual("a table that is replaced, or has a history")
        if table.steps is not None and not table.steps.unchanged:
            raise Unusual("columns that change")
        if any(not _is_known(column.type) for column in table.columns):
            raise Unusual("a type that is not written directly")
    staged: list[StagedRows] = []
    left = min(bytes_max, MEMBER_BYTES_MAX)
    for table in step.tables:
        rows = _rows(write, table, left)
        left -= rows.nbytes
        staged.append(StagedRows(table, rows))
    return OrdinaryMember(step, tuple(staged), min(bytes_max, MEMBER_BYTES_MAX) - left)


def _is_known(kind: str) -> bool:
    return kind in TYPES.values() or (kind.startswith("DECIMAL") and not kind.endswith("[]"))


def _rows(write: MemberWrite, table: TableStep, bytes_max: int) -> pa.Table:
    schema = pa.schema([pa.field(OP_COLUMN, pa.int8()), *arrow_schema(table.columns)])
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in write.rows[table.table]() if table.table in write.rows else ():
        if UNCHANGED_COLUMN in batch.schema.names:
            if batch.column(UNCHANGED_COLUMN).null_count < batch.num_rows:
                raise Unusual("values that are not stated")
            batch = batch.drop_columns([UNCHANGED_COLUMN, ORIGIN_COLUMN])
        batches.append(batch if batch.schema.equals(schema) else batch.select(schema.names).cast(schema))
        size += batches[-1].nbytes
        if size > bytes_max:
            raise Unusual("many rows")
    return pa.Table.from_batches(batches, schema)


# ------------------------------------------------------------------------------------------------ in the transaction


def check_lake(head: Head | None, address: LakeAddress) -> None:
    if head is None or head.settings.get("version") != FORMAT:
        raise Unusual("another format of the catalog")
    if head.settings.get("encrypted", "false") != "false":
        raise Unusual("encrypted files")
    if unknown := {*head.settings, *(key for key, *_ in head.scoped)} - SETTINGS:
        raise Unusual(f"settings: {', '.join(sorted(unknown))}")
    path = head.data_path
    if not path.startswith("/") or not path.endswith("/"):
        raise Unusual("files that are not in a local directory")
    given = address.data_path
    if given is not None and os.path.abspath(given) != os.path.abspath(path):
        raise Unusual("a data_path that the catalog does not have")


def check_tables(catalog: Catalog, states: Sequence[TableState]) -> dict[int, str]:
    """What is unusual about tables, by number, in one statement for each kind of inlined rows."""
    found = {state.id: "partitions, an order, or paths of its own" for state in states if not state.plain}
    found |= {state.id: "nested columns" for state in states if state.nested}
    found |= {state.id: "files of other kinds" for state in states if not all(file.plain for file in state.files)}
    queries = [
        f'SELECT {state.id} WHERE EXISTS (SELECT 1 FROM "{table}" WHERE end_snapshot IS NULL)'
        for state in states
        for table in state.inlined
    ]
    queries += [
        f"SELECT {state.id} WHERE EXISTS (SELECT 1 FROM {state.inlined_deletes})"
        for state in states
        if state.has_inlined_deletes
    ]
    for begin in range(0, len(queries), QUERIES_EACH):
        for (number,) in catalog.rows(" UNION ALL ".join(queries[begin : begin + QUERIES_EACH])):
            found[number] = "rows inlined in the catalog"
    return found


QUERIES_EACH: Final = 200  # in one statement; SQLite takes 500


def check_columns_of(step: TableStep, state: TableState, member: MemberStep) -> None:
    """The table has exactly the columns of the step, and the source's steps, if it knows them, agree."""
    held = state.held
    change = evolution(step.columns, held)
    if change.added or change.widened or change.problems:
        raise Unusual("columns that differ")
    try:
        if checked_steps(step, held, member.expected, "the table") is not None:
            raise Unusual("columns that change")
    except SchemaMismatch as error:
        raise Unusual("columns that differ") from error
