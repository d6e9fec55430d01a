"""The processes of a scenario of delivery: the lake, places, tables that commit alone, and deliverers."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.check.delivery_rows import SourceScript
from trunkline.check.disks import NoDisk
from trunkline.check.scenario import Boot, Operation, ProcessSpec
from trunkline.check.scenarios.delivery_lone import LoneImage, LoneTables
from trunkline.check.scenarios.delivery_place import Place, PlaceKind, TableImage
from trunkline.check.scenarios.delivery_work import DelivererHost, Layout, Worker
from trunkline.check.scenarios.delivery_world import (
    LAKE,
    Advance,
    ControlEvents,
    ControlStore,
    Expire,
    ReplaceSource,
    ReseedRequest,
    ScriptedSource,
)
from trunkline.core.delivery_messages import Planned
from trunkline.core.effects import Message
from trunkline.core.planner import Planner
from trunkline.core.planner_tracks import PlannerConfig
from trunkline.core.role import Role


def operations(role: str, *requests: Message) -> tuple[Operation, ...]:
    return tuple(Operation(role, request) for request in requests)


def lake(
    script: SourceScript,
    steps: tuple[Advance | ReplaceSource, ...],
    names: tuple[str, ...],
    deliverers: tuple[str, ...],
) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"source": ScriptedSource(script), "control": ControlStore(names, deliverers)}

    return ProcessSpec(LAKE, start, NoDisk(), None, operations("source", *steps))


def control_events(events: tuple[Expire | ReseedRequest, ...]) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"events": ControlEvents(events)}

    return ProcessSpec("events", start, NoDisk(), None)


def place(name: str, images: Mapping[str, TableImage], kind: PlaceKind) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        return {"place": Place(dict(images), kind)}

    return ProcessSpec(name, start, NoDisk(), None)


def lone_tables(name: str, image: TableImage, keys: tuple[str, ...], troubles: int) -> ProcessSpec:
    """``image``: of all tables together."""

    def start(boot: Boot) -> Mapping[str, Role]:
        rows = [tuple(row for row in image.rows if row.key in each) for each in keys]
        images = tuple(LoneImage(TableImage(each, image.position, image.token, image.seeded)) for each in rows)
        return {"place": LoneTables(name, images, troubles)}

    return ProcessSpec(name, start, NoDisk(), None)


def deliverer(
    name: str,
    script: SourceScript,
    planned: tuple[Planned, ...],
    config: PlannerConfig,
    asked: tuple[Operation, ...],
    layout: Layout,
    *,
    looks: bool,
) -> ProcessSpec:
    def start(boot: Boot) -> Mapping[str, Role]:
        worker = Worker(boot.start, script, planned, layout, looks=looks)
        return {"planner": Planner(config), "worker": worker, "host": DelivererHost(planned, layout)}

    return ProcessSpec(name, start, NoDisk(), None, asked)
