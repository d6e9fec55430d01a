"""Keeps a deliverer's leases in the control store, and reports ownerships and desired states to the planner.

Rules
 O1  One thread makes all calls to the store, so they keep their order.
 O2  A lease counts from before the call that renewed it. After it has expired, every ownership counts as lost until a
     renewal succeeds.
 O3  A lost or surplus destination is first reported to the planner, then released; fencing keeps late flushes harmless.
 O4  While the store is unreachable, owned destinations go on until the lease expires.
 O5  A permanent error (another configuration took over, a damaged store) stops the deliverer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

from trunkline.core.delivery_messages import (
    FencedOff,
    Grant,
    LeasesGranted,
    LeasesLost,
    Life,
    LifeChanged,
    Lost,
    RecordEmpty,
    ReleaseLeases,
    ReseedAsked,
    Reseeded,
    Span,
)
from trunkline.core.effects import Message
from trunkline.delivery.control.contract import Ownership, Reported
from trunkline.delivery.control.store import ControlStore
from trunkline.errors import OutcomeUnknown, TrunklineError, Unreachable
from trunkline.threads import Threads


class DelivererLeases:
    """The deliverer's side of the control store.

    ``send`` sends the planner a message. ``unreachable`` gets the error of each call that failed and may be retried,
    and an empty text after each that succeeded; ``failed`` gets a permanent error (O5). All are called in any thread.
    """

    def __init__(
        self,
        store: ControlStore,
        pipeline: str,
        deliverer: str,
        digest: str,
        lease_ms: int,
        *,
        send: Callable[[Message], None],
        unreachable: Callable[[str], None],
        failed: Callable[[TrunklineError], None],
        threads: Threads | None = None,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._deliverer = deliverer
        self._digest = digest
        self._lease_ms = lease_ms
        self._send = send
        self._unreachable = unreachable
        self._failed = failed
        self._threads = threads or Threads()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="control")
        self._owned: dict[str, Ownership] = {}
        self._revision = -1
        self._lease_ends = 0.0
        self._renewed = 0.0
        self._ticking: Future[None] | None = None

    # --- called by the host's loop ---

    def begin(self) -> None:
        """Acquire destinations, and wait for the result."""
        self._thread.submit(self._acquire).result()

    def tick(self) -> None:
        """Call it about once a second: cheap unless something changed."""
        if self._ticking is None or self._ticking.done():  # calls do not pile up while the store hangs
            self._ticking = self._thread.submit(self._threads.run, "control", lambda: self._safely(self._tick))

    def submit(self, call: Callable[[], object]) -> None:
        """Another call to the store."""
        self._thread.submit(self._threads.run, "control", lambda: self._safely(call))

    def carry_out(self, message: Message) -> None:
        """A request of the planner to its control store."""
        match message:
            case RecordEmpty(through, emptied, mark):
                self.submit(lambda: self._store.statistics.record_empty(self._pipeline, through, emptied, mark))
            case Reseeded(destination, token, request):
                self.submit(lambda: self._store.desired_states.reseeded(self._pipeline, destination, token, request))
            case ReleaseLeases(released):
                self.submit(lambda: self._release([each.destination for each in released]))
            case FencedOff():
                self.submit(lambda: self._fenced(message))
            case _:
                raise AssertionError(f"the control store does not accept {message}")

    def report(self, reports: list[Reported]) -> None:
        self.submit(lambda: self._store.statistics.report(self._pipeline, reports))

    def end(self) -> None:
        """Release everything."""
        self.submit(lambda: self._store.ownerships.leave(self._pipeline, self._deliverer))
        self._thread.shutdown(wait=True)

    def token(self, destination: str) -> int | None:
        """The token of a destination that this deliverer owns."""
        owned = self._owned.get(destination)
        return None if owned is None else owned.token

    # --- in the thread of the store ---

    def _safely(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (Unreachable, OutcomeUnknown) as error:
            self._unreachable(str(error))
        except TrunklineError as error:  # O5
            self._failed(error)
        else:
            self._unreachable("")
        if self._owned and monotonic() > self._lease_ends:  # O2
            self._lose(list(self._owned))
            self._revision = -1

    def _tick(self) -> None:
        if monotonic() - self._renewed >= self._lease_ms / 3000:
            before = monotonic()
            share = self._store.ownerships.renew(self._pipeline, self._deliverer, self._lease_ms)
            self._extend(before)
            if share.held > share.quota:
                self._release_surplus()
            if share.revision != self._revision or (share.free and share.held < share.quota):
                self._acquire()
        elif self._store.configurations.revision(self._pipeline) != self._revision:
            self._acquire()

    def _acquire(self) -> None:
        before = monotonic()
        held = self._store.ownerships.acquire(self._pipeline, self._deliverer, self._digest, self._lease_ms)
        self._extend(before)
        self._revision = held.share.revision
        self._take(held.ownerships)

    def _extend(self, before: float) -> None:
        self._renewed = before
        self._lease_ends = before + self._lease_ms / 1000

    def _take(self, ownerships: tuple[Ownership, ...]) -> None:
        """Report to the planner what changed."""
        now = {each.name: each for each in ownerships}
        self._lose([name for name, each in self._owned.items() if name not in now or now[name].token != each.token])
        for name, each in now.items():
            before = self._owned.get(name)
            if before is None or before.desired_state != each.desired_state:
                self._send(LifeChanged(name, Life(each.desired_state)))
            if before is not None and each.reseed > before.reseed:
                self._send(ReseedAsked(name, each.reseed, each.insists, each.discards))
        new = [each for name, each in now.items() if name not in self._owned]
        self._owned.update(now)
        if new:
            self._send(LeasesGranted(tuple(_grant(each) for each in new)))

    def _lose(self, names: list[str]) -> None:
        if names:
            self._send(LeasesLost(tuple(Lost(name, self._owned.pop(name).token) for name in names)))

    def _release_surplus(self) -> None:
        names = self._store.ownerships.surplus(self._pipeline, self._deliverer)
        self._lose([name for name in names if name in self._owned])  # O3
        if names:
            self._store.ownerships.release(self._pipeline, self._deliverer, names)

    def _release(self, names: list[str]) -> None:
        for name in names:
            self._owned.pop(name, None)
        self._store.ownerships.release(self._pipeline, self._deliverer, names)

    def _fenced(self, off: FencedOff) -> None:
        """A destination that has seen a higher token than the store ever granted needs a higher one still."""
        self._owned.pop(off.destination, None)
        known = {record.name: record.token for record in self._store.destinations(self._pipeline)}
        if known.get(off.destination, 0) < off.seen:
            self._store.ownerships.raise_tokens(self._pipeline, {off.destination: off.seen})
        else:
            self._store.ownerships.release(self._pipeline, self._deliverer, [off.destination])
        self._revision = -1


def _grant(owned: Ownership) -> Grant:
    empty = Span(owned.empty.after, owned.empty.through)
    asked = {"insists": owned.insists, "discards": owned.discards}
    return Grant(owned.name, owned.token, empty, owned.reseed, empty_mark=owned.empty_mark, **asked)
