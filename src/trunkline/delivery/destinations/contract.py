"""What every kind of place guarantees. One contract suite tests every kind, and kills it at each statement.

A *place* is where one transaction can commit several tables: a DuckLake catalog, a PostgreSQL database. A *member* is
one destination with all its tables. A Delta table is a place of its own: there each table of a member commits alone.

Rules
 T1  The rows of all tables of a member, its position, mark and token change together, in one transaction of the place,
     or not at all; and members that are written together commit together. (Delta: each table alone, see T10.)
 T2  Inside that transaction, before the first write, ``core/fence.py`` decides for each member, through
     ``core/group_commit.py``: a stored token above its own is ``Fenced``; a step that is stored already succeeds, and
     writes nothing; a position or mark other than the expected one is ``PositionMoved``; a flush over rows of another
     source is ``DestinationHalted``.
 T3  Deletes first, then rows: every key of the staged rows is removed, then REPLACE and INSERT rows are written
     (mirror). In mode append there are only INSERT rows, and nothing is looked up or removed. In mode history nothing
     is removed: a REMOVE row closes the open version of its key (T11).
 T4  An INSERT whose key the table holds is a duplicate key: ``DuplicateKey`` and nothing of the member is written
     (policy halt), or counted (policy warn).
 T5  A table step with ``replaces`` replaces the whole table, whatever it holds. A table that no record of a member
     lists, but that exists, is replaced only with ``replace_existing``; one that another member's record lists is not
     touched: ``DestinationHalted`` names that member.
 T6  A flush with ``steps`` renames, drops, adds and widens columns as the source did, in the same transaction; rows
     that are older than a column get its default. The table must have the columns that the source had at its position.
     Without steps, columns that the source gained or widened are added or widened. Any other difference is
     ``SchemaMismatch`` that names it, and nothing of the member is written.
 T7  Errors tell the outcome: ``Refused`` errors mean that nothing changed; ``OutcomeUnknown`` that it may have. An
     error belongs to one member; the others commit.
 T8  A value that UNCHANGED_COLUMN of a staged row names is not stated: it stays as the table has it, in the row whose
     key ORIGIN_COLUMN has. A row that is not there is ``DestinationHalted``, and nothing of the member is written.
 T9  A member's record is found by its name or, if there is none, by its tables: the one record that lists all of them
     (the destination was renamed), or that of an older release (one table). Tables may have joined since: then the one
     record that lists any of them is its own if it is of the same pipeline, under a name that no destination has any
     more. (Not for Delta: digests do not say of which pipeline they are.) The first write puts it under the member's
     name, and leaves that of an older release so that no older program writes any more, not even with a higher token.
     To retire a member removes no record that may be of another pipeline, whatever tables it lists.
 T10 Where tables commit alone, the first ones may be ahead of the others after a crash. ``Standing.ahead`` says how
     far; the next step ends there, so that every table is level again before any goes on.
 T11 A history table has the columns of ``changes/history.py`` besides those of its source. A REMOVE row has its key and
     the end of the version; it closes the one open version of that key. INSERT rows are added as they are. With
     ``replaces`` its rows are the present state: open versions without an equal row are closed, and rows without an
     equal open version are added; nothing is removed, unless the step ``discards`` the history.
 T12 A repair writes rows of the position that the member has, which stays: only from exactly that position and mark, as
     often as it is requested, with its own token. It has a step for every table, and rows for those that differ. Where
     tables commit alone, each is repaired alone; a table that moved on meanwhile is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from msgspec import Struct

from trunkline.core.fence import PlannedWrite, StoredPosition
from trunkline.core.group_commit import MemberFate, Verdict
from trunkline.delivery.changes.column_steps import ColumnSteps, unknown_changes
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.delivery.config.addresses import Address
from trunkline.errors import (
    DestinationHalted,
    Fenced,
    OutcomeUnknown,
    PositionMoved,
    SchemaMismatch,
    TrunklineError,
    Unreachable,
)

MEMBERS: Final = "_trunkline_members"  # the table of records
# Left in records of older releases. Their programs find themselves fenced, and take a higher token: a store of leases
# may have been lost. Then they find rows that are not theirs, and halt.
FENCED_TOKEN: Final = 2**62
TAKEN_OVER: Final = "a newer release of Trunkline"  # as the source of the rows

Batches = Callable[[], Iterator[pa.RecordBatch]]  # of one table of one member; can be read again


class Standing(Struct, frozen=True):
    """The record of a member."""

    position: int  # the version that it holds; 0: nothing was delivered yet
    token: int  # of the deliverer that wrote last
    source: str  # identity of the source
    mark: str = ""  # of that version (see ``lineage``); empty: unknown
    ahead: int = 0  # some tables are at this later version (T10); 0: none
    at: tuple[int, ...] = ()  # with ``Place.rows``, if ``ahead``: the version of the rows of each table


class TableStep(Struct, frozen=True):
    """What a step does to one table of a member."""

    table: str  # its name in the source; empty if the pipeline has one table
    address: Address  # of this table: nothing is left to fill in
    columns: Columns  # of the destination's table, as of `through`
    key: tuple[str, ...]  # names in the destination's table
    mode: Mode = "mirror"
    duplicates: DuplicatePolicy = "halt"
    replaces: bool = False  # its rows are all rows at `through`, else the net changes
    steps: ColumnSteps | None = None  # from the columns at `expected` to these; None: the source cannot tell
    counts_missing: bool = True  # False: keys to remove or replace need not be there
    discards: bool = False  # with ``replaces``: also of a history, whose versions are removed (T11)

    @property
    def begin_again(self) -> str:
        """What an operator does if the table's columns cannot follow."""
        return "reseed it with --discard-history" if self.mode == "history" else "reseed it"


