"""Parses the messages of PostgreSQL's `pgoutput` plug-in, protocol version 1.

Values of columns stay as the server's text. ``UNCHANGED`` stands for a large value that an update did not touch: the
server does not send it again.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

from msgspec import Struct

from trunkline.errors import ProtocolError

UNCHANGED: Final = "unchanged"
Field = bytes | None | Literal["unchanged"]
Row = tuple[Field, ...]


class Begin(Struct, frozen=True):
    xid: int  # its lower 32 bits


class Commit(Struct, frozen=True):
    end_lsn: int  # the position after the transaction


class RelationColumn(Struct, frozen=True):
    name: str
    type_oid: int
    modifier: int


class Relation(Struct, frozen=True):
    oid: int
    schema: str
    name: str
    identity: str  # "f": FULL
    columns: tuple[RelationColumn, ...]
    key: tuple[int, ...] = ()  # the columns of an old row that is sent in short


class Insert(Struct, frozen=True):
    relation: int
    new: Row


class Update(Struct, frozen=True):
    relation: int
    old: Row | None
    new: Row


class Delete(Struct, frozen=True):
    relation: int
    old: Row


class Truncate(Struct, frozen=True):
    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate


def parse(data: bytes) -> Message | None:
    """One message; ``None`` for a kind that changes no table (types, origins, logical messages)."""
    try:
        return _Reader(data).message()
    except (struct.error, ValueError, IndexError) as error:
        raise ProtocolError(f"the server sent an invalid pgoutput message ({data[:40]!r})") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def message(self) -> Message | None:
        match self._take(1):
            case b"B":
                self._int(">qq", 16)
                return Begin(self._int(">I", 4))
            case b"C":
                self._take(1)
                self._int(">q", 8)
                return Commit(self._int(">q", 8))
            case b"R":
                return self._relation()
            case b"I":
                relation = self._int(">I", 4)
                self._expect(b"N")
                return Insert(relation, self._row())
            case b"U":
                return self._update()
            case b"D":
                relation = self._int(">I", 4)
                self._take(1)  # the key alone, or the whole old row
                return Delete(relation, self._row())
            case b"T":
                count = self._int(">I", 4)
                self._take(1)
                return Truncate(tuple(self._int(">I", 4) for _ in range(count)))
        return None

    def _relation(self) -> Relation:
        oid, schema, name = self._int(">I", 4), self._text(), self._text()
        identity = self._take(1).decode()
        columns, key = [], []
        for number in range(self._int(">H", 2)):
            if self._take(1) != b"\0":
                key.append(number)
            columns.append(RelationColumn(self._text(), self._int(">I", 4), self._int(">i", 4)))
        return Relation(oid, schema, name, identity, tuple(columns), tuple(key))

    def _update(self) -> Update:
        relation, old = self._int(">I", 4), None
        mark = self._take(1)
        if mark in (b"K", b"O"):
            old = self._row()
            self._expect(b"N")
        elif mark != b"N":
            raise ValueError(mark)
        return Update(relation, old, self._row())

    def _row(self) -> Row:
        return tuple(self._field() for _ in range(self._int(">H", 2)))

    def _field(self) -> Field:
        match self._take(1):
            case b"n":
                return None
            case b"u":
                return UNCHANGED
            case b"t":
                return self._take(self._int(">I", 4))
        raise ValueError("a field of an unknown kind")

    def _expect(self, mark: bytes) -> None:
        if self._take(1) != mark:
            raise ValueError(mark)

    def _take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise ValueError("too short")
        self._at += count
        return found

    def _int(self, form: str, count: int) -> int:
        return int(struct.unpack(form, self._take(count))[-1])

    def _text(self) -> str:
        end = self._data.index(b"\0", self._at)
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found
