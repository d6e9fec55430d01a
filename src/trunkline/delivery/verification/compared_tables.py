"""One table of one destination beside its part of the source; and the read of the source for many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.backends.sql import first_line, identifier
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.history import CURRENT, HISTORY_COLUMNS
from trunkline.delivery.changes.net import Routes, routed, settle
from trunkline.delivery.changes.rows import BATCH_ROWS, DESTINATION_COLUMN, ROUTE_COLUMN, Mode, NetChanges
from trunkline.delivery.config.tree import SeedMode
from trunkline.delivery.destinations.contract import TableStep
from trunkline.delivery.job.work import TableWork, TaskDestination, TaskPipeline
from trunkline.delivery.sources.contract import ALL_ROUTES, NativeReads, ReadRequest, RouteFilter
from trunkline.delivery.sources.route_filter import filtered_rows, route_item
from trunkline.delivery.verification.comparison import Comparison, ComparisonResult, RowDifference
from trunkline.errors import ProtocolError
from trunkline.plural import plural

FILTER_VALUES_MAX: Final = 500  # with more, all rows are read
NO_ROUTE: Final = f"CAST(NULL AS VARCHAR) AS {identifier(ROUTE_COLUMN)}"


class TableVerdict(Struct, frozen=True):
    """The result for one table of a destination, as ``VerifyVerdict``."""

    table: str
    outcome: str
    rows: int
    source_rows: int
    missing: int
    extra: int
    different: int
    differences: tuple[RowDifference, ...]
    notes: tuple[str, ...]


class ComparedTable:
    """``number``: its own among those of a connection."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, table: TableWork, target: TaskDestination, number: int
    ) -> None:
        self.table = table
        self._target = target
        self._policy = target.policy(table)
        self._columns = table.shaped.columns
        self._key = table.shaped.key
        self._both = Comparison(connection, self._columns, () if self._policy.mode == "append" else self._key, number)
        self._only_grew = False
        self.differs = False  # as it was judged
        self.shared_key = ""  # a key that differs, and that several rows of the source have

    @property
    def mode(self) -> Mode:
        return self._policy.mode

    @property
    def step(self) -> TableStep:
        """Of a repair."""
        return self._target.step(self.table, whole=False, exact=False)

    def read_held(self, batches: Iterable[pa.RecordBatch]) -> str:
        """Read the destination; returns what is wrong with its columns, or an empty text."""
        period = [column.name for column in HISTORY_COLUMNS] if self._policy.mode == "history" else []
        wanted = {column.name for column in self._columns} | set(period)
        of = f"{self.table.name}: " if self.table.name else ""
        try:
            for batch in batches:
                held = set(batch.schema.names)
                if held != wanted:
                    absent = [f"it has no column {name!r}" for name in sorted(wanted - held)]
                    surplus = [f"its column {name!r} is not in the source" for name in sorted(held - wanted)]
                    return of + "; ".join(absent + surplus)
                if period:
                    batch = batch.filter(pc.fill_null(batch.column(CURRENT), False)).drop_columns(period)
                self._both.add_batches("held", [batch])
        except (duckdb.ConversionException, duckdb.OutOfRangeException) as error:
            return f"{of}it has a value that does not fit the source's type: {first_line(error)}"
        return ""

    def begin(self) -> None:
        """The source is read from its beginning."""
        self._both.clear("wanted")
        self._only_grew = False

    def add_wanted(self, rows: Iterable[pa.RecordBatch]) -> None:
        self._both.add_batches("wanted", rows)

    def add_query(self, query: str) -> None:
        self._both.add_query("wanted", query)

    def only_grew(self, grew: bool) -> None:
        """Whether certainly no row of the source was ever changed or removed."""
        self._only_grew = grew

    def drop(self) -> None:
        self._both.drop()

    def judged(self, seed: SeedMode, keys_shown: int, *, keeps: bool = False) -> TableVerdict:
        """``keeps``: what differs can be read by ``rewrites``."""
        shared = self._settle_shared()
        found = self._both.differences(keys_shown)
        append, now = self._policy.mode == "append", seed == "now"
        wrong = found.different or (found.missing and not now) or (found.extra and (not append or self._only_grew))
        outcome = "differs" if wrong else "kept" if found.missing or found.extra else "equal"
        self.differs = bool(wrong)
        if keeps and wrong:
            self.shared_key = self._both.shared_key()
            self._both.keep_found(("extra", "different") if now else ("missing", "extra", "different"))
        notes = (
            [f"{plural(shared, 'row')} of the source lost to another with the same key (policy warn)"] if shared else []
        )
        notes += _allowed_notes(found, append=append, now=now) if outcome == "kept" else []
        notes += ["current versions are compared, earlier ones are not"] if self._policy.mode == "history" else []
        if append and self._only_grew and found.extra:
            notes.append("the source never changed or removed a row, so none may be extra")
        first = found.first
        if append and self._key:
            first = tuple(replace(each, key={name: each.key[name] for name in self._key}) for each in first)
        if self.table.name:
            first = tuple(replace(each, table=self.table.name) for each in first)
        return TableVerdict(
            self.table.name,
            outcome,
            self._both.rows("held"),
            self._both.rows("wanted"),
            found.missing,
            found.extra,
            found.different,
            first,
            tuple(notes),
        )

    def rewrites(self) -> Iterator[pa.RecordBatch]:
        """Staged rows that repair a mirror, after it was judged to differ; they can be read again."""
        return self._both.rewrites()

    def _settle_shared(self) -> int:
        """With policy warn one of the rows that share a key is wanted, by R3."""
        if not self._policy.warns:
            return 0

        def settled(rows: pa.Table) -> pa.Table:
            net = NetChanges(rows.slice(0, 0).select([ROUTE_COLUMN, *self._key]), rows)
            staged = settle(net, Routes({}, (0,)), self._key).staged
            return staged.select([each.name for each in self._columns])

        return self._both.settle_shared(NO_ROUTE, settled)


