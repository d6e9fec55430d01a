"""Keeps a lake's table from falling into ever more small files: each flush adds one, and the next looks into all.

The smallest files become one, together with as many of the next ones as are no bigger than what is gathered by then:

    1 1 1 1 4 9 40   ->   1+1+1+1 = 4, +4 = 8; 9 is bigger: five files become one   ->   8 9 40

So a row is rewritten a number of times that grows with the logarithm of the table. Rows are taken out and put back in
one transaction, because DuckLake's own merging passes over files that rows were deleted from: here that is most files.
"""

from __future__ import annotations

from typing import Final

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.destinations.ducklake_attachments import LakeSession

COMPACT_EVERY: Final = 16  # flushes; fewer: more rewriting, more: each flush looks into more files
FILES_MIN: Final = 8  # that are worth a transaction
BYTES_MAX: Final = 64 * 1024 * 1024  # of one rewriting, so that no flush waits long for it
GATHERED: Final = "_trunkline_gathered"


def worth_merging(sizes: list[int]) -> int:
    """How many of the files, of these sizes in ascending order, should become one."""
    gathered = count = 0
    for size in sizes:
        if (count >= FILES_MIN and size > gathered) or gathered + size > BYTES_MAX:
            break
        gathered += size
        count += 1
    return count if count >= FILES_MIN else 0


def compact(lake: LakeSession, schema: str, name: str) -> int:
    """Make one file of the smallest ones, if it is worth it; returns how many there were. The rows stay as they are."""
    lake.run("BEGIN")
    files = lake.run(
        "SELECT data_file, data_file_size_bytes FROM "
        f"ducklake_list_files({literal(lake.alias)}, {literal(name)}, schema => {literal(schema)}) ORDER BY 2, 1"
    )
    chosen = [file for file, _ in files[: worth_merging([size for _, size in files])]]
    if chosen:
        table = f"{lake.alias}.{identifier(schema)}.{identifier(name)}"
        where = f"filename IN ({', '.join(map(literal, chosen))})"
        lake.run(f"CREATE OR REPLACE TEMP TABLE {GATHERED} AS SELECT * FROM {table} WHERE {where}")
        lake.run(f"DELETE FROM {table} WHERE {where}")
        lake.run(f"INSERT INTO {table} SELECT * FROM {GATHERED}")
        lake.run(f"DROP TABLE {GATHERED}")
    lake.commit()
    return len(chosen)


def keep_in_catalog(lake: LakeSession, schema: str, table: str) -> None:
    """Let the rows of a table of one row lie in the catalog; DuckLake sets this only for tables that are committed."""
    where = f"schema => {literal(schema)}, table_name => {literal(table)}"
    lake.run(f"CALL {lake.alias}.set_option('data_inlining_row_limit', 1, {where})")


def drop_old_rows(lake: LakeSession, schema: str, table: str) -> None:
    """Let the former states of rows that lie in the catalog become a file, which goes when its versions expire."""
    where = f"schema_name => {literal(schema)}, table_name => {literal(table)}"
    lake.run(f"CALL ducklake_flush_inlined_data({literal(lake.alias)}, {where})")
