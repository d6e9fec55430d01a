"""Tables of a real lake, delivered to Delta tables by a real deliverer with its control store."""

from __future__ import annotations

from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from delivery.direct_delivery import Lake
from delivery.here_spark import Here
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.config.tree import DestinationConfig, Pipeline, RetryConfig, RoutingConfig, TableConfig
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.delivery.deliverer.assembly import pipeline_source, task_pipeline
from trunkline.delivery.deliverer.host import Deliverer
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.runner import JobRunner

NUMBERS = count()
CUSTOMERS = "CREATE TABLE lake.{} (id BIGINT, tenant VARCHAR, email VARCHAR)"


class Shop:
    """Jobs run in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = Lake(
            folder,
            CUSTOMERS.format("customers"),
            "CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, price DOUBLE)",
            "INSERT INTO lake.customers VALUES (1, 'acme', 'ann@example.org')",
            "INSERT INTO lake.orders VALUES (1, 'acme', 1.5)",
        )

    def pipeline(self, *names: str, **settings: Any) -> Pipeline:
        destinations = tuple(
            DestinationConfig(
                name=name,
                address=DeltaAddress(f"{self.folder}/{name}/{{table}}"),
                values=("acme",),
                mode="mirror",
                duplicates="halt",
                seed="scan",
            )
            for name in names or ("acme",)
        )
        return Pipeline(
            name="shop",
            source=self.lake.address,
            routing=RoutingConfig(column="tenant"),
            tables=settings.pop("tables", (TableConfig(table="main.*"),)),
            key=("id",),
            destinations=destinations,
            retry=RetryConfig(first_ms=20, most_ms=40, breaker_after=3),
            **settings,
        )

    def run(self, pipeline: Pipeline, *, reseed: bool = False) -> str:
        """Brings everything to the newest version; returns the errors."""
        with self.store() as store:
            if reseed:
                store.desired_states.request_reseed("shop", [each.name for each in pipeline.destinations])
            name = f"one-{next(NUMBERS)}"
            observer = Observer("shop", name)
            runner = lambda work: JobRunner(Here(), work, 2**60)  # type: ignore[arg-type]  # noqa: E731
            deliverer = Deliverer(pipeline, runner, store, name, observer)
            deliverer.run(once=True)
            return "\n".join(
                each.status.error for each in store.destinations("shop") if each.configured and each.status
            )

    def store(self) -> closing[ControlStore]:
        return closing(open_control_store(f"sqlite:{self.folder}/control.db"))

    def held(self, pipeline: Pipeline, name: str = "acme") -> str:
        """All that a destination shows of its customers."""
        work = task_pipeline(pipeline, pipeline_source(pipeline), pipeline.destinations)
        target = work.targets[work.index[name]]
        with closing(open_place(target.address)) as place:
            _, [rows, _], end = place.rows(work.tables_of(target, ["main.customers", "main.orders"]))
            try:
                return str([batch.to_pylist() for batch in rows])
            finally:
                end()
