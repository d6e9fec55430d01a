"""What tasks need to know, as values that are sent to Spark's workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from msgspec import Struct

from trunkline.core.delivery_messages import JobMember
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.history import versioned, versioned_steps
from trunkline.delivery.changes.net import Routes
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.delivery.changes.shape import Shape
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.address_rules import address_of, home_of, place_of, shared_place
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.config.tree import Pipeline
from trunkline.delivery.destinations.contract import MemberTables, TableStep
from trunkline.delivery.shapes.shaped_table import ShapedTable, shaped_table
from trunkline.delivery.sources.contract import Source, SourceTable


class Policy(NamedTuple):
    """How rows are settled: as they arrive (append), or by key."""

    mode: Mode
    warns: bool  # rows that share a key are counted, else they are an error


class TableWork(Struct, frozen=True, dict=True):
    """One table of a window or of a state, with its settings."""

    name: str  # empty if the pipeline has one table
    columns: Columns  # of the source
    key: tuple[str, ...]  # names in the destinations; also of `routing`, which may be a name of the source, too
    routing: str = ""  # empty: none, every row has the route NULL
    identity: str = ""
    mode: Mode | None = None  # None: the destination's; also of `duplicates`
    duplicates: DuplicatePolicy | None = None
    shape: Shape | None = None
    whole: bool = False  # it is read whole: it joins, or was emptied; False: as far as the survey knows
    joins: bool = False  # it is new in the window; for a seed, every table is
    late: bool = False  # it joins though it is not new in the source: it is read as of the window's end
    steps: ColumnSteps | None = None  # of the columns, over the window; None: the source cannot tell
    altered: bool = False  # its columns change in the window: every member follows, rows or not
    mark: str = ""  # of the version at which the window ends, as this table has it
    size_bytes: int = 0  # of its part of the window, about
    exact: bool = True  # of a large window: removed rows have the values that a filter needs

    @cached_property
    def shaped(self) -> ShapedTable:
        """The table as destinations see it. Raises ``ConfigError`` if it cannot have this shape."""
        return shaped_table(self.shape, self.columns, self.key, self.routing)

    @property
    def for_everyone(self) -> bool:
        """Whether every member is written, also one without rows."""
        return self.whole or self.joins or self.altered


class TaskDestination(Struct, frozen=True):
    """One destination as a task sees it."""

    name: str
    address: Address  # its texts may hold {table} and {schema}
    values: tuple[str | None, ...] | None  # routing values of its rows; None: it takes every row
    mode: Mode = "mirror"
    duplicates: DuplicatePolicy = "halt"
    replace_existing: bool = False
    seed_from: str = ""  # the destination that a seed copies; empty: none

    def policy(self, table: TableWork) -> Policy:
        mode = table.mode or self.mode
        return Policy(mode, mode != "append" and (table.duplicates or self.duplicates) == "warn")

    def replaces(self, table: TableWork, *, whole: bool) -> bool:
        """Whether its rows replace what the destination holds, if it was read whole. Mode append keeps what it has."""
        return whole and (table.joins or self.policy(table).mode != "append")

    def step(self, table: TableWork, *, whole: bool, exact: bool = True) -> TableStep:
        """What a flush or a seed does to one of its tables; ``exact``: it has every key that is removed."""
        shaped, mode = table.shaped, table.mode or self.mode
        steps = None if whole or table.steps is None else shaped.steps(table.steps)
        replaces = self.replaces(table, whole=whole)
        return TableStep(
            table=table.name,
            address=address_of(self.address, table.name),
            columns=versioned(shaped.columns) if mode == "history" else shaped.columns,
            key=shaped.key,
            mode=mode,
            duplicates=table.duplicates or self.duplicates,
            replaces=replaces,
            steps=versioned_steps(steps) if mode == "history" and steps is not None else steps,
            counts_missing=exact,
        )


class ColumnGuard(Protocol):
    """Refuses what would show a column that the pipeline hides. Calls raise a ``TrunklineError`` then."""

    def begin(self, version: int) -> None:
        """Before a window that begins there."""
        ...

    def check(self, tables: Iterable[SourceTable], version: int) -> None:
        """Before these tables are delivered as of a version."""
        ...


class TaskPipeline(Struct, frozen=True, dict=True):
    """The part of a pipeline that changes only with its configuration; sent once."""

    name: str
    source: Source
    targets: tuple[TaskDestination, ...]
    rules: Pipeline | None = None  # the settings of its tables are made from it, by the driver: tasks have none
    guard: ColumnGuard | None = None  # of a deliverer's driver
    living: frozenset[str] = frozenset()  # see ``MemberTables``

    @cached_property
    def index(self) -> dict[str, int]:
        return {target.name: place for place, target in enumerate(self.targets)}

    @cached_property
    def hands(self) -> dict[str, int]:
        """A number for each destination. One task writes those with the same number: a catalog has one writer."""
        known: dict[str, int] = {}
        return {
            target.name: known.setdefault(shared_place(target.address) or f"of {target.name}", len(known))
            for target in self.targets
        }

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of each destination's place: members of one task and place are written in one transaction."""
        known: dict[str, int] = {}
        return {
            target.name: known.setdefault(place_of(target.address) or f"of {target.name}", len(known))
            for target in self.targets
        }

    @cached_property
    def routes(self) -> Routes:
        by_value: dict[str | None, tuple[int, ...]] = {}
        for place, target in enumerate(self.targets):
            for value in target.values or ():
                by_value[value] = (*by_value.get(value, ()), place)
        return Routes(by_value, tuple(place for place, target in enumerate(self.targets) if target.values is None))

    def numbered(self, members: Iterable[JobMember]) -> dict[int, JobMember]:
        return {self.index[member.destination]: member for member in members}

    def by_policy(self, table: TableWork, places: Collection[int]) -> dict[Policy, set[int]]:
        """Destinations, grouped by how the rows of a table are settled for them."""
        found: dict[Policy, set[int]] = {}
        for place in places:
            found.setdefault(self.targets[place].policy(table), set()).add(place)
        return found

    def member(self, target: TaskDestination) -> str:
        return f"{self.name}/{target.name}"

    def tables_of(self, target: TaskDestination, names: Sequence[str]) -> MemberTables:
        """What identifies a destination; ``names``: the tables of the source, as far as they are known."""
        tables = tuple(address_of(target.address, name) for name in names)
        return MemberTables(self.member(target), home_of(target.address), tables, self.living)


class Portion(Struct, frozen=True):
    """One task's part of a group: these members, and only their rows."""

    number: int
    members: tuple[JobMember, ...]
    counts_unrouted: bool  # this one also reads unrouted rows, to count them


class FlushWork(Struct, frozen=True):
    """A window for a group of destinations."""

    window: Window
    tables: tuple[TableWork, ...]  # that have anything to do
    identity: str  # of the source
    # The others, if some member has tables that commit alone: it names all of them. Else one of them, which identifies
    # a member without rows (T9).
    quiet: tuple[TableWork, ...] = ()
    stamp: bool = False  # every member is written, rows or not
    mark: str = ""  # of the version at which the window ends
    left: tuple[str, ...] = ()  # tables that the source no longer has
    drops: bool = False  # those are dropped, else kept


class SeedWork(Struct, frozen=True):
    """The state at a version for a group of destinations; ``nothing``: only the position, with no rows."""

    through: int
    tables: tuple[TableWork, ...]
    identity: str
    nothing: bool = False
    mark: str = ""  # of the version


Work = FlushWork | SeedWork
