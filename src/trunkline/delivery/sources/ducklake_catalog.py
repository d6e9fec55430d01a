"""One table in a DuckLake's catalog: its versions, columns, and the files and inlined rows of its states.

DuckDB reads the catalog as plain tables, whatever database holds it. The state of a table at version v is:

    data files with        begin <= v < end (a NULL end is infinite); of a file with `partial_max` only the rows whose
                           own snapshot id is <= v
    less the positions in  delete files with begin <= v < end, by the position's own snapshot id where the file has any,
    and in                 ducklake_inlined_delete_T with begin <= v,
    and rows of            ducklake_inlined_data_T_S with begin <= v < end.

Merging files and flushing inlined rows keep each row's own snapshot id, so that every earlier state can still be read
from the new files. Only ``rewrite_data_files`` loses it: in its version, every row that it moved is removed and
arrives, without a change of state. DuckLake gives it a version of its own, so the change list identifies such a
version, and it has no changes. A window contains one only if versions were expired: then whole rows are compared
(``WindowPlan.moved``).
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from typing import Any, Final

import duckdb
from msgspec import Struct

from trunkline.delivery.backends.ducklake_attachment import attach_catalog, catalog_location
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.versions import BEFORE_ALL, Lineage, Window, version_mark
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.sources.contract import SourceState
from trunkline.delivery.sources.ducklake_files import WindowFiles
from trunkline.delivery.sources.ducklake_format import (
    CATALOG_FORMATS,
    REWRITE,
    REWRITES_HISTORY,
    WindowSummary,
    duckdb_type,
    kinds_by_subject,
)
from trunkline.errors import ConfigError, ProtocolError, SourceExpired, Unreachable

DELETES: Final = "ducklake_inlined_delete_"  # and the id of a table
CATALOG: Final = "source_catalog"  # the name under which the catalog's database is attached


_COLUMNS: Final = """SELECT table_id, begin_snapshot, end_snapshot, column_id, column_name, column_type,
    initial_default, nulls_allowed, parent_column FROM {{ducklake_column}} WHERE table_id IN ({tables})
    ORDER BY table_id, column_order, column_id"""
_INLINED: Final = """SELECT i.table_id, i.table_name, max(v.begin_snapshot) AS begin
    FROM {{ducklake_inlined_data_tables}} i
    JOIN {{ducklake_schema_versions}} v ON v.table_id = i.table_id AND v.schema_version <= i.schema_version
    WHERE i.table_id IN ({tables}) GROUP BY ALL ORDER BY ALL"""


class LakeColumn(Struct, frozen=True):
    """A column of a lake table: files refer to it by ``id``."""

    id: int
    column: Column
    default: str | None = None  # the value of rows older than the column


class LakeDataFile(Struct, frozen=True):
    id: int
    path: str
    begin: int
    end: int | None
    rows: int
    size_bytes: int
    partial_max: int | None  # rows have snapshot ids of their own, up to this one


class LakeDeleteFile(Struct, frozen=True):
    """Deleted positions of a data file, each with its own snapshot id if the file has such ids (which ``partial_max``
    does not always show); else all were deleted at ``begin``."""

    data_file: int
    path: str
    begin: int
    end: int | None
    partial_max: int | None
    id: int = 0
    positions: int = 0  # their number


class InlinedTable(Struct, frozen=True):
    """A table of the catalog that holds rows, with the column names of its schema version."""

    name: str
    columns: tuple[LakeColumn, ...]


class LakeTable(Struct, frozen=True):
    id: int
    uuid: str
    folder: str  # of its files, absolute or as in the catalog
    begin: int  # the version at which it got its name


class NamedTable(Struct, frozen=True):
    """A table under one of its names, and at which versions it has it."""

    schema: str
    name: str
    begin: int
    end: int | None
    table: LakeTable


def alive(begin: int, end: int | None, version: int) -> bool:
    return begin <= version and (end is None or end > version)


class LakeCatalog:
    """An attached catalog. One transaction spans ``with``, so that all reads see one snapshot."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, address: LakeAddress, *, marks_lake: bool = False
    ) -> None:
        """``marks_lake``: marks are of the lake, not of the table alone, as for a set of tables."""
        self.kind, _ = catalog_location(address.catalog)
        self._connection = connection
        self._address = address
        self._marks_lake = marks_lake
        self._data_path = ""
        self._tables: dict[int | None, LakeTable] = {}  # by version
        self._columns: dict[int, list[tuple[Any, ...]]] = {}  # every column that a table ever had
        self._inlined: dict[int, list[tuple[Any, ...]]] = {}  # its tables of inlined rows, with the columns' version
        self._deletes: dict[int, bool] = {}  # whether a table has one of inlined deletes
        self._marks: dict[tuple[str, int], str] = {}  # by identity and version
        self._lake: list[str] = []  # its identity, if it is known
        self._made: dict[tuple[int, int], list[tuple[int, dict[str, frozenset[str]], int]]] = {}  # by window
        self._files = WindowFiles(self.rows)
        attach_catalog(connection, address, CATALOG)

    def __enter__(self) -> LakeCatalog:
        self._connection.execute("BEGIN")
        try:
            self._check_format()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends the transaction in any case: DuckDB aborts the process if an open one is closed without its server."""
        with suppress(duckdb.Error) if kind else nullcontext():
            self._connection.execute("ROLLBACK")

    def of(self, address: LakeAddress) -> LakeCatalog:
        """Another table of the catalog, in the same transaction."""
        made = copy(self)
        made._address, made._tables = address, {}
        return made

    def _check_format(self) -> None:
        facts = dict(self.rows("SELECT key, value FROM {ducklake_metadata} WHERE key IN ('version', 'data_path')"))
        if (found := facts.get("version", "unknown")) not in CATALOG_FORMATS:
            raise ProtocolError(
                f"the catalog {self._address.catalog} has DuckLake format {found}, and this release reads "
                f"{CATALOG_FORMATS[0]}; use a release of Trunkline that supports it"
            )
        self._data_path = self._address.data_path or facts.get("data_path", "")

    # --- versions ---

    def state(self, known: int) -> SourceState:
        table = self.table(None)
        ((newest, oldest, first),) = self.rows(
            "SELECT max(snapshot_id), min(snapshot_id), "
            f"min(snapshot_id) FILTER (WHERE snapshot_id >= {table.begin}) FROM {{ducklake_snapshot}}"
        )
        stops: list[int] = []
        before = known
        for version, kinds, _ in self._versions(table.id, known, newest):
            if REWRITE in kinds:
                stops += [before, version]
            before = version
        marks = self.marks_of({known, newest}, table.uuid)
        later = tuple(dict.fromkeys(stop for stop in stops if stop > known))
        return SourceState(newest, oldest, later, table.uuid, first, marks[newest], marks.get(known, ""))

    def lineage(self, versions: Collection[int]) -> Lineage:
        table = self.table(None)
        return Lineage(table.uuid, self.newest(), self.marks_of(versions, table.uuid))

    def newest(self) -> int:
        return int(self.rows("SELECT max(snapshot_id) FROM {ducklake_snapshot}")[0][0])

    def oldest(self) -> int:
        return int(self.rows("SELECT min(snapshot_id) FROM {ducklake_snapshot}")[0][0])

    def version_at(self, version: int) -> int:
        """The first existing version that is not before another one."""
        return int(
            self.rows(f"SELECT min(snapshot_id) FROM {{ducklake_snapshot}} WHERE snapshot_id >= {version}")[0][0]
        )

    def check_ends(self, window: Window) -> None:
        """Raises ``SourceExpired`` unless both ends of the window still exist."""
        there = {version for version, *_ in self.changes_between(window.after - 1, window.through)}
        for end in (window.after, window.through):
            if end not in there and end != BEFORE_ALL:
                raise SourceExpired(
                    f"the lake {self._address.catalog} no longer has snapshot {end}; seed the destination again"
                )

    def marks(self, window: Window) -> tuple[str, str]:
        """The marks of both ends of a window."""
        found = self.marks_of({window.after, window.through}, self._marked(window.through))
        return found.get(window.after, ""), found.get(window.through, "")

    def check_mark(self, version: int, mark: str) -> None:
        """Raises ``Unreachable`` if a version has another mark, unless this one is empty."""
        if mark and self.marks_of([version], self._marked(version)).get(version) != mark:
            raise Unreachable(f"the lake {self._address.catalog} was replaced during the read; retrying")

    def _marked(self, version: int) -> str:
        """The identity in marks."""
        return self.lake() if self._marks_lake else self.table(version).uuid

    def lake(self) -> str:
        """The identity of the lake: that of its first schema, which is as old as the lake."""
        if not self._lake:
            ((found,),) = self.rows("SELECT arg_min(schema_uuid::VARCHAR, schema_id) FROM {ducklake_schema}")
            self._lake.append(f"ducklake:{found}")
        return self._lake[0]

    def committed_us(self, version: int) -> int | None:
        """When a version was committed, in microseconds."""
        found = self.rows(
            "SELECT epoch_us(CAST(snapshot_time AS TIMESTAMP WITH TIME ZONE)) FROM {ducklake_snapshot} "
            f"WHERE snapshot_id = {version}"
        )
        return int(found[0][0]) if found else None

    def marks_of(self, versions: Collection[int], identity: str) -> dict[int, str]:
        """Of existing versions. Snapshots are immutable, and no two with the same id have the same microsecond."""
        if unknown := sorted(version for version in versions if (identity, version) not in self._marks):
            found = self.rows(
                f"""SELECT snapshot_id, epoch_us(CAST(snapshot_time AS TIMESTAMP WITH TIME ZONE)), schema_version,
                next_catalog_id, next_file_id FROM {{ducklake_snapshot}}
                WHERE snapshot_id IN ({", ".join(map(str, unknown))})"""
            )
            marks = {version: version_mark(identity, version, *facts) for version, *facts in found}
            self._marks |= {(identity, version): marks.get(version, "") for version in unknown}
        known = {version: self._marks[identity, version] for version in versions}
        return {version: mark for version, mark in known.items() if mark}

    def time_us(self, version: int) -> int:
        """When a version was committed, since 1970."""
        ((found,),) = self.rows(
            "SELECT epoch_us(CAST(snapshot_time AS TIMESTAMP WITH TIME ZONE)) FROM {ducklake_snapshot} "
            f"WHERE snapshot_id = {version}"
        )
        return int(found)

    def summary(self, window: Window) -> WindowSummary:
        """Raises ``SourceExpired`` unless both ends of the window can still be read."""
        self.check_ends(window)
        found = list(self._versions(self.table(window.through).id, window.after - 1, window.through))
        there = {version: next_file for version, _, next_file in found}
        for version, made, _ in found if window.after != BEFORE_ALL else ():
            if made >= REWRITES_HISTORY and version > window.after:
                raise SourceExpired(
                    f"snapshot {version} of the lake {self._address.catalog} deleted rows and flushed inlined data in "
                    "one transaction, which DuckLake also applies to older snapshots; seed the destination again"
                )
        kinds = frozenset(kind for version, made, _ in found if version > window.after for kind in made)
        return WindowSummary(kinds, len(found) == window.through - window.after + 1, there.get(window.after, 0))

    def _versions(self, table: int, after: int, through: int) -> Iterator[tuple[int, frozenset[str], int]]:
        """Each existing version in ``(after, through]``, with the kinds of its changes to a table and the id of the
        next file that is written after it."""
        for version, made, next_file in self.changes_between(after, through):
            yield version, made.get(str(table), frozenset()), next_file

    def changes_between(self, after: int, through: int) -> list[tuple[int, dict[str, frozenset[str]], int]]:
        """Each existing version in ``(after, through]``, with the kinds of its changes by what they are about."""
        if (after, through) not in self._made:
            found = self.rows(
                f"""SELECT s.snapshot_id, c.changes_made, s.next_file_id
                FROM {{ducklake_snapshot}} s LEFT JOIN {{ducklake_snapshot_changes}} c USING (snapshot_id)
                WHERE s.snapshot_id > {after} AND s.snapshot_id <= {through} ORDER BY s.snapshot_id"""
            )
            self._made[after, through] = [
                (version, kinds_by_subject(made or ""), file) for version, made, file in found
            ]
        return self._made[after, through]

    # --- the table ---

    def table(self, version: int | None) -> LakeTable:
        """The table at a version, or now."""
        if version not in self._tables:
            self._tables[version] = self._find_table(version)
        return self._tables[version]

    def _find_table(self, version: int | None) -> LakeTable:
        address = self._address
        wanted = f"t.table_name = {literal(address.table)} AND s.schema_name = {literal(address.schema)}"
        for named in self.named_tables(wanted):
            if named.end is None if version is None else alive(named.begin, named.end, version):
                return named.table
        when = "" if version is None else f" at snapshot {version}"
        raise ConfigError(f"source: the lake {address.catalog} has no table {address.schema}.{address.table}{when}")

    def named_tables(self, condition: str = "true") -> list[NamedTable]:
        """All that there ever were, as far as the catalog knows, under each of their names."""
        found = self.rows(
            f"""SELECT s.schema_name, t.table_name, greatest(s.begin_snapshot, t.begin_snapshot),
            least(s.end_snapshot, t.end_snapshot), t.table_id, t.table_uuid::VARCHAR, s.path, s.path_is_relative,
            t.path, t.path_is_relative, t.begin_snapshot
            FROM {{ducklake_table}} t JOIN {{ducklake_schema}} s USING (schema_id) WHERE {condition}"""
        )
        made = []
        for schema, name, begin, end, id_, uuid, schema_path, schema_relative, path, relative, since in found:
            folder = _join(_join(self._data_path, schema_path, schema_relative), path, relative)
            made.append(NamedTable(schema, name, begin, end, LakeTable(id_, uuid, folder, since)))
        return made

    def know(self, tables: Mapping[int | None, LakeTable]) -> None:
        """The table at some versions, of which the caller knows."""
        self._tables.update(tables)

    def known(self, version: int) -> LakeTable | None:
        """The table at a version, if ``know`` said so."""
        return self._tables.get(version)

    def load(self, tables: Collection[int]) -> None:
        """Read the columns and the tables of inlined rows of many tables at once."""
        if not tables:
            return
        listed = ", ".join(map(str, sorted(tables)))
        for found, query in ((self._columns, _COLUMNS), (self._inlined, _INLINED)):
            found |= {table: [] for table in tables}
            for table, *row in self.rows(query.format(tables=listed)):
                found[table].append(tuple(row))
        known = f"database_name = '{CATALOG}' AND starts_with(table_name, '{DELETES}')"
        names = {row[0] for row in self.rows(f"SELECT table_name FROM duckdb_tables() WHERE {known}")}
        self._deletes |= {table: f"{DELETES}{table}" in names for table in tables}

    def load_files(self, window: Window, tables: Collection[int]) -> None:
        """Read the files of many tables at once, for the plans of this window."""
        numbers = {version: file for version, _, file in self.changes_between(window.after - 1, window.through)}
        self._files.load(window, tables, numbers.get(window.after, 0))

    def columns(self, version: int) -> tuple[LakeColumn, ...]:
        """The columns at a version, in table order."""
        return self._columns_of(self.table(version).id, version)

    def columns_before(self, window: Window) -> tuple[LakeColumn, ...]:
        """The columns at `after` of the table that exists at `through`."""
        return self._columns_of(self.table(window.through).id, window.after)

    def _columns_of(self, table: int, version: int) -> tuple[LakeColumn, ...]:
        if table not in self._columns:
            self.load([table])
        found = [row[2:] for row in self._columns[table] if alive(row[0], row[1], version)]
        children = {parent: (name, kind) for _, name, kind, _, _, parent in found if parent is not None}
        return tuple(
            LakeColumn(id_, Column(name, duckdb_type(kind, children.get(id_)), bool(nullable)), default)
            for id_, name, kind, default, nullable, parent in found
            if parent is None
        )

    # --- files and inlined rows ---

    def data_files(self, window: Window, new_files: int, touched: Sequence[int]) -> tuple[LakeDataFile, ...]:
        """The data files at either end of a window that began, ended or were written in it, and those ``touched``."""
        table = self.table(window.through)
        found = self._files.data(table.id, window, new_files, touched)
        if any(key is not None for *_, key, _ in found):
            raise ConfigError(
                f"source: files of {self._address.table} are encrypted, which is not supported; copy the table to a "
                "lake without encryption"
            )
        if any(mapping is not None for *_, mapping in found):
            raise ConfigError(
                f"source: {self._address.table} has external files (ducklake_add_data_files), whose columns have names "
                "but no ids; insert their rows instead"
            )
        return tuple(
            LakeDataFile(id_, _join(table.folder, path, relative), begin, end, rows, size, partial)
            for id_, path, relative, begin, end, rows, size, partial, _, _ in found
        )

    def delete_files(self, window: Window) -> tuple[LakeDeleteFile, ...]:
        table = self.table(window.through)
        found = self._files.deletes(table.id, window)
        if wrong := {kind for *_, kind in found if kind != "parquet"}:
            raise ConfigError(
                f"source: {self._address.table} has delete files in the format {', '.join(sorted(wrong))}; only "
                "Parquet is supported: rewrite the table with ducklake_rewrite_data_files"
            )
        return tuple(
            LakeDeleteFile(data_file, _join(table.folder, path, relative), begin, end, partial, id_, count)
            for data_file, path, relative, begin, end, partial, id_, count, _ in found
        )

    def inlined_tables(self, version: int) -> tuple[InlinedTable, ...]:
        """The tables of inlined rows up to a version. Each belongs to a version of the lake's schema, and has the
        columns that the table had by then."""
        table = self.table(version).id
        if table not in self._inlined:
            self.load([table])
        found = [(name, begin) for name, begin in self._inlined[table] if begin <= version]
        return tuple(InlinedTable(name, self._columns_of(table, begin)) for name, begin in found)

    def inlined_dead(self, version: int) -> list[tuple[int, int, int]]:
        """(file id, position, version) of the inlined deletes up to a version."""
        table = self.table(version).id
        if table not in self._deletes:
            self.load([table])
        name = f"{DELETES}{table}"
        if not self._deletes.get(table):
            return []
        chosen = f"SELECT file_id, row_id, begin_snapshot FROM {self.reference(name)}"
        return self.rows(f"{chosen} WHERE begin_snapshot <= {version} ORDER BY ALL")

    def inlined_rows(self, window: Window) -> int:
        """The number of inlined rows that were written or deleted in a window."""
        tables = [self.reference(table.name) for table in self.inlined_tables(window.through)]
        parts = [
            f"SELECT {end} FROM {table} WHERE {end} > {window.after} AND {end} <= {window.through}"
            for table in tables
            for end in ("begin_snapshot", "end_snapshot")
        ]
        return len(self.rows(" UNION ALL ".join(parts))) if parts else 0

    def reference(self, table: str) -> str:
        """A catalog table's name in SQL."""
        return f"{CATALOG}.{identifier(table)}"

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query in which ``{name}`` stands for a catalog table."""
        return self._connection.execute(re.sub(r"\{(\w+)\}", lambda found: self.reference(found[1]), query)).fetchall()


def _join(folder: str, path: str, relative: bool) -> str:
    return os.path.join(folder, path) if relative else path


def plain(columns: Sequence[LakeColumn]) -> Columns:
    return tuple(known.column for known in columns)


def restatement(before: Sequence[LakeColumn], now: Sequence[LakeColumn]) -> str:
    """How a change of columns alone gave rows other values, as text; empty if it did not."""
    ids = {known.column.name: known.id for known in before}
    for known in now:
        name = known.column.name
        if name in ids and ids[name] != known.id:
            return f"column {name!r} is another one than the column that had this name before"
        if known.default is not None and known.id not in ids.values() and before:
            return f"column {name!r} was added with a default, which older rows also have"
    return ""
