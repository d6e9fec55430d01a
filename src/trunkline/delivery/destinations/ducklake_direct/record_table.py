"""The records of members, as the catalog and the files of their table have them: read, and moved in place.

Rules
 R1  A record is found under its member's name in its home, and nowhere else. Any other case of T9 is the extension's.
 R2  A record that is inlined in the catalog is ended there, and its successor inserted with the same row id. One that
     is in a file is deleted as the extension does it, by a row of the catalog's table of inlined deletes.
 R3  The table of records must have a table of inlined rows: ``ducklake_upkeep.py`` makes one at a home's first flush.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from trunkline.delivery.destinations.contract import Standing
from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual, bounds_of
from trunkline.delivery.destinations.ducklake_direct.catalog import Catalog, insert
from trunkline.delivery.destinations.ducklake_direct.commit_rows import CommitRows
from trunkline.delivery.destinations.ducklake_direct.deletions import deleted_rows
from trunkline.delivery.destinations.ducklake_direct.parquet_file import FIELD_ID
from trunkline.delivery.destinations.ducklake_direct.table_state import DataFile, TableState

COLUMNS: Final = {
    "member": "VARCHAR",
    "position": "BIGINT",
    "token": "BIGINT",
    "source": "VARCHAR",
    "mark": "VARCHAR",
    "tables": "VARCHAR",
}
NAMES: Final = tuple(COLUMNS)
ROW_ID: Final = "_ducklake_internal_row_id"
FILES_MAX: Final = 64  # of records whose content is kept
ROWS_MAX: Final = 20_000  # of one file of records; a larger one is left to the extension


class HeldRecord(Struct, frozen=True):
    """A record, and where it is."""

    member: str
    standing: Standing
    tables: str
    row_id: int
    inlined: str  # the table that holds it; empty: it is in a file
    file: int = 0
    position: int = 0


def check_table(state: TableState) -> None:
    """Raises ``Unusual`` unless records can be moved here (R3)."""
    kinds = {each.column.name: each.column.type for each in state.columns}
    if kinds != COLUMNS or not state.inlined or not state.plain:
        raise Unusual("records that are not in the catalog yet")


def read_records(catalog: Catalog, state: TableState, members: Collection[str]) -> dict[str, HeldRecord]:
    """Of these members. May raise ``OSError``, ``Unusual``."""
    found: dict[str, HeldRecord] = {}
    wanted = set(members)
    for table in state.inlined:
        marks = ", ".join("?" * len(wanted))
        names = [catalog.stored(name) for name in sorted(wanted)]
        rows = catalog.rows(
            f'SELECT row_id, {", ".join(NAMES)} FROM "{table}" WHERE end_snapshot IS NULL AND member IN ({marks})',
            names,
        )
        for number, member, position, token, *texts in rows:
            source, mark, tables = map(catalog.text, texts)
            name = catalog.text(member)
            _add(found, HeldRecord(name, Standing(position, token, source, mark), tables, number, table))
    if missing := wanted - found.keys():
        for record in _in_files(catalog, state, missing):
            _add(found, record)
    return found


def _add(found: dict[str, HeldRecord], record: HeldRecord) -> None:
    if record.member in found:
        raise Unusual(f"two records of {record.member}")
    found[record.member] = record


def _in_files(catalog: Catalog, state: TableState, members: Collection[str]) -> list[HeldRecord]:
    gone: set[tuple[int, int]] = set()
    if state.has_inlined_deletes:
        gone = set(catalog.rows(f"SELECT file_id, row_id FROM {state.inlined_deletes}"))
    found = []
    for file in state.files:
        if not file.plain or file.rows > ROWS_MAX:
            raise Unusual("a file of records that is not as expected")
        rows = _content(file, state)
        removed = set(deleted_rows(state.deletes.get(file.id, [])).positions.tolist())
        for at in range(len(rows[ROW_ID])):
            if rows["member"][at] in members and at not in removed and (file.id, at) not in gone:
                standing = Standing(rows["position"][at], rows["token"][at], rows["source"][at], rows["mark"][at])
                number = rows[ROW_ID][at]
                found.append(HeldRecord(rows["member"][at], standing, rows["tables"][at], number, "", file.id, at))
    return found


def _content(file: DataFile, state: TableState) -> dict[str, list[Any]]:
    known = _contents()
    if file.path in known:
        known.move_to_end(file.path)
        return known[file.path]
    with pq.ParquetFile(file.path) as opened:
        numbers = {(field.metadata or {}).get(FIELD_ID): field.name for field in opened.schema_arrow}
        names = {each.column.name: numbers.get(str(each.id).encode()) for each in state.columns}
        if None in names.values():
            raise Unusual("a file of records that lacks a column")
        table = opened.read()
    found: dict[str, list[Any]] = {name: table.column(theirs).to_pylist() for name, theirs in names.items()}
    start = file.row_id_start
    own = table.column(ROW_ID).to_pylist() if ROW_ID in table.column_names else range(start, start + table.num_rows)
    found[ROW_ID] = list(own)
    known[file.path] = found
    while len(known) > FILES_MAX:
        known.popitem(last=False)
    return found


@cache
def _contents() -> OrderedDict[str, dict[str, list[Any]]]:
    """Global to the process; files never change."""
    return OrderedDict()


def move_records(
    catalog: Catalog,
    rows: CommitRows,
    state: TableState,
    held: Mapping[str, HeldRecord],
    reached: Mapping[str, Standing],
) -> None:
    """Records become those of ``reached`` (R2)."""
    snapshot = rows.snapshot
    inlined: dict[str, list[int]] = {}
    for name in reached:
        if held[name].inlined:
            inlined.setdefault(held[name].inlined, []).append(held[name].row_id)
    for table, numbers in inlined.items():
        listed = ", ".join(map(str, numbers))
        catalog.run(
            f'UPDATE "{table}" SET end_snapshot = {snapshot} WHERE end_snapshot IS NULL AND row_id IN ({listed})'
        )
    if filed := [held[name] for name in reached if not held[name].inlined]:
        if not state.has_inlined_deletes:
            columns = "file_id BIGINT, row_id BIGINT, begin_snapshot BIGINT"
            catalog.run(f"CREATE TABLE IF NOT EXISTS {state.inlined_deletes} ({columns})")
        places = [(each.file, each.position, snapshot) for each in filed]
        insert(catalog, state.inlined_deletes, "file_id, row_id, begin_snapshot", places)
    new = [_values(held[name], standing) for name, standing in reached.items()]
    stored = [
        (held[name].row_id, snapshot, *(catalog.stored(each) if isinstance(each, str) else each for each in values))
        for name, values in zip(reached, new, strict=True)
    ]
    insert(catalog, f'"{state.inlined[-1]}"', f"row_id, begin_snapshot, {', '.join(NAMES)}", stored)
    _note(rows, state, new)


def _values(held: HeldRecord, reached: Standing) -> tuple[str, int, int, str, str, str]:
    return held.member, reached.position, reached.token, reached.source, reached.mark, held.tables


def _note(rows: CommitRows, state: TableState, new: Sequence[Sequence[Any]]) -> None:
    """Counts and statistics of the table of records."""
    columns = dict(zip(NAMES, zip(*new, strict=True), strict=True))
    bounds = {
        each.id: bounds_of(each.column.type, pa.chunked_array([pa.array(columns[each.column.name])]))
        for each in state.columns
    }
    rows.inlined(state, len(new), bounds)