# --------------------------------------------------------------------------------------------------------- the source

Compared = Mapping[int, ComparedTable]  # by the index of the destination


def read_wanted(
    pipeline: TaskPipeline, connection: duckdb.DuckDBPyConnection, version: int, tables: Mapping[str, Compared]
) -> None:
    """Read the source at a version into every comparison: by its own reader, else once for all."""
    places = sorted({place for compared in tables.values() for place in compared})
    routes = pipeline.routes.only(places)
    scanned = {}
    for name, compared in tables.items():
        for each in compared.values():
            each.begin()
        if (native := pipeline.source.native_reads(name)) is not None:
            _read_natively(connection, native, version, compared, routes)
        else:
            scanned[name] = compared
    if not scanned:
        return
    works = {name: next(iter(compared.values())).table for name, compared in scanned.items()}
    requests = {name: work.shaped.request() for name, work in works.items()}
    chosen = _filter(routes, computed=any(work.shaped.computes_route for work in works.values()))
    for name, batches in pipeline.source.scan(version, requests, chosen):
        for batch in works[name].shaped.rows(batches):
            _divide(pa.Table.from_batches([batch]), scanned[name], routes)


def _read_natively(
    connection: duckdb.DuckDBPyConnection, native: NativeReads, version: int, compared: Compared, routes: Routes
) -> None:
    table = next(iter(compared.values())).table
    with native.snapshot(connection, version) as snapshot:
        if _described(snapshot.columns) != _described(table.columns):
            raise ProtocolError(
                f"the columns of version {version} are {_described(snapshot.columns)} for the format's own reader, "
                f"and {_described(table.columns)} for Trunkline's; this is a bug, please report it"
            )
        request = table.shaped.request()
        route = route_item(identifier(request.routing)) if request.routing else NO_ROUTE
        query = f"SELECT *, {route} FROM {snapshot.table}"
        wanted = _filter(routes, computed=table.shaped.computes_route)
        if table.shape is None and len(compared) == 1:
            with filtered_rows(connection, query, wanted) as chosen:
                next(iter(compared.values())).add_query(chosen)
        else:  # on a cursor of its own: rows are added to other tables meanwhile
            with connection.cursor() as cursor, filtered_rows(cursor, query, wanted) as chosen:
                for batch in table.shaped.rows(_restored(cursor.sql(chosen).to_arrow_reader(BATCH_ROWS), request)):
                    _divide(pa.Table.from_batches([batch]), compared, routes)
        for each in compared.values():
            each.only_grew(snapshot.only_grew)


def _restored(batches: Iterable[pa.RecordBatch], request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """In the types in which values travel."""
    schema = request.empty_rows().schema
    for batch in batches:
        yield batch.select(schema.names).cast(schema)


def _divide(rows: pa.Table, compared: Compared, routes: Routes) -> None:
    """Give each destination its rows."""
    found, _ = routed(rows, routes)
    places = found.column(DESTINATION_COLUMN)
    plain = found.drop_columns([DESTINATION_COLUMN])
    for place in pc.unique(places).to_pylist():
        compared[place].add_wanted(plain.filter(pc.equal(places, place)).to_batches())


def _filter(routes: Routes, *, computed: bool) -> RouteFilter:
    if routes.everywhere or computed or len(routes.by_value) > FILTER_VALUES_MAX:
        return ALL_ROUTES
    return RouteFilter(tuple(routes.by_value))


def _allowed_notes(found: ComparisonResult, *, append: bool, now: bool) -> list[str]:
    """Notes about differences that the guarantee allows."""
    notes = []
    if found.extra:
        extra = plural(found.extra, "row")
        notes.append(f"{extra} that the source no longer has: mode append keeps what is changed or removed later")
    if found.missing:
        missing = plural(found.missing, "row of the source is", "rows of the source are")
        notes.append(f"{missing} missing: seed: now leaves out earlier rows")
    if append and now:
        notes.append("with both, nothing is guaranteed")
    return notes


def _described(columns: Columns) -> dict[str, str]:
    return {column.name: column.type for column in columns}
