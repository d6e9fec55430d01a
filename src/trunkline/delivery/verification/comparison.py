"""Compares two multisets of rows in DuckDB: by count and hash of ranges of keys, then by rows of ranges that differ.

Rules
 M1  Values are compared in the source's types, by name. NULL equals NULL; floating point numbers are compared by their
     bits, so that -0.0 is not 0.0, but all NaNs are equal.
 M2  A range holds the keys whose hash falls into it; it is equal if both sides have the same number of rows and the
     same sum of hashes there.
 M3  With a key, rows are identified by it: a key is missing, extra or different. Without one, rows are identified by
     all columns, and their number counts.
 M4  Rows do not pass through Python, and what does not fit into memory spills to disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Literal
from uuid import uuid4

import duckdb
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import Extension, from_pool, new_duckdb
from trunkline.delivery.backends.sql import identifier, identifiers, literal, same_key
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.rows import BATCH_ROWS, OP_COLUMN, Op
from trunkline.delivery.destinations.ducklake_stage import export_list

RANGES: Final = 1024  # more: fewer rows in a range that differs; fewer: fewer sums
MEMORY_MAX: Final = "1GiB"  # of one comparison; the rest spills to disk
THREADS: Final = 2  # of one comparison: several run at a time
TEXT_CHARACTERS_MAX: Final = 100  # of a key's value in a report
RANGE: Final = "_trunkline_range"
HASH: Final = "_trunkline_hash"

Side = Literal["wanted", "held"]
DifferenceKind = Literal["missing", "extra", "different"]


class RowDifference(Struct, frozen=True):
    """One key (or, without keys, one row) that differs."""

    kind: DifferenceKind
    key: dict[str, str | None]  # column -> value, as text
    columns: tuple[str, ...] = ()  # that differ
    wanted: int = 0  # rows of it in the source
    held: int = 0  # rows of it in the destination
    table: str = ""  # of a set of tables


class ComparisonResult(Struct, frozen=True):
    missing: int = 0
    extra: int = 0
    different: int = 0
    first: tuple[RowDifference, ...] = ()


@contextmanager
def comparison_connection(*extensions: Extension) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB connection for one comparison, from a pool: a new one costs more than a small comparison."""
    with from_pool(_idle_connections(extensions), lambda: _new_connection(extensions)) as connection:
        yield connection
        made = connection.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'temp'").fetchall()
        for (table,) in made:
            connection.execute(f"DROP TABLE temp.{identifier(table)}")


def _new_connection(extensions: tuple[Extension, ...]) -> duckdb.DuckDBPyConnection:
    connection = new_duckdb(*extensions)
    folder = f"{tempfile.gettempdir()}/trunkline-verify-{uuid4().hex}"  # DuckDB creates it when needed, and removes it
    for setting, value in (
        ("temp_directory", folder),
        ("memory_limit", MEMORY_MAX),
        ("threads", THREADS),
        ("preserve_insertion_order", False),
    ):
        connection.execute(f"SET {setting} = {literal(value)}")
    return connection


@cache
def _idle_connections(extensions: tuple[Extension, ...]) -> list[duckdb.DuckDBPyConnection]:
    """Global to the process."""
    return []


