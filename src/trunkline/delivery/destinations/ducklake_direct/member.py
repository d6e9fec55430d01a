"""One ordinary member in one attempt of a transaction: what it changes in each table, found before anything is written.

Rules T3, T4 and the counts of ``Applied`` are those of ``contract.py``; the extension's path has the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.destinations.contract import Applied, MemberStep
from trunkline.delivery.destinations.ducklake_direct.bounds import ColumnBounds, Unusual, bounds_of
from trunkline.delivery.destinations.ducklake_direct.commit_rows import CommitRows
from trunkline.delivery.destinations.ducklake_direct.deletions import (
    Deleted,
    delete_rows,
    deleted_rows,
    kept_deletions,
    with_more,
)
from trunkline.delivery.destinations.ducklake_direct.gate import OrdinaryMember, StagedRows, check_columns_of
from trunkline.delivery.destinations.ducklake_direct.key_index import (
    Bound,
    Positions,
    SearchedKeys,
    kept_keys,
    key_cache,
    positions_in,
)
from trunkline.delivery.destinations.ducklake_direct.parquet_file import (
    new_name,
    numbered,
    parquet_type,
    parquet_values,
)
from trunkline.delivery.destinations.ducklake_direct.record_table import HeldRecord
from trunkline.delivery.destinations.ducklake_direct.table_state import DataFile, StateColumn, TableState
from trunkline.delivery.destinations.ducklake_direct.written_files import WrittenFiles
from trunkline.delivery.destinations.ducklake_member import lake_address
from trunkline.delivery.destinations.ducklake_records import TableName, table_name
from trunkline.delivery.destinations.ducklake_stage import KEY_CHARACTERS_MAX
from trunkline.delivery.destinations.ducklake_table import duplicate_key, table_text

Bounds = Mapping[tuple[int, int], Bound]  # of files, by file and column


class TableChange(Struct, frozen=True):
    """What a flush does to one table."""

    state: TableState
    key: tuple[StateColumn, ...]
    rows: pa.Table  # to write, as they are in a file
    bounds: dict[int, ColumnBounds]
    removed: list[tuple[DataFile, Positions, Deleted]]  # of each file: rows to delete, and deleted ones
    applied: Applied


def checked_states(
    member: OrdinaryMember, states: Mapping[tuple[str, str], TableState], unusual: Mapping[int, str], record: HeldRecord
) -> list[TableState]:
    """The member's tables. Raises ``Unusual``."""
    listed = set(msgspec.json.decode(record.tables, type=list[TableName]))
    found = []
    for staged in member.tables:
        address = lake_address(staged.step.address)
        state = states.get((address.schema, address.table))
        if state is None or table_name(address) not in listed:
            raise Unusual("a table that the member does not have")
        if state.id in unusual:
            raise Unusual(unusual[state.id])
        check_columns_of(staged.step, state, member.step)
        found.append(state)
    return found


def key_of(staged: StagedRows, state: TableState) -> tuple[StateColumn, ...]:
    columns = {each.column.name: each for each in state.columns}
    return tuple(columns[name] for name in staged.step.key)


def needs_bounds(staged: StagedRows, state: TableState) -> bool:
    """Whether files must be read, unless their statistics exclude them."""
    if staged.step.mode != "mirror" or staged.rows.num_rows == 0:
        return False
    key = key_of(staged, state)
    return any(key_cache().get(file.path, key) is None for file in state.files)