class LeavingTable(Struct, frozen=True):
    """A table that the source no longer has. It stays as it is, and belongs to no member; ``drop``: it is removed."""

    table: str
    address: Address
    drop: bool


class MemberStep(Struct, frozen=True):
    """A flush or a seed of one member."""

    member: str  # pipeline/destination
    home: str  # the schema of the table of records; empty for Delta
    expected: int  # the stored position that it was planned from; 0: there was none
    through: int
    token: int
    source: str
    tables: tuple[TableStep, ...]
    leaving: tuple[LeavingTable, ...] = ()
    mark: str = ""  # of the stored position
    through_mark: str = ""
    ahead: int = 0  # of the standing that it was planned from
    seeds: bool = False  # it replaces rows of any source; every table step has ``replaces``
    replace_existing: bool = False
    known: tuple[Address, ...] = ()  # tables that it has, and for which there is no table step: they identify it (T9)
    repairs: bool = False  # it writes rows of `expected`, which is `through`, again (T12)
    living: frozenset[str] = frozenset()  # as in ``MemberTables``

    @property
    def write(self) -> PlannedWrite:
        """What the fence decides about."""
        source = None if self.seeds else self.source
        ends = (self.through, self.through_mark)
        return PlannedWrite(self.expected, self.mark, *ends, self.token, source, self.repairs)

    @property
    def found_by(self) -> MemberTables:
        """How its record is found (T9): by tables that it must have already, if the step has any."""
        kept = [*(each.address for each in self.tables if not each.replaces), *self.known]
        return MemberTables(self.member, self.home, tuple(kept or (each.address for each in self.tables)), self.living)

    @property
    def reached(self) -> Standing:
        """The record after it."""
        return Standing(self.through, self.token, self.source, self.through_mark)


class MemberWrite(NamedTuple):
    """A step and its rows, by table; a table without rows may be left out.

    Rows of a table step with ``replaces`` have the columns of the table; others are staged rows: OP_COLUMN and every
    column, at most one row per key (mirror), perhaps the columns of T8.
    """

    step: MemberStep
    rows: Mapping[str, Batches]


class MemberTables(Struct, frozen=True):
    """What identifies a member: its name, where its record is, and the tables it has as far as they are known."""

    member: str
    home: str
    tables: tuple[Address, ...]
    living: frozenset[str] = frozenset()  # all members of its pipeline; empty: not known


class Applied(Struct, frozen=True):
    """The result of a flush or seed of one member, over all its tables."""

    position: int
    removed: int = 0  # rows
    written: int = 0  # rows
    duplicates: int = 0  # INSERTs whose key the table held, or that shared a key (policy warn)
    missing: int = 0  # keys to remove or replace that the table did not hold: another writer changed it
    already: bool = False  # the step was done before; nothing was written
    reshaped: str = ""  # what was done to the columns, if the source's steps were followed, and what it cost

    def plus(self, other: Applied) -> Applied:
        """Of another table of the same member."""
        reshaped = "; ".join(filter(None, (self.reshaped, other.reshaped)))
        counts = (self.removed + other.removed, self.written + other.written, self.duplicates + other.duplicates)
        return Applied(self.position, *counts, self.missing + other.missing, self.already, reshaped)


MemberResult = Applied | TrunklineError


