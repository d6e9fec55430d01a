"""One table as a source of a pipeline: a set of one, without a name. Sets of several are in ``database`` and
``lake_tables``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.rows import NetChanges
from trunkline.delivery.changes.versions import Lineage, Window
from trunkline.delivery.sources.contract import (
    LargeReads,
    NativeReads,
    ReadRequest,
    Requests,
    RouteFilter,
    SourceState,
    SourceTable,
    Survey,
    SurveyedTable,
    TableSource,
)

ONE: Final = ""  # the name of the table of a pipeline with one table


class OneTable(Struct, frozen=True):
    """A set of one table, without a name."""

    source: TableSource

    def change_hint(self) -> object:
        return self.source.change_hint()

    def state(self, known: int) -> SourceState:
        return self.source.state(known)

    def lineage(self, versions: Collection[int]) -> Lineage:
        return self.source.lineage(versions)

    def tables(self, version: int) -> tuple[SourceTable, ...]:
        state = self.source.state(version)
        return (SourceTable(ONE, self.source.columns(version or state.version), identity=state.identity),)

    def check_keys(self, table: str, key: tuple[str, ...], routing: str) -> None:
        self.source.check_keys(key, routing)

    def survey(self, window: Window) -> Survey:
        found = self.source.survey(window)
        table = SourceTable(ONE, found.columns, identity=found.identity, numbers=found.numbers)
        return Survey((SurveyedTable(table, found),), found.identity, (), found.after_mark, found.mark)

    def net_changes(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, NetChanges]:
        return {name: self.source.net_changes(window, request, routes) for name, request in requests.items()}

    def versions(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, VersionedChanges]:
        return {name: self.source.versions(window, request, routes) for name, request in requests.items()}

    def live(self, table: str, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        return self.source.live(version, request, keys)

    def scan(
        self, version: int, requests: Requests, routes: RouteFilter
    ) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        for name, request in requests.items():
            yield name, self.source.scan(version, request, routes)

    def large_reads(self, tables: Collection[str]) -> Mapping[str, LargeReads] | None:
        found = self.source.large_reads()
        return None if found is None else dict.fromkeys(tables, found)

    def native_reads(self, table: str) -> NativeReads | None:
        return self.source.native_reads()
