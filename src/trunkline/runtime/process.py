"""A process of the protocol, run for real: carries out the effects of its roles on an event loop.

The checker's counterpart is ``check/processes.py``. Both keep the rules below, and both run the very same roles.

Rules
 H1  A step runs at once and to its end: ``on_message``, ``on_timer`` or ``on_choice``, then its effects in order.
 H2  A message to ``SELF`` is handled right after the step that sent it, before anything else.
 H3  A record is written when its ``Persist`` is met. What would leave the process after it (``Send``, ``Announce``,
     ``Complete``) is withheld until the record is durable, and leaves in the order in which it was asked for.
 H4  A timer that was cancelled or set anew never fires for its earlier setting.
 H5  A role may be paused (its application is slow): what it asked for and what it is told waits, its timers, too. To
     the others that is a slow process, nothing more.
 H6  A role that raises has a bug: the process stops. It never goes on with a state that nobody checked.
 H7  A timer that waits for processes which are all at work on large messages waits on, and is looked at four times as
     often. How long that may go on is for ``net/progress.py`` to say.

The bodies of batches travel beside messages as attachments. ``Step`` holds those that came with the message which a
step handles, so that a ``Persist`` or an ``Announce`` of that step finds its body.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from trunkline.core.effects import (
    SELF,
    Address,
    Announce,
    CancelTimer,
    Choose,
    Complete,
    Effects,
    Event,
    Message,
    Persist,
    Record,
    Send,
    SetTimer,
)
from trunkline.core.role import Patient, Role

Buffer = bytes | bytearray | memoryview
Attachments = Sequence[Buffer]


class Step:
    """What a step was told, and the bodies that came with it."""

    __slots__ = ("attachments", "message", "used")

    def __init__(self, message: Message | None, attachments: Attachments = ()) -> None:
        self.message = message
        self.attachments = attachments
        self.used = 0  # which attachment is looked for next


NO_STEP = Step(None)


class Surroundings(Protocol):
    """What a process needs from the program around it."""

    def send(self, role: str, to: Address, message: Message, step: Step) -> None:
        """Send to another process. It may be lost."""

    def persist(self, record: Record, step: Step) -> int:
        """Write a record and answer its ticket; tickets grow. ``Process.durable`` is called later with it."""

    def at_work(self, process: str, within_s: float) -> bool:
        """Whether a process is seen at work on large messages that it was sent."""

    def completed(self, role: str, complete: Complete) -> None: ...

    def announced(self, role: str, event: Event, step: Step) -> None: ...

    def choose(self, role: str, choose: Choose) -> object: ...

    def broken(self, role: str) -> None:
        """A role raised (H6); the exception goes on to the event loop's handler."""


class Pause:
    """What a role has to wait with: its timers (each with its time), the effects of its last step, and messages."""

    def __init__(self, timers: dict[str, int]) -> None:
        self.timers = timers
        self.effects: list[tuple[Effects, Step]] = []
        self.messages: list[tuple[Address, Message, Step]] = []


Leaving = tuple[int, str, Send | Announce | Complete, Step]  # ticket to wait for, role, effect, step


