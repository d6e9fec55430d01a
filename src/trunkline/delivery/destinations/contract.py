"""What every kind of destination promises.

One contract suite holds every kind to it, with the process killed at each statement.

Rules
 T1  The rows of a flush, the position and the token change together, in one transaction of the destination, or not at
     all.
 T2  Inside that transaction, before anything is written: a stored token above mine is ``Fenced``; a stored position
     at or past ``through`` is done already (success, nothing written); a stored position other than ``expected`` is
     ``PositionMoved``.
 T3  Deletes first, then rows: every key of the staged rows is removed, then REPLACE and INSERT rows are written
     (mirror). In mode append there are only INSERT rows, and nothing is looked up or removed.
 T4  An INSERT whose key is held is a duplicate key: ``DuplicateKey`` and nothing written (policy halt), or counted
     (policy warn).
 T5  A seed replaces the whole table and the position in one transaction. A table without our position record is
     replaced only when ``replace_existing`` says so.
 T6  Columns that the source gained or widened are added or widened in the same transaction; any other difference is
     ``SchemaMismatch`` that names it, and nothing is written.
 T7  A failure says what is known: ``Refused`` errors mean that nothing changed; ``OutcomeUnknown`` that it may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.columns import Columns

Mode = Literal["mirror", "append"]
DuplicatePolicy = Literal["halt", "warn"]


class Standing(Struct, frozen=True):
    """What a destination itself says about how far it is."""

    position: int  # complete up to here; 0: nothing was delivered yet
    token: int  # of the deliverer that wrote last
    source: str  # identity of the source table whose rows these are


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


class Seed(Struct, frozen=True):
    """The whole content of one destination, as of one version."""

    through: int
    token: int
    source: str
    columns: Columns
    key: tuple[str, ...]
    mode: Mode = "mirror"
    replace_existing: bool = False


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
