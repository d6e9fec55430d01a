"""The host of the coordinator's duties: for each log a process with a coordinator, a reconfigurer and a filler.

Rules
 L1  Logs are looked at one after another: each has its own moment within a tick, drawn from its name.
 L2  A log with nothing due for ``IDLE_LOOKS`` looks in a row is looked at ``IDLE_TIMES`` less often, until its
     projection or the registry changes.
 L3  The duties of a deleted log are finished when no node that may come back can have a stream of it.
 L4  A role that fails stops the duties of its log, and of no other.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

from msgspec.structs import replace

from trunkline.core.coordinator import Coordinator, CoordinatorConfig
from trunkline.core.effects import Address, Choose, Complete, Effects, Event, Message, Record
from trunkline.core.entries import Kind
from trunkline.core.events import ReconfigurationBlocked
from trunkline.core.filler import Filler
from trunkline.core.messages import Got, NodeState, Write
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.core.siblings import Refresh
from trunkline.metadata.service import RegisterService
from trunkline.runtime.carried import CarriedBodies, carried_by
from trunkline.runtime.links import COORDINATOR, REGISTER, Links
from trunkline.runtime.process import Buffer, Process, Step
from trunkline.runtime.recorder import Recorder

log = logging.getLogger("trunkline.coordinator")

SUSPECT_AFTER_MS = 1000
IDLE_LOOKS = 20  # fewer: a log is looked at seldom while something is about to become due; more: idle work
IDLE_TIMES = 4
FINISHED_LOOKS = 3  # at a deleted log with nothing due, before it is left alone


class ContainedProcess(Process):
    """A process whose failure stays its own (L4): its surroundings hear of it (H6), the event loop does not."""

    def _run(self, role: str, action: Callable[[], Effects], step: Step) -> None:
        outermost = not self._stepping  # a step inside another one fails that one, too
        with suppress(Exception) if outermost else nullcontext():
            super()._run(role, action, step)


class LogDuties:
    """Implements ``Surroundings`` of the process that looks after one log."""

    def __init__(
        self,
        coordinator: str,
        start: int,
        cluster: str,
        log: str,
        tick_ms: int,
        register: RegisterService,
        links: Links,
        recording: Path | None,
        finished: Callable[[str], None],
    ) -> None:
        """``finished`` is told the log's name when there is nothing left to do for ever (L3)."""
        name = f"{coordinator}.{log}"
        self.log = log
        self.blocked = False
        self.failed = False
        self._register = register
        self._links = links
        self._finished = finished
        self._tick_ms = tick_ms
        self._moment_ms = 1 + zlib.crc32(log.encode()) % tick_ms  # L1
        self._idle_looks = 0
        self._waking: asyncio.TimerHandle | None = None
        self._recorder = Recorder(recording, cluster, name, start) if recording is not None else None
        filler = Filler(SUSPECT_AFTER_MS)
        self._carried = CarriedBodies(lambda: carried_by(filler))
        self.process = ContainedProcess(name, self)
        self.process.add("reconfigurer", Reconfigurer(ReconfigurerConfig(REGISTER, log)))
        self.process.add("filler", filler)
        self._coordinator = Coordinator(CoordinatorConfig(log, tick_ms=self._moment_ms))
        self.process.add("coordinator", self._coordinator)
        self._set_tick(tick_ms)

    @property
    def duty(self) -> str:
        """What is being done now, in a word."""
        return "broken" if self.failed else self._coordinator.phase

    @property
    def resting(self) -> bool:
        """Whether the log is looked at less often (L2)."""
        return self._idle_looks >= IDLE_LOOKS

    def wake(self) -> None:
        """The projection or the registry changed: there may be something to do (L2)."""
        if self.resting and self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(self._moment_ms / 1000, self._look)
        self._idle_looks = 0
        self._set_tick(self._tick_ms)

    def close(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
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
        if isinstance(message, Write) and message.frame.kind is Kind.DATA:
            body = self._carried.find(message.frame, step)
            if body is None:
                return  # lost: the duty is looked at anew
            if role == "filler":
                self._carried.keep_for_filling(message.frame, body)
            attachments = (body,)
        self._links.send(self.process, role, to, message, attachments)

    def _answered(self, role: str, answer: Message) -> None:
        if isinstance(answer, Got):
            self._links.learn(answer)
        self.process.deliver(role, REGISTER, answer)
        if isinstance(answer, Got):
            self._looked()

    # ---------------------------------------------------------------------------------------------------------- rest

    def _look(self) -> None:
        """As the coordinator does at its tick, but now."""
        self._waking = None
        if self._coordinator.phase == "idle":
            self.process.deliver("reconfigurer", Address(self.process.name, "coordinator"), Refresh(self.log))

    def _looked(self) -> None:
        role = self._coordinator
        idle = role.phase == "idle"
        self._idle_looks = min(self._idle_looks + 1, IDLE_LOOKS) if idle else 0
        self._set_tick(self._tick_ms * (IDLE_TIMES if self.resting else 1))
        if self._idle_looks >= FINISHED_LOOKS and self._is_over():
            self._finished(self.log)

    def _set_tick(self, tick_ms: int) -> None:
        if self._coordinator.config.tick_ms != tick_ms:
            self._coordinator.config = replace(self._coordinator.config, tick_ms=tick_ms, rest_ms=tick_ms)

    def _is_over(self) -> bool:
        role = self._coordinator
        if self.failed or role.view is None or not role.view.deleted:
            return False
        ended = (NodeState.GONE, NodeState.CLIENT)
        return all(info.node in role.done.tidied for info in role.nodes if info.state not in ended)  # L3

    def persist(self, record: Record, step: Step) -> int:
        raise AssertionError(f"a coordinator keeps nothing of its own, yet it was to persist {record}")

    def completed(self, role: str, complete: Complete) -> None:
        raise AssertionError(f"duties have no callers, yet {complete} came from {role}")

    def announced(self, role: str, event: Event, step: Step) -> None:
        self.blocked = isinstance(event, ReconfigurationBlocked)
        if self._recorder is not None:
            self._recorder.event(role, event)

    def choose(self, role: str, choose: Choose) -> object:
        return choose.options[0]

    def broken(self, role: str) -> None:
        """Said while the exception is under way."""
        self.failed = True
        text = "the role %s of log %s failed, which is a bug: report it; the log has no duties until a restart"
        log.error(text, role, self.log, exc_info=True)
