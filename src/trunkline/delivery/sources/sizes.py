"""How many bytes rows take, before any is read: guesses by which the way to read a window is chosen."""

from __future__ import annotations

from typing import Final

from trunkline.delivery.changes.columns import Columns, arrow_type

ENTRY_BYTES: Final = 10_000  # of an entry of a captured database that was not looked at
TEXT_BYTES: Final = 24  # of a value without a fixed width
NESTED_BYTES: Final = 64
PLACE_BYTES: Final = 16  # of what a log notes of each row


def row_bytes(columns: Columns) -> int:
    """Of a row in memory."""
    size = PLACE_BYTES
    for column in columns:
        try:
            size += max(1, arrow_type(column).bit_width // 8)
        except ValueError:
            size += NESTED_BYTES if column.type.endswith("[]") else TEXT_BYTES
    return size
