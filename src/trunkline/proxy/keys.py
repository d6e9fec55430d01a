"""Idempotency keys: an append that is sent again, to any proxy, is in the log once.

The log is the only memory. A header of the entry holds its key, and every proxy keeps an index of the keys in the last
positions of a log:

    GLSN      ... 991  992  993  994 | 995
              [------ window -------]  next       all below ``next`` was read, back to the start of the window
                                       expect     and the append takes exactly this position, or fails

Rules
 K1  The (first) entry of an append with a key has the key in one header, and in another the number of entries and a
     digest of the request. Both are written with the entry, so they are there exactly if the append happened.
 K2  A proxy appends with a key only after it has searched the window for the key, and only on the condition that the
     append takes the position ``next`` of the index. It has read everything below ``next``, so no client appended
     between the search and the append, through this proxy or elsewhere.
 K3  When the condition fails, the proxy reads on and searches again before the next try. The number of tries is
     limited; after the last one nothing was appended, and the answer says so.
 K4  Reading passes a position only when it is settled: an entry, or a hole for ever. So an append whose proxy died, or
     whose outcome was unknown, is found by the next request, or can never happen.
 K5  A key counts while its entry is among the last ``window`` positions below ``next``. The rule counts positions, not
     what a proxy has seen, so old and new proxies agree. A proxy that finds a key without reading on may be behind the
     log, and remember a key for longer than others; never for less.
 K6  A key that was used for another request is refused: no request receives the position of another one.
 K7  Keys of entries that were trimmed or declared lost are forgotten.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trunkline.client.headers import decode_headers
from trunkline.proxy.limits import KEY_CHARACTERS_MAX

RESERVED: Final = "idempotency-"  # names of entry headers that applications may not use
KEY_HEADER: Final = "idempotency-key"
REQUEST_HEADER: Final = "idempotency-request"  # "<number of entries> <digest>"
COUNT_DIGITS_MAX: Final = 9
DIGEST_DIGITS: Final = 64
_MARK: Final = KEY_HEADER.encode()


class KeyedAppend(msgspec.Struct, frozen=True):
    """A finished append with a key."""

    glsn: int  # of its first entry
    count: int
    digest: str


class Stamp(msgspec.Struct, frozen=True):
    """The headers of the first entry of an append (K1)."""

    key: str
    count: int
    digest: str

    def headers(self) -> dict[str, bytes]:
        return {KEY_HEADER: self.key.encode(), REQUEST_HEADER: f"{self.count} {self.digest}".encode()}


def digest_of(payloads: Sequence[bytes], headers: Sequence[Mapping[str, bytes]], expect: int | None) -> str:
    """The same for the same request, however its JSON was written."""
    request = [expect, [[payload, sorted(each.items())] for payload, each in zip(payloads, headers, strict=True)]]
    return hashlib.sha256(msgspec.msgpack.encode(request)).hexdigest()


def stamp_of(encoded_headers: bytes) -> Stamp | None:
    """The stamp of an entry. Any client can append such headers: malformed ones are no stamp."""
    if _MARK not in encoded_headers:
        return None
    try:
        headers = decode_headers(encoded_headers) or {}
        key = headers[KEY_HEADER].decode("ascii")
        count, _, digest = headers[REQUEST_HEADER].decode("ascii").partition(" ")
    except (KeyError, UnicodeDecodeError):
        return None
    if not 0 < len(key) <= KEY_CHARACTERS_MAX or not 0 < len(count) <= COUNT_DIGITS_MAX or len(digest) != DIGEST_DIGITS:
        return None
    if not count.isdecimal():
        return None
    return Stamp(key, int(count), digest)


class KeyIndex:
    """The keys of the last ``window`` positions of a log. ``next``: the first position that was not read."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.next = 1
        self._found: dict[str, KeyedAppend] = {}
        self._order: deque[tuple[int, str]] = deque()  # by position

    def __len__(self) -> int:
        return len(self._found)

    def find(self, key: str) -> KeyedAppend | None:
        return self._found.get(key)

    def add(self, glsn: int, stamp: Stamp | None) -> None:
        """Add the entry at ``glsn``, which is not below ``next``. If a key occurs twice, which no proxy causes, the
        later entry counts: all proxies agree on it, wherever they began to read.
        """
        assert glsn >= self.next, f"{glsn} was read already: the log is read up to {self.next}"
        self.advance(glsn + 1)
        if stamp is not None:
            self._found[stamp.key] = KeyedAppend(glsn, stamp.count, stamp.digest)
            self._order.append((glsn, stamp.key))

    def advance(self, position: int) -> None:
        """Everything below was read, or does not exist (K5, K7)."""
        self.next = max(self.next, position)
        self.forget_below(self.next - self.window)

    def forget_below(self, glsn: int) -> None:
        while self._order and self._order[0][0] < glsn:
            at, key = self._order.popleft()
            if self._found[key].glsn == at:
                del self._found[key]
