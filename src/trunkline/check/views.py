"""Views of a run for reports: findings, steps and states as plain text, decoded from the engine's integers.

``World.explain`` and ``World.describe`` make these values; text reports and the HTML diagram read them. They are not
used while exploring.
"""

from __future__ import annotations

from dataclasses import dataclass

NamedTexts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Finding:
    """The violation that a monitor reports, or ``RoleError`` if a role itself failed."""

    monitor: str
    text: str


@dataclass(frozen=True)
class MessageView:
    """One message. ``message_id`` is the same when it is sent and when it is delivered, lost or doubled."""

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
    process: str | None  # None for an action of the whole world (a cut, a power cut)
    role: str | None  # the role that handled it, if any
    handled: MessageView | None  # the message that was delivered, doubled or lost
    sent: tuple[MessageView, ...] = ()
    announced: tuple[str, ...] = ()  # events that monitors observe, as text
    completed: tuple[str, ...] = ()  # operations that ended, as text
    persisted: tuple[str, ...] = ()  # records made durable, as text
    notes: tuple[str, ...] = ()  # phase changes, choices, processes that a power cut ended


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
    """One state of the world, decoded. ``network`` holds the messages in flight."""

    processes: tuple[ProcessView, ...]
    network: tuple[MessageView, ...]
    budgets: NamedTexts  # what is left of each fault budget
    monitors: NamedTexts  # each monitor's state
