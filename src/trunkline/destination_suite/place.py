"""What the contract suite needs of a kind of destination: a ``Kind``, which makes a ``Site`` for each test.

A ``Site`` is where a place is, or will be: nothing of it exists yet. It pickles, so that a child process opens the same
one. Tests that need one member with one table use ``Table``, which drives a site's place.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, DuplicatePolicy, Mode, Op
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.destinations.contract import (
    Applied,
    Batches,
    LeavingTable,
    MemberStep,
    MemberTables,
    MemberWrite,
    Place,
    Standing,
    TableStep,
)
from trunkline.errors import TrunklineError

Row = Mapping[str, Any]
Change = tuple[Op, Row]
Watch = Callable[[str], None]  # called with each statement just before it runs, and with "done" after the last one
MEMBER: Final = "shop/acme"


class Site(Protocol):
    """Where a place is, or will be. A test calls a table by a name of its own; ``address`` says where that table is.

    The tables of one site are in one place. Tests run one after another, but some kinds share a server: choose
    ``home``, and the schema of the addresses, so that no two sites see each other's tables and records.
    """

    @property
    def home(self) -> str:
        """The schema of the table of records; empty for Delta."""
        ...

    def open(self, watch: Watch | None = None) -> Place:
        """A new place object; ``watch`` is called before every statement that it sends."""
        ...

    def address(self, name: str) -> Address:
        """Of a table; the same for the same name."""
        ...

    def held(self, name: str) -> list[dict[str, Any]] | None:
        """The rows of a table, read without the place's class; ``None`` if there is no table."""
        ...

    def held_together(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]] | None]:
        """The rows of each table. What another process commits meanwhile may be in some of them only."""
        ...

    def trace(self) -> object:
        """A value that changes with everything that is written here (snapshots, versions, log positions)."""
        ...

    def make_foreign(self, name: str) -> None:
        """Create a table that was not delivered: one column ``id`` BIGINT and one row, 99."""
        ...

    def drop(self, name: str) -> None:
        """Drop a table as another program would: records stay."""
        ...

    def lost(self) -> Site:
        """The same kind of place where no server answers: every call is ``Unreachable``."""
        ...


class SiteOfReleases(Site, Protocol):
    """Where older releases of Trunkline left records, too: only of kinds that do not lack ``older_records``."""

    def make_old_record(self, name: str, standing: Standing, *, marks: bool) -> None:
        """Replace all records of members here by what an older release would have left for one table: its own record
        (DuckLake ``_trunkline_<table>``, PostgreSQL a row of ``_trunkline_positions``), which says ``standing``.
        ``marks``: that release stored marks, else its record has no column for them. The table itself stays."""
        ...

    def old_token(self, name: str) -> int | None:
        """The token in the record of an older release for this table; ``None`` without one."""
        ...

    def old_source(self, name: str) -> str:
        """Whose rows that record names; empty: there is none but the present one."""
        ...


Part = Literal["history", "column_steps", "repairs", "older_records"]  # of the suite


class Kind(Protocol):
    """A kind of place."""

    @property
    def name(self) -> str: ...

    @property
    def lacks(self) -> frozenset[Part]:
        """What it does not have, as its address says; ``older_records``: no release of Trunkline had this kind before
        there were members. These parts of the suite are left out."""
        ...

    @property
    def widens(self) -> bool:
        """Whether a column's type can be widened within a flush."""
        ...

    @property
    def adds_lists(self) -> bool:
        """Whether a column of lists can be added to a table that exists."""
        ...

    @property
    def commits_alone(self) -> bool:
        """Whether each table of a member commits alone (T10), as those of Delta do; kinds of other packages do not."""
        ...

    @property
    def server_fixture(self) -> str:
        """The name of a fixture of your tests that ``make`` needs, such as a running server; empty: none."""
        ...

    def make(self, folder: Path, server: Callable[[], Any], /) -> Site:
        """A new site; ``folder`` is empty, ``server()`` gives the value of the fixture."""
        ...


Test = TypeVar("Test", bound=Callable[..., None])


def needs(*parts: Part) -> Callable[[Test], Test]:
    """Marks a test that only kinds with all these parts can pass."""

    def marked(test: Test) -> Test:
        test.needs = frozenset(parts)  # type: ignore[attr-defined]
        return test

    return marked


# ------------------------------------------------------------------------------------------------ steps of members


class Plan(Struct, frozen=True):
    """A flush or a seed of one member, and what it does to each of its tables."""

    through: int
    token: int
    source: str
    columns: Columns
    key: tuple[str, ...]
    expected: int = 0
    mode: Mode = "mirror"
    duplicates: DuplicatePolicy = "halt"
    replaces: bool = False
    steps: ColumnSteps | None = None
    mark: str = ""
    through_mark: str = ""
    ahead: int = 0
    seeds: bool = False
    replace_existing: bool = False
    counts_missing: bool = True
    discards: bool = False
    repairs: bool = False

    def table(self, site: Site, name: str) -> TableStep:
        return TableStep(
            name,
            site.address(name),
            self.columns,
            self.key,
            self.mode,
            self.duplicates,
            self.replaces or self.seeds,
            self.steps,
            self.counts_missing,
            self.discards,
        )

    def member(
        self, site: Site, member: str, tables: Sequence[TableStep], leaving: Sequence[LeavingTable] = ()
    ) -> MemberStep:
        return MemberStep(
            member,
            site.home,
            self.expected,
            self.through,
            self.token,
            self.source,
            tuple(tables),
            tuple(leaving),
            self.mark,
            self.through_mark,
            self.ahead,
            self.seeds,
            self.replace_existing,
            repairs=self.repairs,
        )


