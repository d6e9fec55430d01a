"""The host of the coordinator's duties: one process for each log, with a coordinator, a reconfigurer and a filler.

Rules
 L1  Logs take turns: at most ``TURNS_MAX`` of those that were woken work at a time. A turn ends when the role is not
     busy, and after ``TURN_S``.
 L2  A log with nothing due rests. It is woken when its projection or a node in the registry changes, and checks by
     itself once in ``REST_TICKS``.
 L3  The duties of a deleted log end when the role announces that they are over.
 L4  A role that fails stops the duties of its own log only.
 L5  Whether a log is blocked is what the role announced last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

from trunkline.core.coordinator import Coordinator, DutiesConfig
from trunkline.core.effects import Address, Choose, Complete, Effects, Event, Message, Record
from trunkline.core.entries import FrameKind
from trunkline.core.events import DutiesOver, LogBlocked, LogUnblocked
from trunkline.core.filler import Filler
from trunkline.core.messages import Got, Write
from trunkline.core.projection import Projection
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.core.siblings import CheckNow
from trunkline.metadata.service import RegisterService
from trunkline.runtime.carried import CarriedBodies
from trunkline.runtime.links import COORDINATOR, REGISTER, Links
from trunkline.runtime.process import Buffer, Process, Step, Surroundings
from trunkline.runtime.recorder import Recorder
from trunkline.runtime.turns import Turns

log = logging.getLogger("trunkline.coordinator")

TURNS_MAX = 32  # fewer: a lost node is replaced late in many logs; more: nodes answer too late
TURN_S = 5.0  # shorter: more at once while nodes are slow, which slows them further; longer: a hung log blocks others
REST_TICKS = 120  # fewer: idle work; more: a missed notification is made up for late
WIDEN_TICKS = 20
ABSENT_TICKS = 60


class ContainedProcess(Process):
    """A process whose failure stays its own (L4): it is reported to its surroundings (H6), not to the event loop.

    ``stepped`` is called after each step and everything that followed from it.
    """

    def __init__(self, name: str, surroundings: Surroundings, stepped: Callable[[], None]) -> None:
        super().__init__(name, surroundings)
        self._stepped = stepped

    def _run(self, role: str, action: Callable[[], Effects], step: Step) -> None:
        outermost = not self._stepping  # a nested step fails the outer one, too
        with suppress(Exception) if outermost else nullcontext():
            super()._run(role, action, step)
        if outermost:
            self._stepped()


class LogDuties:
    """Implements ``Surroundings`` of the process with the duties of one log."""

    def __init__(
        self,
        coordinator: str,
        start: int,
        cluster: str,
        log: str,
        tick_ms: int,
        turns: Turns,
        register: RegisterService,
        links: Links,
        recording: Path | None,
        finished: Callable[[str], None],
    ) -> None:
        """``finished`` is called with the name of the log when its duties are over (L3)."""
        name = f"{coordinator}.{log}"
        self.log = log
        self.blocked = False  # L5
        self.failed = False
        self._over = False  # L3
        self._register = register
        self._links = links
        self._finished = finished
        self._turns = turns
        self._recorder = Recorder(recording, cluster, name, start) if recording is not None else None
        filler = Filler()
        self._carried = CarriedBodies(filler)
        config = DutiesConfig(
            log,
            first_check_ms=REST_TICKS * tick_ms,  # it is woken below, and waits for its turn (L1)
            tick_ms=tick_ms,
            rest_ms=REST_TICKS * tick_ms,
            widen_ms=WIDEN_TICKS * tick_ms,
            absent_ms=ABSENT_TICKS * tick_ms,
        )
        self._coordinator = Coordinator(config)
        self.process = ContainedProcess(name, self, self._stepped)
        self.process.add("reconfigurer", Reconfigurer(ReconfigurerConfig(REGISTER, log)))
        self.process.add("filler", filler)
        self.process.add("coordinator", self._coordinator)
        self.wake()

    @property
    def duty(self) -> str:
        """The present duty or state."""
        return "broken" if self.failed else self._coordinator.phase

    @property
    def view(self) -> Projection | None:
        """The projection as of the last check."""
        return self._coordinator.view

    def wake(self) -> None:
        """The projection or the registry has changed: check when it is the turn of this log (L2)."""
        self._turns.ask(self.log, self._check)

    def close(self) -> None:
        self._turns.forget(self.log)
        self.process.stop()
        self._links.forget(self.process)
        if self._recorder is not None:
            self._recorder.close()

    # -------------------------------------------------------------------------------------------------- surroundings

    def send(self, role: str, to: Address, message: Message, step: Step) -> None:
        if to.process == COORDINATOR:
            self._register.submit(message, lambda answer: self._answered(role, answer))
            return
        attachments: tuple[Buffer, ...] = ()
        if isinstance(message, Write) and message.frame.kind is FrameKind.DATA:
            body = self._carried.find(message.frame, step)
            if body is None:
                return  # lost: the duty is checked again
            if role == "filler":
                self._carried.keep_for_filling(message.frame, body)
            attachments = (body,)
        self._links.send(self.process, role, to, message, attachments)

    def _answered(self, role: str, answer: Message) -> None:
        if isinstance(answer, Got):
            self._links.learn(answer)
        self.process.deliver(role, REGISTER, answer)

    # ---------------------------------------------------------------------------------------------------------- rest

    def _check(self) -> None:
        self.process.deliver("coordinator", Address(self.process.name, "host"), CheckNow())

    def _stepped(self) -> None:
        if self._over:  # before the turn is given back, which may start this log again
            self._over = False
            self._finished(self.log)
        elif not self._coordinator.is_busy:
            self._turns.give_back(self.log)  # L1

    def persist(self, record: Record, step: Step) -> int:
        raise AssertionError(f"a coordinator persists nothing, but {record} came")

    def completed(self, role: str, complete: Complete) -> None:
        raise AssertionError(f"duties have no callers, but {complete} came from {role}")

    def at_work(self, process: str, within_s: float) -> bool:
        return self._links.at_work(process, within_s)

    def announced(self, role: str, event: Event, step: Step) -> None:
        match event:
            case LogBlocked() | LogUnblocked():
                self.blocked = isinstance(event, LogBlocked)
            case DutiesOver():
                self._over = True
        if self._recorder is not None:
            self._recorder.event(role, event)

    def choose(self, role: str, choose: Choose) -> object:
        return choose.options[0]

    def broken(self, role: str) -> None:
        """Called while the exception is handled."""
        self.failed = True
        text = "the role %s of log %s failed, which is a bug: report it; the duties of this log stop until a restart"
        log.error(text, role, self.log, exc_info=True)
