"""Rows of many messages as columns: where the text of each value is, found for all rows at once.

The messages are those of `pgoutput`, or of a `COPY` in the binary format.

A loop in Python over each value of each row would limit a capture to a few ten thousand rows a second. So the messages
of one table are read side by side: one step of numpy reads the next value of every row. Nothing is copied before the
texts of a whole column become one Arrow array.

Rules
 T1  No value is read outside of its message: each step checks the ends of all messages first. Otherwise
     ``ProtocolError``.
 T2  A value is TEXT, NULL or UNSENT. An old row that has the key alone did not send its other columns, whatever their
     marks say. A value that an update did not send is that of the old row, if this one has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from trunkline.errors import ProtocolError

Places = NDArray[np.int64]
TEXT, NULL, UNSENT = b"tnu"
KEY, OLD, NEW = b"KON"  # what a row is
INSERT, UPDATE, DELETE = b"IUD"
ROW_AT: Final = 6  # after the kind of the message, the table's number and the kind of the row
MESSAGE_BYTES_MIN: Final = ROW_AT + 2
NULL_LENGTH: Final = 2**32 - 1
INLINE_BYTES_MAX: Final = 12  # of Arrow's views: shorter values stand in the view itself
JOINED_BYTES_MAX: Final = 2**31 - 1  # offsets of Arrow's views have 32 bits
_PADDING: Final = bytes(16)  # a word may be read at the last byte
_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
_LOW, _SHIFT = np.uint64(0xFFFF_FFFF), np.uint64(32)


class JoinedMessages:
    """Messages back to back, read at many places at once."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.content = b"".join([*messages, _PADDING])
        if len(self.content) > JOINED_BYTES_MAX:
            raise ProtocolError("the server sent a change that is too large; a message of PostgreSQL has 1 GiB at most")
        self.octets: NDArray[np.uint8] = np.frombuffer(self.content, np.uint8)
        self._words: NDArray[Any] = np.ndarray((len(self.content) - 7,), "V8", self.content, 0, (1,))  # at every byte
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self.ends: Places = np.cumsum(lengths)
        self.starts: Places = self.ends - lengths

    def words(self, places: Places) -> NDArray[np.uint64]:
        """Eight bytes at each place, the first one lowest."""
        return self._words[places].view("<u8")

    def unsigned64(self, places: Places) -> NDArray[np.uint64]:
        return self._words[places].view(">u8").astype(np.uint64)

    def unsigned32(self, places: Places) -> Places:
        return (self.unsigned64(places) >> _SHIFT).astype(np.int64)


class Texts(Struct, frozen=True):
    """The values of one column."""

    start: Places
    length: Places
    state: NDArray[np.uint8]  # TEXT, NULL, UNSENT

    def chosen(self, rows: NDArray[Any]) -> Texts:
        return Texts(self.start[rows], self.length[rows], self.state[rows])

    def then(self, other: Texts) -> Texts:
        return Texts(
            np.concatenate([self.start, other.start]),
            np.concatenate([self.length, other.length]),
            np.concatenate([self.state, other.state]),
        )

    def text(self, joined: JoinedMessages, row: int) -> bytes | None:
        start = int(self.start[row])
        return joined.content[start : start + int(self.length[row])] if self.state[row] == TEXT else None

    def views(self, joined: JoinedMessages, kind: pa.DataType) -> pa.Array:
        """As an Arrow array of views (of texts or bytes), which refers to the messages. Texts are not validated."""
        length, present = self.length.astype(np.uint64), self.state == TEXT
        found = np.empty((len(length), 2), "<u8")
        head = joined.words(self.start) & _MASKS[np.minimum(self.length, 4)]
        found[:, 0] = length | head << _SHIFT
        tail = joined.words(self.start + 4) & _MASKS[np.minimum(np.maximum(self.length - 4, 0), 8)]
        short = self.length <= INLINE_BYTES_MAX
        found[:, 1] = tail if short.all() else np.where(short, tail, self.start.astype(np.uint64) << _SHIFT)
        valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
        return pa.Array.from_buffers(kind, len(found), [valid, pa.py_buffer(found), pa.py_buffer(joined.content)])


