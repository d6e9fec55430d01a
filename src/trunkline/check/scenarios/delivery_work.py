"""A deliverer of the checked world: the planner that ships, a worker that carries out its jobs, and a host.

A flush is several steps, as it is in a running pipeline: the planner asks, the worker reads the window and stages rows,
the table's transaction happens at some later moment, its answer arrives at another. A deliverer may crash in between;
what it has sent then arrives all the same.
"""

from __future__ import annotations

from trunkline.check.delivery_rows import SourceScript
from trunkline.check.scenarios.delivery_world import (
    CONTROL,
    SOURCE,
    Acquire,
    Answered,
    Apply,
    CompareMark,
    Forget,
    MarkCompared,
    OperationDone,
    PassiveRole,
    ReadPosition,
    ReadWindow,
    Restore,
    Restored,
    WindowRead,
)
from trunkline.core.delivery_events import JobEnded
from trunkline.core.delivery_messages import (
    Configured,
    FlushGroup,
    JobDone,
    JobMember,
    Note,
    Outcome,
    Planned,
    ReadStandings,
    Result,
    SeedGroup,
    Span,
)
from trunkline.core.effects import SELF, Address, Announce, CancelTimer, Complete, Effects, Message, Send, SetTimer

PLANNER = Address(SELF, "planner")


def tenants_of(planned: Planned) -> tuple[int, ...]:
    """The digest of a checked destination is the list of its tenants."""
    return tuple(map(int, planned.digest.split()))


class OperatorRequest(Message, frozen=True):
    """An operator says this to the planner; a new configuration is told to everybody."""

    operation: int
    news: Message


class RestoreTable(Message, frozen=True):
    """An operator restores a table from a backup."""

    operation: int
    destination: str


class DelivererHost(PassiveRole):
    """What surrounds a planner: tells it the configuration and asks for leases."""

    def __init__(self, planned: tuple[Planned, ...]) -> None:
        self.planned = planned
        self.restoring = 0  # the operation that waits for it

    def on_start(self) -> Effects:
        return [Send(PLANNER, Configured(self.planned)), Send(CONTROL, Acquire())]

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case OperatorRequest(operation, Configured(destinations) as news):
                return [*self._on_configured(destinations), Send(PLANNER, news), Complete(operation, OperationDone())]
            case OperatorRequest(operation, news):
                return [Send(PLANNER, news), Complete(operation, OperationDone())]
            case RestoreTable(operation, destination):
                self.restoring = operation
                return [Send(Address(destination, "table"), Restore())]
            case Restored():
                return [Complete(self.restoring, OperationDone())]
        raise AssertionError(f"a host does not take {message}")

    def _on_configured(self, planned: tuple[Planned, ...]) -> Effects:
        changed = [new for old, new in zip(self.planned, planned, strict=True) if old != new]
        self.planned = planned
        told = Send(Address(SELF, "worker"), Configured(planned))
        return [told, *(Send(CONTROL, Forget(each.destination)) for each in changed)]


