"""A Delta table with a change data feed as a source of changes.

Rules
 F1  Versions are counted from 1 (see ``delta_history``); a window ``(after, through]`` is Delta's versions ``after`` to
     ``through - 1``, both included.
 F2  The feed of a version is a list of rows with signs: +1 for an insert and a postimage, -1 for a delete and a
     preimage. The sum over the versions of a window is the difference of its two states, as multisets of whole rows, so
     no order is needed, neither inside a version nor of versions. Rows whose sum is 0 vanish; a sum of n is n rows.
 F3  Rows are compared in all columns as of `through`: NULL equals NULL, and 0.0 is not -0.0. A column that older rows
     lack is NULL in them, as in the table itself; a dropped column does not distinguish rows.
 F4  A window from 0, or from before all, needs no feed: every row at `through` arrived in it.
 F5  If the feed cannot be read completely, none of it is used.
 F6  Changes that a writer omits from the feed are not delivered: delta-rs omits an update of 0.0 to -0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from msgspec import Struct

from trunkline.delivery.backends.delta_types import type_name
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb, registered
from trunkline.delivery.backends.object_errors import store_reason
from trunkline.delivery.backends.sql import identifier, identifiers, same_key
from trunkline.delivery.backends.table_folder import table_folder
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.row_versions import versions_of_net
from trunkline.delivery.changes.rows import BATCH_ROWS, ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import Lineage, Window, version_mark
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.sources.contract import Backlog, ReadRequest, RouteFilter, SourceState, TableSurvey
from trunkline.delivery.sources.delta_feed import KIND, read_feed
from trunkline.delivery.sources.delta_history import DeltaHistory, feed_is_on
from trunkline.delivery.sources.route_filter import filtered_rows, route_item
from trunkline.errors import ConfigError, SourceExpired, Unreachable

SIGN: Final = f"CASE WHEN {KIND} IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"
FEATURES: Final = frozenset({"timestampNtz"})  # supported reader features
FLOATS: Final = ("FLOAT", "DOUBLE")
SUM: Final = "_trunkline_sum"


class DeltaSource(Struct, frozen=True):
    """A Delta table.

    Each task reads the whole feed of a window and keeps its own rows: they may be in any file of a version.
    """

    address: DeltaAddress

    def change_hint(self) -> object:
        return self._history().change_hint()

    def state(self, known: int) -> SourceState:
        history = self._history()
        table = self._table(None)
        if not feed_is_on(table.metadata().configuration):
            raise ConfigError(
                f"source: the Delta table {self.address.path} has no change data feed; turn it on: "
                "ALTER TABLE ... SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
            )
        if odd := sorted(set(table.protocol().reader_features or ()) - FEATURES):
            raise ConfigError(
                f"source: the Delta table {self.address.path} has {', '.join(odd)}, with which its feed may not be "
                "exact; drop the feature: ALTER TABLE ... DROP FEATURE"
            )
        parts = set(table.metadata().partition_columns)
        if odd := [column.name for column in _columns(table) if column.type == "BLOB" and column.name in parts]:
            raise ConfigError(
                f"source: the Delta table {self.address.path} is partitioned by {', '.join(odd)}, which is binary: "
                "delta-rs returns such values changed; partition it by another column"
            )
        identity, version = str(table.metadata().id), table.version() + 1
        marks = self._marks(identity, {known, version})
        found = (marks.get(version, ""), marks.get(known, ""))
        return SourceState(version, history.oldest(), (), identity, 0, *found)

    def lineage(self, versions: Collection[int]) -> Lineage:
        table = self._table(None)
        identity = str(table.metadata().id)
        return Lineage(identity, table.version() + 1, self._marks(identity, versions))

    def _marks(self, identity: str, versions: Collection[int]) -> dict[int, str]:
        history = self._history()
        digests = {version: history.commit_digest(version) for version in versions if version > 0}
        return {version: version_mark(identity, version, digest) for version, digest in digests.items() if digest}

    def _check_mark(self, table: DeltaTable, mark: str) -> None:
        """Call it after a read: the version must still be the surveyed one."""
        version = table.version() + 1
        if mark and mark != self._marks(str(table.metadata().id), [version]).get(version):
            raise Unreachable(f"the Delta table {self.address.path} was replaced during the read; retrying")

    def columns(self, version: int) -> Columns:
        return _columns(self._table(version))

    def check_keys(self, key: tuple[str, ...], routing: str) -> None:
        """Removed rows are whole."""

    def survey(self, window: Window) -> TableSurvey:
        history, table = self._history(), self._table(window.through)
        identity = str(table.metadata().id)
        marks = self._marks(identity, {window.after, window.through})
        after_mark, mark = marks.get(window.after, ""), marks.get(window.through, "")
        if window.after <= 0:
            return TableSurvey(_table_backlog(table), _columns(table), identity, mark=mark)
        before = table if not history.switches(window) else self._table(window.after)
        backlog = history.backlog(window, feed_is_on(before.metadata().configuration))
        altered = _columns(before) != _columns(table)
        return TableSurvey(backlog, _columns(table), identity, altered, "", after_mark, mark)

    def net_changes(self, window: Window, request: ReadRequest, routes: RouteFilter) -> NetChanges:
        removed = pa.schema([request.empty_rows().schema.field(name) for name in (ROUTE_COLUMN, *request.stated)])
        if window.after <= 0:
            with (
                self._rows(window.through, request) as (connection, rows),
                filtered_rows(connection, rows, routes, of_files=False) as chosen,
            ):
                arrived = connection.sql(chosen).to_arrow_table()
            return NetChanges(removed.empty_table(), _typed(arrived, request.empty_rows().schema))
        with self._translated_errors(lambda: self.survey(window)), pooled_duckdb() as connection:
            table = self._table(window.through)
            partitioned = bool(table.metadata().partition_columns)
            changes = self._history().changes(window, partitioned=partitioned)
            feed = read_feed(connection, self._history().folder, changes, request.columns)
            signed = f"SELECT {_with_route(request)}, {SIGN} AS sign FROM window_feed"
            with (
                registered(connection, window_feed=feed),
                filtered_rows(connection, signed, routes, of_files=False) as chosen,
            ):
                connection.execute(_net_statement(request, chosen))
            removed_rows = connection.sql(_rows_by_sum(removed.names, "-")).to_arrow_table()
            arrived_rows = connection.sql(_rows_by_sum(request.empty_rows().column_names, "")).to_arrow_table()
            connection.execute("DROP TABLE temp.window_net")
            self._check_mark(table, request.mark)
        return NetChanges(_typed(removed_rows, removed), _typed(arrived_rows, request.empty_rows().schema))

    def versions(self, window: Window, request: ReadRequest, routes: RouteFilter) -> VersionedChanges:
        net = self.net_changes(window, request, routes)
        return versions_of_net(net, request.columns, window.through, self._history().committed_us(window.through))

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        names = [ROUTE_COLUMN, *request.key]
        with (
            self._rows(version, request) as (connection, rows),
            registered(connection, window_keys=keys.select(names)),
        ):
            chosen = f"SELECT t.* FROM ({rows}) t SEMI JOIN window_keys k ON {same_key(names, 't', 'k')}"
            found = connection.sql(chosen).to_arrow_table()
        return _typed(found, request.empty_rows().schema)

    def scan(self, version: int, request: ReadRequest, routes: RouteFilter) -> Iterator[pa.RecordBatch]:
        schema = request.empty_rows().schema
        with (
            self._rows(version, request) as (connection, rows),
            filtered_rows(connection, rows, routes, of_files=False) as chosen,
        ):
            for batch in connection.sql(chosen).to_arrow_reader(BATCH_ROWS):
                yield from _typed(pa.Table.from_batches([batch]), schema).to_batches()

    def large_reads(self) -> None:
        return None

    def native_reads(self) -> None:
        return None

    # --- opening ---

    def _history(self) -> DeltaHistory:
        return DeltaHistory(table_folder(self.address))

    def _table(self, version: int | None) -> DeltaTable:
        """The table at a version, or now."""
        try:
            options = table_folder(self.address).options()
            at = None if version is None else version - 1
            return DeltaTable(self.address.path, version=at, storage_options=options)
        except TableNotFoundError as error:
            if version is not None and self._history().newest() > 0:
                raise SourceExpired(
                    f"the Delta table {self.address.path} no longer has version {version - 1}; seed the destination "
                    "again"
                ) from error
            raise ConfigError(f"source: there is no Delta table at {self.address.path}; check source.path") from error
        except (DeltaError, OSError) as error:
            raise self._unreadable(error) from error

    @contextmanager
    def _rows(self, version: int, request: ReadRequest) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        """All rows at a version, as a query."""
        table = self._table(version)
        with self._translated_errors(lambda: self._check_files(table)), pooled_duckdb() as connection:
            found = table.scan(columns=[column.name for column in request.columns])
            with registered(connection, window_state=pa.RecordBatchReader.from_stream(found)):
                yield connection, f"SELECT {_with_route(request)} FROM window_state"
            self._check_mark(table, request.mark)

    @contextmanager
    def _translated_errors(self, check: Callable[[], object]) -> Iterator[None]:
        """Translates errors of delta-rs, also through DuckDB, about files that cannot be read (F5).

        ``check`` raises ``SourceExpired`` if they were deleted.
        """
        try:
            yield
        except (DeltaError, OSError, duckdb.Error, pa.ArrowInvalid) as error:
            check()
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> Unreachable:
        said = store_reason(error, self.address)
        return Unreachable(f"the Delta table {self.address.path} cannot be read now: {said}")

    def _check_files(self, table: DeltaTable) -> None:
        history = self._history()
        for path in pa.table(table.get_add_actions())["path"].to_pylist():
            if history.stamp(unquote(path)) is None:
                raise SourceExpired(
                    f"the Delta table {self.address.path} no longer has file {path} of version {table.version()} "
                    "(vacuumed); seed the destination again"
                )


def _columns(table: DeltaTable) -> Columns:
    return tuple(Column(field.name, type_name(field.type), field.nullable) for field in pa.schema(table.schema()))


def _table_backlog(table: DeltaTable) -> Backlog:
    files = pa.table(table.get_add_actions(flatten=True))
    rows = sum(count or 0 for count in files["num_records"].to_pylist())
    return Backlog(rows, sum(files["size_bytes"].to_pylist()), quiet=len(files) == 0)


def _with_route(request: ReadRequest) -> str:
    route = route_item(identifier(request.routing)) if request.routing else route_item()
    return f"{route}, {identifiers(column.name for column in request.columns)}"


def _net_statement(request: ReadRequest, signed: str) -> str:
    """The signed sum of each row of a query (F2, F3)."""
    names = request.empty_rows().column_names
    floats = {column.name: f"signbit({identifier(column.name)})" for column in request.columns if column.type in FLOATS}
    values = ", ".join(_value(name, floats.get(name)) for name in names)
    groups = ", ".join([*map(identifier, names), *floats.values()])
    return (
        f"CREATE OR REPLACE TEMP TABLE window_net AS SELECT {values}, sum(sign)::BIGINT AS {SUM} FROM ({signed}) "
        f"GROUP BY {groups} HAVING sum(sign) <> 0"
    )


def _value(name: str, negative: str | None) -> str:
    """A column of a group. For DuckDB, 0.0 equals -0.0 and it keeps either; rows are also grouped by the sign."""
    column = identifier(name)
    if negative is None:
        return column
    zero = f"CASE WHEN {negative} THEN -abs({column}) ELSE abs({column}) END"
    return f"CASE WHEN {column} = 0 THEN {zero} ELSE {column} END AS {column}"


def _rows_by_sum(names: Sequence[str], sign: str) -> str:
    """Each row as often as its sum: rows with a positive sum, or with a negative one."""
    listed = identifiers(names)
    times = f"unnest(range({sign}{SUM}))"
    return f"SELECT {listed} FROM (SELECT {listed}, {times} FROM window_net WHERE {sign}{SUM} > 0)"


def _typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows in the types of a schema; DuckDB returns some in others."""
    return rows if rows.schema == schema else rows.select(schema.names).cast(schema)
