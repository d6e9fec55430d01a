"""What a person is shown of a run: findings, steps and states as plain text, decoded from the engine's integers.

The engine makes these values (``World.explain`` and ``World.describe``); text reports and the HTML diagram only read
them. Nothing here is used while exploring, so clarity goes before speed.
"""

from __future__ import annotations

from dataclasses import dataclass

NamedTexts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Finding:
    """A monitor's verdict, or ``RoleError`` when a role itself failed."""

    monitor: str
    text: str


@dataclass(frozen=True)
class MessageView:
    """One message on its way. ``message_id`` is the same at the send and at the delivery, loss or doubling of it."""

    message_id: int
    source: str
    source_role: str
    target: str
    target_role: str
    label: str  # short, for an arrow: "Write 3"
    detail: str  # everything: "Write(first=3, count=1, kind=DATA, ...)"


@dataclass(frozen=True)
class StepView:
    """What happened in one step of a run."""

    index: int  # 1 for the first step after the initial state
    action: str  # the action's text, as an action file holds it
    kind: str  # the action's kind: "deliver", "lose", "timer", "crash", ...
    process: str | None  # where it happened; None for what concerns the whole world (a cut, a power cut)
    role: str | None  # the role that handled it, if one did
    handled: MessageView | None  # the message that was delivered, doubled or lost
    sent: tuple[MessageView, ...] = ()
    announced: tuple[str, ...] = ()  # events told to monitors, as text
    completed: tuple[str, ...] = ()  # operations that ended, as text
    persisted: tuple[str, ...] = ()  # records made durable, as text
    notes: tuple[str, ...] = ()  # anything else worth a line: phase changes, choices, processes a power cut ended


@dataclass(frozen=True)
class RoleView:
    name: str
    kind: str  # the role's class
    phase: str
    fields: NamedTexts


@dataclass(frozen=True)
class ProcessView:
    name: str
    up: bool
    incarnation: int
    start: int
    roles: tuple[RoleView, ...]
    timers: tuple[str, ...]  # "role.key" of each timer that is set
    disk: NamedTexts


@dataclass(frozen=True)
class StateView:
    """One state of the world, decoded. ``network`` holds what is in flight."""

    processes: tuple[ProcessView, ...]
    network: tuple[MessageView, ...]
    budgets: NamedTexts  # what is left of each fault budget
    monitors: NamedTexts  # each monitor's state
