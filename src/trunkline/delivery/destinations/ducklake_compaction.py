"""Compacts the small files of a lake's table: each flush adds one, and the next flush opens all of them.

The smallest files become one, together with each next one that is not bigger than what is gathered so far:

    1 1 1 1 4 9 40   ->   1+1+1+1 = 4, +4 = 8; 9 is bigger: five files become one   ->   8 9 40

So a row is rewritten O(log n) times. Rows are deleted and inserted again in one transaction: DuckLake's own merging
skips files with deleted rows, which are most files here.
"""

from __future__ import annotations

from typing import Final

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.destinations.ducklake_attachments import LakeSession

FILES_MIN: Final = 8  # that are worth a transaction
BYTES_MAX: Final = 64 * 1024 * 1024  # of one compaction, so that no flush waits long for it
GATHERED: Final = "_trunkline_gathered"


def worth_merging(sizes: list[int]) -> int:
    """How many of the files with these sizes, in ascending order, should become one."""
    gathered = count = 0
    for size in sizes:
        if (count >= FILES_MIN and size > gathered) or gathered + size > BYTES_MAX:
            break
        gathered += size
        count += 1
    return count if count >= FILES_MIN else 0


def compact(lake: LakeSession, schema: str, name: str) -> int:
    """Make one file of the smallest ones, if it is worth it; returns how many there were. Rows do not change."""
    lake.begin()
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
