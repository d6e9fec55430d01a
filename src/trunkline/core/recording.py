"""The format of recordings: the lines that a running process writes about what its roles announce.

A recording is a directory with one file for each start of a process, ``<process>-<start>.trace``:

    {"format":"trunkline-trace","version":2,"process":"n1","start":3,"cluster":"c1","at":1000}
    {"process":"n1","role":"storage","at":1204,"event":{"type":"FrameStored","node":"n1",...}}
    ...
    {"end":"stopped","at":9000}

Rules
 T1  ``at`` is the monotonic clock of the machine in nanoseconds, read when the host carries out the announcement (so
     every earlier ``Persist`` is durable). It never decreases inside a file.
 T2  The lines of a step are in the file (one write, no sync) before any effect that follows them is carried out. So the
     lines of a received answer are in the file, and ordering by ``at`` never puts an effect before its cause. A kill
     cuts off a suffix of the file, perhaps within a line.
 T3  The last line says that the process stopped by itself. A file without it was cut: the process was killed, or runs.
 T4  A start is greater than every earlier start of the same process.
 T5  An operation has a number of its own for each role of a process start; its ``Invoked`` line is written before
     anything is done for it, and its ``Completed`` line before its caller gets the result.

This module only makes the bytes; the host writes them. Every struct carries its class name as ``type``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from trunkline.core.effects import Event

FORMAT = "trunkline-trace"
NAME_BYTES_MAX = 200  # of a process, in the name of its file
VERSION = 2

_AS_IT_IS = frozenset((str, int, bool, float, type(None)))


def file_name(process: str, start: int) -> str:
    """A valid file name. The first line of the file has the full name, and starts are unique."""
    fits = process.replace("/", "%2F").encode(errors="replace")[:NAME_BYTES_MAX].decode(errors="ignore")
    return f"{fits}-{start}.trace"


def header_line(process: str, start: int, cluster: str, at_ns: int) -> bytes:
    return _line(
        {"format": FORMAT, "version": VERSION, "process": process, "start": start, "cluster": cluster, "at": at_ns}
    )


def encode_event(process: str, role: str, at_ns: int, event: Event) -> bytes:
    """One line, with the newline."""
    return _line({"process": process, "role": role, "at": at_ns, "event": plain(event)})


def end_line(at_ns: int) -> bytes:
    """The last line of a process that stops by itself (T3)."""
    return _line({"end": "stopped", "at": at_ns})


def plain(value: Any) -> Any:
    """Structs as objects with a ``type``, other values as JSON; sets in an order that does not depend on hashing."""
    if isinstance(value, Struct):
        kind = type(value)
        fields: dict[str, Any] = {"type": kind.__name__}
        for name in kind.__struct_fields__:
            field = getattr(value, name)
            fields[name] = field if type(field) in _AS_IT_IS else plain(field)
        return fields
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset | set):
        return sorted((plain(each) for each in value), key=msgspec.json.encode)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):  # perhaps a container of the host
        return [plain(each) for each in value]
    return value


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
