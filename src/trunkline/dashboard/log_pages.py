"""Pages of a log: the entries of a range of positions.

Rules
 B1  A page is a range ``[first, end)`` of positions, so that back and forth lead to the same pages again.
 B2  Reading stops in time and after so many bytes: a position that stays unsettled, or huge entries, cut a page short.
 B3  A page says what is missing: trimmed or lost ranges, holes.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct

from trunkline.client.entries import Batch, Entry
from trunkline.client.log import Log
from trunkline.dashboard.payloads import ChangesText, PayloadKind, no_changes, shown, shown_header
from trunkline.errors import ConfigError, CorruptEntry, EntriesLost, Refused, Trimmed
from trunkline.plural import plural

ENTRIES_MAX: Final = 200  # of a page
PAGE_BYTES_MAX: Final = 8 * 1024 * 1024  # of payloads that are read for a page
PAGE_S: Final = 6.0  # longer than a reader needs to switch from a silent node to another copy
TAIL_S: Final = 3.0
SKIPS_MAX: Final = 16  # of trimmed and lost ranges in a page
HEADERS_MAX: Final = 50  # of an entry
POSITION_MAX: Final = 2**63 - 1


class ShownEntry(Struct, frozen=True):
    glsn: int
    time_ms: int
    writer: str
    seq: int
    size_bytes: int
    kind: PayloadKind
    text: str
    cut_bytes: int
    headers: tuple[tuple[str, str], ...]


class LogPage(Struct, frozen=True):
    """``end``: where the next page begins. ``tail``: None if it is unknown."""

    log: str
    first: int
    end: int
    tail: int | None
    entries: tuple[ShownEntry, ...]
    notes: tuple[str, ...]


class PageReader:
    """Collects one page. ``trimmed``: the current trim point; a log that was opened earlier may not know it yet."""

    def __init__(
        self, log: Log, start: int, count: int, trimmed: int = 0, changes_text: ChangesText = no_changes
    ) -> None:
        self._log = log
        self._changes_text = changes_text
        self._count = count
        self._tail: int | None = None
        self._bytes = 0
        self._holes = 0
        self._entries: list[ShownEntry] = []
        self._notes: list[str] = []
        self._begin_at(start)
        if start <= trimmed:
            self._skip(trimmed + 1, f"positions up to {trimmed:,} were trimmed")

    async def read(self) -> LogPage:
        self._tail = await self._find_tail()
        self._begin_at(self._first)
        try:
            async with asyncio.timeout(PAGE_S):  # B2
                for _ in range(SKIPS_MAX):
                    if not await self._read_on():
                        break
        except TimeoutError:
            self._notes.append(f"position {self._next:,} is not settled yet; try again in a moment")
            self._end = max(self._next, self._first)
        if self._tail is None:
            self._end = max(self._next, self._first)  # what lies beyond is unknown
        if self._holes:
            holes = plural(self._holes, "of these positions is a hole", "of these positions are holes")
            self._notes.append(f"{holes}: no entry is there")
        return LogPage(self._log.name, self._first, self._end, self._tail, tuple(self._entries), tuple(self._notes))

    def _begin_at(self, first: int) -> None:
        self._first = self._next = first
        end = first + self._count
        self._end = end if self._tail is None else max(first, min(end, self._tail))

    async def _find_tail(self) -> int | None:
        try:
            return await self._log.tail(timeout=TAIL_S)
        except Refused:
            return None

    async def _read_on(self) -> bool:
        """Read until the page is full or something is missing. Returns whether there is more to read."""
        if self._next >= self._end:
            return False
        batches = self._log.batches(self._next, self._end - 1, to_tail=True)
        try:
            async for batch in batches:
                self._take(batch)
                if self._bytes >= PAGE_BYTES_MAX and self._next < self._end:
                    self._notes.append(f"the page ends early, at {self._next - 1:,}: its entries are large")
                    self._end = self._next
                    return False
        except Trimmed as error:  # B3
            self._skip(error.point + 1, f"positions up to {error.point:,} were trimmed")
            return True
        except EntriesLost as error:
            self._skip(error.end, f"positions {error.first:,} to {error.end - 1:,} were declared lost")
            return True
        except CorruptEntry as error:
            self._skip(error.end, f"positions {error.first:,} to {error.end - 1:,} do not hold a valid batch")
            return True
        finally:
            self._holes += batches.holes
            batches.close()
        return False

    def _skip(self, to: int, why: str) -> None:
        self._notes.append(why)
        if self._entries:
            self._next = max(to, self._next)
        else:  # nothing before it: the page begins here
            self._begin_at(max(to, self._next))

    def _take(self, batch: Batch) -> None:
        for entry in batch:
            self._entries.append(self._shown(entry))
            self._bytes += len(entry.payload)
            self._next = entry.glsn + 1
            if self._bytes >= PAGE_BYTES_MAX:
                return

    def _shown(self, entry: Entry) -> ShownEntry:
        payload = shown(entry.payload, self._changes_text)
        return ShownEntry(
            entry.glsn,
            entry.time_ms,
            entry.writer,
            entry.seq,
            len(entry.payload),
            payload.kind,
            payload.text,
            payload.cut_bytes,
            _headers(entry),
        )


def _headers(entry: Entry) -> tuple[tuple[str, str], ...]:
    if entry.unreadable_headers:  # of a writer that does not use the library
        return (("(unreadable)", shown_header(entry.unreadable_headers)),)
    return tuple((name, shown_header(value)) for name, value in list(entry.headers.items())[:HEADERS_MAX])


def page_range(start: str, count: str) -> tuple[int, int]:
    """The range of a request. Raises ``ConfigError``."""
    if not start.isdecimal() or not 1 <= int(start) <= POSITION_MAX:
        raise ConfigError(f"{start[:40]!r} is not a position; positions are whole numbers from 1")
    if not count.isdecimal() or not 1 <= int(count) <= ENTRIES_MAX:
        raise ConfigError(f"a page has 1 to {ENTRIES_MAX} entries, not {count[:40]!r}")
    return int(start), int(count)
