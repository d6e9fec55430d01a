"""What tasks need to know, as values that are sent to Spark's workers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from msgspec import Struct

from trunkline.core.delivery_messages import JobMember
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.net import Routes
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.address_rules import shared_place
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.sources.contract import ReadRequest, Source

Policy = Literal["append", "halt", "warn"]  # how rows are settled: as they arrive, or by key


class TaskDestination(Struct, frozen=True):
    """One destination as a task sees it."""

    name: str
    address: Address
    values: tuple[str | None, ...]  # routing values of its rows
    mode: Mode = "mirror"
    duplicates: DuplicatePolicy = "halt"
    replace_existing: bool = False


class TaskPipeline(Struct, frozen=True, dict=True):
    """The part of a pipeline that changes only with its configuration; sent once."""

    source: Source
    key: tuple[str, ...]
    routing: str
    targets: tuple[TaskDestination, ...]

    @cached_property
    def index(self) -> dict[str, int]:
        return {target.name: place for place, target in enumerate(self.targets)}

    @cached_property
    def shared_places(self) -> dict[str, int]:
        """A number for each destination. One task writes those with the same number, one after another."""
        known: dict[str, int] = {}
        return {
            target.name: known.setdefault(shared_place(target.address) or f"of {target.name}", len(known))
            for target in self.targets
        }

    @cached_property
    def routes(self) -> Routes:
        found: dict[str | None, tuple[int, ...]] = {}
        for place, target in enumerate(self.targets):
            for value in target.values:
                found[value] = (*found.get(value, ()), place)
        return found

    def by_policy(self, places: Iterable[int]) -> dict[Policy, set[int]]:
        """Destinations, grouped by policy."""
        found: dict[Policy, set[int]] = {}
        for place in places:
            target = self.targets[place]
            found.setdefault("append" if target.mode == "append" else target.duplicates, set()).add(place)
        return found

    def request(self, columns: Columns, mark: str = "") -> ReadRequest:
        return ReadRequest(columns, self.key, self.routing, mark)


class Portion(Struct, frozen=True):
    """One task's part of a group: these members, and only their rows."""

    number: int
    members: tuple[JobMember, ...]
    counts_unrouted: bool  # this one also reads unrouted rows, to count them


class FlushWork(Struct, frozen=True):
    """A window for a group of destinations."""

    window: Window
    columns: Columns
    identity: str  # of the source table
    stamp: bool = False
    mark: str = ""  # of the version at which the window ends
    steps: ColumnSteps | None = None  # of the columns, over the window; None: the source cannot tell


class SeedWork(Struct, frozen=True):
    """The state at a version for a group of destinations; ``nothing``: only the position, with no rows."""

    through: int
    columns: Columns
    identity: str
    nothing: bool = False
    mark: str = ""  # of the version
