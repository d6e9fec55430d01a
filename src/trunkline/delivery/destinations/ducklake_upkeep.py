"""What a process does after its flushes, so that the next ones stay fast (K5). It changes no row and may fail.

Rules
 H1  A table is compacted after every ``COMPACT_EVERY`` flushes of the process that wrote rows of it; tables begin at
     different counts, so that those of a large group do not all fall due together.
 H2  Of the tables that are due, at least one is compacted after a flush, and no more once that took half as long as the
     flush itself. The others stay due.
 H3  Records of members are kept inlined in the catalog: that saves each flush the two files of an update. Former
     records are moved to a file now and then, which is deleted when its versions expire. The first flush of a home
     makes the catalog's table of inlined records: direct flushes need it.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import Final
from zlib import crc32

from msgspec import Struct

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.destinations.contract import MEMBERS
from trunkline.delivery.destinations.ducklake_attachments import LakeSession
from trunkline.delivery.destinations.ducklake_compaction import compact
from trunkline.delivery.destinations.ducklake_records import TableName

COMPACT_EVERY: Final = 16  # flushes; fewer: more rewriting, more: each flush opens more files
INLINED_RECORDS_MAX: Final = 256  # of one statement; more of them go to a file
FORMER_RECORDS_MAX: Final = 1024  # inlined; more: every flush reads more
SHARE: Final = 0.5  # of the time of a flush


class _Home(Struct):
    """The table of records of a home."""

    flushes: int = 0
    former: int = 0

    @property
    def is_due(self) -> bool:
        return self.former >= FORMER_RECORDS_MAX or self.flushes > COMPACT_EVERY


class Upkeep:
    """What one process did to the tables of one lake."""

    def __init__(self) -> None:
        self._flushes: Counter[TableName] = Counter()
        self.due: OrderedDict[TableName, None] = OrderedDict()
        self._homes: dict[str, _Home] = {}

    def note(self, tables: Iterable[TableName], homes: Collection[str], *, inlined: bool = False) -> None:
        """A flush wrote rows of these tables, and records in these homes, each as often as it is there.

        ``inlined``: the records of these homes are in the catalog.
        """
        for table in tables:
            if table not in self._flushes:
                self._flushes[table] = crc32(str(table).encode()) % COMPACT_EVERY
            self._flushes[table] += 1
            if self._flushes[table] % COMPACT_EVERY == 0:
                self.due[table] = None
        for home, records in Counter(homes).items():
            known = self._homes.setdefault(home, _Home())
            known.flushes = max(2, known.flushes) if inlined else known.flushes + 1
            known.former += records

    @property
    def pending(self) -> bool:
        """Whether ``do`` has anything to do."""
        return bool(self.due) or any(known.flushes == 1 or known.is_due for known in self._homes.values())

    def do(self, lake: LakeSession, flush_s: float) -> None:
        """``flush_s``: what the flush took. May raise errors of DuckDB, and those of a commit."""
        for home, known in self._homes.items():
            if known.flushes == 1:
                known.flushes += 1
                _keep_in_catalog(lake, home)
            if known.is_due:
                known.former, known.flushes = 0, 2
                _drop_former_records(lake, home)
        begun = time.monotonic()
        while self.due:
            table, _ = self.due.popitem(last=False)
            compact(lake, table.schema, table.table)
            if time.monotonic() - begun > SHARE * flush_s:
                break


def _keep_in_catalog(lake: LakeSession, home: str) -> None:
    """DuckLake allows this for committed tables only."""
    where = f"schema => {literal(home)}, table_name => {literal(MEMBERS)}"
    lake.run(f"CALL {lake.alias}.set_option('data_inlining_row_limit', {INLINED_RECORDS_MAX}, {where})")
    if _has_inlined_records(lake, home):
        return
    records = f"{lake.alias}.{identifier(home)}.{MEMBERS}"
    lake.begin()  # the first change makes the table of inlined rows, without which no flush is written directly
    lake.run(f"UPDATE {records} SET mark = mark WHERE member = (SELECT min(member) FROM {records})")
    lake.commit()


def _has_inlined_records(lake: LakeSession, home: str) -> bool:
    catalog = f"__ducklake_metadata_{lake.alias}"
    found = lake.run(
        f"SELECT 1 FROM {catalog}.ducklake_inlined_data_tables i JOIN {catalog}.ducklake_table t USING (table_id) "
        f"JOIN {catalog}.ducklake_schema s USING (schema_id) WHERE t.table_name = {literal(MEMBERS)} "
        f"AND s.schema_name = {literal(home)} AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL"
    )
    return bool(found)


def _drop_former_records(lake: LakeSession, home: str) -> None:
    where = f"schema_name => {literal(home)}, table_name => {literal(MEMBERS)}"
    lake.begin()
    lake.run(f"CALL ducklake_flush_inlined_data({literal(lake.alias)}, {where})")
    lake.commit()
