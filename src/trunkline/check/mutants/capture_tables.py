"""Bugs of a capture in the snapshots and the schemas of tables, and of the source that it relies on."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.check.scenarios.capture_world import Database
from trunkline.core import capture_chunks
from trunkline.core.capture import Capture
from trunkline.core.capture_chunks import ChunkReader, OpenChunk, Transactions
from trunkline.core.capture_messages import (
    ChunkBody,
    ChunkRead,
    ChunkRefused,
    Piece,
    Shape,
    ShapeChange,
    TableCursor,
)
from trunkline.core.effects import Effects, Message

_on_streamed = Capture._on_streamed
_make_catalog = Capture._make_catalog
_make_chunk = Capture._make_chunk
_capture_shape = Capture._on_shape
_begin = ChunkReader.begin
_on_piece = ChunkReader.on_piece
_on_read = ChunkReader.on_read
_on_shape = ChunkReader.on_shape
_refusal = ChunkReader.refusal


# --------------------------------------------------------------------------------------------------------------- chunks


def _accept_chunk(self: ChunkReader, chunk: OpenChunk) -> ChunkRefused | None:
    return None


def _trust_running(self: ChunkReader, running: tuple[int, ...]) -> None:
    _begin(self, ())


def _drop_nothing(self: Capture, table: int, read: ChunkRead, body: ChunkBody) -> None:
    _make_chunk(self, table, read, replace(body, touched=()))


def _drop_only_keys(self: Capture, table: int, read: ChunkRead, body: ChunkBody) -> None:
    _make_chunk(self, table, read, replace(body, touched=tuple(token for token in body.touched if token)))


def _write_when_read(self: ChunkReader, read: ChunkRead) -> bool:
    if self.chunk is not None and self.chunk.number == read.chunk:
        self.chunk.high = True
    return _on_read(self, read)


def _forget_window(self: ChunkReader, chunk: OpenChunk) -> ChunkRefused | None:
    doubted = self.doubted
    self.doubted = doubted - chunk.window.xids
    refused = _refusal(self, chunk)
    self.doubted = doubted
    return refused


def _ignore_must_see(self: ChunkReader, shape: Shape) -> tuple[int, ...]:
    return _on_shape(self, replace(shape, must_see=()))


def _remember_while_reading(self: ChunkReader, piece: Piece) -> None:
    if self.chunk is not None:
        _on_piece(self, piece)


def _replace_must_see(self: ChunkReader, shape: Shape) -> tuple[int, ...]:
    self.must_see.pop(shape.table, None)
    return _on_shape(self, shape)


def _remember_few(self: Transactions, xids: Iterable[int], through: int = 0) -> None:
    self.xids = set(sorted({*self.xids, *xids})[: self.count_max])


def _catalog_ahead(self: Capture) -> None:
    chunk, cursors = self.chunks.chunk, self.cursors
    if chunk is not None and chunk.reads:
        after, last = chunk.reads[-1].after, chunk.reads[-1].last
        self.cursors = {**cursors, chunk.table: replace(cursors[chunk.table], after=after, complete=last)}
    _make_catalog(self)
    self.cursors = cursors


# ------------------------------------------------------------------------------------------------ schemas, generations


def _keep_chunk(self: ChunkReader, shape: Shape) -> tuple[int, ...]:
    return ()


def _defer_schema(self: Capture, message: Message) -> Effects:
    """Until the next piece is written."""
    late = self.__dict__.pop("late_shape", None)
    if isinstance(message, Shape) and message.change is ShapeChange.CHANGED:
        self.__dict__["late_shape"] = message
        return []
    effects = _on_streamed(self, message)
    if late is not None and isinstance(message, Piece):
        return [*effects, *_on_streamed(self, late)]
    if late is not None:
        self.__dict__["late_shape"] = late
    return effects


def _keep_cursor(self: Capture, shape: Shape) -> Effects:
    before = self.cursors.get(shape.table)
    effects = _capture_shape(self, shape)
    if shape.change is ShapeChange.RECAPTURED and before is not None:
        kept = replace(before, generation=before.generation + 1)
        self.cursors[shape.table] = kept
        self.queue[-1] = replace(self.queue[-1], tables=(kept,))
    return effects


def _keep_table(self: Capture, shape: Shape) -> Effects:
    before = self.cursors.get(shape.table)
    effects = _capture_shape(self, shape)
    if shape.change is ShapeChange.DROPPED and before is not None:
        self.cursors[shape.table] = before
    return effects


# ------------------------------------------------------------------------------------------------- tables without a key


def _never_pauses(self: ChunkReader) -> bool:
    return False


def _read_begun(cursor: TableCursor) -> bool:
    return not cursor.complete


def _begun_as_it_was(self: Database, session: int, tables: tuple[int, ...]) -> list[Message]:
    return []


def _without_lock(self: Database, table: int) -> bool:
    return False


CAPTURE_TABLE_MUTANTS = (
    Mutant(
        "chunk-misses-early-commit",
        "a chunk counts although its snapshot does not see a transaction before its low watermark",
        "capture-late-commit",
        patch((ChunkReader, "refusal", _accept_chunk)),
        "ChunkExact",
        "breadth",
        100_000,
        breaks=("capture K5",),
    ),
    Mutant(
        "chunk-trusts-earlier-session",
        "a chunk counts although its snapshot does not see a transaction that an earlier session wrote",
        "capture-late-commit",
        patch((ChunkReader, "begin", _trust_running)),
        "ChunkExact",
        "breadth",
        100_000,
        breaks=("capture K5",),
    ),
    Mutant(
        "chunk-keeps-changed-keys",
        "rows of a chunk are written although their keys were changed between its watermarks",
        "capture-chunks-and-parts",
        patch((Capture, "_make_chunk", _drop_nothing)),
        "ChunkExact",
        "breadth",
        5_000,
        breaks=("capture K7",),
    ),
    Mutant(
        "chunk-survives-truncation",
        "rows of a chunk are written although its table was truncated between its watermarks",
        "capture-truncation",
        patch((Capture, "_make_chunk", _drop_only_keys)),
        "ChunkExact",
        "breadth",
        5_000,
        breaks=("capture K7",),
    ),
    Mutant(
        "chunk-before-high-watermark",
        "a chunk is written when its rows arrive, before changes that it may contain",
        "capture-chunks-and-parts",
        patch((ChunkReader, "on_read", _write_when_read)),
        "ChunkExact",
        "breadth",
        5_000,
        breaks=("capture K7",),
    ),
    Mutant(
        "cursor-moved-before-chunk-committed",
        "a catalog has the cursor of a chunk that is not in the log yet",
        "capture-catalogs",
        patch((Capture, "_make_catalog", _catalog_ahead)),
        "ChunkExact",
        "breadth",
        100_000,
        breaks=("capture K8",),
    ),
    Mutant(
        "transactions-forgotten",
        "of many transactions that are streamed while a table is read, only some are remembered",
        "capture-many-transactions",
        patch((Transactions, "add", _remember_few)),
        "ChunkExact",
        "breadth",
        30_000,
        breaks=("capture K5", "capture K10"),
    ),
    Mutant(
        "must-see-ignored",
        "a chunk counts although its snapshot does not see a transaction that ran when its table joined the stream",
        "capture-late-table",
        patch((ChunkReader, "on_shape", _ignore_must_see)),
        "ChunkExact",
        "breadth",
        200_000,
        breaks=("capture K5",),
    ),
    Mutant(
        "must-see-forgotten-by-a-session",
        "a chunk counts although a transaction that ran before the session, and is streamed now, changed its table",
        "capture-late-table",
        patch((ChunkReader, "refusal", _forget_window)),
        "ChunkExact",
        "breadth",
        200_000,
        breaks=("capture K5",),
    ),
    Mutant(
        "must-see-forgotten-by-a-change",
        "after another change of its shape a table need not see what ran when it joined the stream",
        "capture-late-table-changed",
        patch((ChunkReader, "on_shape", _replace_must_see)),
        "ChunkExact",
        "breadth",
        200_000,
        breaks=("capture K5",),
    ),
    Mutant(
        "recapture-trusts-visibility",
        "transactions are not remembered while nothing is read, and a table is captured again just after one of them",
        "capture-again",
        patch((ChunkReader, "on_shape", _ignore_must_see), (ChunkReader, "on_piece", _remember_while_reading)),
        "ChunkExact",
        "breadth",
        200_000,
        breaks=("capture K5",),
    ),
    Mutant(
        "chunk-kept-across-shapes",
        "rows that were read under one shape of a table are written after the next",
        "capture-changed-table",
        patch((ChunkReader, "on_shape", _keep_chunk)),
        "SchemaFirst",
        "breadth",
        60_000,
        breaks=("capture K11",),
    ),
    Mutant(
        "schema-after-its-rows",
        "a schema is written after the piece that needs it",
        "capture-changed-table",
        patch((Capture, "_on_streamed", _defer_schema)),
        "SchemaFirst",
        "breadth",
        20_000,
        breaks=("capture K11",),
    ),
    Mutant(
        "cursor-kept-by-recapture",
        "a table that is captured again is read from where it was",
        "capture-again",
        patch((Capture, "_on_shape", _keep_cursor)),
        "ChunkExact",
        "breadth",
        50_000,
        breaks=("capture K11",),
    ),
    Mutant(
        "dropped-table-stays",
        "a table that was dropped stays in the catalogs",
        "capture-dropped-table",
        patch((Capture, "_on_shape", _keep_table)),
        "SchemaFirst",
        "breadth",
        20_000,
        breaks=("capture K11",),
    ),
    Mutant(
        "keyless-chunk-not-paused",
        "transactions are written among the rows of a table without a key",
        "capture-keyless",
        patch((ChunkReader, "pauses", property(_never_pauses)), (ChunkReader, "refusal", _accept_chunk)),
        "ChunkExact",
        "breadth",
        20_000,
        breaks=("capture K12",),
    ),
    Mutant(
        "keyless-read-on",
        "a table without a key of which the log has some rows is read again in the same generation",
        "capture-keyless",
        patch((capture_chunks, "_is_to_read", _read_begun), (Database, "_begun", _begun_as_it_was)),
        "ChunkExact",
        "breadth",
        20_000,
        breaks=("capture K12",),
    ),
    Mutant(
        "keyless-left-begun",
        "after a crash the source does not begin a new generation of a table without a key",
        "capture-keyless",
        patch((Database, "_begun", _begun_as_it_was)),
        "Progress",
        "breadth",
        30_000,
        breaks=("capture K12",),
    ),
    Mutant(
        "keyless-read-without-lock",
        "a table without a key is read while others write to it",
        "capture-keyless",
        patch((Database, "_is_written", _without_lock)),
        "ChunkExact",
        "breadth",
        20_000,
        breaks=("capture K12",),
    ),
)
