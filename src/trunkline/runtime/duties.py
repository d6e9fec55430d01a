"""The host of the coordinator's duties: for each log a process with a coordinator, a reconfigurer and a filler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trunkline.core.coordinator import Coordinator, CoordinatorConfig
from trunkline.core.effects import Address, Choose, Complete, Event, Message, Record
from trunkline.core.entries import Kind
from trunkline.core.events import ReconfigurationBlocked
from trunkline.core.filler import Filler
from trunkline.core.messages import Got, Write
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.metadata.service import RegisterService
from trunkline.runtime.carried import CarriedBodies, carried_by
from trunkline.runtime.links import COORDINATOR, REGISTER, Links
from trunkline.runtime.process import Buffer, Process, Step
from trunkline.runtime.recorder import Recorder

SUSPECT_AFTER_MS = 1000


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
        broken: Callable[[str], None],
    ) -> None:
        name = f"{coordinator}.{log}"
        self.log = log
        self.blocked = False
        self._register = register
        self._links = links
        self._broken = broken
        self._recorder = Recorder(recording, cluster, name, start) if recording is not None else None
        filler = Filler(SUSPECT_AFTER_MS)
        self._carried = CarriedBodies(lambda: carried_by(filler))
        self.process = Process(name, self)
        self.process.add("reconfigurer", Reconfigurer(ReconfigurerConfig(REGISTER, log)))
        self.process.add("filler", filler)
        self.process.add("coordinator", Coordinator(CoordinatorConfig(log, tick_ms=tick_ms)))

    @property
    def duty(self) -> str:
        """What is being done now, in a word."""
        return self.process.roles["coordinator"].phase

    def close(self) -> None:
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
        self._carried.keep_fetched(step)
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
        self._broken(f"the role {role} of log {self.log} failed; this is a bug")
