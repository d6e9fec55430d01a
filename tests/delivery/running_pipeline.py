"""Whole deliverers for tests: planner, control store and Spark jobs, over one destination of each kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import SparkSession

from delivery.pipe import KINDS, address_of
from delivery.pipe_sources import LakeSource
from postgres_server import PostgresServer
from trunkline.core.delivery_events import Stopped
from trunkline.delivery.config.tree import (
    ControlConfig,
    DestinationConfig,
    FlushConfig,
    Pipeline,
    ReadingConfig,
    RetryConfig,
    RoutingConfig,
)
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.delivery.deliverer.host import Deliverer
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.deliverer.views import DestinationView
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.work import TaskPipeline
from trunkline.destination_suite.place import Table, content

TENANTS: Final = {"acme": "ducklake", "bolt": "delta", "cargo": "postgres"}
PATIENCE_S: Final = 120.0  # on a loaded machine
LOOK_AGAIN_S: Final = 0.05
SMALL_BYTES: Final = 2**30


class Business:
    """A source and its destinations, one for each kind."""

    def __init__(self, spark: SparkSession, folder: Path, server: PostgresServer, *, catalog: str = "") -> None:
        self.source = LakeSource(folder, catalog=catalog or f"sqlite:{folder / 'source.sqlite'}", inlining=3)
        self.tables: dict[str, Table] = {}
        for tenant, kind in TENANTS.items():
            (folder / tenant).mkdir()
            self.tables[tenant] = Table(KINDS[kind].make(folder / tenant, lambda: server), member=f"orders/{tenant}")
        self._spark = spark
        self._folder = folder
        self._names = count(1)

    # --- configuration ---

    def pipeline(
        self, names: Sequence[str] = tuple(TENANTS), *, store: str = "control", **changed: Mapping[str, Any]
    ) -> Pipeline:
        """``changed``: fields of a destination's configuration that differ."""
        return Pipeline(
            name="orders",
            source=self.source.address,
            routing=RoutingConfig(column="tenant"),
            key=("id",),
            destinations=tuple(replace(self._destination(name), **changed.get(name, {})) for name in names),
            flush=FlushConfig(interval_ms=20),
            retry=RetryConfig(first_ms=50, most_ms=200, breaker_after=3),
            reading=ReadingConfig(poll_ms=20, small_bytes=SMALL_BYTES),
            control=ControlConfig(store=f"sqlite:{self._folder / store}.db", lease_ms=2_000),
        )

    def _destination(self, name: str) -> DestinationConfig:
        return DestinationConfig(
            name=name,
            address=address_of(self.tables[name]),
            values=(name,),
            mode="mirror",
            duplicates="halt",
            seed="scan",
        )

    @contextmanager
    def store(self, name: str = "control") -> Iterator[ControlStore]:
        with closing(open_control_store(f"sqlite:{self._folder / name}.db")) as store:
            yield store

    # --- delivering ---

    def run_once(self, pipeline: Pipeline | None = None) -> Stopped:
        """Everything is brought to the newest version, as far as it can be."""
        with self._deliverer(pipeline or self.pipeline()) as (deliverer, _):
            return deliverer.run(once=True)

    @contextmanager
    def running(self, pipeline: Pipeline | None = None) -> Iterator[Running]:
        """A deliverer in a thread of its own, which is stopped at the end."""
        with self._deliverer(pipeline or self.pipeline()) as (deliverer, observer):
            thread = threading.Thread(target=deliverer.run, name="deliverer")
            thread.start()
            try:
                yield Running(deliverer, observer)
            finally:
                deliverer.stop(drain=False)
                thread.join(PATIENCE_S)
                assert not thread.is_alive()

    @contextmanager
    def _deliverer(self, pipeline: Pipeline) -> Iterator[tuple[Deliverer, Observer]]:
        name = f"deliverer-{next(self._names)}"
        observer = Observer(pipeline.name, name)
        with closing(open_control_store(pipeline.control.store)) as store:
            yield Deliverer(pipeline, self._runner, store, name, observer), observer

    def _runner(self, work: TaskPipeline) -> JobRunner:
        return JobRunner(self._spark, work, SMALL_BYTES)

    # --- what is there ---

    def assert_equal(self, version: int, *names: str, **values: tuple[str, ...]) -> None:
        """Those that are named, or all, hold their part of the source; ``values`` where it is more than their name."""
        rows = self.source.rows(version)
        for name in names or tuple(self.tables):
            wanted = [row for row in rows if row["tenant"] in values.get(name, (name,))]
            assert content(self.tables[name].held()) == content(wanted), name

    def traces(self) -> dict[str, object]:
        return {name: table.trace() for name, table in self.tables.items()}

    def position(self, name: str) -> int:
        """As stored in the destination."""
        with closing(self.tables[name].open()) as opened:
            standing = opened.standing()
        return 0 if standing is None else standing.position


class Running(Struct, frozen=True):
    """A deliverer that delivers."""

    deliverer: Deliverer
    observer: Observer

    def destination(self, name: str) -> DestinationView | None:
        return next((each for each in self.observer.snapshot().destinations if each.name == name), None)

    def wait_for(self, version: int, *names: str) -> None:
        """Until these, or all, have everything up to a version."""

        def there() -> bool:
            known = {each.name: each.effective or 0 for each in self.observer.snapshot().destinations}
            return bool(known) and all(known.get(name, 0) >= version for name in names or known)

        wait_until(there, lambda: str(self.observer.snapshot()))


def wait_until(condition: Callable[[], bool], otherwise: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE_S:.0f} s: {otherwise()}"
        time.sleep(LOOK_AGAIN_S)