class Place(Protocol):
    """Opening it does not connect; every call may raise ``Unreachable``."""

    def standings(self, members: Sequence[MemberTables]) -> dict[str, Standing | TrunklineError | None]:
        """The records (T9); ``None`` without one. If a table that a record lists is not there, its position is 0."""
        ...

    def columns(self, address: Address) -> Columns | None:
        """A table's columns in the shared vocabulary; ``None`` without a table."""
        ...

    def apply(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        """Write all members in one transaction; a result or an error for each."""
        ...

    def rows(self, member: MemberTables) -> tuple[Standing, list[Iterator[pa.RecordBatch]], Callable[[], None]]:
        """The record, the rows of each of ``member.tables`` in that order, all of one snapshot (Delta: each of its
        own), and a function that ends the reading. Raises ``DestinationHalted`` without a record."""
        ...

    def retire(self, member: MemberTables) -> None:
        """Remove the record; the tables and their rows stay."""
        ...

    def close(self) -> None: ...


# ------------------------------------------------------------------------------------------------- what kinds share


def checked_steps(step: TableStep, held: Columns, expected: int, what: str) -> ColumnSteps | None:
    """The steps that a table with these columns has to follow (T6); ``None``: none, or the source cannot tell."""
    if step.steps is None:
        return None
    if problems := unknown_changes(step.steps, held):
        raise SchemaMismatch(
            f"{what} does not have the columns that its source had at {expected}: {'; '.join(problems)}; undo "
            f"the change of the table and resume, or {step.begin_again}"
        )
    return None if step.steps.unchanged else step.steps


def stored(held: Standing | None) -> StoredPosition:
    """A record as the fence sees it."""
    return StoredPosition() if held is None else StoredPosition(held.position, held.token, held.mark, held.source)


def result_of(
    verdict: Verdict, step: MemberStep, applied: Applied | None, error: TrunklineError | None
) -> MemberResult:
    """The result of one member. ``applied``: what it wrote, ``error``: of its own, or of the commit."""
    held = verdict.held
    match verdict.fate:
        case MemberFate.APPLIED:
            assert applied is not None
            return applied
        case MemberFate.ALREADY:
            return Applied(held.position, already=True)
        case MemberFate.FENCED:
            return Fenced(held.token, step.token)
        case MemberFate.FOREIGN:
            return DestinationHalted(
                f"{step.member} holds rows of {held.source}, not of {step.source}; choose another table, or reseed the "
                "destination to replace them"
            )
        case MemberFate.MOVED:
            return PositionMoved(held.position, step.expected)
        case MemberFate.BUSY:
            return error or Unreachable(f"{step.member}: others write to its place all the time; retrying")
        case MemberFate.UNKNOWN:
            return error or OutcomeUnknown(f"{step.member}: the outcome of a commit is unknown; its position shows it")
        case MemberFate.FAILED:
            assert error is not None
            return error


def record_names(
    members: Iterable[MemberTables], name_of: Callable[[Address], str], records: Mapping[str, Collection[str]]
) -> dict[str, str | None]:
    """The name under which the record of each member is stored (T9); ``None``: it has none.

    ``records``: the tables of every record, by its name; ``name_of``: how records spell a table.
    """
    found: dict[str, str | None] = {each.member: each.member for each in members if each.member in records}
    lacking = [each for each in members if each.member not in found]
    free = [name for name in records if name not in found] if lacking else []
    holders = {table: name for name in free for table in records[name]}  # a table is listed once
    for member in lacking:
        tables = {name_of(address) for address in member.tables}
        holding = {holders[table] for table in tables if table in holders}
        name = holding.pop() if len(holding) == 1 else None
        own = name is not None and (tables <= {*records[name]} or renamed_from(name, member))
        found[member.member] = name if own else None
    return found


def may_retire(member: MemberTables, stored: str, *, all_tables: bool) -> bool:
    """Whether to retire a member removes the record that was found (T9); ``all_tables``: it lists exactly its own."""
    return stored == member.member or (all_tables and renamed_within(stored, member.member))


def renamed_within(stored: str, member: str) -> bool:
    """Whether a record of exactly the tables of a member is its own: an older release's, or of the same pipeline, of
    which each destination has its own tables. That of another pipeline may be in use."""
    return not stored or stored.rpartition("/")[0] == member.rpartition("/")[0]


def renamed_from(stored: str, member: MemberTables) -> bool:
    """Whether a record that lists some tables of a member is its own, of before it was renamed: it is of the same
    pipeline, and no destination there has its name any more (T9)."""
    return (
        bool(stored) and bool(member.living) and renamed_within(stored, member.member) and stored not in member.living
    )


def stored_mark(standing: Standing) -> str:
    """A mark with its position, as text: an older release moves the position without the mark."""
    return f"{standing.position}:{standing.mark}" if standing.mark else ""


def mark_of(position: int, stored: str | None) -> str:
    """The mark of a position; empty if the stored one belongs to another position."""
    at, _, mark = (stored or "").partition(":")
    return mark if at == str(position) else ""
