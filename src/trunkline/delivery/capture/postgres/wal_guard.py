"""How much WAL a server keeps for a capture, and what happens when it is too much.

A slot keeps the server's WAL until it is captured, so a capture that is slow, stopped or held back by an open
transaction can fill the server's disk. The guard warns at half of the limit and at the limit, once each time, and then
acts as it was configured: it only warns, it stops the capture (which frees nothing, but an operator may watch the
process), or it stops the capture and drops the slot: the server's disk is saved, and all rows must be captured again.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

from msgspec import Struct

CALM: Final = 0.8  # of a threshold: below it, a warning may be repeated when the threshold is reached again
MIB: Final = 1024 * 1024


class WalAction(StrEnum):
    WARN = "warn"
    STOP = "stop"
    DROP = "drop"


class WalLevel(IntEnum):
    FINE = 0
    HALF = 1
    LIMIT = 2


class WalVerdict(Struct, frozen=True):
    level: WalLevel  # for the next call
    warning: str = ""  # to be logged
    action: WalAction = WalAction.WARN  # STOP and DROP: with ``warning`` as the reason


def judged_wal(retained: int, limit: int, action: WalAction, before: WalLevel, slot: str) -> WalVerdict:
    """``retained``: bytes that the server keeps for the slot; ``before``: the level of the last verdict."""
    thresholds = {WalLevel.HALF: limit // 2, WalLevel.LIMIT: limit}
    level = max((each for each in thresholds if retained >= thresholds[each]), default=WalLevel.FINE)
    while level < before and retained >= CALM * thresholds[WalLevel(level + 1)]:
        level = WalLevel(level + 1)
    if level <= before:
        return WalVerdict(level, action=WalAction.WARN)
    kept = f"the server keeps {retained // MIB:,} MiB of WAL for the slot {slot}"
    if level is WalLevel.HALF:
        return WalVerdict(
            level,
            f"{kept}, half of the limit of {limit // MIB:,} MiB or more; the capture is slow, or an open transaction "
            "holds it back (pg_stat_activity shows those)",
        )
    by_hand = f"to save the disk, run: SELECT pg_drop_replication_slot('{slot}')"
    acts = {
        WalAction.WARN: f"the capture continues; {by_hand}",
        WalAction.STOP: f"the capture stops; {by_hand}",
        WalAction.DROP: "the capture stops, and drops the slot to save the disk: all rows must be captured again",
    }
    return WalVerdict(level, f"{kept}, which is over the limit of {limit // MIB:,} MiB: {acts[action]}", action)
