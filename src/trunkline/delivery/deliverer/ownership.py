"""Keeps a deliverer's leases in the control store, and tells the planner what it owns and what operators want.

Rules
 O1  All calls to the store come from one thread: they keep their order.
 O2  The lease is counted from before the call that renewed it. Past that, everything counts as lost until a renewal
     comes through.
 O3  What is lost or surplus is told to the planner first and given back afterwards; fencing keeps late flushes
     harmless.
 O4  A store that is away stops nothing that is owned until the lease has run out.
 O5  What time cannot mend (another configuration has taken over, a damaged store) ends the deliverer.
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
from trunkline.delivery.control.contract import ControlStore, Emptied, Held, Reported
from trunkline.delivery.control.contract import Grant as HeldGrant
from trunkline.errors import OutcomeUnknown, TrunklineError, Unreachable
from trunkline.threads import Threads


class Ownership:
    """The deliverer's side of the control store. ``tell`` hands the planner a message, from any thread."""

    def __init__(
        self,
        store: ControlStore,
        pipeline: str,
        deliverer: str,
        digest: str,
        lease_ms: int,
        *,
        tell: Callable[[Message], None],
        away: Callable[[str], None],
        broken: Callable[[TrunklineError], None],
        threads: Threads | None = None,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._deliverer = deliverer
        self._digest = digest
        self._lease_ms = lease_ms
        self._tell = tell
        self._away = away
        self._broken = broken
        self._threads = threads or Threads()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="control")
        self._grants: dict[str, HeldGrant] = {}
        self._revision = -1
        self._lease_ends = 0.0
        self._renewed = 0.0
        self._looking: Future[None] | None = None

    # --- called by the host's loop ---

    def begin(self) -> None:
        """Take what can be had, and wait for it."""
        self._thread.submit(self._acquire).result()

    def tick(self) -> None:
        """To be called about once a second: cheap unless something changed."""
        if self._looking is None or self._looking.done():  # a store that hangs is not asked ever more
            self._looking = self._thread.submit(self._threads.run, "control", lambda: self._safely(self._look))

    def submit(self, call: Callable[[], object]) -> None:
        """Something else that the store is to be told."""
        self._thread.submit(self._threads.run, "control", lambda: self._safely(call))

    def carry_out(self, message: Message) -> None:
        """A request of the planner to its control store."""
        match message:
            case RecordEmpty(through, emptied, mark):
                notes = [Emptied(each.destination, each.token, each.position) for each in emptied]
                self.submit(lambda: self._store.record_empty(self._pipeline, through, notes, mark))
            case Reseeded(destination, token, request):
                self.submit(lambda: self._store.reseeded(self._pipeline, destination, token, request))
            case ReleaseLeases(released):
                self.submit(lambda: self._release([each.destination for each in released]))
            case FencedOff():
                self.submit(lambda: self._fenced(message))
            case _:
                raise AssertionError(f"the control store is not asked for {message}")

    def report(self, reports: list[Reported]) -> None:
        self.submit(lambda: self._store.report(self._pipeline, reports))

    def end(self) -> None:
        """Give everything back."""
        self.submit(lambda: self._store.leave(self._pipeline, self._deliverer))
        self._thread.shutdown(wait=True)

    @property
    def grants(self) -> dict[str, HeldGrant]:
        return self._grants

    # --- in the thread of the store ---

    def _safely(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (Unreachable, OutcomeUnknown) as error:
            self._away(str(error))
        except (
            TrunklineError
        ) as error:  # another configuration, a store that is not ours or is damaged: a person has to look
            self._broken(error)
        else:
            self._away("")
        if self._grants and monotonic() > self._lease_ends:  # O2
            self._lose(list(self._grants))
            self._revision = -1

    def _look(self) -> None:
        if monotonic() - self._renewed >= self._lease_ms / 3000:
            before = monotonic()
            share = self._store.renew(self._pipeline, self._deliverer, self._lease_ms)
            self._extend(before)
            if share.held > share.most:
                self._give_back(share.held - share.most)
            if share.revision != self._revision or (share.free and share.held < share.most):
                self._acquire()
        elif self._store.revision(self._pipeline) != self._revision:
            self._acquire()

    def _acquire(self) -> None:
        before = monotonic()
        held = self._store.acquire(self._pipeline, self._deliverer, self._digest, self._lease_ms)
        self._extend(before)
        self._revision = held.share.revision
        self._take(held)

    def _extend(self, before: float) -> None:
        self._renewed = before
        self._lease_ends = before + self._lease_ms / 1000

    def _take(self, held: Held) -> None:
        """Tell the planner how what is held differs from before."""
        now = {grant.name: grant for grant in held.grants}
        self._lose([name for name, grant in self._grants.items() if name not in now or now[name].token != grant.token])
        for name, grant in now.items():
            before = self._grants.get(name)
            if before is None or before.desired_state != grant.desired_state:
                self._tell(LifeChanged(name, Life(grant.desired_state)))
            if before is not None and grant.reseed > before.reseed:
                self._tell(ReseedAsked(name, grant.reseed, grant.insists))
        fresh = [grant for name, grant in now.items() if name not in self._grants]
        self._grants.update(now)
        if fresh:
            self._tell(LeasesGranted(tuple(_told(grant) for grant in fresh)))

    def _lose(self, names: list[str]) -> None:
        if names:
            self._tell(LeasesLost(tuple(Lost(name, self._grants.pop(name).token) for name in names)))

    def _give_back(self, count: int) -> None:
        names = sorted(self._grants)[-count:]
        self._lose(names)  # O3
        self._store.release(self._pipeline, self._deliverer, names)

    def _release(self, names: list[str]) -> None:
        for name in names:
            self._grants.pop(name, None)
        self._store.release(self._pipeline, self._deliverer, names)

    def _fenced(self, off: FencedOff) -> None:
        """A destination that knows a higher token than the store ever gave needs a higher one still."""
        self._grants.pop(off.destination, None)
        known = {record.name: record.token for record in self._store.destinations(self._pipeline)}
        if known.get(off.destination, 0) < off.seen:
            self._store.raise_tokens(self._pipeline, {off.destination: off.seen})
        else:
            self._store.release(self._pipeline, self._deliverer, [off.destination])
        self._revision = -1


def _told(grant: HeldGrant) -> Grant:
    empty = Span(grant.empty.after, grant.empty.through)
    return Grant(grant.name, grant.token, empty, grant.reseed, empty_mark=grant.empty_mark, insists=grant.insists)
