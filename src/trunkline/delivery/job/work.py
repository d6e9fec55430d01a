"""What a job needs to know, as values that travel to Spark's workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.net import Routes
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.delivery.changes.windows import Window
from trunkline.delivery.config.address_rules import shared_place
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.sources.contract import ReadRequest, Source

ReadPath = Literal["small", "large"]
Policy = Literal["append", "halt", "warn"]  # how rows are settled: as they come, or by key


class Target(Struct, frozen=True):
    """One destination as a task sees it."""

    name: str
    address: Address
    values: tuple[str | None, ...]  # routing values whose rows it takes
    mode: Mode = "mirror"
    duplicates: DuplicatePolicy = "halt"
    replace_existing: bool = False


class Work(Struct, frozen=True, dict=True):
    """The part of a pipeline that changes only with its configuration; sent once."""

    source: Source
    key: tuple[str, ...]
    routing: str
    targets: tuple[Target, ...]

    @cached_property
    def index(self) -> dict[str, int]:
        return {target.name: place for place, target in enumerate(self.targets)}

    @cached_property
    def shared_places(self) -> dict[str, int]:
        """A number for each destination. Those with the same one cannot be written at the same time: they go to one
        task, one after another."""
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
        """Destinations, put together where they are treated alike."""
        found: dict[Policy, set[int]] = {}
        for place in places:
            target = self.targets[place]
            found.setdefault("append" if target.mode == "append" else target.duplicates, set()).add(place)
        return found

    def request(self, columns: Columns, mark: str = "") -> ReadRequest:
        return ReadRequest(columns, self.key, self.routing, mark)


class Portion(Struct, frozen=True):
    """One task's part of a group: these members, and nobody else's rows."""

    number: int
    members: tuple[JobMember, ...]
    counts_unrouted: bool  # this one also reads the rows that no destination takes, to count them


class FlushWork(Struct, frozen=True):
    """A window for a group of destinations."""

    window: Window
    columns: Columns
    identity: str  # of the source table
    stamp: bool = False
    mark: str = ""  # of the version at which the window ends


class SeedWork(Struct, frozen=True):
    """The state at a version for a group of destinations; ``nothing``: only the position, with no rows."""

    through: int
    columns: Columns
    identity: str
    nothing: bool = False
    mark: str = ""  # of the version


class Counted(Struct, frozen=True):
    """What a result leaves out: how much was done for a destination."""

    destination: str
    removed: int = 0
    written: int = 0
    duplicates: int = 0
    missing: int = 0
    took_ms: int = 0


class TaskReport(Struct, frozen=True):
    """What one task tells the driver."""

    results: tuple[Result, ...]
    counted: tuple[Counted, ...]
    unrouted: dict[str | None, int] | None  # None: this task did not count them
    path: ReadPath

    def without_result(self, members: Sequence[JobMember]) -> tuple[JobMember, ...]:
        """Those for which there were no rows."""
        seen = {result.destination for result in self.results}
        return tuple(member for member in members if member.destination not in seen)
