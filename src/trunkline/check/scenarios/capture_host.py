"""The host of a capture in the checked world: it holds the stream back, and brings the log's schemas to the source."""

from __future__ import annotations

from collections import deque

from trunkline.core.capture import Capture, CaptureConfig
from trunkline.core.capture_messages import (
    ChunkRead,
    DropUnit,
    KeepAlive,
    OpenSource,
    Piece,
    Shape,
    TakenOver,
    Watermark,
)
from trunkline.core.effects import Address, Effect, Effects, Message, Send

STREAMED = (Piece, Shape, Watermark, KeepAlive)


class CatalogTaken(TakenOver, frozen=True):
    """``schemas``: of each table in the log, the unit of its schema."""

    schemas: tuple[tuple[int, int], ...] = ()


class OpenWithCatalog(OpenSource, frozen=True):
    """With what the log has."""

    position: int = 0
    schemas: tuple[tuple[int, int], ...] = ()
    begun: tuple[int, ...] = ()  # tables without a key of which it has some rows, and not all


class CaptureHost(Capture):
    """A capture whose stream is held back while it is full; rows of chunks only while it is crowded (K10, K12)."""

    def __init__(self, config: CaptureConfig) -> None:
        super().__init__(config)
        self.held: deque[Message] = deque()  # of the stream
        self.rows: deque[Message] = deque()  # of chunks
        self.schemas: tuple[tuple[int, int], ...] = ()

    def on_message(self, source: Address, message: Message) -> Effects:
        if isinstance(message, CatalogTaken):
            self.held.clear()
            self.rows.clear()
            self.schemas = message.schemas
        effects: Effects = []
        if isinstance(message, STREAMED):
            self.held.append(message)
        elif isinstance(message, ChunkRead):
            self.rows.append(message)
        else:
            effects = super().on_message(source, message)
        while (self.rows and not self.crowded) or (self.held and not self.full):
            waiting = self.rows if self.rows and not self.crowded else self.held
            effects = effects + super().on_message(self.config.source, waiting.popleft())
        return [self._carried_out(each) for each in effects if not _is_drop(each)]

    def _carried_out(self, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or not isinstance(effect.message, OpenSource):
            return effect
        asked, cursors = effect.message, self.cursors.values()
        begun = tuple(each.table for each in cursors if not each.keyed and each.chunks and not each.complete)
        return Send(
            effect.to,
            OpenWithCatalog(asked.session, asked.epoch, asked.create, self.position, self.schemas, begun),
        )


def _is_drop(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, DropUnit)
