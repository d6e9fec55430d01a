"""Messages of pgoutput, protocol 1, as a server writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from trunkline.delivery.capture.postgres.pgoutput import UNCHANGED, Field

TEXT_OID, KEY_FLAG = 25, 1
Values = Sequence[Field]


def begin(commit_lsn: int, xid: int, micros: int = 0) -> bytes:
    return b"B" + struct.pack(">QqI", commit_lsn, micros, xid)


def commit(commit_lsn: int, end_lsn: int, micros: int = 0) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, commit_lsn, end_lsn, micros)


def relation(
    oid: int, columns: Sequence[tuple[str, int, int]], *, identity: str = "f", key: Iterable[int] = (), name: str = "t"
) -> bytes:
    """Each column: its name, the number of its type, its modifier."""
    head = b"R" + struct.pack(">I", oid) + b"public\0" + name.encode() + b"\0" + identity.encode()
    flags = set(range(len(columns))) if identity == "f" else set(key)
    texts = [
        bytes([KEY_FLAG if number in flags else 0]) + column.encode() + b"\0" + struct.pack(">Ii", kind, modifier)
        for number, (column, kind, modifier) in enumerate(columns)
    ]
    return head + struct.pack(">H", len(columns)) + b"".join(texts)


def texts(count: int) -> list[tuple[str, int, int]]:
    return [(f"c{number}", TEXT_OID, -1) for number in range(count)]


def row(values: Values) -> bytes:
    def field(value: Field) -> bytes:
        if value is None or value == UNCHANGED:
            return b"n" if value is None else b"u"
        assert isinstance(value, bytes)
        return b"t" + struct.pack(">I", len(value)) + value

    return struct.pack(">H", len(values)) + b"".join(map(field, values))


def insert(oid: int, new: Values) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + row(new)


def update(oid: int, new: Values, old: Values | None = None, mark: bytes = b"O") -> bytes:
    before = b"" if old is None else mark + row(old)
    return b"U" + struct.pack(">I", oid) + before + b"N" + row(new)


def delete(oid: int, old: Values, mark: bytes = b"O") -> bytes:
    return b"D" + struct.pack(">I", oid) + mark + row(old)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids)


def logical_message(prefix: str, content: bytes, lsn: int = 1, *, transactional: bool = False) -> bytes:
    head = b"M" + struct.pack(">BQ", transactional, lsn) + prefix.encode() + b"\0"
    return head + struct.pack(">I", len(content)) + content


class Stream:
    """Transactions one after the other, with LSNs that grow."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ends: list[int] = []

    def add(self, *changes: bytes) -> int:
        """One transaction; returns its end."""
        at = len(self.ends) * 100 + 100
        self.messages += [begin(at, len(self.ends) + 1, at), *changes, commit(at, at + 50, at)]
        self.ends.append(at + 50)
        return at + 50
