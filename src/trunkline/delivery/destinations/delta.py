"""Delta tables in directories as a place: each table commits alone (T10).

A flush of one row should not cost a commit of each of thirty tables. So a table whose rows do not change is not
written, and its own position stays behind. One table of a member *leads*: the member's position is the lead's.

Rules
 E1  A step (P -> Q) reads all tables of the member, prepares all rows, and so meets every error of its rows, before it
     commits anything. Each commit is on the version that was read (``delta_table``, D1).
 E2  If a table other than the lead is to change, the lead first records where the tables are *going*: to Q. Then those
     tables commit that do change, in the order of their paths, each with position Q; then tables leave; the lead
     commits last, with position Q and its own rows. If no other table changes, this last commit is all.
 E3  While the lead is going to Q, a flush from P ends at Q, or is ``PositionMoved``. It writes tables that are at or
     before P, and skips those that are at Q.
 E4  A step from 0, as a first seed, and any other seed first puts the lead to position 0, creates it if needed, and
     then writes every table, whatever it holds. Whatever becomes of it, only such a step can follow; and of two of
     them the lead's last commit succeeds only for the one that began last, so that tables are never of both.
 E5  A table that joins is written by its first step with its position, and does not lead. If the lead leaves, the table
     with the first path becomes the lead, by the last commit of the step but one: then the old lead is retired. As
     long as two lead, the one that is behind counts.
 E6  After a failed commit the table is read and judged again: the token or position shows another deliverer, or that
     the commit was done. All else was another writer, such as a compaction: the step begins again. If it never gets
     through it is ``Unreachable``, or ``OutcomeUnknown`` if a table was written (the lead says where they are going).
 E7  A repair (T12) announces nothing: a table that it commits on the version that it read has the rows of P, which are
     those of the member's position as long as that version is the table's newest. The lead comes last, with the token.
 E8  Rows are read of versions that were the newest of all tables at one moment: two reads in a row found the same.

Why this is exact
    Claim: when the lead is at P and going nowhere, every table has the rows of P. A table commits at Q only after the
    lead recorded Q (E2), and no step from P ends elsewhere (E3). The rows of a table in (P, Q] are the same for
    every reader, so it does not matter which process wrote it, and a late process that writes (P -> Q) once more finds
    the table at Q, or at a later position, or does not write it at all. The lead comes to Q only after every table
    that changes in (P, Q] is at Q; the others have the rows of P, which are those of Q.
    Without the record of E2 a late process could write a table for (P, Q'] after the member has gone from P to Q
    without this table, because its changes in (P, Q] cancel out: rows of Q' would stay there without a trace.
    A step of E4 reads all tables before it puts the lead to 0. If its last commit succeeds, no other such step began
    after that; an earlier one cannot have written a table after this one did, because its read was before.
    After a crash, ``standings`` therefore reads the lead: position P, and ahead Q if it is going there. The next step
    ends at Q (T10); it writes what is missing and the lead, so that the claim holds again.
    A table that left or joined in (P, Q] does so in every step (P -> Q), before the lead is at Q.
    Tokens: every commit stores its token, and the highest of all tables of a member counts. A deliverer that was fenced
    may still write a table that the newer one has not touched, but only rows of the step that the lead recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from trunkline.delivery.backends.delta_types import columns_of
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.config.addresses import Address, DeltaAddress
from trunkline.delivery.destinations.delta_log import LoadedVersion
from trunkline.delivery.destinations.delta_table import DeliveredTable, PreparedTable
from trunkline.delivery.destinations.lone_place import LonePlace

TABLES_MAX: Final = 300  # with a loaded version each; more: more memory, fewer: large members read logs again


class DeltaPlace(LonePlace[LoadedVersion, PreparedTable]):
    """The tables of one destination, or of several: each is opened when it is first used."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        """``properties``: of tables that are created, besides those of ``delta_log``."""
        self._properties = properties or {}
        self._tables: OrderedDict[DeltaAddress, DeliveredTable] = OrderedDict()

    def _step(self, name: str) -> None:
        """Called before each access to the storage; tests stop the process here."""

    def columns(self, address: Address) -> Columns | None:
        loaded = self._table(address).load()
        return None if loaded is None else columns_of(loaded.schema)

    def close(self) -> None:
        self._tables.clear()

    def _table(self, address: Address) -> DeliveredTable:
        assert isinstance(address, DeltaAddress)
        if (table := self._tables.get(address)) is None:
            while len(self._tables) >= TABLES_MAX:
                self._tables.popitem(last=False)
            table = self._tables[address] = DeliveredTable(address, lambda name: self._step(name), self._properties)
        self._tables.move_to_end(address)
        return table
