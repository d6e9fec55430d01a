"""What happened in a cluster, kept for whoever looks afterwards: the last events, and the rates of the last hour.

    events.jsonl     a line for each event and each minute; the first line names the book

Rules
 I1  It is bounded, in memory and on disk: the newest events, those of logs apart from the others, so that a thousand
     logs that change push out no word on the node that they changed for; and the newest minutes.
 I2  Events are numbered in the order in which they were told, and that is their order: a clock may be set back.
 I3  A book is one run of numbers. Who has read up to a number of this book is told what came after it; who knows
     another book is told everything.
 I4  The file is a help, not a promise: it is not synced, a line that cannot be read is passed over, and what cannot be
     written is said once and lives in memory until it can. A disk that hangs holds up nothing but the file.
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
from trunkline.runtime.event_words import EventText
from trunkline.storage import PRIVATE_DIRECTORY, PRIVATE_FILE

log = logging.getLogger("trunkline.coordinator")

LOG_EVENTS_MAX: Final = 1_500
OTHER_EVENTS_MAX: Final = 500
MINUTES_MAX: Final = 60
TEXT_LETTERS_MAX: Final = 400
FILE_LINES_MAX: Final = 3 * (LOG_EVENTS_MAX + OTHER_EVENTS_MAX)  # then it is written anew with what is kept
FILE_BYTES_MAX: Final = 16 * 1024 * 1024  # a larger one is not ours
FILE: Final = "events.jsonl"


class FileLine(Struct, frozen=True, omit_defaults=True):
    """One of them."""

    book: str = ""
    event: ClusterEvent | None = None
    minute: MinuteCounts | None = None


class Chronicle:
    def __init__(self, directory: Path | None) -> None:
        """``directory``: of the file; None: there is none, and a restart forgets."""
        self.book = secrets.token_hex(4)
        self.lost: dict[str, int] = {}
        self._path = directory / FILE if directory is not None else None
        self._of_logs: deque[ClusterEvent] = deque(maxlen=LOG_EVENTS_MAX)  # I1
        self._others: deque[ClusterEvent] = deque(maxlen=OTHER_EVENTS_MAX)
        self._minutes: deque[MinuteCounts] = deque(maxlen=MINUTES_MAX)
        self._last = 0
        self._unsaved: deque[FileLine] = deque(maxlen=FILE_LINES_MAX)
        self._file_lines = 0  # 0: it is to be written anew
        self._failing = False
        self._read()

    def tell(self, news: Iterable[EventText], at_ms: int) -> None:
        for said in news:
            text = said.text if len(said.text) <= TEXT_LETTERS_MAX else f"{said.text[:TEXT_LETTERS_MAX]}…"
            event = ClusterEvent(self._last + 1, at_ms, said.level, text, said.log, said.node, said.live)
            self._keep(event)
            self._unsaved.append(FileLine(event=event))

    def minute(self, minute: MinuteCounts) -> None:
        self._minutes.append(minute)
        self._unsaved.append(FileLine(minute=minute))

    def since(self, book: str = "", after: int = 0) -> ClusterEvents:
        """I3"""
        after = after if book == self.book else 0
        events = tuple(each for each in heapq.merge(self._others, self._of_logs, key=_number) if each.number > after)
        return ClusterEvents(self.book, events, tuple(self._minutes), self.lost)

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
        """Write what is not written yet. One at a time."""
        text, anew = self._next_text()
        if text:
            self._saved(await asyncio.to_thread(self._write, text, anew))

    def save_now(self) -> None:
        text, anew = self._next_text()
        if text:
            self._saved(self._write(text, anew))

    def _next_text(self) -> tuple[bytes, bool]:
        """What is to be written, and whether over everything that is there."""
        if self._path is None or not self._unsaved:
            return b"", False
        lines = list(self._unsaved)
        self._unsaved.clear()
        anew = self._file_lines == 0 or self._file_lines + len(lines) > FILE_LINES_MAX
        if anew:
            events = heapq.merge(self._others, self._of_logs, key=_number)
            kept = [
                *(FileLine(event=each) for each in events),
                *(FileLine(minute=each) for each in self._minutes),
            ]
            lines = [FileLine(book=self.book), *kept]
            self._file_lines = 0
        self._file_lines += len(lines)
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines), anew

    def _write(self, text: bytes, anew: bool) -> str:
        """Why it could not be; on any thread."""
        path = self._path
        assert path is not None
        try:
            if anew:
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
            self._file_lines = 0  # some of it may be there: the next time, all is written
            if not self._failing:
                log.warning("what happened is not written down (%s); a restart now would not know it", failure)
        self._failing = bool(failure)


def _number(event: ClusterEvent) -> int:
    return event.number
