"""What must hold after every step, by DuckDB's own reader.

counts      a flush reports what the model says
rows        the table has the rows of the model
row ids     no two rows share one
look-up     a plain DuckDB, with all its optimizers, finds each key by a filter: statistics are right
travel      an earlier version has the rows that it had
feed        insertions and deletions of a direct flush are those of the model
changes     its list of changes names the table if rows changed
standing    the member is at the position of the last flush
files       every file is named by the catalog, and has statistics
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Literal

import duckdb
from msgspec import Struct

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.errors import DuplicateKey
from writer_fuzz.lake import LAKE, Feed, FuzzedLake, Rows, spelled

Check = Literal["counts", "rows", "row ids", "look-up", "travel", "feed", "changes", "standing", "files", "error"]
LOOK_UPS: Final = 3
OLDER: Final = 2  # versions that are read again after each step


class Wrong(Struct, frozen=True):
    check: Check
    what: str


def judge(lake: FuzzedLake) -> Wrong | None:
    """The first thing that is wrong."""
    try:
        return next(_wrongs(lake), None)
    except duckdb.Error as error:
        return Wrong("error", str(error)[:300])


def _wrongs(lake: FuzzedLake) -> Iterator[Wrong]:
    if (wrong := _counts(lake)) is not None:
        yield wrong
    truth = Counter(map(lake.spelled, lake.rows))
    with lake.attached() as connection:
        yield from _different("rows", read(connection, f"SELECT {_names(lake)} FROM {lake.path}"), truth)
        ((rows, ids),) = connection.execute(f"SELECT count(*), count(DISTINCT rowid) FROM {lake.path}").fetchall()
        if rows != ids:
            yield Wrong("row ids", f"{rows} rows have {ids} row ids")
        versions = [version for version in lake.versions if version in _kept(connection)]
        for version in lake.draw.sample(versions, min(OLDER, len(versions))):
            found = read(connection, f"SELECT {_names(lake)} FROM {lake.path} AT (VERSION => {version})")
            yield from _different("travel", found, lake.versions[version], f"version {version}: ")
        for feed in lake.draw.sample(lake.feeds, min(1, len(lake.feeds))) + lake.feeds[-1:]:
            yield from _feed(lake, connection, feed)
        yield from _looked_up(lake, connection)
        yield from _files(lake, connection)
    yield from _standing(lake)


def _counts(lake: FuzzedLake) -> Wrong | None:
    got, expected, lake.got, lake.expected = lake.got, lake.expected, None, None
    if got is None or got == expected or (expected is None and isinstance(got, DuplicateKey)):
        return None
    return Wrong("counts", f"{got!r} instead of {expected!r}")


def _kept(connection: duckdb.DuckDBPyConnection) -> set[int]:
    return {version for (version,) in connection.execute(f"SELECT snapshot_id FROM {LAKE}.snapshots()").fetchall()}


def _feed(lake: FuzzedLake, connection: duckdb.DuckDBPyConnection, feed: Feed) -> Iterator[Wrong]:
    where = f"'{LAKE}', {literal(lake.address.schema)}, {literal(lake.address.table)}, {feed.version}, {feed.version}"
    for kind, wanted in (("insertions", feed.added), ("deletions", feed.removed)):
        found = read(connection, f"SELECT {_names(lake)} FROM ducklake_table_{kind}({where})")
        yield from _different("feed", found, wanted, f"{kind} of version {feed.version}: ")
    changed = connection.execute(
        f"SELECT CAST(changes AS VARCHAR) FROM {LAKE}.snapshots() WHERE snapshot_id = {feed.version}"
    ).fetchall()
    for kind, wanted in (("tables_inserted_into", feed.added), ("tables_deleted_from", feed.removed)):
        if (kind in changed[0][0]) != bool(wanted):
            yield Wrong("changes", f"version {feed.version}: {changed[0][0]}")


def _looked_up(lake: FuzzedLake, connection: duckdb.DuckDBPyConnection) -> Iterator[Wrong]:
    """With DuckDB as it comes: its optimizers trust the statistics of the newest version."""
    keys = [tuple(row[name] for name in lake.shape.key) for row in lake.rows]
    wanted = Counter(map(repr, keys))
    asked = [*lake.draw.sample(keys, min(LOOK_UPS, len(keys))), lake.shape.key_value(lake.draw)]
    ((before,),) = connection.execute("SELECT current_setting('disabled_optimizers')").fetchall()
    connection.execute("SET disabled_optimizers = ''")
    try:
        for key in asked:
            where = " AND ".join(_equal(name, value, lake) for name, value in zip(lake.shape.key, key, strict=True))
            ((found,),) = connection.execute(f"SELECT count(*) FROM {lake.path} WHERE {where}").fetchall()
            if found != wanted[repr(key)]:
                yield Wrong("look-up", f"{where}: {found} rows instead of {wanted[repr(key)]}")
    finally:
        connection.execute(f"SET disabled_optimizers = {literal(before)}")


def _equal(name: str, value: Any, lake: FuzzedLake) -> str:
    kind = next(column.type for column in lake.shape.columns if column.name == name)
    if value is None:
        return f"{identifier(name)} IS NULL"
    if isinstance(value, bytes):
        text = "".join(f"\\x{each:02X}" for each in value)
        return f"{identifier(name)} = {literal(text)}::BLOB"
    return f"{identifier(name)} = CAST({literal(str(value))} AS {kind})"


def _standing(lake: FuzzedLake) -> Iterator[Wrong]:
    place = lake.places[False]
    found = place.standings([lake.table.of_member])[lake.table.member]
    if getattr(found, "position", None) != lake.position:
        yield Wrong("standing", f"{found!r} instead of {lake.position}")


def _files(lake: FuzzedLake, connection: duckdb.DuckDBPyConnection) -> Iterator[Wrong]:
    names: set[str] = set()
    for table in ("ducklake_data_file", "ducklake_delete_file", "ducklake_files_scheduled_for_deletion"):
        query = f"SELECT parse_filename(path) FROM __ducklake_metadata_{LAKE}.{table}"
        names |= {name for (name,) in connection.execute(query).fetchall()}
    table = f"(SELECT table_id FROM ducklake_table_info('{LAKE}') WHERE table_name = {literal(lake.address.table)})"
    bare = connection.execute(
        f"SELECT path FROM __ducklake_metadata_{LAKE}.ducklake_data_file f WHERE table_id IN {table} AND NOT EXISTS "
        f"(SELECT 1 FROM __ducklake_metadata_{LAKE}.ducklake_file_column_stats s WHERE s.data_file_id = f.data_file_id)"
    ).fetchall()
    if bare:
        yield Wrong("files", f"no statistics of {bare[0][0]}")
    held = {name for _, _, files in os.walk(lake.site.data_path) for name in files if name.endswith(".parquet")}
    if left := held - names:
        yield Wrong("files", f"no catalog names {sorted(left)[:3]}")


def _names(lake: FuzzedLake) -> str:
    return ", ".join(identifier(column.name) for column in lake.shape.columns)


def read(connection: duckdb.DuckDBPyConnection, query: str) -> Rows:
    return Counter(tuple(map(spelled, row)) for row in connection.execute(query).fetchall())


def _different(check: Check, found: Rows, truth: Rows, where: str = "") -> Iterator[Wrong]:
    if found != truth:
        more, fewer = list((found - truth).items()), list((truth - found).items())
        yield Wrong(check, f"{where}{len(more)} too many, {len(fewer)} missing: {more[:2]} {fewer[:2]}")
