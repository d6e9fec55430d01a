"""The default store: the register role of the core over one SQLite file, for one coordinator.

It runs the class that the checker explores and carries out its effects, in order:

    requests --> role --> [ step | step | step ] --> one transaction --> announcements and answers, in the same order

Rules
 Q1  A step waits for the steps before it: an answer from memory that is not durable yet does not overtake them.
 Q2  Steps that arrive while a transaction is being written share the next one.
 Q3  A failed transaction leaves the role ahead of the disk. The role and all waiting requests are discarded, without an
     answer, and the role restarts from the disk. It announces everything again, as after a restart.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.effects import Address, Announce, Effects, Persist, Send
from trunkline.core.events import Projected
from trunkline.core.messages import (
    Get,
    Got,
    LeaseExpired,
    NodeInfo,
    NodeState,
    Register,
    Registered,
    Swap,
    SwapLost,
    Swapped,
)
from trunkline.core.projection import Projection
from trunkline.core.register import MetadataRegister, NodeForgotten, NodeRegistered
from trunkline.core.timing import DEFAULT_TIMING
from trunkline.errors import StorageError, TrunklineError
from trunkline.metadata.changes import Changes, Watcher
from trunkline.metadata.leases import LeaseClock
from trunkline.metadata.sqlite_file import SqliteFile
from trunkline.metadata.store import (
    NODES_CHANGED,
    Answer,
    Listener,
    Request,
    StoreUnavailable,
    is_passing,
    require_sound,
)

STEPS_MAX = 4096  # requests that may wait for the disk; more are rejected, and their senders retry
CALLER = Address("caller", "caller")  # every answer goes back to the caller

T = TypeVar("T")


class PendingStep(Struct, frozen=True):
    """What the role returned for one request, and the future of its answer (None: the lease clock)."""

    effects: Effects
    nodes_changed: bool
    answered: asyncio.Future[Answer | None] | None


class SqliteStore:
    def __init__(self, path: Path, *, lease_ms: int = DEFAULT_TIMING.lease_ms) -> None:
        self._path = path
        self._file = SqliteFile(path)
        self._thread: ThreadPoolExecutor | None = None
        self._role: MetadataRegister | None = None  # None: closed, or to be restarted (Q3)
        self._restarting: asyncio.Task[None] | None = None
        self._steps: deque[PendingStep] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._leases = LeaseClock(lease_ms, self._on_lease_expired)
        self._changes = Changes()
        self._listener: Listener | None = None
        self._me = ""
        self._closed = asyncio.Event()

    async def start(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        try:
            await self._in_thread(self._file.open)
            await self._running()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._closed.set()
        if self._writing is not None:
            await self._writing  # requests that wait for the disk get their answers
        if self._restarting is not None:
            await asyncio.gather(self._restarting, return_exceptions=True)
        self._leases.stop()
        self._role = None
        self._changes.close()
        if self._thread is not None:
            await self._in_thread(self._file.close)
            self._thread.shutdown(wait=False)
            self._thread = None

    async def handle(self, message: Request) -> Answer | None:
        if isinstance(message, Swap):
            require_sound(message)
        role = await self._running()
        before = role.nodes.get(message.info.node) if isinstance(message, Register) else None
        effects = role.on_message(CALLER, message)
        changed = isinstance(message, Register) and role.nodes.get(message.info.node) != before
        return await self._answer(effects, nodes_changed=changed)

    async def leave(self, node: str, start: int) -> None:
        effects = (await self._running()).on_message(CALLER, LeaseExpired(node, start))
        await self._answer(effects, nodes_changed=bool(effects))

    async def logs(self) -> tuple[str, ...]:
        names = tuple(sorted((await self._running()).projections))
        await self._read()  # after the swaps that made them
        return names

    async def projections(self) -> tuple[Projection, ...]:
        found = (await self._running()).projections
        projections = tuple(found[name] for name in sorted(found))
        await self._read()  # after the swaps that made them
        return projections

    async def nodes(self) -> tuple[NodeInfo, ...]:
        return (await self._read()).nodes

    async def set_node_state(self, node: str, state: NodeState) -> bool:
        role = await self._running()
        known = role.nodes.get(node)
        if known is None or is_passing(known):
            return False
        role.nodes[node] = replace(known, state=state)
        await self._answer([Persist(NodeRegistered(replace(known, state=state, live=True)))], nodes_changed=True)
        return True

    async def forget_node(self, node: str) -> bool:
        role = await self._running()
        if role.nodes.pop(node, None) is None:
            return False
        await self._answer([Persist(NodeForgotten(node))], nodes_changed=True)
        return True

    async def cluster(self) -> str:
        return await self._in_thread(self._file.cluster)

    async def create_cluster(self, proposed: str) -> str:
        return await self._in_thread(functools.partial(self._file.create_cluster, proposed))

    def watch(self) -> Watcher:
        return self._changes.watch()

    async def campaign(self, me: str) -> None:
        """The lock on the file has already elected this coordinator."""
        await self._running()
        self._me = me

    def active(self) -> bool:
        return bool(self._me) and not self._closed.is_set()

    async def deposed(self) -> None:
        if self._me:
            await self._closed.wait()

    async def active_coordinator(self) -> str:
        return self._me if self.active() else ""

    def events(self, listener: Listener) -> None:
        self._listener = listener

    # ------------------------------------------------------------------------------------------------ the role

    async def _running(self) -> MetadataRegister:
        """The role, restarted from the disk if a transaction failed (Q3)."""
        if self._closed.is_set():
            raise StoreUnavailable(f"{self._path} is closed; open the store again")
        if len(self._steps) >= STEPS_MAX:
            raise StoreUnavailable(f"{STEPS_MAX} requests wait for {self._path}; try again later")
        if self._role is None:
            if self._restarting is None or self._restarting.done():  # all waiters share one attempt
                self._restarting = asyncio.create_task(self._restart())
            await asyncio.shield(self._restarting)
        if self._role is None:
            raise StoreUnavailable(f"{self._path} failed again; try again")
        return self._role

    async def _restart(self) -> None:
        image = await self._in_thread(self._file.load)
        role = self._role = MetadataRegister(image)
        self._leases.restart((info.node, info.start) for info in image.nodes)
        self._perform(role.on_start())
        self._changes.notify(NODES_CHANGED)

    async def _read(self) -> Got:
        """The registry, as an answer, which waits for the steps before it (Q1)."""
        answer = await self.handle(Get(""))
        assert isinstance(answer, Got)
        return answer

    def _on_lease_expired(self, node: str, start: int) -> None:
        if self._role is not None:
            effects = self._role.on_message(CALLER, LeaseExpired(node, start))
            self._take(PendingStep(effects, bool(effects), None))

    # ------------------------------------------------------------------------------------------- carrying out effects

    async def _answer(self, effects: Effects, *, nodes_changed: bool) -> Answer | None:
        answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._take(PendingStep(effects, nodes_changed, answered))
        return await answered

    def _take(self, step: PendingStep) -> None:
        if self._writing is None and not any(isinstance(effect, Persist) for effect in step.effects):
            self._finish(step)  # nothing to wait for
            return
        self._steps.append(step)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Write waiting steps, each group as one transaction (Q2)."""
        try:
            while self._steps:
                group = list(self._steps)
                self._steps.clear()
                records = [effect.record for step in group for effect in step.effects if isinstance(effect, Persist)]
                try:
                    if records:
                        await self._in_thread(functools.partial(self._file.commit, records))
                except (StoreUnavailable, StorageError) as error:
                    self._abandon([*group, *self._steps], error)
                    return
                for step in group:
                    self._finish(step)
        finally:
            self._writing = None

    def _abandon(self, steps: list[PendingStep], error: TrunklineError) -> None:
        self._role = None
        self._steps.clear()
        self._leases.stop()
        for step in steps:
            if step.answered is not None and not step.answered.done():
                step.answered.set_exception(StoreUnavailable(str(error)))

    def _finish(self, step: PendingStep) -> None:
        """Carry out a step whose records are durable."""
        answer = self._perform(step.effects)
        if step.nodes_changed:
            self._changes.notify(NODES_CHANGED)
        if step.answered is not None and not step.answered.done():  # the caller may have been cancelled
            step.answered.set_result(answer)

    def _perform(self, effects: Effects) -> Answer | None:
        """Announce in order; returns the answer, if there is one."""
        answer: Answer | None = None
        for effect in effects:
            match effect:
                case Announce(event):
                    if self._listener is not None:
                        self._listener(event)
                    if isinstance(event, Projected):
                        self._changes.notify(event.projection.log)
                case Send(_, Registered() as registered):
                    self._leases.renewed(registered.node, registered.start)
                    answer = registered
                case Send(_, (Got() | Swapped() | SwapLost()) as message):
                    answer = message
        return answer

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """SQLite blocks on the disk; the event loop must not."""
        if self._thread is None:
            raise StoreUnavailable(f"{self._path} is closed; open the store again")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
