"""Histories: the operations of clients and their answers, written by the clients. One file for each client and log.

    {"format":"trunkline-history","version":1,"client":"c1","log":"orders"}
    {"at":10,"begin":1,"op":"append","payloads":["c1/1","c1/2"]}
    {"at":25,"end":1,"glsn":7}

``at`` is nanoseconds of the machine's monotonic clock, read and written before the call and after its answer. An
operation without an end may have happened. Each payload has an id that is unique in the whole run.

| begins with                    | continues with (``got``)   | ends with                                          |
|--------------------------------|----------------------------|----------------------------------------------------|
| append, payloads               |                            | glsn (of the first), refused (why), unknown (why)  |
| read, glsn                     |                            | value, or unknown (why)                            |
| tail                           |                            | glsn, or unknown                                   |
| trim, point                    |                            | nothing, refused or unknown                        |
| subscribe, start               | first, values              | nothing: it may stop at any time                   |
| final                          | first, values              | glsn: the tail                                     |

A value is the id of a payload, or one of ``junk``, ``trimmed``, ``lost``, ``unwritten``. ``values`` are at consecutive
positions from ``first``; a subscription may skip JUNK. ``final`` is a complete reading at the end, when faults and
appends have stopped: it has every position from the trim point to the tail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")

FORMAT = "trunkline-history"
VERSION = 1

JUNK, TRIMMED, LOST, UNWRITTEN = "junk", "trimmed", "lost", "unwritten"
NOT_DATA = frozenset((JUNK, TRIMMED, LOST, UNWRITTEN))


class HistoryError(ValueError):
    """The history cannot be read; the text names file and line, and what is wrong."""


class HistoryHeader(Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    client: str
    log: str


class HistoryLine(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Exactly one of ``begin``, ``got`` and ``end`` is the number of an operation of this client."""

    at: int
    begin: int | None = None
    got: int | None = None
    end: int | None = None
    op: Literal["append", "read", "tail", "trim", "subscribe", "final"] | None = None
    payloads: tuple[str, ...] = ()
    glsn: int | None = None
    point: int | None = None
    start: int | None = None
    first: int | None = None
    values: tuple[str, ...] = ()
    value: str | None = None
    refused: str | None = None
    unknown: str | None = None


class HistoryWriter:
    """Writes the history of one client on one log. Begin an operation before the call, end it after the answer.

    The operating system has a line when its method returns, so a killed client leaves its history.
    """

    def __init__(self, directory: Path, client: str, log: str, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._clock_ns = clock_ns
        self._begun = 0
        self._file = (directory / f"{client}-{log}.history").open("xb", buffering=0)
        self._file.write(msgspec.json.encode(HistoryHeader(FORMAT, VERSION, client, log)) + b"\n")

    def append(self, payloads: Sequence[str]) -> int:
        return self._begin(op="append", payloads=tuple(payloads))

    def read(self, glsn: int) -> int:
        return self._begin(op="read", glsn=glsn)

    def tail(self) -> int:
        return self._begin(op="tail")

    def trim(self, point: int) -> int:
        return self._begin(op="trim", point=point)

    def subscribe(self, start: int) -> int:
        return self._begin(op="subscribe", start=start)

    def final(self) -> int:
        return self._begin(op="final")

    def got(self, number: int, first: int, values: Sequence[str]) -> None:
        """A subscription or the final reading returned these values."""
        self._write(HistoryLine(self._clock_ns(), got=number, first=first, values=tuple(values)))

    def end(
        self,
        number: int,
        *,
        glsn: int | None = None,
        value: str | None = None,
        refused: str | None = None,
        unknown: str | None = None,
    ) -> None:
        self._write(HistoryLine(self._clock_ns(), end=number, glsn=glsn, value=value, refused=refused, unknown=unknown))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, **fields: object) -> int:
        self._begun += 1
        self._write(msgspec.convert({"at": self._clock_ns(), "begin": self._begun, **fields}, HistoryLine))
        return self._begun

    def _write(self, line: HistoryLine) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")


def read_lines(path: Path) -> tuple[HistoryHeader, Iterator[tuple[int, HistoryLine]]]:
    """The header and the numbered lines. A last line without a line end was cut by a kill, and is skipped."""
    with path.open("rb") as file:
        header = _decoded(path, 1, file.readline(), HistoryHeader)
    if (header.format, header.version) != (FORMAT, VERSION):
        raise HistoryError(f"{path.name} line 1: not a history (expected {FORMAT}, version {VERSION})")
    return header, _lines(path)


def _lines(path: Path) -> Iterator[tuple[int, HistoryLine]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                return
            if number > 1:
                line = _decoded(path, number, raw, HistoryLine)
                if sum(each is not None for each in (line.begin, line.got, line.end)) != 1:
                    raise HistoryError(f"{path.name} line {number}: expected one of begin, got and end")
                yield number, line


def _decoded(path: Path, number: int, raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise HistoryError(f"{path.name} line {number}: {error}") from None
