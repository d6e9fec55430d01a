"""The units of a source between their arrival and their entry: the role knows them by handles.

Keys that the stream touches are held only for the table whose chunk is being read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from trunkline.core import capture_messages as messages
from trunkline.core.effects import Message
from trunkline.delivery.capture.chunk_rows import touched_rows, truncates
from trunkline.delivery.capture.source import Changes, ChunkRows, KeepAlive, SchemaUnit, Unit, Watermark
from trunkline.delivery.changes.schemas import SchemaChange, TableSchema

TRUNCATION: Final = ""  # a token that stands for all keys

WrittenUnit = Changes | SchemaUnit | ChunkRows


class HeldUnits:
    def __init__(self) -> None:
        self.clear()
        self._handle = 0

    def clear(self) -> None:
        """A session begins."""
        self.schemas: dict[int, TableSchema] = {}  # the newest of each table, where the role is in the stream
        self._units: dict[int, WrittenUnit] = {}
        self._touched: dict[str, tuple[int, pa.Table]] = {}  # by token: its chunk, and what was touched
        self.chunk = 0  # that is being read

    def message(self, session: int, unit: Unit, watched: int | None) -> Message:
        """For the role. ``watched``: the table of the chunk that is being read."""
        match unit:
            case KeepAlive(position):
                return messages.KeepAlive(session, position)
            case Watermark(writer, chunk, high):
                return messages.Watermark(session, writer, chunk, high)
            case Changes():
                return self._changes(session, unit, watched)
            case SchemaUnit(schema, must_see):
                change = _change(schema)
                self.schemas[schema.number] = schema
                return messages.Shape(session, self._hold(unit), schema.number, change, bool(schema.key), must_see)
            case ChunkRows(chunk, rows, cursor, last, running, xid_next):
                handle = self._hold(unit)
                size = rows.batch.nbytes
                return messages.ChunkRead(session, handle, chunk, cursor or b"", last, running, xid_next, size)

    def _changes(self, session: int, unit: Changes, watched: int | None) -> Message:
        if not unit.transactions:  # they changed nothing that is captured
            return messages.KeepAlive(session, unit.end)
        handle = self._hold(unit)
        return messages.Piece(
            session,
            handle,
            unit.end or unit.transactions[-1].lsn + 1,
            tuple(each.xid for each in unit.transactions),
            unit.size,
            first=not unit.part,
            last=unit.part is None or unit.last,
            touched=() if watched is None else self._touch(unit, self.schemas[watched], str(handle)),
        )

    def _touch(self, unit: Changes, watched: TableSchema, token: str) -> tuple[messages.Touched, ...]:
        found = [rows for rows in unit.tables if rows.number == watched.number]
        if not found:
            return ()
        if any(truncates(rows) for rows in found) or not watched.key:
            return (messages.Touched(watched.number, TRUNCATION),)
        tables = [touched_rows(rows, watched) for rows in found]
        self._touched[token] = (self.chunk, pa.concat_tables(tables))
        return (messages.Touched(watched.number, token),)

    def _hold(self, unit: WrittenUnit) -> int:
        self._handle += 1
        self._units[self._handle] = unit
        return self._handle

    def take(self, request: messages.AppendEntry) -> tuple[WrittenUnit | None, Sequence[pa.Table]]:
        """What becomes an entry, and what touched its rows."""
        unit = self._units.pop(request.unit) if request.unit else None
        if request.chunk is None:
            return unit, ()
        touched = [self._touched[token][1] for token in request.chunk.touched if token != TRUNCATION]
        if isinstance(unit, ChunkRows):
            self._forget(request.chunk.chunk)
        return unit, touched

    def drop(self, handle: int) -> None:
        unit = self._units.pop(handle)
        if isinstance(unit, ChunkRows):
            self._forget(unit.chunk)

    def _forget(self, chunk: int) -> None:
        """What was touched during this chunk and those before it. A whole table has several units, and none of them."""
        self._touched = {token: held for token, held in self._touched.items() if held[0] > chunk}


def _change(schema: TableSchema) -> messages.ShapeChange:
    if schema.dropped:
        return messages.ShapeChange.DROPPED
    if SchemaChange.CREATED in schema.changes:
        return messages.ShapeChange.CREATED
    recaptured = SchemaChange.RECAPTURED in schema.changes
    return messages.ShapeChange.RECAPTURED if recaptured else messages.ShapeChange.CHANGED
