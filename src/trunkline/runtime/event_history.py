"""Recent events of a cluster, and the rates of the last hour.

    events.jsonl     a line for each event and each minute; the first line has the id of the book

Rules
 I1  It is bounded, in memory and on disk: the newest events, with separate limits for events of logs and others, so
     that a thousand changed logs do not evict the event of the node that caused it; and the newest minutes.
 I2  Events are numbered in the order of their recording, and that is their order: a clock may be set back.
 I3  A book is one sequence of numbers. A reader of this book gets the events after its last number; a reader of another
     book gets all of them.
 I4  The file is best effort: it is not synced, an unreadable line is skipped, and what cannot be written is logged once
     and stays in memory until it can. A disk that hangs delays nothing but the file.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import secrets
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.core.status import ClusterEvent, ClusterEvents, MinuteCounts
from trunkline.runtime.event_texts import EventText
from trunkline.storage import PRIVATE_DIRECTORY, PRIVATE_FILE

log = logging.getLogger("trunkline.coordinator")

LOG_EVENTS_MAX: Final = 1_500
OTHER_EVENTS_MAX: Final = 500
MINUTES_MAX: Final = 60
TEXT_LETTERS_MAX: Final = 400
FILE_LINES_MAX: Final = 3 * (LOG_EVENTS_MAX + OTHER_EVENTS_MAX)  # then it is rewritten
FILE_BYTES_MAX: Final = 16 * 1024 * 1024  # a larger one is not ours
FILE: Final = "events.jsonl"


class FileLine(Struct, frozen=True, omit_defaults=True):
    """Has one of these."""

    book: str = ""
    event: ClusterEvent | None = None
    minute: MinuteCounts | None = None


class EventHistory:
    def __init__(self, directory: Path | None) -> None:
        """``directory``: of the file; None: events are kept in memory only."""
        self.book = secrets.token_hex(4)
        self.lost: dict[str, int] = {}
        self._path = directory / FILE if directory is not None else None
        self._of_logs: deque[ClusterEvent] = deque(maxlen=LOG_EVENTS_MAX)  # I1
        self._others: deque[ClusterEvent] = deque(maxlen=OTHER_EVENTS_MAX)
        self._minutes: deque[MinuteCounts] = deque(maxlen=MINUTES_MAX)
        self._last = 0
        self._unsaved: deque[FileLine] = deque(maxlen=FILE_LINES_MAX)
        self._file_lines = 0  # 0: rewrite it
        self._failing = False
        self._read()

    def add(self, news: Iterable[EventText], at_ms: int) -> None:
        for each in news:
            text = each.text if len(each.text) <= TEXT_LETTERS_MAX else f"{each.text[:TEXT_LETTERS_MAX]}…"
            event = ClusterEvent(self._last + 1, at_ms, each.level, text, each.log, each.node, each.live)
            self._keep(event)
            self._unsaved.append(FileLine(event=event))

    def add_minute(self, minute: MinuteCounts) -> None:
        self._minutes.append(minute)
        self._unsaved.append(FileLine(minute=minute))

    def since(self, book: str = "", after: int = 0) -> ClusterEvents:
        """I3"""
        after = after if book == self.book else 0
        events = tuple(each for each in heapq.merge(self._others, self._of_logs, key=_number) if each.number > after)
        return ClusterEvents(self.book, events, tuple(self._minutes), dict(self.lost))

    def _keep(self, event: ClusterEvent) -> None:
        self._last = max(self._last, event.number)
        (self._of_logs if event.log else self._others).append(event)
        if event.node and event.live:
            self.lost.pop(event.node, None)
        elif event.node:
            self.lost.setdefault(event.node, event.at_ms)

    # ------------------------------------------------------------------------------------------------------- the file

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            if self._path.stat().st_size > FILE_BYTES_MAX:
                return
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return
        for line in lines:
            try:
                found = msgspec.json.decode(line, type=FileLine)
            except msgspec.DecodeError:
                continue  # I4: torn by a crash
            if found.book:
                self.book = found.book
            if found.event is not None and found.event.number > self._last:
                self._keep(found.event)
            if found.minute is not None:
                self._minutes.append(found.minute)

    async def save(self) -> None:
        """Write unsaved lines. One call at a time."""
        text, rewrite = self._next_text()
        if text:
            self._saved(await asyncio.to_thread(self._write, text, rewrite))

    def save_now(self) -> None:
        text, rewrite = self._next_text()
        if text:
            self._saved(self._write(text, rewrite))

    def _next_text(self) -> tuple[bytes, bool]:
        """What to write, and whether it replaces the file."""
        if self._path is None or not self._unsaved:
            return b"", False
        lines = list(self._unsaved)
        self._unsaved.clear()
        rewrite = self._file_lines == 0 or self._file_lines + len(lines) > FILE_LINES_MAX
        if rewrite:
            events = heapq.merge(self._others, self._of_logs, key=_number)
            kept = [
                *(FileLine(event=each) for each in events),
                *(FileLine(minute=each) for each in self._minutes),
            ]
            lines = [FileLine(book=self.book), *kept]
            self._file_lines = 0
        self._file_lines += len(lines)
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines), rewrite

    def _write(self, text: bytes, rewrite: bool) -> str:
        """Returns the error, "" if there is none. Thread-safe."""
        path = self._path
        assert path is not None
        try:
            if rewrite:
                path.parent.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
                written = path.with_suffix(".new")
                written.touch(PRIVATE_FILE)
                written.write_bytes(text)
                written.replace(path)
            else:
                with path.open("ab") as file:
                    file.write(text)
        except OSError as error:
            return str(error)
        return ""

    def _saved(self, failure: str) -> None:
        if failure:
            self._file_lines = 0  # part of it may be written: rewrite all next time
            if not self._failing:
                log.warning("events cannot be saved (%s); a restart now would lose them", failure)
        self._failing = bool(failure)


def _number(event: ClusterEvent) -> int:
    return event.number
