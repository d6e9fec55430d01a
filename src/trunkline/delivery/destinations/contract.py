"""What every kind of destination guarantees. One contract suite tests every kind, and kills it at each statement.

Rules
 T1  The rows of a flush, the position, its mark and the token change together, in one transaction of the destination,
     or not at all.
 T2  Inside that transaction, before the first write, ``core/fence.py`` decides: a stored token above this one is
     ``Fenced``; a step that is stored already succeeds, and writes nothing; a position or mark other than the expected
     one is ``PositionMoved``; a flush over rows of another source is ``DestinationHalted``. See ``judged``.
 T3  Deletes first, then rows: every key of the staged rows is removed, then REPLACE and INSERT rows are written
     (mirror). In mode append there are only INSERT rows, and nothing is looked up or removed.
 T4  An INSERT whose key the table holds is a duplicate key: ``DuplicateKey`` and nothing written (policy halt), or
     counted (policy warn).
 T5  A seed replaces the whole table and the position in one transaction, whatever its source and position, but only if
     the position is the one that the seed was planned from (T2). A table without a position record is replaced only
     with ``replace_existing``.
 T6  A flush with ``steps`` renames, drops, adds and widens columns as the source did, in the same transaction; rows
     that are older than a column get its default. The table must have the columns that the source had at its position.
     Without steps, columns that the source gained or widened are added or widened. Any other difference is
     ``SchemaMismatch`` that names it, and nothing is written.
 T7  Errors tell the outcome: ``Refused`` errors mean that nothing changed; ``OutcomeUnknown`` that it may have.
 T8  A value that UNCHANGED_COLUMN of a staged row names is not stated: it stays as the table has it, in the row whose
     key ORIGIN_COLUMN has. A row that is not there is ``DestinationHalted``, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa
from msgspec import Struct

from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide
from trunkline.delivery.changes.column_steps import ColumnSteps, unknown_changes
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.errors import DestinationHalted, Fenced, PositionMoved, SchemaMismatch


class Standing(Struct, frozen=True):
    """The position record of a destination."""

    position: int  # the version that it holds; 0: nothing was delivered yet
    token: int  # of the deliverer that wrote last
    source: str  # identity of the source table
    mark: str = ""  # of that version (see ``lineage``); empty: unknown


class Flush(Struct, frozen=True):
    """The net changes of one window for one destination."""

    expected: int  # the stored position that it was planned from
    through: int
    token: int
    source: str
    columns: Columns  # of the source, as of `through`
    key: tuple[str, ...]
    mode: Mode = "mirror"
    duplicates: DuplicatePolicy = "halt"
    mark: str = ""  # of the stored position
    through_mark: str = ""
    steps: ColumnSteps | None = None  # from the columns at `expected` to these; None: the source cannot tell


class Seed(Struct, frozen=True):
    """The whole content of one destination, as of one version."""

    through: int
    token: int
    source: str
    columns: Columns
    key: tuple[str, ...]
    mode: Mode = "mirror"
    replace_existing: bool = False
    expected: int = 0  # the stored position that it was planned from; 0: there was none
    mark: str = ""  # of the stored position
    through_mark: str = ""


class Applied(Struct, frozen=True):
    """The result of a flush or seed."""

    position: int
    removed: int = 0  # rows
    written: int = 0  # rows
    duplicates: int = 0  # INSERTs whose key the table held, or that shared a key (policy warn)
    missing: int = 0  # keys to remove or replace that the table did not hold: another writer changed it
    already: bool = False  # the step was done before; nothing was written
    reshaped: str = ""  # what was done to the columns, if the source's steps were followed, and what it cost


class Destination(Protocol):
    """One table. Opening it does not connect; every call may raise ``Unreachable``."""

    def standing(self) -> Standing | None:
        """The position record; ``None`` without one, or without a table."""
        ...

    def columns(self) -> Columns | None:
        """The table's columns in the shared vocabulary; ``None`` without a table."""
        ...

    def flush(self, flush: Flush, staged: Iterable[pa.RecordBatch]) -> Applied:
        """Apply staged rows: batches of ``OP_COLUMN`` and every source column; at most one row per key (mirror).

        They may have the columns of T8 as well.
        """
        ...

    def seed(self, seed: Seed, rows: Iterable[pa.RecordBatch]) -> Applied:
        """Replace the table: batches of the source's columns."""
        ...

    def rows(self) -> tuple[Standing, Iterator[pa.RecordBatch]]:
        """The position record and all rows, of one snapshot; batches have the source's column names."""
        ...

    def retire(self) -> None:
        """Remove the position record; the table and its rows stay."""
        ...

    def close(self) -> None: ...


# ------------------------------------------------------------------------------------------------- what kinds share


def checked_steps(flush: Flush, held: Columns, what: str) -> ColumnSteps | None:
    """The steps that a table with these columns has to follow (T6); ``None``: none, or the source cannot tell."""
    if flush.steps is None:
        return None
    if problems := unknown_changes(flush.steps, held):
        raise SchemaMismatch(
            f"{what} does not have the columns that its source had at {flush.expected}: {'; '.join(problems)}; undo "
            "the change of the table and resume, or reseed it"
        )
    return None if flush.steps.unchanged else flush.steps


def reached(step: Flush | Seed) -> Standing:
    """The position record after a step."""
    return Standing(step.through, step.token, step.source, step.through_mark)


def judged(held: Standing | None, step: Flush | Seed, what: str) -> Applied | None:
    """The decision of T2: ``None`` if a step may proceed, a result if it was done before.

    ``held`` has position 0 if there is a record but no table. ``what`` names the destination.
    """
    now = StoredPosition() if held is None else StoredPosition(held.position, held.token, held.mark, held.source)
    replaces = isinstance(step, Seed)
    wanted = PlannedWrite(
        step.expected, step.mark, step.through, step.through_mark, step.token, None if replaces else step.source
    )
    match decide(now, wanted):
        case Decision.FENCED:
            raise Fenced(now.token, step.token)
        case Decision.FOREIGN:
            raise DestinationHalted(
                f"{what} holds rows of {now.source}, not of {step.source}; choose another table, or reseed the "
                "destination to replace them"
            )
        case Decision.MOVED:
            raise PositionMoved(now.position, step.expected)
        case Decision.ALREADY:
            return Applied(now.position, already=True)
        case Decision.PROCEED:
            return None


def stored_mark(standing: Standing) -> str:
    """A mark with its position, as text: an older release moves the position without the mark."""
    return f"{standing.position}:{standing.mark}" if standing.mark else ""


def mark_of(position: int, stored: str | None) -> str:
    """The mark of a position; empty if the stored one belongs to another position."""
    at, _, mark = (stored or "").partition(":")
    return mark if at == str(position) else ""