class Process:
    def __init__(self, name: str, surroundings: Surroundings) -> None:
        self.name = name
        self.roles: dict[str, Role] = {}
        self._surroundings = surroundings
        self._loop = asyncio.get_running_loop()
        self._timers: dict[tuple[str, str], tuple[asyncio.TimerHandle, int]] = {}  # with their times
        self._inner: deque[tuple[str, Address, Message, Step]] = deque()  # messages to SELF (H2)
        self._withheld: deque[Leaving] = deque()
        self._paused: dict[str, Pause] = {}
        self._written = 0  # ticket of the last record that was written
        self._durable = 0
        self._stepping = False
        self._stopped = False

    # -------------------------------------------------------------------------------------------------- life of roles

    def add(self, name: str, role: Role) -> None:
        """Give the process a role and start it."""
        assert name not in self.roles, f"{self.name} has a role {name} already"
        self.roles[name] = role
        self._run(name, role.on_start, NO_STEP)

    def remove(self, name: str) -> None:
        """Take a role away; its timers and the messages to it die with it."""
        self.roles.pop(name, None)
        self._paused.pop(name, None)
        for key in [key for key in self._timers if key[0] == name]:
            self._cancel_timer(*key)

    def stop(self) -> None:
        """Nothing is carried out any more, as after a crash."""
        self._stopped = True
        for handle, _ in self._timers.values():
            handle.cancel()
        self._timers.clear()
        self._withheld.clear()
        self._inner.clear()

    # ---------------------------------------------------------------------------------------------------------- events

    def deliver(self, role: str, source: Address, message: Message, attachments: Attachments = ()) -> None:
        """Hand a message to a role; unknown roles (gone since) and stopped processes lose it."""
        handler = self.roles.get(role)
        if handler is None or self._stopped:
            return
        step = Step(message, attachments)
        if role in self._paused:
            self._paused[role].messages.append((source, message, step))
        else:
            self._run(role, partial(handler.on_message, source, message), step)

    def request(self, role: str, message: Message) -> None:
        """Hand an operation of the application to a role."""
        self.deliver(role, Address(self.name, "application"), message)

    def durable(self, ticket: int) -> None:
        """Every record up to this ticket is on disk: let go what waited for it (H3)."""
        self._durable = max(self._durable, ticket)
        while self._withheld and self._withheld[0][0] <= self._durable and not self._stopped:
            _, role, effect, step = self._withheld.popleft()
            self._leave(role, effect, step)

    def pause(self, role: str) -> None:
        """Let a role wait (H5). It may be called while its effects are carried out: the rest of them waits."""
        if role not in self._paused:
            keys = [key for key in self._timers if key[0] == role]
            self._paused[role] = Pause({key[1]: self._timers[key][1] for key in keys})
            for key in keys:
                self._cancel_timer(*key)

    def resume(self, role: str) -> None:
        pause, handler = self._paused.pop(role, None), self.roles.get(role)
        if pause is None or handler is None or self._stopped:
            return
        for key, after_ms in pause.timers.items():
            self._set_timer(role, key, after_ms)
        for effects, step in pause.effects:
            self._run(role, partial(list, effects), step)
        for at, (source, message, step) in enumerate(pause.messages):
            if role in self._paused:  # again
                self._paused[role].messages += pause.messages[at:]
                return
            self._run(role, partial(handler.on_message, source, message), step)

    @property
    def withheld(self) -> int:
        return len(self._withheld)

    # ---------------------------------------------------------------------------------------------------------- steps

    def _run(self, role: str, action: Callable[[], Effects], step: Step) -> None:
        """One step and all inner messages that follow from it (H1, H2)."""
        assert not self._stepping, f"a step of {self.name} was begun inside another one"
        self._stepping = True
        try:
            self._carry_out(role, action(), step)
            while self._inner:
                role, source, message, inner = self._inner.popleft()
                handler = self.roles.get(role)
                if role in self._paused:
                    self._paused[role].messages.append((source, message, inner))
                elif handler is not None:
                    self._carry_out(role, handler.on_message(source, message), inner)
            self._stepping = False
        finally:
            if self._stepping:  # H6
                self.stop()
                self._surroundings.broken(role)

    def _carry_out(self, role: str, effects: Effects, step: Step) -> None:
        for at, effect in enumerate(effects):
            if self._paused and role in self._paused:
                self._paused[role].effects.append((effects[at:], step))
                return
            kind = type(effect)
            if kind is Send:
                assert isinstance(effect, Send)
                if effect.to.process == SELF or effect.to.process == self.name:
                    self._inner.append((effect.to.role, Address(self.name, role), effect.message, step))
                else:
                    self._withhold_or_leave(role, effect, step)
            elif kind is SetTimer:
                assert isinstance(effect, SetTimer)
                self._set_timer(role, effect.key, effect.after_ms)
            elif kind is CancelTimer:
                assert isinstance(effect, CancelTimer)
                self._cancel_timer(role, effect.key)
            elif kind is Persist:
                assert isinstance(effect, Persist)
                self._written = self._surroundings.persist(effect.record, step)
            elif kind is Choose:
                assert isinstance(effect, Choose)
                self._choose(role, effect, step)
            else:
                assert isinstance(effect, Announce | Complete)
                self._withhold_or_leave(role, effect, step)

    def _withhold_or_leave(self, role: str, effect: Send | Announce | Complete, step: Step) -> None:
        if self._withheld or self._written > self._durable:
            self._withheld.append((self._written, role, effect, step))
        else:
            self._leave(role, effect, step)

    def _leave(self, role: str, effect: Send | Announce | Complete, step: Step) -> None:
        if isinstance(effect, Send):
            self._surroundings.send(role, effect.to, effect.message, step)
        elif isinstance(effect, Announce):
            self._surroundings.announced(role, effect.event, step)
        else:
            self._surroundings.completed(role, effect)

    def _choose(self, role: str, effect: Choose, step: Step) -> None:
        option = self._surroundings.choose(role, effect)
        self._carry_out(role, self.roles[role].on_choice(effect.key, option), step)

    # --------------------------------------------------------------------------------------------------------- timers

    def _set_timer(self, role: str, key: str, after_ms: int) -> None:
        self._cancel_timer(role, key)
        handle = self._loop.call_later(after_ms / 1000, self._fire, role, key, after_ms)
        self._timers[role, key] = (handle, after_ms)

    def _cancel_timer(self, role: str, key: str) -> None:
        timer = self._timers.pop((role, key), None)
        if timer is not None:
            timer[0].cancel()

    def _fire(self, role: str, key: str, after_ms: int) -> None:
        self._timers.pop((role, key), None)
        handler = self.roles.get(role)
        if handler is None or self._stopped:
            return
        if not isinstance(handler, Patient):
            self._run(role, partial(handler.on_timer, key), NO_STEP)
            return
        awaited = handler.awaits(key)
        silent = tuple(each for each in awaited if not self._surroundings.at_work(each, after_ms / 1000))
        if awaited and not silent:  # H7
            again = self._loop.call_later(after_ms / 4000, self._fire, role, key, after_ms)
            self._timers[role, key] = (again, after_ms)
        else:
            self._run(role, partial(handler.on_silence, key, silent), NO_STEP)
