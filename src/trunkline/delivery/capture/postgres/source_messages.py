"""Logical messages that a capture of a PostgreSQL database writes into the server's WAL, and meets in its stream again.

They are the watermarks of chunks, places of checks of the catalog, and requests of operators. Their prefix names the
slot, so that captures of one database do not meet each other's.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)

PREFIX: Final = "trunkline:"
EMIT: Final = "SELECT pg_logical_emit_message(false, %s, %s)"
EMIT_FLUSHED: Final = (
    "SELECT pg_logical_emit_message(false, %s, %s), pg_current_xact_id()"  # its commit flushes the WAL
)
EMIT_IN_TRANSACTION: Final = "SELECT pg_logical_emit_message(true, %s, %s)"


class ChunkMessage(Struct, frozen=True, tag="chunk", tag_field="kind"):
    """A watermark. ``attempt``: a chunk is read again, with new watermarks, after a failure."""

    writer: str
    chunk: int
    attempt: int
    high: bool
    whole: bool = False  # of a table without a key


class CheckMessage(Struct, frozen=True, tag="check", tag_field="kind"):
    """What was seen before it holds here in the stream. ``reader``: unique for each stream."""

    reader: str
    number: int


class ResnapshotMessage(Struct, frozen=True, tag="resnapshot", tag_field="kind"):
    """Capture all rows of a table again. ``oid``: whatever its name is by then; 0: the table that has the name."""

    schema: str
    name: str
    why: str
    oid: int = 0


SourceMessage = ChunkMessage | CheckMessage | ResnapshotMessage
_decoder: Final[msgspec.json.Decoder[SourceMessage]] = msgspec.json.Decoder(SourceMessage)


def prefix_of(slot: str) -> str:
    return PREFIX + slot


def message_text(message: SourceMessage) -> str:
    return msgspec.json.encode(message).decode()


def message_in(content: bytes) -> SourceMessage | None:
    """``None``: it is of another program, or of another version of this one."""
    try:
        return _decoder.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        logger.warning("a logical message in the stream is ignored, for it is of no known kind: %.100r", content)
        return None
