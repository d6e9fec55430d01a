"""What becomes of a table's rows on their way: columns, a filter, masks and computed columns. Only values.

A shape that changes nothing is ``None``, never an empty ``Shape``.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from msgspec import Struct

MARK_BYTES: Final = 4


class Mask(Struct, frozen=True):
    """What stands in the place of a column's values."""

    kind: Literal["hash", "null", "constant"]
    constant: str | None = None


class Shape(Struct, frozen=True):
    """Columns are named as in the source; ``rename`` gives them other names."""

    include: tuple[str, ...] = ()  # only these; empty: all
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = {}  # by the source's name
    filter: str | None = None  # an SQL predicate; rows for which it is not true are not delivered
    mask: dict[str, Mask] = {}
    computed: dict[str, str] = {}  # an SQL expression for each new column
    secret_env: str | None = None  # the variable with the key of hashes
    secret_mark: str = ""  # of that key, where the deliverer runs; empty: it is not known


def secret_mark(secret: bytes) -> str:
    """Short: another secret has another one, almost always, and it does not tell the secret."""
    return hashlib.blake2b(b"trunkline mask " + secret, digest_size=MARK_BYTES).hexdigest()