def empty_texts(count: int) -> Texts:
    """Values of rows that have none: a truncation."""
    return Texts(np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, NULL, np.uint8))


class ChangedRows(Struct, frozen=True):
    """Rows of one table: ``first`` of every message, then ``second`` of the updates that sent the old row, too."""

    first: list[Texts]
    second: list[Texts]
    paired: NDArray[np.bool_]  # which messages have a second row


def changed_rows(joined: JoinedMessages, numbers: NDArray[np.int64], columns: int, key: Sequence[int]) -> ChangedRows:
    """The rows of inserts, updates and deletes of one table, with these numbers. Raises ``ProtocolError`` (T1)."""
    start, end = joined.starts[numbers], joined.ends[numbers]
    kind, mark = joined.octets[start], joined.octets[start + ROW_AT - 1]
    new, old = mark == NEW, (mark == KEY) | (mark == OLD)
    _require(np.where(kind == INSERT, new, np.where(kind == DELETE, old, new | old)), "a row of an unknown kind")
    paired = (kind == UPDATE) & ~new
    first, after = _rows(joined, start + ROW_AT, end, columns)
    key_alone = mark == KEY
    if key_alone.any():
        for number in set(range(columns)) - set(key):
            first[number].state[key_alone & (first[number].state == NULL)] = UNSENT
    if not paired.any():
        _require(after == end, "bytes after a row")
        return ChangedRows(first, [], paired)
    _require(after[~paired] == end[~paired], "bytes after a row")
    at, end = after[paired], end[paired]
    _require(at < end, "an update without a new row")
    _require(joined.octets[at] == NEW, "an update without a new row")
    second, after = _rows(joined, at + 1, end, columns)
    _require(after == end, "bytes after a row")
    return ChangedRows(
        first, [_filled(now, was.chosen(paired)) for now, was in zip(second, first, strict=True)], paired
    )


def copied_rows(joined: JoinedMessages, columns: int) -> list[Texts]:
    """Rows in the binary format of `COPY`, one in each message, whose values are texts. Raises ``ProtocolError``."""
    at, end = joined.starts, joined.ends
    _require(at + 2 <= end, "a row without columns")
    counts = joined.octets[at].astype(np.int64) << 8 | joined.octets[at + 1]
    _require(counts == columns, f"a row that does not have the {columns} columns of its table")
    at, found = at + 2, []
    for _ in range(columns):
        _require(at + 4 <= end, "a short row")
        length = joined.unsigned32(at)
        null = length == NULL_LENGTH
        state = np.where(null, NULL, TEXT).astype(np.uint8)
        length[null] = 0
        at = at + 4
        _require(at + length <= end, "a short row")
        found.append(Texts(at, length, state))
        at = at + length
    _require(at == end, "bytes after a row")
    return found


def _filled(now: Texts, was: Texts) -> Texts:
    """T2."""
    absent = now.state == UNSENT
    if not absent.any():
        return now
    return Texts(
        np.where(absent, was.start, now.start),
        np.where(absent, was.length, now.length),
        np.where(absent, was.state, now.state),
    )


def _rows(joined: JoinedMessages, at: Places, end: Places, columns: int) -> tuple[list[Texts], Places]:
    """One row from each place, and the places after them."""
    _require(at + 2 <= end, "a row without columns")
    counts = joined.octets[at].astype(np.int64) << 8 | joined.octets[at + 1]
    _require(counts == columns, f"a row that does not have the {columns} columns of its table")
    at = at + 2
    found = []
    for _ in range(columns):
        _require(at < end, "a short row")
        state = joined.octets[at]
        text = state == TEXT
        if text.all():
            start, length = at + 5, joined.unsigned32(at + 1)
        else:
            _require(text | (state == NULL) | (state == UNSENT), "a value of an unknown kind")
            start = at + np.where(text, 5, 1)
            length = np.where(text, joined.unsigned32(at + 1), 0)
        at = start + length
        _require(at <= end, "a short row")
        found.append(Texts(start, length, state))
    return found, at


def _require(true: NDArray[np.bool_], otherwise: str) -> None:
    if not true.all():
        raise ProtocolError(f"the server sent an invalid message: {otherwise}; restart the capture")
