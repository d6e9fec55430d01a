"""Bugs of the capture of a database, and of the systems that it relies on."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.monitors.capture import LSN_STEP, ends_of
from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
from trunkline.check.scenarios.capture_log import Fate, OneWriterLog
from trunkline.core import capture
from trunkline.core.capture import Capture
from trunkline.core.capture_messages import (
    AppendEntry,
    AppendOutcome,
    ConfirmPosition,
    KeepAlive,
    Origin,
    Piece,
    Recaptured,
    SourceOpened,
    TakenOver,
)
from trunkline.core.effects import Address, Announce, Effects, Message, Send

_begin = Capture._begin
_dispatch = Capture._dispatch
_on_ended = Capture._on_ended
_on_keep_alive = Capture._on_keep_alive
_on_opened = Capture._on_opened
_on_piece = Capture._on_piece
_on_streamed = Capture._on_streamed
_on_taken = Capture._on_taken
_write_chunk = Capture._write_chunk
_commit = OneWriterLog._commit
_fates = OneWriterLog._fates
_lost = capture._lost


# -------------------------------------------------------------------------------------------------------- confirmations


def _confirm_when_sent(self: Capture) -> Effects:
    effects = _dispatch(self)
    ahead = [Send(self.config.source, ConfirmPosition(self.session, self.position))] if effects else []
    return [*effects, *ahead]


def _confirm_keep_alive(self: Capture, message: Message) -> Effects:
    effects = _on_streamed(self, message)
    ahead = [message.wal_end] if isinstance(message, KeepAlive) else []
    return [*effects, *(Send(self.config.source, ConfirmPosition(self.session, position)) for position in ahead)]


def _ignore_keep_alive(self: Capture, wal_end: int) -> None:
    pass


def _without_confirming(self: Capture, source: SourceOpened, position: int) -> Effects:
    return [e for e in _begin(self, source, position) if not (isinstance(e, Send) and _confirms(e))]


def _confirms(effect: Send) -> bool:
    return isinstance(effect.message, ConfirmPosition)


def _mark_inside_transaction(self: Capture, wal_end: int) -> None:
    parts, self.parts = self.parts, None
    _on_keep_alive(self, wal_end)
    self.parts = parts


# -------------------------------------------------------------------------------------------------------------- appends


def _write_among_parts(self: Capture) -> Effects:
    parts, self.parts = self.parts, None
    effects = _write_chunk(self)
    self.parts = parts
    return effects


def _keep_sent(self: Capture) -> Effects:
    effects = _dispatch(self)
    sent = {e.message.number: e.message for e in effects if isinstance(e, Send) and isinstance(e.message, AppendEntry)}
    self.__dict__["sent"] = {**self.__dict__.get("sent", {}), **sent}
    return effects


def _append_again(self: Capture, number: int, outcome: AppendOutcome) -> Effects:
    sent = self.__dict__.get("sent", {})
    if outcome is not AppendOutcome.UNKNOWN or number not in sent:
        return _on_ended(self, number, outcome)
    self.number += 1
    self.queue.appendleft(replace(sent[number], number=self.number))
    self.in_flight = type(self.in_flight)(each for each in self.in_flight if each[0] != number)
    return self._dispatch()


def _trust_unknown(self: Capture, number: int, outcome: AppendOutcome) -> Effects:
    unknown = outcome is AppendOutcome.UNKNOWN
    return _on_ended(self, number, AppendOutcome.COMMITTED if unknown else outcome)


def _leave_gap(self: OneWriterLog) -> tuple[Fate, ...]:
    self.fate = Fate.COMMITTED
    return _fates(self)


# ----------------------------------------------------------------------------------------------------------- take-overs


def _count_parts(self: OneWriterLog, source: Address, entry: AppendEntry, outcome: AppendOutcome) -> Effects:
    effects = _commit(self, source, entry, outcome)
    self.position = max(self.position, *ends_of(entry), 0)
    return effects


def _repeat(self: Capture, piece: Piece) -> Effects:
    position = self.position
    self.position = min(position, piece.end - 1)
    effects = _on_piece(self, piece)
    self.position = max(self.position, position)
    return effects


def _count_to_skip(self: Capture, source: SourceOpened, position: int) -> Effects:
    self.__dict__["to_skip"] = 0 if self.origin is None else position // LSN_STEP
    return _begin(self, source, position)


def _skip_by_count(self: Capture, piece: Piece) -> Effects:
    left = self.__dict__.get("to_skip", 0)
    if not left:
        return _repeat(self, piece)
    self.__dict__["to_skip"] = left - piece.last
    return []


def _force_always(self: Capture, log: TakenOver) -> Effects:
    effects = _on_taken(self, log)
    self.forces = True
    return effects


# --------------------------------------------------------------------------------------------------------- lost changes


def _lose_nothing(position: int, origin: Origin, source: SourceOpened) -> str:
    return ""


def _trust_slot(position: int, origin: Origin, source: SourceOpened) -> str:
    return _lost(position, origin, replace(source, confirmed=0))


def _trust_timeline(position: int, origin: Origin, source: SourceOpened) -> str:
    return _lost(position, origin, replace(source, ends=((origin.timeline, position),)))


def _keep_generation(self: Capture, source: SourceOpened) -> Effects:
    cursors = self.cursors
    effects = _on_opened(self, source)
    if any(isinstance(each, Announce) and isinstance(each.event, Recaptured) for each in effects):
        self.cursors = cursors
    return effects


CAPTURE_MUTANTS = (
    Mutant(
        "confirm-before-commit",
        "a position is confirmed when its entry is sent to the log",
        "capture-groups",
        patch((Capture, "_dispatch", _confirm_when_sent)),
        "ConfirmedIsCaptured",
        "breadth",
        5_000,
        breaks=("capture K2",),
    ),
    Mutant(
        "keep-alive-confirms-while-pending",
        "the position of a keep-alive is confirmed at once",
        "capture-groups",
        patch((Capture, "_on_streamed", _confirm_keep_alive)),
        "ConfirmedIsCaptured",
        "breadth",
        5_000,
        breaks=("capture K2",),
    ),
    Mutant(
        "idle-slot-holds-wal",
        "without changes nothing is confirmed, so the server keeps its WAL for ever",
        "capture-groups",
        patch((Capture, "_on_keep_alive", _ignore_keep_alive)),
        "Progress",
        "breadth",
        10_000,
        breaks=("capture K2",),
    ),
    Mutant(
        "log-position-unconfirmed",
        "after a take-over, what the log has is not confirmed until more is captured",
        "capture-groups",
        patch((Capture, "_begin", _without_confirming)),
        "Progress",
        "breadth",
        10_000,
        breaks=("capture K2",),
    ),
    Mutant(
        "mark-inside-transaction",
        "a keep-alive among the pieces of a large transaction writes a mark",
        "capture-parts",
        patch((Capture, "_on_keep_alive", _mark_inside_transaction)),
        "EachTransactionOnce",
        "breadth",
        10_000,
        breaks=("capture K2", "capture K1"),
    ),
    Mutant(
        "parts-interleaved",
        "a chunk is written among the parts of a large transaction",
        "capture-chunks-and-parts",
        patch((Capture, "_write_chunk", _write_among_parts)),
        "EachTransactionOnce",
        "breadth",
        10_000,
        breaks=("capture K1",),
    ),
    Mutant(
        "gap-after-refusal",
        "what follows a refused entry is appended",
        "capture-appends",
        patch((OneWriterLog, "_fates", _leave_gap)),
        "EachTransactionOnce",
        "breadth",
        30_000,
        breaks=("capture K1",),
    ),
    Mutant(
        "append-retried-after-unknown",
        "an append with an unknown outcome is sent again",
        "capture-appends",
        patch((Capture, "_dispatch", _keep_sent), (Capture, "_on_ended", _append_again)),
        "EachTransactionOnce",
        "breadth",
        30_000,
        breaks=("capture K4",),
    ),
    Mutant(
        "unknown-is-committed",
        "an append with an unknown outcome counts as committed",
        "capture-appends",
        patch((Capture, "_on_ended", _trust_unknown)),
        "ConfirmedIsCaptured",
        "breadth",
        30_000,
        breaks=("capture K4",),
    ),
    Mutant(
        "group-split-across-takeover",
        "a transaction of which the log has some parts counts as whole",
        "capture-parts",
        patch((OneWriterLog, "_commit", _count_parts)),
        ("EachTransactionOnce", "ConfirmedIsCaptured", "Progress"),
        "breadth",
        10_000,
        breaks=("capture K3",),
    ),
    Mutant(
        "resent-not-skipped",
        "what the server sends again is captured again",
        "capture-server-restart",
        patch((Capture, "_on_piece", _repeat)),
        "EachTransactionOnce",
        "breadth",
        10_000,
        breaks=("capture K3",),
    ),
    Mutant(
        "skip-by-count-instead-of-lsn",
        "after a take-over as many transactions are skipped as the log has, wherever the stream begins",
        "capture-groups",
        patch((Capture, "_begin", _count_to_skip), (Capture, "_on_piece", _skip_by_count)),
        ("EachTransactionOnce", "Progress"),
        "breadth",
        10_000,
        breaks=("capture K3",),
    ),
    Mutant(
        "log-taken-back",
        "a capture takes the log back from the one that took it over",
        "capture-pair",
        patch((Capture, "_on_taken", _force_always)),
        "NotTakenBack",
        "breadth",
        100_000,
        breaks=("capture K9",),
    ),
    Mutant(
        "slot-lost-unnoticed",
        "a lost slot is replaced, and the capture goes on as if nothing were missing",
        "capture-slot-lost",
        patch((capture, "_lost", _lose_nothing)),
        ("EachTransactionOnce", "Progress"),
        "breadth",
        5_000,
        breaks=("capture K6",),
    ),
    Mutant(
        "slot-moved-unnoticed",
        "the slot is ahead of the log, and the capture goes on from there",
        "capture-slot-moved",
        patch((capture, "_lost", _trust_slot)),
        "EachTransactionOnce",
        "breadth",
        5_000,
        breaks=("capture K6",),
    ),
    Mutant(
        "failover-unnoticed",
        "the log has a transaction that the promoted server lacks, and the capture goes on",
        "capture-failover",
        patch((capture, "_lost", _trust_timeline)),
        "EachTransactionOnce",
        "breadth",
        5_000,
        breaks=("capture K6",),
    ),
    Mutant(
        "recapture-without-generation",
        "after lost changes the tables count as complete, and are not read again",
        "capture-recapture",
        patch((Capture, "_on_opened", _keep_generation)),
        ("EachTransactionOnce", "ChunkExact"),
        "breadth",
        300_000,
        breaks=("capture K6",),
    ),
)
