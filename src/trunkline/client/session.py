"""One log in one client: the host of the client's roles for this log.

It runs an appender or a writer, readers, tail finders and an administrator with their common reconfigurer and filler.
It keeps the bodies of batches, because roles know batches by identity only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from trunkline.client.bodies import Buffer, checksum
from trunkline.core.administrator import Administrator, AdministratorConfig
from trunkline.core.appender import Appender, AppenderConfig
from trunkline.core.calls import AppendRequested
from trunkline.core.effects import Address, Choose, Complete, Event, Message, Record
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.events import Completed, Invoked
from trunkline.core.filler import Filler
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import (
    Append,
    NodeInfo,
    NodeState,
    Register,
    Write,
)
from trunkline.core.projection import Owner, Policy, Projection
from trunkline.core.reader import Reader, ReaderConfig
from trunkline.core.reconfigurer import Reconfigurer, ReconfigurerConfig
from trunkline.core.role import Role
from trunkline.core.timing import Timing
from trunkline.core.writer import Writer, WriterConfig
from trunkline.errors import ConfigError, OutcomeUnknown, Refused, TrunklineError
from trunkline.net.admin import Leaving
from trunkline.runtime.carried import CarriedBodies
from trunkline.runtime.links import REGISTER, Links
from trunkline.runtime.process import Process, Step
from trunkline.runtime.questions import Questions
from trunkline.runtime.recorder import Recorder

Listener = Callable[[Event, Step], None]


class Session:
    """Implements ``Surroundings`` for its process."""

    def __init__(
        self, name: str, start: int, cluster: str, log: str, links: Links, timing: Timing, recording: Path | None
    ) -> None:
        self.log = log
        self.cluster = cluster
        self.links = links
        self.timing = timing
        self.me = Owner(name, start)
        self.writer = f"{name}#{start}"
        self.failed: TrunklineError | None = None
        self._recorder = Recorder(recording, cluster, name, start) if recording is not None else None
        self._loop = asyncio.get_running_loop()
        self._operations = 0
        self._waiting: dict[int, asyncio.Future[Event]] = {}
        self._joining: asyncio.Task[None] | None = None
        self._held: list[Message] = []  # appends that wait for the writer's lease; at most those in flight
        self._listeners: dict[str, Listener] = {}  # readers' subscriptions, by role
        self._outgoing: dict[int, Buffer] = {}  # bodies of own batches, by operation
        filler = Filler(timing)
        self._carried = CarriedBodies(filler)  # bodies of other writers' batches
        self._roles_made = 0
        self.process = Process(name, self)
        self._reconfigurer = Reconfigurer(ReconfigurerConfig(REGISTER, log))
        self.process.add("reconfigurer", self._reconfigurer)
        self.process.add("filler", filler)

    # ------------------------------------------------------------------------------------------------------ operations

    def begin(self, role: str, make: Callable[[int], Message]) -> asyncio.Future[Event]:
        """Pass an operation to a role. The future gets its result."""
        if self.failed is not None:
            raise self.failed
        self._operations += 1
        operation = self._operations
        future: asyncio.Future[Event] = self._loop.create_future()
        self._waiting[operation] = future
        future.add_done_callback(lambda _: self._forget(operation))  # also when the caller gave up
        message = make(operation)
        if self._recorder is not None:
            self._recorder.event(role, Invoked(operation, message))
        if role == "writer" and self._joining is not None and not self._joining.done():
            self._held.append(message)
        else:
            self.process.request(role, message)
        return future

    def begin_append(
        self, role: str, body: Buffer, count: int, *, takeover: bool = False, expect: int | None = None
    ) -> asyncio.Future[Event]:
        """Append a batch. Its body is kept until the result is known."""
        digest = checksum(body)

        def request(operation: int) -> AppendRequested:
            self._outgoing[operation] = body
            return AppendRequested(operation, self.log, count, digest, takeover=takeover, expect=expect)

        return self.begin(role, request)

    def _forget(self, operation: int) -> None:
        self._waiting.pop(operation, None)
        self._outgoing.pop(operation, None)

    def completed(self, role: str, complete: Complete) -> None:
        if self._recorder is not None:
            self._recorder.event(role, Completed(complete.operation, complete.result))
        future = self._waiting.get(complete.operation)
        if future is not None and not future.done():
            future.set_result(complete.result)

    def check_loop(self) -> None:
        """Raise ``ConfigError`` outside the event loop in which the log was opened: the call would hang."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # no loop is running
            here = False
        if not here:
            raise ConfigError("the log belongs to another event loop: connect and open it again in this one")

    # ----------------------------------------------------------------------------------------------------------- roles

    @property
    def view(self) -> Projection | None:
        """The projection that this session read last."""
        return self._reconfigurer.view

    def newest(self, view: Projection) -> Projection:
        """The newer one of ``view`` and what this session has read: new roles start with it."""
        return self.view if self.view is not None and self.view.epoch > view.epoch else view

    def ensure_writing_role(self, view: Projection) -> str:
        """The role that appends, created on first use."""
        if view.settings.policy is Policy.CHAIN:
            if "appender" not in self.process.roles:
                config = AppenderConfig(self.log, self.writer, self.timing)
                self.process.add("appender", Appender(config, view))
            return "appender"
        if "writer" not in self.process.roles:
            info = NodeInfo(self.me.process, 0, self.me.start, NodeState.CLIENT)
            lease = LeaseKeeper(info, REGISTER, retry_ms=self.timing.renew_ms, lease_ms=self.timing.lease_ms)
            self.process.add("lease", lease)
            config_ = WriterConfig(self.log, self.me, self.timing)
            self.process.add("writer", Writer(config_, view))
            self._joining = self._loop.create_task(self._join(info))
        return "writer"

    async def _join(self, info: NodeInfo) -> None:
        """Let the writer begin once it is registered. Before that it cannot detect an abandoned log (W5), and would be
        refused one.
        """
        await Questions(f"{self.me.process}.joining", self.links).ask(REGISTER, Register(info))
        for message in self._held:
            self.process.request("writer", message)
        self._held.clear()

    def ensure_administrator(self) -> str:
        if "administrator" not in self.process.roles:
            self.process.add("reader", Reader(ReaderConfig(REGISTER, self.log, self.timing)))
            self.process.add("administrator", Administrator(AdministratorConfig(self.cluster, self.log)))
        return "administrator"

    def add_role(self, kind: str, role: Role, listener: Listener | None = None) -> str:
        """Add a role for one call or subscription; remove it with ``remove_role``."""
        self._roles_made += 1
        name = f"{kind}:{self._roles_made}"
        if listener is not None:
            self._listeners[name] = listener
        self.process.add(name, role)
        return name

    def remove_role(self, name: str) -> None:
        self.process.remove(name)
        self._listeners.pop(name, None)
        self.links.forget(self.process, name)

    def close(self) -> None:
        """Stop. A writer leaves the registry, so that the next one need not wait until its lease expires."""
        self.process.stop()
        if self._joining is not None:
            self._joining.cancel()
        if "lease" in self.process.roles and self.failed is None:
            self.links.send_to_connected_coordinator(Leaving(*self.me))
        self.links.forget(self.process)
        self._fail(Refused("the handle was closed; open the log again"), OutcomeUnknown("closed before it was settled"))
        if self._recorder is not None:
            self._recorder.close()

    # ---------------------------------------------------------------------------------------------------------- bodies

    def received_body(self, frame: Frame, step: Step) -> Buffer | None:
        """The body of a batch that another process sent: with this step, or with an earlier one of a filling."""
        return self._carried.find(frame, step)

    def _body_to_send(self, role: str, frame: Frame, step: Step) -> Buffer | None:
        """The role that appends numbers its batches, so that two of equal content are never confused."""
        sender = self.process.roles[role]
        if not isinstance(sender, Appender | Writer):
            return self.received_body(frame, step)
        operation = sender.operation_of(frame.seq)
        return self._outgoing.get(operation) if operation is not None else None

    # ------------------------------------------------------------------------------------------------- surroundings

    def send(self, role: str, to: Address, message: Message, step: Step) -> None:
        attachments: tuple[Buffer, ...] = ()
        if isinstance(message, Write | Append) and message.frame.kind is FrameKind.DATA:
            body = self._body_to_send(role, message.frame, step)
            if body is None:
                return  # lost: the role retries
            if role == "filler":
                self._carried.keep_for_filling(message.frame, body)
            attachments = (body,)
        self.links.send(self.process, role, to, message, attachments)

    def persist(self, record: Record, step: Step) -> int:
        raise AssertionError(f"a client persists nothing, not even {record}")

    def at_work(self, process: str, within_s: float) -> bool:
        return self.links.at_work(process, within_s)

    def announced(self, role: str, event: Event, step: Step) -> None:
        if self._recorder is not None:
            self._recorder.event(role, event)
        listener = self._listeners.get(role)
        if listener is not None:
            listener(event, step)

    def choose(self, role: str, choose: Choose) -> object:
        """The first opening keeps the nodes that answer; a new log starts on nodes chosen by a hash of its name."""
        if role != "administrator":
            return choose.options[0]
        return choose.options[checksum(self.log.encode()) % len(choose.options)]

    def broken(self, role: str) -> None:
        bug = TrunklineError(f"the role {role} of log {self.log} failed, which is a bug; reconnect to continue")
        self._fail(bug, bug)

    def _fail(self, later: TrunklineError, now: TrunklineError) -> None:
        """Fail all operations: those in progress with ``now``, later ones with ``later``."""
        self.failed = self.failed or later
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(now)
                future.exception()  # its caller may have given up: do not report it as never retrieved