class Comparison:
    """The wanted rows and the held rows of a table. ``key``: empty to compare whole rows (M3). ``number``: its own
    among the comparisons that a connection has at a time."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, columns: Columns, key: Sequence[str], number: int = 0
    ) -> None:
        self._connection = connection
        self._tables: dict[Side, str] = {"wanted": f"wanted_{number}", "held": f"held_{number}"}
        self._kept = f"kept_{number}"
        self._columns = columns
        self._names = [column.name for column in columns]
        self._types = {column.name: column.type for column in columns}
        self._key = tuple(key)
        self._by = self._key or tuple(self._names)  # what identifies a row
        self._forms = {column.name: compared(identifier(column.name), column.type) for column in columns}
        declared = ", ".join(f"{identifier(column.name)} {column.type}" for column in columns)
        for table in self._tables.values():
            connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} ({RANGE} USMALLINT, {HASH} UBIGINT, {declared})")

    # --- rows ---

    def add_query(self, side: Side, query: str) -> None:
        """Add the rows of a query that has every column, by name."""
        cast = ", ".join(
            f"CAST({identifier(each.name)} AS {each.type}) AS {identifier(each.name)}" for each in self._columns
        )
        self._connection.execute(
            f"INSERT INTO {self._tables[side]} SELECT hash({self._forms_of(self._by)}) % {RANGES}, "
            f"hash({self._forms_of(self._names)}), {identifiers(self._names)} FROM (SELECT {cast} FROM ({query}))"
        )

    def add_batches(self, side: Side, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self._connection.register("compared_batch", batch)
            self.add_query(side, f"SELECT {identifiers(self._names)} FROM compared_batch")
            self._connection.unregister("compared_batch")

    def rows(self, side: Side) -> int:
        return int(self._value(f"SELECT count(*) FROM {self._tables[side]}"))

    def clear(self, side: Side) -> None:
        self._connection.execute(f"DELETE FROM {self._tables[side]}")

    def drop(self) -> None:
        for table in (*self._tables.values(), self._kept):
            self._connection.execute(f"DROP TABLE IF EXISTS temp.{table}")

    def settle_shared(self, route: str, settle: Callable[[pa.Table], pa.Table]) -> int:
        """Let ``settle`` choose among wanted rows that share a key; returns how many were dropped.

        ``settle`` gets the rows of some keys, with ``route`` (a select item) as their first column, and returns those
        that stay. It gets only such rows, one range at a time.
        """
        before, wanted = self.rows("wanted"), self._tables["wanted"]
        shared = f"SELECT {RANGE}, {identifiers(self._key)} FROM {wanted} GROUP BY ALL HAVING count(*) > 1"
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE shared AS {shared}")
        for (range_,) in self._connection.execute(f"SELECT DISTINCT {RANGE} FROM shared ORDER BY ALL").fetchall():
            match = f"w.{RANGE} = {range_} AND s.{RANGE} = {range_} AND {same_key(self._key, 'w', 's')}"
            rows = self._connection.sql(
                f"SELECT {route}, {identifiers(self._names)} FROM {wanted} w SEMI JOIN shared s ON {match}"
            ).to_arrow_table()
            self._connection.execute(f"DELETE FROM {wanted} w USING shared s WHERE {match}")
            self.add_batches("wanted", settle(rows).to_batches())
        return before - self.rows("wanted")

    # --- differences ---

    def differences(self, shown_max: int) -> ComparisonResult:
        """What differs, with the first ``shown_max`` keys."""
        ranges = self._differing_ranges()
        if not ranges:
            return ComparisonResult()
        self._find(ranges)
        counts = dict(self._connection.execute("SELECT kind, sum(copies)::BIGINT FROM found GROUP BY ALL").fetchall())
        keys = [f"key_{place}" for place in range(len(self._by))]
        shown = ", ".join(f"left(CAST({key} AS VARCHAR), {TEXT_CHARACTERS_MAX})" for key in keys)
        rows = self._connection.execute(
            f"SELECT kind, columns, wanted, held, {shown} FROM found ORDER BY {', '.join(keys)} LIMIT {shown_max}"
        ).fetchall()
        first = [
            RowDifference(kind, dict(zip(self._by, key, strict=True)), tuple(columns), wanted, held)
            for kind, columns, wanted, held, *key in rows
        ]
        return ComparisonResult(
            counts.get("missing", 0), counts.get("extra", 0), counts.get("different", 0), tuple(first)
        )

    def shared_key(self) -> str:
        """A key of ``found`` that several wanted rows have; empty: there is none."""
        keys = ", ".join(f"CAST(key_{place} AS VARCHAR)" for place in range(len(self._by)))
        rows = self._connection.execute(f"SELECT {keys} FROM found WHERE wanted > 1 LIMIT 1").fetchall()
        return ", ".join(f"{name} = {value}" for row in rows for name, value in zip(self._by, row, strict=True))

    def keep_found(self, kinds: Sequence[DifferenceKind]) -> None:
        """Keep what ``differences`` found of these kinds, for ``rewrites``."""
        kept = ", ".join(map(literal, kinds))
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {self._kept} AS SELECT * FROM found WHERE kind IN ({kept})"
        )

    def rewrites(self) -> Iterator[pa.RecordBatch]:
        """Staged rows that make the held rows equal to the wanted ones, for the keys that were kept."""
        nulls = {column.name: f"CAST(NULL AS {column.type})" for column in self._columns}
        gone = {name: f"key_{place}" for place, name in enumerate(self._by)}
        names = ", ".join(f"{(nulls | gone)[name]} AS {identifier(name)}" for name in self._names)
        same = " AND ".join(
            f"{compared(f'w.{identifier(name)}', self._types[name])} IS NOT DISTINCT FROM "
            f"{compared(f'f.key_{place}', self._types[name])}"
            for place, name in enumerate(self._by)
        )
        query = (
            f"SELECT {int(Op.REMOVE)} AS {OP_COLUMN}, {names} FROM {self._kept} WHERE kind = 'extra' UNION ALL "
            f"SELECT {int(Op.REPLACE)}, {identifiers(self._names)} FROM {self._tables['wanted']} w "
            f"SEMI JOIN {self._kept} f ON f.kind <> 'extra' AND {same}"
        )
        schema = pa.schema([pa.field(OP_COLUMN, pa.int8()), *arrow_schema(self._columns)])
        reader = self._connection.sql(f"SELECT {OP_COLUMN}, {export_list(self._columns)} FROM ({query})")
        for batch in reader.to_arrow_reader(BATCH_ROWS):
            yield batch.cast(schema)

    def _differing_ranges(self) -> list[int]:
        """By the sums of each range (M2)."""
        sums = f"SELECT {RANGE} AS r, count(*) AS n, sum({HASH}) AS s FROM {{}} GROUP BY 1"
        found = self._connection.execute(
            f"""SELECT coalesce(w.r, h.r) AS r FROM ({sums.format(self._tables["wanted"])}) w
            FULL JOIN ({sums.format(self._tables["held"])}) h
            ON w.r = h.r WHERE w.n IS DISTINCT FROM h.n OR w.s IS DISTINCT FROM h.s ORDER BY r"""
        ).fetchall()
        return [range_ for (range_,) in found]

    def _find(self, ranges: Sequence[int]) -> None:
        """A table of what differs in these ranges: the kind, how often, the key, and the columns."""
        others = [name for name in self._names if name not in self._by]
        differing = ", ".join(
            f"CASE WHEN w.other_{at} IS DISTINCT FROM h.other_{at} THEN {literal(name)} END"
            for at, name in enumerate(others)
        )
        listed = f"list_filter([{differing}], lambda c: c IS NOT NULL)" if others else "[]"
        places = range(len(self._by))
        keys = ", ".join(f"CASE WHEN w.n IS NULL THEN h.key_{at} ELSE w.key_{at} END AS key_{at}" for at in places)
        same = " AND ".join(f"w.form_{at} IS NOT DISTINCT FROM h.form_{at}" for at in places)
        kind, copies = KEYED if self._key else WHOLE
        self._connection.execute(
            f"""CREATE OR REPLACE TEMP TABLE found AS WITH
            w AS ({self._grouped("wanted", others, ranges)}), h AS ({self._grouped("held", others, ranges)})
            SELECT {kind} AS kind, {copies} AS copies, coalesce(w.n, 0) AS wanted, coalesce(h.n, 0) AS held, {keys},
            CAST(CASE WHEN w.n = 1 AND h.n = 1 THEN {listed} ELSE [] END AS VARCHAR[]) AS columns
            FROM w FULL JOIN h ON {same} WHERE w.n IS DISTINCT FROM h.n OR w.s IS DISTINCT FROM h.s"""
        )

    def _grouped(self, side: Side, others: Sequence[str], ranges: Sequence[int]) -> str:
        """One row for each key: the number of its rows, and one of them."""
        items = [f"{self._forms[name]} AS form_{at}" for at, name in enumerate(self._by)]
        items += [f"first({identifier(name)}) AS key_{at}" for at, name in enumerate(self._by)]
        items += [f"first({self._forms[name]}) AS other_{at}" for at, name in enumerate(others)]
        chosen = f"WHERE {RANGE} IN ({', '.join(map(str, ranges))})" if len(ranges) < RANGES else ""
        places = ", ".join(str(at + 1) for at in range(len(self._by)))
        counts = f"count(*) AS n, sum({HASH}) AS s"
        return f"SELECT {', '.join(items)}, {counts} FROM {self._tables[side]} {chosen} GROUP BY {places}"

    def _forms_of(self, names: Sequence[str]) -> str:
        return ", ".join(self._forms[name] for name in names)

    def _value(self, query: str) -> Any:
        ((value,),) = self._connection.execute(query).fetchall()
        return value


KEYED: Final = ("CASE WHEN h.n IS NULL THEN 'missing' WHEN w.n IS NULL THEN 'extra' ELSE 'different' END", "1")
WHOLE: Final = (
    "CASE WHEN coalesce(w.n, 0) > coalesce(h.n, 0) THEN 'missing' ELSE 'extra' END",
    "abs(coalesce(w.n, 0) - coalesce(h.n, 0))",
)


def compared(value: str, type_name: str, depth: int = 0) -> str:
    """The form in which values are hashed and compared (M1)."""
    if type_name.endswith("[]"):
        element = f"e{depth}"
        inner = compared(element, type_name[:-2], depth + 1)
        return value if inner == element else f"list_transform({value}, lambda {element}: {inner})"
    if type_name in ("FLOAT", "DOUBLE"):
        return f"CAST(CASE WHEN isnan({value}) THEN CAST('nan' AS {type_name}) ELSE {value} END AS BIT)"
    return value