class Worker:
    """Carries out the planner's jobs. What is silent is told as unknown after a time-out.

    ``looks``: reading takes a step of its own, in which the source may be found to have forgotten the window. A source
    with two lives is always looked at, and what destinations say of themselves is compared with it.
    """

    def __init__(self, start: int, history: SourceScript, planned: tuple[Planned, ...], *, looks: bool) -> None:
        self.start = start
        self.history = history
        self.planned = planned
        self.lives = 2 if history.another else 1
        self.looks = looks or self.lives > 1
        self.looking: dict[
            int, tuple[tuple[Apply, ...], ...]
        ] = {}  # by job: what is staged, in each life of the source
        self.seeding: set[int] = set()  # those of them that are seeds
        self.through: dict[int, int] = {}  # by job: the version that is read up to
        self.marks: dict[int, str] = {}  # by job: the mark of that
        self.notes: dict[int, tuple[Note, ...]] = {}  # by job: of a reading
        self.waiting: dict[int, tuple[str, ...]] = {}  # by job: destinations that have not answered
        self.results: dict[int, tuple[Result, ...]] = {}

    @property
    def phase(self) -> str:
        return "busy" if self.waiting else "idle"

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a worker asks for no choice, yet {key} was made")

    def on_timer(self, key: str) -> Effects:
        job = int(key.removeprefix("job "))
        return self._finish(job, tuple(Result(name, Outcome.UNKNOWN, error="silent") for name in self.waiting[job]))

    def ignores(self, source: Address, message: Message) -> bool:
        """Answers to an earlier life of this process, and those that come too late."""
        if isinstance(message, Answered):
            late = message.result.destination not in self.waiting.get(message.job, ())
            return message.start != self.start or late
        if isinstance(message, MarkCompared):
            return message.start != self.start or message.result.destination not in self.waiting.get(message.job, ())
        return isinstance(message, WindowRead) and (message.start != self.start or message.job not in self.looking)

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case ReadStandings(job, destinations, notes):
                self.notes[job] = notes
                asks = [Send(Address(name, "table"), ReadPosition(self.start, job)) for name in destinations]
                return self._begin(job, destinations, asks)
            case FlushGroup() | SeedGroup():
                return self._stage(message)
            case WindowRead(start, job) if start == self.start and job in self.looking:
                return self._on_looked(message)
            case Answered(start, job, result) if start == self.start:
                if result.destination in self.waiting.get(job, ()):
                    return self._on_answered(job, result)
            case MarkCompared(start, job, result) if start == self.start:
                if result.destination in self.waiting.get(job, ()):
                    return self._finish(job, (result,))
            case Configured(planned):
                self.planned = planned
        return []

    def _on_answered(self, job: int, result: Result) -> Effects:
        if result.outcome is not Outcome.STANDS or self.lives == 1:
            return self._finish(job, (result,))
        note = next((each for each in self.notes[job] if each.destination == result.destination), None)
        return [Send(SOURCE, CompareMark(self.start, job, result, note))]

    def _stage(self, job: FlushGroup | SeedGroup) -> Effects:
        """Read the window (or the whole source) and stage what each member gets."""
        lives = [[self._staged(job, member, life) for member in job.members] for life in range(self.lives)]
        begun = self._begin(job.job, tuple(member.destination for member in job.members), [])
        self.looking[job.job] = tuple(tuple(each for each in staged if each is not None) for staged in lives)
        self.through[job.job] = job.through
        flushes = isinstance(job, FlushGroup)
        if self.looks and (flushes or self.lives > 1):
            if not flushes:
                self.seeding.add(job.job)
            after, mark = (job.after, job.mark) if isinstance(job, FlushGroup) else (job.through, "")
            return [*begun, Send(SOURCE, ReadWindow(self.start, job.job, after, mark, job.through))]
        return begun + self._on_looked(WindowRead(self.start, job.job, readable=True, strayed=False, life=0))

    def _staged(self, job: FlushGroup | SeedGroup, member: JobMember, life: int) -> Apply | None:
        tenants = tenants_of(next(each for each in self.planned if each.destination == member.destination))
        mark, history = self.history.mark(life, job.through), self.history.lived(life)
        if job.through >= len(history.versions):
            return None  # not in this life
        if isinstance(job, SeedGroup):
            rows = history.part(tenants, job.through)
            return Apply(self.start, job.job, member, job.through, seed=rows, mark=mark)
        edits = history.edits(tenants, Span(job.after, job.through))
        return Apply(self.start, job.job, member, job.through, edits, mark=mark) if edits or job.stamp else None

    def _on_looked(self, looked: WindowRead) -> Effects:
        job, seeds = looked.job, looked.job in self.seeding
        staged = self.looking.pop(job)
        self.seeding.discard(job)
        if looked.strayed or not looked.readable:
            outcome = Outcome.TRANSIENT if seeds else Outcome.STRAYED if looked.strayed else Outcome.EXPIRED
            return self._finish(job, tuple(Result(name, outcome, error="gone") for name in self.waiting[job]))
        applies = staged[looked.life]
        self.marks[job] = self.history.mark(looked.life, self.through.pop(job))
        named = [apply.member.destination for apply in applies]
        empty = [Result(name, Outcome.EMPTY) for name in self.waiting[job] if name not in named]
        sent = [Send(Address(apply.member.destination, "table"), apply) for apply in applies]
        return [*sent, *self._finish(job, tuple(empty))]

    def _begin(self, job: int, destinations: tuple[str, ...], sent: list[Send]) -> Effects:
        self.waiting[job], self.results[job] = destinations, ()
        return [*sent, SetTimer(f"job {job}", 1000)]

    def _finish(self, job: int, results: tuple[Result, ...]) -> Effects:
        """Some destinations have a result; when all have, the job is over."""
        named = [result.destination for result in results]
        self.waiting[job] = tuple(name for name in self.waiting[job] if name not in named)
        self.results[job] = tuple(sorted((*self.results[job], *results), key=lambda each: each.destination))
        if self.waiting[job]:
            return []
        del self.waiting[job]
        for known in (self.looking, self.through, self.notes):
            known.pop(job, None)
        self.seeding.discard(job)
        done, mark = self.results.pop(job), self.marks.pop(job, "")
        told = Announce(JobEnded(job, done))
        answer = Send(Address(SELF, "planner"), JobDone(job, done, mark=mark))
        return [CancelTimer(f"job {job}"), told, answer]
