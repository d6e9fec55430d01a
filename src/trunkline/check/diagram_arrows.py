"""Follows each message of a run from the step that sent it to the step where it arrived or was lost.

A message that is sent again while it is in flight is still one message, unless the network holds a copy more of it
then; a doubled one arrives and stays in flight. Of equal ones the oldest ends first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trunkline.check.views import Sent, StateView, Step


class Fate(Enum):
    ARRIVED = "arrived"
    DOUBLED = "doubled"
    LOST = "lost"
    PENDING = "pending"  # still in flight at the end
    DROPPED = "dropped"  # nobody will ever take it: not in flight any more, and never delivered


@dataclass(frozen=True)
class Arrow:
    message: Sent
    sent_at: int | None  # the step (0: the initial state); None when the run does not show it
    ended_at: int | None  # the step of its arrival or loss
    fate: Fate


def trace_arrows(steps: Sequence[Step], states: Sequence[StateView]) -> list[Arrow]:
    """The arrows between processes in the order in which they end; those that never do come last."""
    flying: dict[int, list[tuple[int, Sent]]] = {}  # copies in the order of sending
    for message in states[0].network:
        flying.setdefault(message.message_id, []).append((0, message))
    doubled: set[int] = set()  # what is left in flight of these has its arrow already
    arrows = []
    for step in steps:
        if step.handled is not None:
            arrow = _ending(step, step.handled, flying)
            arrows.append(arrow)
            (doubled.add if arrow.fate is Fate.DOUBLED else doubled.discard)(step.handled.message_id)
        for message in step.sent:
            copies = flying.setdefault(message.message_id, [])
            in_flight = sum(each.message_id == message.message_id for each in states[step.index].network)
            if message.source != message.target and len(copies) < max(1, in_flight):
                copies.append((step.index, message))
    left = {message.message_id for message in states[-1].network}
    for sent_at, message in (copy for copies in flying.values() for copy in copies):
        if message.message_id in doubled:
            continue
        fate = Fate.PENDING if message.message_id in left else Fate.DROPPED
        arrows.append(Arrow(message, sent_at, None, fate))
    return arrows


def _ending(step: Step, message: Sent, flying: dict[int, list[tuple[int, Sent]]]) -> Arrow:
    copies = flying.get(message.message_id) or []
    sent_at = copies[0][0] if copies else None
    if step.kind == "duplicate":
        return Arrow(message, sent_at, step.index, Fate.DOUBLED)
    del copies[:1]
    return Arrow(message, sent_at, step.index, Fate.LOST if step.kind in ("lose", "drop") else Fate.ARRIVED)