def table_change(member: MemberStep, staged: StagedRows, state: TableState, bounds: Bounds) -> TableChange:
    """May raise ``DuplicateKey``, ``Unusual`` and ``OSError``."""
    step, rows = staged.step, staged.rows
    removed: list[tuple[DataFile, Positions, Deleted]] = []
    applied = Applied(member.through)
    key: tuple[StateColumn, ...] = ()
    if rows.num_rows and step.mode == "mirror":
        key = key_of(staged, state)
        removed, applied = _removed(member, staged, state, key, bounds)
    written = rows.filter(pc.not_equal(rows.column(OP_COLUMN), int(Op.REMOVE)))
    columns = {
        each.column.name: parquet_values(each.column, written.column(each.column.name)) for each in state.columns
    }
    fields = [numbered(each.column.name, parquet_type(each.column), each.id) for each in state.columns]
    statistics: dict[int, ColumnBounds] = {}
    if written.num_rows:
        statistics = {each.id: bounds_of(each.column.type, columns[each.column.name]) for each in state.columns}
        for each in state.columns:
            statistics[each.id].texts(each.column.type)  # it may be unusual
    applied = Applied(
        member.through,
        applied.removed,
        written.num_rows,
        applied.duplicates,
        applied.missing if step.counts_missing else 0,
    )
    made = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    return TableChange(state, key, made, statistics, removed, applied)


def _removed(
    member: MemberStep, staged: StagedRows, state: TableState, key: tuple[StateColumn, ...], bounds: Bounds
) -> tuple[list[tuple[DataFile, Positions, Deleted]], Applied]:
    step, rows = staged.step, staged.rows
    keys = SearchedKeys(key, rows.select(list(step.key)))
    held = np.zeros(len(keys), np.bool_)
    found: list[tuple[DataFile, Positions, Deleted]] = []
    count = 0
    for file in state.files:
        if not keys.may_be_in([bounds.get((file.id, each.id)) for each in key]):
            continue
        positions, codes = positions_in(file, keys)
        if not len(positions):
            continue
        gone = deleted_rows(state.deletes.get(file.id, []))
        living = gone.living(positions)
        if living.any():
            held[codes[living]] = True
            found.append((file, np.sort(positions[living]), gone))
            count += int(living.sum())
    inserts = rows.column(OP_COLUMN).to_numpy() == int(Op.INSERT)
    known = held[keys.codes]
    removals = int((~inserts).sum())
    if step.duplicates == "warn":
        return found, Applied(
            member.through, count, 0, int((inserts & known).sum()), removals - int((~inserts & known).sum())
        )
    if (inserts & known).any():
        at = int(np.flatnonzero(inserts & known)[0])
        raise duplicate_key(table_text(lake_address(step.address)), key_text(rows, step.key, at))
    return found, Applied(member.through, count, 0, 0, max(0, removals - count))


def key_text(rows: pa.Table, key: Sequence[str], at: int) -> str:
    """A key for a message: ``id=7, region=NULL``."""
    return ", ".join(f"{name}={_spelled(rows.column(name)[at].as_py())}" for name in key)[:KEY_CHARACTERS_MAX]


def _spelled(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return "".join(chr(each) if each in PRINTED else f"\\x{each:02X}" for each in value)
    return str(value)


PRINTED: Final = frozenset(range(0x20, 0x7F)) - frozenset(b"\"'\\")


def write_change(change: TableChange, rows: CommitRows, files: WrittenFiles) -> None:
    """The files of a change, and what the catalog has to say about them. Raises ``OSError``."""
    state = change.state
    for file, positions, gone in change.removed:
        if len(gone.positions) + len(positions) == file.rows:
            rows.emptied(state, file)
            continue
        held = state.deletes[file.id][0] if file.id in state.deletes else None
        deleted = with_more(gone, positions, rows.snapshot)
        content = delete_rows(file, deleted, later=held is not None)
        made = files.write(state.folder, new_name("-delete"), content)
        rows.deleted(state, file, made, len(deleted.positions), held)
        kept_deletions().keep(made.path, deleted)
    if change.rows.num_rows:
        made = files.write(state.folder, new_name(), change.rows)
        rows.added(state, made, change.bounds)
        if change.key:
            keys = change.rows.select([each.column.name for each in change.key])
            key_cache().keep(made.path, change.key, kept_keys(change.key, keys))
