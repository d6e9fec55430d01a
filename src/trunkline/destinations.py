"""All that a package needs to add a kind of destination: docs/writing-a-destination.md shows how.

The address of a kind derives from ``DestinationAddress``. Its ``open_place`` returns a ``Place``, which keeps the rules
T1 to T12 of ``trunkline.delivery.destinations.contract``; ``trunkline.destination_suite`` tests that it does.

For a store with transactions and savepoints, ``StorePlace`` is that place: the package has a ``Store`` with statements
about one table, and what is written when, and for whom, is decided here. ``to_plain`` and ``from_plain`` are for stores
with few types.

Another store needs a ``Place`` of its own. It reads the records of members in the transaction that writes them,
``GroupCommit`` decides who may be written, and ``result_of`` turns its verdicts into results. ``record_names`` and
``may_retire`` are about records (T9), ``checked_steps``, ``evolution`` and ``stepped_rows`` about columns (T6), and
``completed`` fills in values that an update did not state (T8).
"""

from __future__ import annotations

from trunkline.core.group_commit import GroupCommit, GroupStage
from trunkline.delivery.changes.column_steps import ColumnSteps, stepped_rows
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema, arrow_type, check_columns, evolution
from trunkline.delivery.changes.rows import BATCH_ROWS, OP_COLUMN, RESERVED_PREFIX, DuplicatePolicy, Mode, Op
from trunkline.delivery.config.addresses import Address, DestinationAddress
from trunkline.delivery.config.tree import about
from trunkline.delivery.destinations.contract import (
    MEMBERS,
    Applied,
    Batches,
    LeavingTable,
    MemberResult,
    MemberStep,
    MemberTables,
    MemberWrite,
    Place,
    Standing,
    TableStep,
    checked_steps,
    may_retire,
    record_names,
    result_of,
    stored,
)
from trunkline.delivery.destinations.plain_values import from_plain, plain_type, to_plain
from trunkline.delivery.destinations.store_place import MemberRecord, Merged, Store, StorePlace, StoreTransaction
from trunkline.delivery.destinations.unstated import completed

__all__ = [
    "BATCH_ROWS",
    "MEMBERS",
    "OP_COLUMN",
    "RESERVED_PREFIX",
    "Address",
    "Applied",
    "Batches",
    "Column",
    "ColumnSteps",
    "Columns",
    "DestinationAddress",
    "DuplicatePolicy",
    "GroupCommit",
    "GroupStage",
    "LeavingTable",
    "MemberRecord",
    "MemberResult",
    "MemberStep",
    "MemberTables",
    "MemberWrite",
    "Merged",
    "Mode",
    "Op",
    "Place",
    "Standing",
    "Store",
    "StorePlace",
    "StoreTransaction",
    "TableStep",
    "about",
    "arrow_schema",
    "arrow_type",
    "check_columns",
    "checked_steps",
    "completed",
    "evolution",
    "from_plain",
    "may_retire",
    "plain_type",
    "record_names",
    "result_of",
    "stepped_rows",
    "stored",
    "to_plain",
]
