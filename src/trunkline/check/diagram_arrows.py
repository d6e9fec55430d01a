"""Follows each message of a run from the step that sent it to the step where it arrived or was lost.

A message that is sent again while it is in flight is still one message, unless the network then holds one more copy of
it. A doubled message arrives and stays in flight. Of several copies the oldest ends first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trunkline.check.views import MessageView, StateView, StepView


class MessageFate(Enum):
    ARRIVED = "arrived"
    DOUBLED = "doubled"
    LOST = "lost"
    PENDING = "pending"  # still in flight at the end
    DROPPED = "dropped"  # removed from the network undelivered: its target can never handle it


@dataclass(frozen=True)
class Arrow:
    message: MessageView
    sent_at: int | None  # the step (0: the initial state); None: not part of the run
    ended_at: int | None  # the step of its arrival or loss
    fate: MessageFate


def trace_arrows(steps: Sequence[StepView], states: Sequence[StateView]) -> list[Arrow]:
    """The arrows between processes, in the order in which they end; those that never end come last."""
    flying: dict[int, list[tuple[int, MessageView]]] = {}  # copies, oldest first
    for message in states[0].network:
        flying.setdefault(message.message_id, []).append((0, message))
    doubled: set[int] = set()  # the copy left in flight already has its arrow
    arrows = []
    for step in steps:
        if step.handled is not None:
            arrow = _ending(step, step.handled, flying)
            arrows.append(arrow)
            (doubled.add if arrow.fate is MessageFate.DOUBLED else doubled.discard)(step.handled.message_id)
        for message in step.sent:
            copies = flying.setdefault(message.message_id, [])
            in_flight = sum(each.message_id == message.message_id for each in states[step.index].network)
            if message.source != message.target and len(copies) < max(1, in_flight):
                copies.append((step.index, message))
    left = {message.message_id for message in states[-1].network}
    for sent_at, message in (copy for copies in flying.values() for copy in copies):
        if message.message_id in doubled:
            continue
        fate = MessageFate.PENDING if message.message_id in left else MessageFate.DROPPED
        arrows.append(Arrow(message, sent_at, None, fate))
    return arrows


def _ending(step: StepView, message: MessageView, flying: dict[int, list[tuple[int, MessageView]]]) -> Arrow:
    copies = flying.get(message.message_id) or []
    sent_at = copies[0][0] if copies else None
    if step.kind == "duplicate":
        return Arrow(message, sent_at, step.index, MessageFate.DOUBLED)
    del copies[:1]
    lost = step.kind in ("lose", "drop")
    return Arrow(message, sent_at, step.index, MessageFate.LOST if lost else MessageFate.ARRIVED)
