"""A process of the protocol in production: carries out the effects of its roles on an event loop.

The checker's counterpart is ``check/processes.py``. Both keep the rules below and run the same roles.

Rules
 H1  A step runs at once and to its end: ``on_message``, ``on_timer`` or ``on_choice``, then its effects in order.
 H2  A message to ``SELF`` is handled right after the step that sent it, before anything else.
 H3  A ``Persist`` writes its record at once. Later effects that leave the process (``Send``, ``Announce``,
     ``Complete``) are withheld until the record is durable, and keep their order.
 H4  A timer that was cancelled or set again never fires for its earlier setting.
 H5  A role may be paused (its application is slow): its effects, messages and timers wait. To other processes it is
     merely slow.
 H6  A role that raises has a bug: the process stops. It never continues in a state that was not checked.
 H7  A timer that waits for processes which are all busy with large messages is extended by a quarter of its time, again
     and again. ``net/progress.py`` limits how long.

The bodies of batches travel beside messages as attachments. ``Step`` holds those that arrived with the message of a
step, so that a ``Persist`` or an ``Announce`` of that step finds its body.
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
    """The message of a step, and the bodies that arrived with it."""

    __slots__ = ("attachments", "message", "used")

    def __init__(self, message: Message | None, attachments: Attachments = ()) -> None:
        self.message = message
        self.attachments = attachments
        self.used = 0  # index of the next attachment


NO_STEP = Step(None)


class Surroundings(Protocol):
    """What a process needs from the program around it."""

    def send(self, role: str, to: Address, message: Message, step: Step) -> None:
        """Send to another process. It may be lost."""

    def persist(self, record: Record, step: Step) -> int:
        """Write a record and return its ticket; tickets grow. The host calls ``Process.durable`` with it later."""

    def at_work(self, process: str, within_s: float) -> bool:
        """Whether a process is busy with large messages."""

    def completed(self, role: str, complete: Complete) -> None: ...

    def announced(self, role: str, event: Event, step: Step) -> None: ...

    def choose(self, role: str, choose: Choose) -> object: ...

    def broken(self, role: str) -> None:
        """A role raised (H6); the exception propagates to the event loop's handler."""


class Pause:
    """What waits while a role is paused: timers (each with its time), effects of its last step, and messages."""

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

    # ---------------------------------------------------------------------------------------------------------- roles

    def add(self, name: str, role: Role) -> None:
        """Add a role and start it."""
        assert name not in self.roles, f"{self.name} already has a role {name}"
        self.roles[name] = role
        self._run(name, role.on_start, NO_STEP)

    def remove(self, name: str) -> None:
        """Remove a role with its timers; messages to it are lost."""
        self.roles.pop(name, None)
        self._paused.pop(name, None)
        for key in [key for key in self._timers if key[0] == name]:
            self._cancel_timer(*key)

    def stop(self) -> None:
        """Stop as after a crash: nothing more is carried out."""
        self._stopped = True
        for handle, _ in self._timers.values():
            handle.cancel()
        self._timers.clear()
        self._withheld.clear()
        self._inner.clear()

    # ---------------------------------------------------------------------------------------------------------- events

    def deliver(self, role: str, source: Address, message: Message, attachments: Attachments = ()) -> None:
        """Deliver a message to a role; it is lost if the role was removed or the process stopped."""
        handler = self.roles.get(role)
        if handler is None or self._stopped:
            return
        step = Step(message, attachments)
        if role in self._paused:
            self._paused[role].messages.append((source, message, step))
        else:
            self._run(role, partial(handler.on_message, source, message), step)

    def request(self, role: str, message: Message) -> None:
        """Deliver an operation of the application to a role."""
        self.deliver(role, Address(self.name, "application"), message)

    def durable(self, ticket: int) -> None:
        """Every record up to this ticket is durable: release the effects that waited for it (H3)."""
        self._durable = max(self._durable, ticket)
        while self._withheld and self._withheld[0][0] <= self._durable and not self._stopped:
            _, role, effect, step = self._withheld.popleft()
            self._emit(role, effect, step)

    def pause(self, role: str) -> None:
        """Pause a role (H5). While its effects are carried out, the rest of them waits."""
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
        """One step and all messages to ``SELF`` that follow from it (H1, H2)."""
        assert not self._stepping, f"a step of {self.name} began inside another one"
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
                    self._withhold_or_emit(role, effect, step)
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
                self._withhold_or_emit(role, effect, step)

    def _withhold_or_emit(self, role: str, effect: Send | Announce | Complete, step: Step) -> None:
        if self._withheld or self._written > self._durable:
            self._withheld.append((self._written, role, effect, step))
        else:
            self._emit(role, effect, step)

    def _emit(self, role: str, effect: Send | Announce | Complete, step: Step) -> None:
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