Rows = Sequence[Row] | Sequence[Change]  # rows of a table step with ``replaces``, or changes


class Doing(NamedTuple):
    """A ``MemberWrite`` that pickles."""

    step: MemberStep
    rows: Mapping[str, Rows]

    def write(self) -> MemberWrite:
        tables = {table.table: table for table in self.step.tables}
        return MemberWrite(self.step, {name: _again(tables[name], rows) for name, rows in self.rows.items()})


def _again(table: TableStep, rows: Rows) -> Batches:
    if table.replaces:
        return lambda: plain(table.columns, rows)  # type: ignore[arg-type]
    return lambda: staged(table.columns, table.key, rows)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------- a member with one table


@dataclass(frozen=True)
class Table:
    """One table of one member."""

    site: Site
    name: str = "orders"
    member: str = MEMBER

    def open(self, watch: Watch | None = None) -> OneTable:
        return OneTable(self, self.site.open(watch))

    def held(self) -> list[dict[str, Any]] | None:
        return self.site.held(self.name)

    def trace(self) -> object:
        return self.site.trace()

    def make_foreign(self) -> None:
        self.site.make_foreign(self.name)

    def lost(self) -> Table:
        return Table(self.site.lost(), self.name, self.member)

    @property
    def of_member(self) -> MemberTables:
        return MemberTables(self.member, self.site.home, (self.site.address(self.name),))


class OneTable:
    """Drives a place with one member that has one table; an error that is its result is raised."""

    def __init__(self, table: Table, place: Place) -> None:
        self._table = table
        self.place = place
        self._end: Callable[[], None] = lambda: None

    def flush(self, plan: Plan, rows: Iterable[pa.RecordBatch] | Batches) -> Applied:
        table = self._table
        step = plan.member(table.site, table.member, [plan.table(table.site, table.name)])
        batches: Batches = rows if callable(rows) else _listed(rows)
        result = self.place.apply([MemberWrite(step, {table.name: batches})])[table.member]
        if isinstance(result, TrunklineError):
            raise result
        return result

    seed = flush

    def standing(self) -> Standing | None:
        found = self.place.standings([self._table.of_member])[self._table.member]
        if isinstance(found, TrunklineError):
            raise found
        return found

    def columns(self) -> Columns | None:
        return self.place.columns(self._table.site.address(self._table.name))

    def rows(self) -> tuple[Standing, Iterator[pa.RecordBatch]]:
        """The reading ends with the next one, or with ``close``."""
        self._end()
        standing, [batches], self._end = self.place.rows(self._table.of_member)
        return standing, batches

    def retire(self) -> None:
        self.place.retire(self._table.of_member)

    def close(self) -> None:
        self._end()
        self.place.close()


def _listed(rows: Iterable[pa.RecordBatch]) -> Batches:
    batches = list(rows)
    return lambda: iter(batches)


# -------------------------------------------------------------------------------------------------------------- rows


def staged(columns: Columns, key: Sequence[str], changes: Iterable[Change]) -> Iterator[pa.RecordBatch]:
    """Settled rows as they travel: of a removed row only the key, and the end of a version, are filled."""
    schema = arrow_schema(columns)
    listed = list(changes)
    rows = [
        {n: v for n, v in row.items() if op is not Op.REMOVE or n in key or n.startswith("_valid_to")}
        for op, row in listed
    ]
    arrays = [pa.array([int(op) for op, _ in listed], pa.int8())]
    arrays += [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    whole = pa.RecordBatch.from_arrays(arrays, [OP_COLUMN, *schema.names])
    half = len(listed) // 2
    return iter([whole.slice(0, half), whole.slice(half)])


def plain(columns: Columns, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows of a table step with ``replaces``."""
    schema = arrow_schema(columns)
    yield pa.RecordBatch.from_pylist([{n: row.get(n) for n in schema.names} for row in rows], schema)


def content(rows: Iterable[Row] | None) -> list[tuple[tuple[str, str], ...]] | None:
    """Rows in a form that compares whatever their order and however a reader spells a value."""
    if rows is None:
        return None
    return sorted(tuple(sorted((name, _spelled(value)) for name, value in row.items())) for row in rows)


def _spelled(value: object) -> str:
    if isinstance(value, memoryview | bytearray):
        return repr(bytes(value))
    if isinstance(value, uuid.UUID):
        return repr(str(value))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return repr(value.astimezone(datetime.UTC))
    return repr(value)


def column(name: str, type_name: str) -> Column:
    return Column(name, type_name)
