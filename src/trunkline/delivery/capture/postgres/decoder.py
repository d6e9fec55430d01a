"""Decodes a stream of `pgoutput` messages (protocol 1) into units: transactions, columnar for each table.

    decoder.feed(messages)                               # in the order of the stream
    for unit in decoder.units(close=waited_enough): ...  # in the order of the stream

Rules
 D1  A group holds whole transactions only, in commit order. A transaction beyond the limits becomes parts, numbered
     from 0; the last part holds its commit. So memory is bounded by the limits and by what was fed at once, not by the
     transaction.
 D2  Every shape of a table (Relation) and every watermark (Mark) is judged. What follows from it comes between the
     changes before and after it: it ends the group, and inside a transaction a part. So within a unit a table has one
     version. If nothing follows, nothing ends.
 D3  Transactions without changes have no place in the directory, but ``Changes.end`` counts them. A group of nothing
     else is a ``KeepAlive``.
 D4  The stream is checked: changes lie between Begin and Commit, a Commit belongs to its Begin, transactions come in
     the order of their LSNs, tables are known, and no message is of an unknown kind. Otherwise ``ProtocolError``;
     nothing can be decoded after it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trunkline.delivery.capture.postgres.change_batches import (
    BEGIN,
    BEGIN_BYTES,
    BEGIN_FORM,
    COMMIT,
    COMMIT_BYTES,
    OpenTransaction,
    Table,
    decoded_changes,
)
from trunkline.delivery.capture.postgres.pgoutput import Relation, parse
from trunkline.delivery.capture.source import Changes, KeepAlive, Unit
from trunkline.delivery.changes.groups import GROUP_BYTES_MAX, GROUP_ROWS_MAX, Transaction
from trunkline.errors import ProtocolError

ORDINARY: Final = b"BCIUDT"  # Begin, Commit, changes
SKIPPED: Final = b"YO"  # names of types, origins
RELATION, MESSAGE = b"RM"
MESSAGE_FORM: Final = struct.Struct(">BQ")  # flags, LSN
LSN_FORM: Final = struct.Struct(">Q")
TRANSACTIONAL: Final = 1


class Limits(Struct, frozen=True):
    """Of a unit. Larger: readers hold more at once; smaller: more entries, each with the cost of an entry."""

    rows: int = GROUP_ROWS_MAX  # messages; an update may have two rows
    bytes: int = GROUP_BYTES_MAX  # of messages; a single change may exceed it


class Mark(Struct, frozen=True):
    """A logical message (`pg_logical_emit_message`)."""

    prefix: str
    content: bytes
    lsn: int
    transactional: bool


class Cut(Struct, frozen=True):
    """What stands between the changes before and after it: units, and versions of tables from there on."""

    units: tuple[Unit, ...] = ()
    tables: tuple[tuple[int, Table | None], ...] = ()  # by the number that the server gives a table; None: left out


class Judge(Protocol):
    """Knows what a shape and a mark mean. It is asked in the order of the stream, when they are fed."""

    def expect(self, oids: Collection[int], xids: Collection[int]) -> None:
        """Shapes of these tables follow, in these transactions (of which 32 bits are known)."""
        ...

    def relation(self, relation: Relation, lsn: int) -> Cut | None:
        """``lsn``: where the commit of its transaction begins. ``None``: the table stays as it is."""
        ...

    def mark(self, mark: Mark) -> Cut | None: ...


class Decoder:
    """One stream. ``prefix`` selects logical messages; ``position``: no transaction of the stream ends before it."""

    def __init__(self, judge: Judge, limits: Limits | None = None, *, prefix: str = "", position: int = 0) -> None:
        self.near = 0  # a number of a transaction, less than 2^31 from those in the stream
        self._judge = judge
        self._limits = limits or Limits()
        self._prefix = prefix
        self._messages: list[bytes] = []
        self._kinds = bytearray()
        self._bytes = 0
        self._tables: dict[int, Table | None] = {}  # at the front of what was fed
        self._cuts: deque[tuple[int, Cut]] = deque()  # before which message each stands, counted from 0
        self._taken = 0  # messages that left
        self._open: OpenTransaction | None = None  # at the front
        self._parts = 0  # of the open transaction that left
        self._end_lsn = position  # of the last commit that left

    @property
    def pending(self) -> bool:
        """Whether something that was fed has not left yet, or a transaction is open."""
        return bool(self._messages or self._cuts or self._open is not None)

    def ready(self, *, close: bool) -> bool:
        """Whether there may be units, without more that is fed."""
        return bool(self._cuts) or (close and COMMIT in self._kinds)

    @property
    def pending_bytes(self) -> int:
        """Of messages that were fed and have not left."""
        return self._bytes

    def feed(self, messages: Sequence[bytes]) -> None:
        """Raises ``ProtocolError``."""
        try:
            kinds = bytes([each[0] for each in messages])
        except IndexError:
            raise ProtocolError("the server sent an empty pgoutput message; restart the capture") from None
        if not kinds.translate(None, ORDINARY):
            self._add(messages, kinds)
            return
        self._expect(messages, kinds)
        first = 0
        for number, kind in enumerate(kinds):
            if kind not in ORDINARY:
                self._add(messages[first:number], kinds[first:number])
                self._add_cut(messages[number])
                first = number + 1
        self._add(messages[first:], kinds[first:])

    def units(self, *, close: bool = False) -> Iterator[Unit]:
        """What is complete by the limits, and the end of a large transaction; with ``close`` also whole transactions.

        Raises ``ProtocolError``, and ``UnfitChange`` for a value that its column's type cannot hold.
        """
        while True:
            if self._cuts and self._cuts[0][0] == self._taken:
                _, cut = self._cuts.popleft()
                self._tables.update(cut.tables)
                yield from cut.units
            elif (end := self._end_of_unit(close)) == 0:
                return
            elif (unit := self._unit(end)) is not None:
                yield unit

    # --- what is fed ---

    def _expect(self, messages: Sequence[bytes], kinds: bytes) -> None:
        oids, xids, begin = set[int](), set[int](), self._begin()
        for message, kind in zip(messages, kinds, strict=True):
            if kind == BEGIN:
                begin = message
            elif kind == RELATION:
                oids.add(_oid(message))
                xids |= {_xid(begin)} if begin else set()
        opened = {self._open.xid & 0xFFFF_FFFF} if not begin and oids and self._open is not None else set()
        self._judge.expect(oids, xids | opened)

    def _begin(self) -> bytes:
        """That of the transaction at the end of what was fed; empty: it has left."""
        at = self._kinds.rfind(BEGIN)
        return self._messages[at] if at >= 0 else b""

    def _add(self, messages: Sequence[bytes], kinds: bytes) -> None:
        self._messages += messages
        self._kinds += kinds
        self._bytes += sum(map(len, messages))

    def _add_cut(self, message: bytes) -> None:
        cut: Cut | None = None
        if message[0] == RELATION:
            cut = self._judge.relation(parse_relation(message), self._commit_lsn())
        elif message[0] == MESSAGE:
            mark = parse_mark(message)
            cut = self._judge.mark(mark) if mark.prefix == self._prefix else None
        elif message[0] not in SKIPPED:
            raise ProtocolError(f"the server sent a pgoutput message of an unknown kind ({message[:40]!r})")
        if cut is not None:
            self.place(cut)

    def place(self, cut: Cut) -> None:
        """At the end of what was fed."""
        if cut.units or any(oid in self._tables for oid, _ in cut.tables):
            self._cuts.append((self._taken + len(self._messages), cut))
        else:  # a table that is new here has no changes before it
            self._tables.update(cut.tables)

    def _commit_lsn(self) -> int:
        """Of the transaction at the end of what was fed."""
        if begin := self._begin():
            [lsn] = LSN_FORM.unpack_from(begin, 1)
            return int(lsn)
        return self._open.commit_lsn if self._open is not None else self._end_lsn

    # --- what leaves ---

    def _end_of_unit(self, close: bool) -> int:
        """How many messages leave next; 0: more must be fed first."""
        bound = self._cuts[0][0] - self._taken if self._cuts else len(self._messages)
        ends = (close or self._parts) and COMMIT in self._kinds
        if not self._cuts and not ends and self._within_limits():
            return 0
        kinds: NDArray[np.uint8] = np.frombuffer(bytes(self._kinds[:bound]), np.uint8)
        commits = np.flatnonzero(kinds == COMMIT)
        fit = self._fit(kinds)
        full = fit < bound
        if self._parts and len(commits) and commits[0] < fit:
            return int(commits[0]) + 1
        if not self._parts and len(whole := commits[commits < fit]):
            return int(whole[-1]) + 1 if full or self._cuts or close else 0
        return fit if full or self._cuts else 0

    def _fit(self, kinds: NDArray[np.uint8]) -> int:
        """How many of the first messages are within the limits: one change at least, with a commit right after it.

        A commit has no weight, so that it never is alone in a last part.
        """
        changes = (kinds != BEGIN) & (kinds != COMMIT)
        sizes = np.fromiter(map(len, self._messages[: len(kinds)]), np.int64, len(kinds)) * (kinds != COMMIT)
        by_rows = np.searchsorted(np.cumsum(changes), self._limits.rows, "right")
        by_bytes = np.searchsorted(np.cumsum(sizes), self._limits.bytes, "right")
        fit = int(min(by_rows, by_bytes))
        if fit < len(kinds) and not changes[:fit].any():
            fit = int(changes.argmax()) + 1 if changes.any() else len(kinds)
            while fit < len(kinds) and kinds[fit] == COMMIT:
                fit += 1
        return fit

    def _within_limits(self) -> bool:
        """The same for all that is pending, without reading it."""
        begins, commits = self._kinds.count(BEGIN), self._kinds.count(COMMIT)
        rows = len(self._kinds) - begins - commits
        return rows <= self._limits.rows and self._bytes - commits * COMMIT_BYTES <= self._limits.bytes

    def _unit(self, end: int) -> Unit | None:
        """The first messages decoded; None if nothing of them leaves yet."""
        messages = self._messages[:end]
        decoded = decoded_changes(messages, self._tables, self._open, self._end_lsn, self.near)
        was_open, ended = self._open, COMMIT in self._kinds[:end]
        del self._messages[:end], self._kinds[:end]
        self._taken += end
        size = sum(map(len, messages))
        self._bytes -= size
        self._open, self._end_lsn = decoded.open, decoded.end_lsn
        index = self._parts
        if decoded.open is None and index == 0:
            if not decoded.transactions:
                return KeepAlive(decoded.end_lsn)
            return Changes(decoded.transactions, decoded.tables, size, end=decoded.end_lsn)
        if not ended and not decoded.transactions:
            return None
        self._parts = 0 if ended else index + 1
        transactions = decoded.transactions
        if not transactions:  # nothing but its commit
            assert was_open is not None
            transactions = (Transaction(was_open.commit_lsn, was_open.commit_us, was_open.xid, 0),)
        return Changes(transactions, decoded.tables, size, index, ended, decoded.end_lsn if ended else 0)


def _oid(message: bytes) -> int:
    return int.from_bytes(message[1:5])


def _xid(begin: bytes) -> int:
    if len(begin) != BEGIN_BYTES:
        raise ProtocolError("the server sent a Begin of another length; restart the capture")
    return int(BEGIN_FORM.unpack_from(begin, 1)[2])


def parse_relation(message: bytes) -> Relation:
    found = parse(message)
    assert isinstance(found, Relation)
    return found


def parse_mark(message: bytes) -> Mark:
    try:
        flags, lsn = MESSAGE_FORM.unpack_from(message, 1)
        end = message.index(b"\0", 1 + MESSAGE_FORM.size)
        prefix = message[1 + MESSAGE_FORM.size : end].decode()
        [size] = struct.unpack_from(">I", message, end + 1)
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"the server sent an invalid pgoutput message ({message[:40]!r})") from error
    content = message[end + 5 :]
    if len(content) != size:
        raise ProtocolError("the server sent a logical message with another length; restart the capture")
    return Mark(prefix, content, lsn, bool(flags & TRANSACTIONAL))
