"""What the catalog says about the tables of one transaction, read in a few statements whatever their number.

Names are compared exactly. A table that is not found here may be there under a name in another case: the extension
finds it. A path is absolute; ``relative`` is how the catalog spells it from the lake's own directory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.destinations.ducklake_direct.bounds import TableBounds
from trunkline.delivery.destinations.ducklake_direct.catalog import Catalog

TYPES: Final = {  # of the catalog, and as everything else here spells them
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "varchar": "VARCHAR",
    "json": "JSON",
    "uuid": "UUID",
    "blob": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamp_us": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
}
INLINED_DELETES: Final = "ducklake_inlined_delete_"  # and the number of a table

Name = tuple[str, str]  # schema and table


class Head(Struct, frozen=True):
    """The newest snapshot, and the settings of the lake."""

    snapshot: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int
    settings: dict[str, str]  # of the whole lake
    scoped: tuple[tuple[str, str, int], ...]  # key, scope and number of the other settings

    @property
    def data_path(self) -> str:
        return self.settings.get("data_path", "")


class StateColumn(Struct, frozen=True):
    id: int
    column: Column


class DataFile(Struct, frozen=True):
    id: int
    path: str
    rows: int
    row_id_start: int  # 0 if the file has the ids of its rows
    plain: bool  # Parquet of the lake's own: no partition, no key, no mapping of names


class DeleteFile(Struct, frozen=True):
    id: int
    data_file: int
    path: str
    relative: str  # from the lake's directory
    begin: int
    plain: bool


class TableCounts(Struct, frozen=True):
    rows: int  # that were ever added
    next_row_id: int
    size_bytes: int


class TableState(Struct, frozen=True):
    """One table, as of the newest snapshot."""

    id: int
    name: Name
    folder: str  # of its files, with a slash at the end
    relative: str  # the same, from the lake's directory
    plain: bool  # its paths are as the extension chooses them; it is not partitioned, and not sorted
    columns: tuple[StateColumn, ...]
    nested: bool
    files: tuple[DataFile, ...] = ()
    deletes: dict[int, list[DeleteFile]] = {}  # by data file
    counts: TableCounts | None = None  # None: it never had a row
    bounds: dict[int, TableBounds] = {}  # by column
    inlined: tuple[str, ...] = ()  # tables of the catalog that may hold rows of it, the newest last
    has_inlined_deletes: bool = False  # whether the catalog has a table for them

    @property
    def held(self) -> Columns:
        return tuple(each.column for each in self.columns)

    @property
    def inlined_deletes(self) -> str:
        return f"{INLINED_DELETES}{self.id}"


def read_head(catalog: Catalog) -> Head | None:
    """``None``: this is not a catalog that is known here."""
    rows = catalog.rows("SELECT key, value, scope, scope_id FROM ducklake_metadata")
    settings = {key: value for key, value, scope, _ in rows if scope is None}
    scoped = tuple((key, scope, number) for key, _, scope, number in rows if scope is not None)
    newest = catalog.rows(
        "SELECT snapshot_id, schema_version, next_catalog_id, next_file_id FROM ducklake_snapshot "
        "ORDER BY snapshot_id DESC LIMIT 1"
    )
    if not newest:
        return None
    [(snapshot, schema_version, next_catalog_id, next_file_id)] = newest
    return Head(snapshot, schema_version, next_catalog_id, next_file_id, settings, scoped)


def read_tables(catalog: Catalog, head: Head, names: Collection[Name]) -> dict[Name, TableState]:
    """The tables among these that exist."""
    found = _named(catalog, head, names)
    if not found:
        return {}
    ids = ", ".join(str(number) for number in sorted(found))
    columns = _columns(catalog, ids)
    files = _data_files(catalog, ids, found)
    deletes = _delete_files(catalog, ids, found, {file.id for every in files.values() for file in every})
    shaped = {number for (number,) in catalog.rows(_SHAPED.format(ids=ids))}
    counts = {
        number: TableCounts(*rest)
        for number, *rest in catalog.rows(
            f"SELECT table_id, record_count, next_row_id, file_size_bytes FROM ducklake_table_stats "
            f"WHERE table_id IN ({ids})"
        )
    }
    bounds = _bounds(catalog, ids)
    inlined = _grouped(
        catalog.rows(
            f"SELECT table_id, table_name FROM ducklake_inlined_data_tables WHERE table_id IN ({ids}) "
            "ORDER BY table_id, schema_version"
        )
    )
    deleting = catalog.tables([f"{INLINED_DELETES}{number}" for number in found])
    states: dict[Name, TableState] = {}
    for number, place in found.items():
        listed = columns.get(number, [])
        states[place.name] = TableState(
            number,
            place.name,
            place.folder,
            place.relative,
            place.plain and number not in shaped,
            tuple(StateColumn(at, Column(name, kind, bool(null))) for at, name, kind, null, parent in listed),
            any(parent is not None for *_, parent in listed),
            tuple(files.get(number, ())),
            deletes.get(number, {}),
            counts.get(number),
            bounds.get(number, {}),
            tuple(name for (name,) in inlined.get(number, ())),
            f"{INLINED_DELETES}{number}" in deleting,
        )
    return states


_SHAPED: Final = """SELECT table_id FROM ducklake_partition_info WHERE end_snapshot IS NULL AND table_id IN ({ids})
    UNION ALL SELECT table_id FROM ducklake_sort_info WHERE end_snapshot IS NULL AND table_id IN ({ids})"""


class _Place(Struct, frozen=True):
    name: Name
    folder: str
    relative: str
    plain: bool


def _named(catalog: Catalog, head: Head, names: Collection[Name]) -> dict[int, _Place]:
    tables = sorted({table for _, table in names})
    marks = ", ".join("?" for _ in tables)
    rows = catalog.rows(
        "SELECT t.table_id, s.schema_name, t.table_name, s.path, s.path_is_relative, t.path, t.path_is_relative "
        "FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id "
        f"WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL AND t.table_name IN ({marks})",
        tables,
    )
    found: dict[int, _Place] = {}
    for number, schema, table, above, above_relative, path, path_relative in rows:
        if (schema, table) in names:
            relative = f"{above}{path}"
            plain = bool(above_relative and path_relative) and above.endswith("/") and path.endswith("/")
            found[number] = _Place((schema, table), f"{head.data_path}{relative}", relative, plain)
    return found


def _columns(catalog: Catalog, ids: str) -> dict[int, list[tuple[Any, ...]]]:
    rows = catalog.rows(
        "SELECT table_id, column_id, column_name, column_type, nulls_allowed, parent_column FROM ducklake_column "
        f"WHERE end_snapshot IS NULL AND table_id IN ({ids}) ORDER BY table_id, column_order, column_id"
    )
    return _grouped((table, at, name, type_of(kind), null, parent) for table, at, name, kind, null, parent in rows)


def type_of(kind: str) -> str:
    """As everything else here spells a type of the catalog."""
    if kind.startswith("decimal"):
        return kind.upper().replace(" ", "")
    return TYPES.get(kind, kind)


def _data_files(catalog: Catalog, ids: str, places: dict[int, _Place]) -> dict[int, list[DataFile]]:
    rows = catalog.rows(
        "SELECT table_id, data_file_id, path, path_is_relative, file_format, record_count, row_id_start, "
        "partition_id, encryption_key, mapping_id FROM ducklake_data_file "
        f"WHERE end_snapshot IS NULL AND table_id IN ({ids}) ORDER BY data_file_id"
    )
    found: defaultdict[int, list[DataFile]] = defaultdict(list)
    for table, number, path, relative, kind, count, start, partition, encryption, mapping in rows:
        plain = bool(relative) and kind == "parquet" and partition is None and not encryption and mapping is None
        found[table].append(DataFile(number, places[table].folder + path, count, start or 0, plain))
    return found


def _delete_files(
    catalog: Catalog, ids: str, places: dict[int, _Place], living: set[int]
) -> dict[int, dict[int, list[DeleteFile]]]:
    """Of living data files: that of a data file which ended stays in the catalog, without an end."""
    rows = catalog.rows(
        "SELECT table_id, delete_file_id, data_file_id, path, path_is_relative, format, begin_snapshot, "
        f"encryption_key FROM ducklake_delete_file WHERE end_snapshot IS NULL AND table_id IN ({ids})"
    )
    found: defaultdict[int, dict[int, list[DeleteFile]]] = defaultdict(dict)
    for table, number, data_file, path, relative, kind, begin, encryption in rows:
        if data_file in living:
            place = places[table]
            plain = bool(relative) and kind == "parquet" and not encryption
            file = DeleteFile(number, data_file, place.folder + path, place.relative + path, begin, plain)
            found[table].setdefault(data_file, []).append(file)
    return found


def _bounds(catalog: Catalog, ids: str) -> dict[int, dict[int, TableBounds]]:
    rows = catalog.rows(
        "SELECT table_id, column_id, contains_null, contains_nan, min_value, max_value "
        f"FROM ducklake_table_column_stats WHERE table_id IN ({ids})"
    )
    found: defaultdict[int, dict[int, TableBounds]] = defaultdict(dict)
    for table, column, nulls, nan, low, high in rows:
        found[table][column] = TableBounds(_flag(nulls), _flag(nan), low, high)
    return found


def _flag(stored: Any) -> bool | None:
    return None if stored is None else bool(stored)


def _grouped(rows: Iterable[Sequence[Any]]) -> dict[int, list[tuple[Any, ...]]]:
    """By the first value."""
    found: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for first, *rest in rows:
        found[first].append(tuple(rest))
    return found
