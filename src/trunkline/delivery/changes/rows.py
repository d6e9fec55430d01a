"""The forms in which rows travel from a source to a destination, and the reserved columns beside the table's own.

ordered changes    VERSION, ORDINAL, KIND and ROUTE columns, and every column of the table
net changes        ROUTE_COLUMN and columns of the table: removed rows and arrived rows
staged rows        DESTINATION_COLUMN, OP_COLUMN and every column of the table
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

RESERVED_PREFIX: Final = "_trunkline"  # no source column and no destination table may begin with it
ROUTE_COLUMN: Final = "_trunkline_route"  # the routing value as text; NULL where it is NULL
DESTINATION_COLUMN: Final = "_trunkline_destination"  # int32: index of the destination among those of the pipeline
OP_COLUMN: Final = "_trunkline_op"  # int8: an Op
VERSION_COLUMN: Final = "_trunkline_version"
ORDINAL_COLUMN: Final = "_trunkline_ordinal"  # the number of a change within its version
KIND_COLUMN: Final = "_trunkline_kind"  # text: a ChangeKind
# Of arrived and staged rows, only where a window has rows with values that it does not state:
UNCHANGED_COLUMN: Final = "_trunkline_unchanged"  # bits of columns, the lowest first, whose values stay; NULL: none
ORIGIN_COLUMN: Final = "_trunkline_origin"  # route and key of the row that has them at the window's beginning

BATCH_ROWS: Final = 65_536  # of a batch that is read

Mode = Literal["mirror", "append", "history"]
DuplicatePolicy = Literal["halt", "warn"]


class ChangeKind(StrEnum):
    INSERT = "insert"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"
    DELETE = "delete"
    TRUNCATE = "truncate"


class Op(IntEnum):
    """What a flush does about one key of one destination."""

    REMOVE = 0  # the key was removed: only its key columns are filled
    REPLACE = 1  # the key existed before the window and exists after it, with this row
    INSERT = 2  # the key did not exist before; if the destination holds it, it is a duplicate key


class NetChanges(NamedTuple):
    removed: pa.Table  # ROUTE_COLUMN and the key columns, perhaps others (``ReadRequest.also``)
    arrived: pa.Table  # ROUTE_COLUMN and every column
    emptied: bool = False  # no row of `after` is left: `arrived` is the whole table, and `removed` is empty
