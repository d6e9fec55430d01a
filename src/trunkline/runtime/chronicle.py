"""What happened in a cluster, kept for whoever looks afterwards: the last events, and the rates of the last hour.

    events.jsonl     a line for each event and each minute; the first line names the book

Rules
 I1  It is bounded, in memory and on disk: the newest events, those of logs apart from the others, so that a thousand
     logs that change push out no word on the node that they changed for; and the newest minutes.
 I2  Events are numbered in the order in which they were told, and that is their order: a clock may be set back.
 I3  A book is one run of numbers. Who has read up to a number of this book is told what came after it; who knows
     another book is told everything.
 I4  The file is a help, not a promise: it is not synced, a line that cannot be read is passed over, and what cannot be
     written is said once and lives in memory alone.
"""

from __future__ import annotations

import heapq
import logging
import secrets
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.runtime.event_words import Level, Said
from trunkline.storage import PRIVATE_DIRECTORY, PRIVATE_FILE

log = logging.getLogger("trunkline.coordinator")

LOG_EVENTS_MAX: Final = 1_500
OTHER_EVENTS_MAX: Final = 500
MINUTES_MAX: Final = 60
TEXT_LETTERS_MAX: Final = 400
FILE_LINES_MAX: Final = 3 * (LOG_EVENTS_MAX + OTHER_EVENTS_MAX)  # then it is written anew with what is kept
FILE_BYTES_MAX: Final = 16 * 1024 * 1024  # a larger one is not ours
FILE: Final = "events.jsonl"


class Happened(Struct, frozen=True, omit_defaults=True):
    number: int
    at_ms: int
    level: Level
    text: str
    log: str = ""
    node: str = ""
    live: bool = True


class Minute(Struct, frozen=True, omit_defaults=True):
    """What nodes did in about a minute that ended at ``at_ms``. Every copy of an entry counts as written."""

    at_ms: int
    seconds: float
    written: int
    read: int


class Line(Struct, frozen=True, omit_defaults=True):
    """One of them."""

    book: str = ""
    event: Happened | None = None
    minute: Minute | None = None


class Told(Struct, frozen=True):
    """What is answered. ``lost``: since when the nodes that are lost are, as far as that is known."""

    book: str
    events: list[Happened]
    minutes: list[Minute]
    lost: dict[str, int]


class Chronicle:
    def __init__(self, directory: Path | None) -> None:
        """``directory``: of the file; None: there is none, and a restart forgets."""
        self.book = secrets.token_hex(4)
        self.lost: dict[str, int] = {}
        self._path = directory / FILE if directory is not None else None
        self._of_logs: deque[Happened] = deque(maxlen=LOG_EVENTS_MAX)  # I1
        self._others: deque[Happened] = deque(maxlen=OTHER_EVENTS_MAX)
        self._minutes: deque[Minute] = deque(maxlen=MINUTES_MAX)
        self._last = 0
        self._file_lines = 0
        self._failing = False
        self._read()

    def tell(self, news: Iterable[Said], at_ms: int) -> None:
        events = []
        for said in news:
            text = said.text if len(said.text) <= TEXT_LETTERS_MAX else f"{said.text[:TEXT_LETTERS_MAX]}…"
            event = Happened(self._last + 1, at_ms, said.level, text, said.log, said.node, said.live)
            self._keep(event)
            events.append(event)
        self._write([Line(event=each) for each in events])

    def minute(self, minute: Minute) -> None:
        self._minutes.append(minute)
        self._write([Line(minute=minute)])

    def told(self, book: str = "", after: int = 0) -> bytes:
        """As JSON (I3)."""
        after = after if book == self.book else 0
        events = [each for each in heapq.merge(self._others, self._of_logs, key=_number) if each.number > after]
        return msgspec.json.encode(Told(self.book, events, list(self._minutes), self.lost))

    def _keep(self, event: Happened) -> None:
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
                found = msgspec.json.decode(line, type=Line)
            except msgspec.DecodeError:
                continue  # I4: torn by a crash
            if found.book:
                self.book = found.book
            if found.event is not None and found.event.number > self._last:
                self._keep(found.event)
            if found.minute is not None:
                self._minutes.append(found.minute)
        self._file_lines = FILE_LINES_MAX  # a torn end is written over

    def _write(self, lines: list[Line]) -> None:
        if self._path is None or not lines:
            return
        try:
            if self._file_lines == 0 or self._file_lines + len(lines) > FILE_LINES_MAX:
                self._write_anew(self._path)
            else:
                with self._path.open("ab") as file:
                    file.write(_encoded(lines))
                self._file_lines += len(lines)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("cannot write %s (%s); a restart will not know what happened before it", self._path, error)
            self._failing = True

    def _write_anew(self, path: Path) -> None:
        """With everything that is kept, over the old one."""
        events = heapq.merge(self._others, self._of_logs, key=_number)
        lines = [Line(book=self.book)]
        lines += [Line(event=each) for each in events]
        lines += [Line(minute=each) for each in self._minutes]
        path.parent.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.touch(PRIVATE_FILE)
        written.write_bytes(_encoded(lines))
        written.replace(path)
        self._file_lines = len(lines)


def _number(event: Happened) -> int:
    return event.number


def _encoded(lines: list[Line]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
