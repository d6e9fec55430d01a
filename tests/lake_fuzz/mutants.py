"""Mutants of the read of a DuckLake and of the rule, each with one known bug: the fuzz must find them.

Most change one thing of the read that ships. Three read DuckLake's own feed of insertions and deletions, as it is
usually read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from lake_fuzz.histories import History
from lake_fuzz.judge import Check, Rule, Suspect
from lake_fuzz.readers import ExactReader, HistoryReader
from lake_fuzz.truth import PlainRow, plain_rows
from trunkline.delivery.backends.sql import identifier, identifiers, literal, same_key
from trunkline.delivery.changes.net import Routes, Settled, less, settle
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.ducklake_catalog import LakeDeleteFile
from trunkline.delivery.sources.ducklake_window import WindowPlan, WindowReader, plan_summary, plan_window
from trunkline.delivery.sources.route_filter import route_item
from trunkline.errors import SourceExpired


class LakeMutant(Struct, frozen=True):
    """A bug, and the check that must find it."""

    name: str
    summary: str
    check: Check
    suspect: Suspect


# --- the read that ships, with one thing changed ---


class InclusiveBound(ExactReader):
    def plan(self, window: Window) -> WindowPlan:
        earlier = Window(max(window.after - 1, BEFORE_ALL), window.through)
        try:
            return super().plan(earlier)
        except SourceExpired:
            return super().plan(window)


class NoInlinedRows(ExactReader):
    def plan(self, window: Window) -> WindowPlan:
        return replace(super().plan(window), inlined=())


class NoDeletes(ExactReader):
    def plan(self, window: Window) -> WindowPlan:
        return replace(super().plan(window), deletes=(), inlined_dead=())


class UndatedRows(ExactReader):
    def plan(self, window: Window) -> WindowPlan:
        plan = super().plan(window)
        files = tuple(replace(part, file=replace(part.file, partial_max=None)) for part in plan.files)
        return replace(plan, files=files)


class MovedRowsArrive(ExactReader):
    def plan(self, window: Window) -> WindowPlan:
        summary = replace(self.catalog.summary(window), complete=False)  # so that no version is known to be empty
        return replace(plan_summary(self.catalog, window, summary), moved=False)


class DeletesAsOfNow(ExactReader):
    def reader(self, plan: WindowPlan, request: ReadRequest) -> WindowReader:
        newest = self.catalog.state(plan.window.through).version
        later = plan_window(self.catalog, Window(plan.window.after, newest))
        return _ReaderWithDeletesOf(later, self, plan, request)


class _ReaderWithDeletesOf(WindowReader):
    def __init__(self, later: WindowPlan, exact: ExactReader, plan: WindowPlan, request: ReadRequest) -> None:
        self._later = later
        super().__init__(exact.connection, exact.catalog, replace(plan, deletes=later.deletes), request)

    @contextmanager
    def _dead_positions(self, plan: WindowPlan) -> Iterator[None]:
        with super()._dead_positions(self._later):
            yield


class UndatedDeletes(ExactReader):
    def reader(self, plan: WindowPlan, request: ReadRequest) -> WindowReader:
        return _ReaderBySpans(self.connection, self.catalog, plan, request)


class _ReaderBySpans(WindowReader):
    def _deletions(self, files: Sequence[LakeDeleteFile]) -> str:
        return super()._deletions(files).replace("coalesce(p.died, b.begun)", "b.begun")


# --- DuckLake's feed ---


class Feed:
    """Insertions and deletions between two versions from DuckLake's feed; mutants interpret them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, history: History) -> None:
        self._connection = connection
        self._history = history

    def net(self, window: Window, request: ReadRequest) -> NetChanges:
        first = max(window.after + 1, min(self._history.states))
        crossed = range(first, window.through + 1)
        if self._history.expired.intersection((window.after, *crossed)):
            raise SourceExpired("a feed has gaps where versions were expired")
        if len({self._history.layouts[version] for version in crossed}) > 1:
            raise SourceExpired("a feed has other columns before the table was altered")
        inserted, deleted = (self.events(kind, first, window.through, request) for kind in ("insertions", "deletions"))
        removed, arrived = self.settled(inserted, deleted)
        names = [column.name for column in request.columns]
        return NetChanges(removed.select([ROUTE_COLUMN, *request.key]), arrived.select([ROUTE_COLUMN, *names]))

    def events(self, kind: str, first: int, last: int, request: ReadRequest) -> pa.Table:
        """Version by version, without maintenance: these rows are right, and only their interpretation can be wrong."""
        wanted = [version for version in range(first, last + 1) if version not in self._history.maintenance]
        parts = [self.range_of_events(kind, version, version, request) for version in wanted]
        return pa.concat_tables(parts or [self.range_of_events(kind, first, first, request).slice(0, 0)])

    def settled(self, inserted: pa.Table, deleted: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Removed and arrived rows, from events with ``_version`` and ``_row``."""
        raise NotImplementedError

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        names = [ROUTE_COLUMN, *request.key]
        match = same_key(names, "t", "k")
        rows = f"SELECT {_chosen(request)} FROM {self._history.shape.name} AT (VERSION => {version})"
        self._connection.register("wanted_keys", keys)
        found = self._connection.sql(f"SELECT t.* FROM ({rows}) t SEMI JOIN wanted_keys k ON {match}").to_arrow_table()
        self._connection.unregister("wanted_keys")
        return found

    def range_of_events(self, kind: str, first: int, last: int, request: ReadRequest) -> pa.Table:
        table = f"ducklake_table_{kind}('lake', 'main', {literal(self._history.shape.table)}, {first}, {last})"
        query = f"SELECT snapshot_id AS _version, rowid AS _row, {_chosen(request)} FROM {table}"
        return self._connection.sql(query).to_arrow_table()

    @classmethod
    @contextmanager
    def opened(cls, history: History) -> Iterator[HistoryReader]:
        with history.opened() as connection:
            yield cls(connection, history)


class CancelledRange(Feed):
    def events(self, kind: str, first: int, last: int, request: ReadRequest) -> pa.Table:
        return self.range_of_events(kind, first, last, request)

    def settled(self, inserted: pa.Table, deleted: pa.Table) -> tuple[pa.Table, pa.Table]:
        gone, came = (events.drop_columns(["_version", "_row"]) for events in (deleted, inserted))
        return less(gone, came), less(came, gone)


class LastOfRowId(Feed):
    def settled(self, inserted: pa.Table, deleted: pa.Table) -> tuple[pa.Table, pa.Table]:
        return _last_events(inserted, deleted, "_row", ("_version", "_kind"))


class LastOfKey(Feed):
    def settled(self, inserted: pa.Table, deleted: pa.Table) -> tuple[pa.Table, pa.Table]:
        return _last_events(inserted, deleted, "id", ("_version", "_row", "_kind"))


def _chosen(request: ReadRequest) -> str:
    return f"{route_item(identifier(request.routing))}, {identifiers(column.name for column in request.columns)}"


def _last_events(
    inserted: pa.Table, deleted: pa.Table, identity: str, order: Sequence[str]
) -> tuple[pa.Table, pa.Table]:
    """The rows before the first event of each identity, and those after its last one."""
    events = pa.concat_tables(
        [
            deleted.append_column("_kind", pa.array([0] * deleted.num_rows, pa.int8())),
            inserted.append_column("_kind", pa.array([1] * inserted.num_rows, pa.int8())),
        ]
    ).sort_by([(name, "ascending") for name in order])
    firsts: dict[object, int] = {}
    lasts: dict[object, int] = {}
    for place, known in enumerate(events.column(identity).to_pylist()):
        firsts.setdefault(known, place)
        lasts[known] = place
    removed, arrived = (events.take(pa.array(places.values(), pa.int64())) for places in (firsts, lasts))
    return removed.filter(pc.equal(removed["_kind"], 0)), arrived.filter(pc.equal(arrived["_kind"], 1))


# --- the rule ---


def cancelled_across_the_gap(net: NetChanges, routes: Routes, key: tuple[str, ...]) -> Settled:
    arrived = set(_keys(net.arrived, key))
    kept = [known not in arrived for known in _keys(net.removed, key)]
    return settle(NetChanges(net.removed.filter(pa.array(kept, pa.bool_())), net.arrived), routes, key)


def routed_by_the_new_value(net: NetChanges, routes: Routes, key: tuple[str, ...]) -> Settled:
    new = dict(zip(_keys(net.arrived, key), net.arrived.column(ROUTE_COLUMN).to_pylist(), strict=True))
    old = zip(_keys(net.removed, key), net.removed.column(ROUTE_COLUMN).to_pylist(), strict=True)
    values = pa.array([new.get(known, value) for known, value in old], pa.string())
    return settle(NetChanges(net.removed.set_column(0, ROUTE_COLUMN, values), net.arrived), routes, key)


def _keys(rows: pa.Table, key: Sequence[str]) -> list[PlainRow]:
    return plain_rows(rows.select(list(key)))


def _read(name: str, summary: str, mutated: type[ExactReader] | type[Feed], check: Check = "rows") -> LakeMutant:
    return LakeMutant(name, summary, check, Suspect(mutated.opened))


def _rule(name: str, summary: str, mutated: Rule) -> LakeMutant:
    return LakeMutant(name, summary, "rule", Suspect(rule=mutated))


MUTANTS: Final = (
    _read("inclusive-bound", "the changes of `after` itself belong to the window", InclusiveBound),
    _rule("cancel-across-gap", "a removal is dropped because its key arrives again", cancelled_across_the_gap),
    _read("row-id-identity", "rows are identified by row id, whose last event wins", LastOfRowId),
    _read("last-event-wins", "the last event of a key wins, by row id inside a version", LastOfKey),
    _read("deletions-by-range", "insertions and deletions of a range, equal rows cancelled", CancelledRange),
    _read("no-inlined-rows", "only files are read, not the inlined rows of the catalog", NoInlinedRows),
    _read("no-deletes", "deleted positions of data files are ignored", NoDeletes),
    _read("deletes-as-of-now", "deleted positions are read as of now, not as of `through`", DeletesAsOfNow),
    _read("undated-deletes", "all positions of a delete file count from its first version", UndatedDeletes),
    _read("undated-rows", "all rows of a merged file count from its first version", UndatedRows),
    _read("moved-rows-arrive", "rows that a rewrite moved count as changes", MovedRowsArrive, "arrivals"),
    _rule("preimage-dropped", "a removal is routed by the row's new routing value", routed_by_the_new_value),
)
