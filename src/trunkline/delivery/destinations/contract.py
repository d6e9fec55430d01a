"""What every kind of destination promises.

One contract suite holds every kind to it, with the process killed at each statement.

Rules
 T1  The rows of a flush, the position, its mark and the token change together, in one transaction of the destination,
     or not at all.
 T2  Inside that transaction, before anything is written, ``core/fence.py`` decides: a stored token above mine is
     ``Fenced``; what is stored already is success, and nothing is written; another position or mark than the expected
     one is ``PositionMoved``; a flush over rows of another source is ``DestinationHalted``. See ``judged``.
 T3  Deletes first, then rows: every key of the staged rows is removed, then REPLACE and INSERT rows are written
     (mirror). In mode append there are only INSERT rows, and nothing is looked up or removed.
 T4  An INSERT whose key is held is a duplicate key: ``DuplicateKey`` and nothing written (policy halt), or counted
     (policy warn).
 T5  A seed replaces the whole table and the position in one transaction, whatever source it is of and however far it
     is, but only if it is the one that the seed was planned from (T2). A table without our position record is replaced
     only when ``replace_existing`` says so.
 T6  Columns that the source gained or widened are added or widened in the same transaction; any other difference is
     ``SchemaMismatch`` that names it, and nothing is written.
 T7  A failure says what is known: ``Refused`` errors mean that nothing changed; ``OutcomeUnknown`` that it may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

import pyarrow as pa
from msgspec import Struct

from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide
from trunkline.delivery.changes.columns import Columns
from trunkline.errors import DestinationHalted, Fenced, PositionMoved

Mode = Literal["mirror", "append"]
DuplicatePolicy = Literal["halt", "warn"]


class Standing(Struct, frozen=True):
    """What a destination itself says about how far it is."""

    position: int  # complete up to here; 0: nothing was delivered yet
    token: int  # of the deliverer that wrote last
    source: str  # identity of the source table whose rows these are
    mark: str = ""  # of that version (see ``lineage``); empty: it is not known


class Flush(Struct, frozen=True):
    """One atomic step of one destination."""

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
    mark: str = ""  # of that
    through_mark: str = ""


class Applied(Struct, frozen=True):
    """What a flush or seed did."""

    position: int
    removed: int = 0  # rows taken away
    written: int = 0  # rows put in
    duplicates: int = 0  # INSERTs whose key was held, or that shared a key (policy warn)
    missing: int = 0  # keys to be removed or replaced that were not there: somebody else changed the table
    already: bool = False  # the position was there already; nothing was written


class Destination(Protocol):
    """One table. Opening it does not connect; every call may raise ``Unreachable``."""

    def standing(self) -> Standing | None:
        """The stored position, or ``None`` where there is no record of it (no table, or not ours)."""
        ...

    def columns(self) -> Columns | None:
        """The table's columns in the shared vocabulary, ``None`` without a table."""
        ...

    def flush(self, flush: Flush, staged: Iterable[pa.RecordBatch]) -> Applied:
        """Apply settled rows: batches of ``OP_COLUMN`` and every source column; at most one row per key (mirror)."""
        ...

    def seed(self, seed: Seed, rows: Iterable[pa.RecordBatch]) -> Applied:
        """Replace the table: batches of the source's columns."""
        ...

    def rows(self) -> tuple[Standing, Iterator[pa.RecordBatch]]:
        """The standing and all rows, of one and the same moment; batches have the source's column names."""
        ...

    def retire(self) -> None:
        """Forget the position record; the table and its rows stay, and belong to nobody."""
        ...

    def close(self) -> None: ...


# ------------------------------------------------------------------------------------------------- what kinds share


def reached(step: Flush | Seed) -> Standing:
    """Where a destination stands after a step."""
    return Standing(step.through, step.token, step.source, step.through_mark)


def judged(held: Standing | None, step: Flush | Seed, what: str) -> Applied | None:
    """What a step finds before it writes anything (T2): ``None`` if it may go on, an answer if it was done before.

    ``held`` has position 0 where there is a record but no table. ``what`` names the destination.
    """
    now = StoredPosition() if held is None else StoredPosition(held.position, held.token, held.mark, held.source)
    replaces = isinstance(step, Seed)
    asked = PlannedWrite(
        step.expected, step.mark, step.through, step.through_mark, step.token, None if replaces else step.source
    )
    match decide(now, asked):
        case Decision.FENCED:
            raise Fenced(now.token, step.token)
        case Decision.FOREIGN:
            raise DestinationHalted(
                f"{what} holds the rows of {now.source}, not of {step.source}; choose another table, or reseed the "
                "destination to have them replaced"
            )
        case Decision.MOVED:
            raise PositionMoved(now.position, step.expected)
        case Decision.ALREADY:
            return Applied(now.position, already=True)
        case Decision.PROCEED:
            return None


def stored_mark(standing: Standing) -> str:
    """A mark as a text to be stored: an older release moves the position and leaves it behind."""
    return f"{standing.position}:{standing.mark}" if standing.mark else ""


def mark_of(position: int, stored: str | None) -> str:
    """The mark of a position, empty if what is stored is that of another one."""
    at, _, mark = (stored or "").partition(":")
    return mark if at == str(position) else ""
