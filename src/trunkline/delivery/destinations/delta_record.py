"""The record of a Delta table: what the application transactions of its log say about it and its member.

Rules
 N1  Position, token and mark are those of every release. A mark is valid only with the position that it was stored
     with: an older release moves the position without the mark.
 N2  A number that was stored once cannot be removed. So a table has a *role* in its member from the first commit with
     several tables on; a table without one is the only table of its member, as in older releases.
 N3  One table *leads*: the position of its member is there (``delta.py``). Those that do not lead say how far they are
     themselves, and which one leads: so it is found even if the source no longer has it.
 N4  Names of members, and the tables of a member, are digests: application transactions have no other values than
     numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.changes.versions import MARK_DIGITS
from trunkline.delivery.destinations.contract import Standing

POSITION: Final = "trunkline.position"
TOKEN: Final = "trunkline.token"
MARK: Final = "trunkline.mark"  # as a number
MARKED: Final = "trunkline.marked"  # the position that it is of
MEMBER: Final = "trunkline.member"
LEADS: Final = "trunkline.leads"  # LEAD, or the digest of the path of the table that leads
GOING: Final = "trunkline.going"  # where the tables are on their way to
GOING_MARK: Final = "trunkline.going_mark"
TABLES: Final = "trunkline.tables"
NUMBERS: Final = (POSITION, TOKEN, MARK, MARKED, MEMBER, LEADS, GOING, GOING_MARK, TABLES)
NONE: Final = -1
LEAD: Final = 1
UNKNOWN: Final = 0  # a digest that an older release did not store
DIGEST_BITS: Final = 62  # numbers have a sign


class TableRecord(Struct, frozen=True):
    """Of one table."""

    standing: Standing  # of the table; that of the one that leads is its member's, and has no ``ahead``
    member: int = UNKNOWN  # digest of its name
    leads: int | None = None  # LEAD, or the digest of the one that leads; None: it is the only table
    going: int = NONE
    going_mark: str = ""
    tables: int = UNKNOWN  # digest of the member's tables; only where it leads

    @property
    def position(self) -> int:
        return self.standing.position

    @property
    def is_lead(self) -> bool:
        return self.leads in (None, LEAD)

    def leading(self, tables: int) -> TableRecord:
        return replace(self, leads=LEAD, tables=tables)


RETIRED: Final = TableRecord(Standing(NONE, NONE, ""))


class StoredRecord(Struct, frozen=True):
    record: TableRecord | None  # None: the table was not delivered, or is retired
    role: int | None  # as ``leads``, even if it is retired; None: no role was ever stored (N2)


def numbers_of(record: TableRecord) -> dict[str, int]:
    """The numbers to store."""
    standing = record.standing
    marked = standing.position if standing.mark else NONE
    found = {POSITION: standing.position, TOKEN: standing.token, MARK: _number(standing.mark), MARKED: marked}
    found[MEMBER] = record.member
    if record.leads is not None:
        found[LEADS] = record.leads
    if record.leads == LEAD:
        found |= {GOING: record.going, GOING_MARK: _number(record.going_mark), TABLES: record.tables}
    return found


def stored_record(stored: Callable[[str], int | None], source: str | None) -> StoredRecord:
    """``stored`` gives a number by name."""
    role = stored(LEADS)
    position, token = stored(POSITION), stored(TOKEN)
    if source is None or position is None or token is None or position == NONE:
        return StoredRecord(None, role)
    mark = f"{stored(MARK) or 0:0{MARK_DIGITS}x}" if stored(MARKED) == position else ""
    record = TableRecord(Standing(position, token, source, mark), stored(MEMBER) or UNKNOWN, role)
    going = stored(GOING) if role == LEAD else None
    if role == LEAD:
        record = replace(record, tables=stored(TABLES) or UNKNOWN)
    if going is not None and going != NONE:
        record = replace(record, going=going, going_mark=_mark(stored(GOING_MARK) or 0))
    return StoredRecord(record, role)


def digest_of(texts: Iterable[str]) -> int:
    """Of a set of texts (N4)."""
    whole = "\0".join(sorted(texts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(whole).digest()[:8]) >> (64 - DIGEST_BITS) | 2  # neither UNKNOWN nor LEAD


def _number(mark: str) -> int:
    return int(mark or "0", 16)


def _mark(number: int) -> str:
    return f"{number:0{MARK_DIGITS}x}" if number else ""
