"""Readers of the windows of a history: the one that ships, and the one that mutants derive from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import duckdb
import pyarrow as pa

from lake_fuzz.histories import History
from trunkline.delivery.changes.rows import NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, RouteFilter
from trunkline.delivery.sources.ducklake import DuckLakeSource
from trunkline.delivery.sources.ducklake_catalog import LakeCatalog
from trunkline.delivery.sources.ducklake_window import WindowPlan, WindowReader, plan_window


class HistoryReader(Protocol):
    """An open history."""

    def net(self, window: Window, request: ReadRequest) -> NetChanges: ...

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table: ...


class ExactReader:
    """Plans and reads as the source does, but keeps the catalog open, which is much faster."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, catalog: LakeCatalog) -> None:
        self.connection = connection
        self.catalog = catalog

    def net(self, window: Window, request: ReadRequest) -> NetChanges:
        return self.reader(self.plan(window), request).read(ALL_ROUTES)

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        plan = plan_window(self.catalog, Window(BEFORE_ALL, version))
        return WindowReader(self.connection, self.catalog, plan, request).arrived_among(keys)

    def plan(self, window: Window) -> WindowPlan:
        return plan_window(self.catalog, window)

    def reader(self, plan: WindowPlan, request: ReadRequest) -> WindowReader:
        return WindowReader(self.connection, self.catalog, plan, request)

    @classmethod
    @contextmanager
    def opened(cls, history: History) -> Iterator[HistoryReader]:
        with DuckLakeSource(history.address).catalog() as (connection, catalog):
            yield cls(connection, catalog)


class ShippedReader:
    """The source itself: it opens the catalog for every window, and reads with one route filter after the other."""

    def __init__(self, history: History) -> None:
        self._source = DuckLakeSource(history.address)
        first, second, *_ = history.shape.tenants
        self._filters = (RouteFilter((first, None)), RouteFilter((second,)), RouteFilter((), (first, second, None)))

    def net(self, window: Window, request: ReadRequest) -> NetChanges:
        parts = [self._source.net_changes(window, request, routes) for routes in self._filters]
        return NetChanges(
            pa.concat_tables(part.removed for part in parts), pa.concat_tables(part.arrived for part in parts)
        )

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        return self._source.live(version, request, keys)

    @classmethod
    @contextmanager
    def opened(cls, history: History) -> Iterator[HistoryReader]:
        yield cls(history)
