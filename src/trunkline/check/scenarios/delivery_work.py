"""A deliverer of the checked world: the planner that ships, a worker that runs its jobs, and a host.

A flush takes several steps, as in a running pipeline: the planner requests it, the worker reads the window and stages
rows, each place commits its members at some later moment, and its answer arrives at another. A deliverer may crash in
between; what it has sent still arrives.

Tables of a member that commit alone are read and written in many more steps (``delivery_lone.py``).
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.check.delivery_rows import SourceScript
from trunkline.check.scenarios.delivery_lone import LoneStep, ReadTables, TableCommitted, TablesRead, standing_of
from trunkline.check.scenarios.delivery_place import Answered, Apply, ReadPositions, Restore, Restored, StagedWrite
from trunkline.check.scenarios.delivery_world import (
    CONTROL,
    SOURCE,
    Acquire,
    CompareMark,
    Forget,
    MarkCompared,
    OperationDone,
    ReadWindow,
    WindowRead,
)
from trunkline.check.scenarios.hosts import PassiveRole
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


class Layout(Struct, frozen=True):
    """Where tables are.

    ``places``: (destination, place); one that is not named is a place of its own. ``alone``: (destination, the keys of
    each of its tables), if these commit alone; any other destination is one table.
    """

    places: tuple[tuple[str, str], ...] = ()
    alone: tuple[tuple[str, tuple[str, ...]], ...] = ()
    append: bool = False

    def place(self, destination: str) -> str:
        return dict(self.places).get(destination, destination)

    def keys(self, destination: str) -> tuple[str, ...]:
        """Of the tables that commit alone."""
        return dict(self.alone).get(destination, ())


class OperatorRequest(Message, frozen=True):
    """An operator's message to the planner; a new configuration goes to the worker and the control store as well."""

    operation: int
    news: Message


class RestoreTable(Message, frozen=True):
    """An operator restores a table from a backup."""

    operation: int
    destination: str


class DelivererHost(PassiveRole):
    """The host of a planner: sends it the configuration and acquires leases."""

    def __init__(self, planned: tuple[Planned, ...], layout: Layout) -> None:
        self.planned = planned
        self.layout = layout
        self.restoring = 0  # the operation in progress

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
                return [Send(Address(self.layout.place(destination), "place"), Restore(destination))]
            case Restored():
                return [Complete(self.restoring, OperationDone())]
        return super().on_message(source, message)

    def _on_configured(self, planned: tuple[Planned, ...]) -> Effects:
        changed = [new for old, new in zip(self.planned, planned, strict=True) if old != new]
        self.planned = planned
        configured = Send(Address(SELF, "worker"), Configured(planned))
        return [configured, *(Send(CONTROL, Forget(each.destination)) for each in changed)]


class Worker(PassiveRole):
    """Runs the planner's jobs. A destination that does not answer has an unknown outcome after a time-out.

    ``looks``: reading is a step of its own, which may find that the source has forgotten the window. With two
    incarnations reading is always a step, and positions of destinations are compared with the source.
    """

    def __init__(
        self, start: int, script: SourceScript, planned: tuple[Planned, ...], layout: Layout, *, looks: bool
    ) -> None:
        self.start = start
        self.script = script
        self.planned = planned
        self.layout = layout
        self.incarnations = 2 if script.another else 1
        self.looks = looks or self.incarnations > 1
        # By job: what is staged, for each incarnation of the source.
        self.looking: dict[int, tuple[tuple[StagedWrite, ...], ...]] = {}
        self.seeding: set[int] = set()  # jobs among them that are seeds
        self.through: dict[int, int] = {}  # by job: the end of its window
        self.marks: dict[int, str] = {}  # by job: the mark of that version
        self.notes: dict[int, tuple[Note, ...]] = {}  # by job that reads positions
        self.waiting: dict[int, tuple[str, ...]] = {}  # by job: destinations without a result
        self.results: dict[int, tuple[Result, ...]] = {}
        self.lone: dict[int, tuple[LoneStep, ...]] = {}  # by job: destinations whose tables commit alone

    @property
    def phase(self) -> str:
        return "busy" if self.waiting else "idle"

    def on_timer(self, key: str) -> Effects:
        job = int(key.removeprefix("job "))
        return self._finish(job, tuple(Result(name, Outcome.UNKNOWN, error="silent") for name in self.waiting[job]))

    def ignores(self, source: Address, message: Message) -> bool:
        """Answers to a previous process, and late answers."""
        if isinstance(message, Answered):
            return message.start != self.start or not self._awaited(message.job, message.results)
        if isinstance(message, TablesRead | TableCommitted):
            return message.request.start != self.start or not self._is_awaited(message)
        if isinstance(message, MarkCompared):
            return message.start != self.start or message.result.destination not in self.waiting.get(message.job, ())
        return isinstance(message, WindowRead) and (message.start != self.start or message.job not in self.looking)

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case ReadStandings(job, destinations, notes):
                self.notes[job] = notes
                asks: dict[str, list[str]] = {}
                for each in destinations:
                    asks.setdefault(self.layout.place(each), []).append(each)
                reads = [
                    Send(Address(place, "place"), self._question(job, place, tuple(names)))
                    for place, names in asks.items()
                ]
                return self._begin(job, destinations, reads)
            case FlushGroup() | SeedGroup():
                return self._stage(message)
            case WindowRead(start, job) if start == self.start and job in self.looking:
                return self._on_read(message)
            case Answered(start, job, results) if start == self.start:
                return [effect for each in self._awaited(job, results) for effect in self._on_result(job, each)]
            case TablesRead() | TableCommitted() if message.request.start == self.start and self._is_awaited(message):
                return self._on_tables(message)
            case MarkCompared(start, job, result) if start == self.start:
                if result.destination in self.waiting.get(job, ()):
                    return self._finish(job, (result,))
            case Configured(planned):
                self.planned = planned
        return []

    def _question(self, job: int, place: str, names: tuple[str, ...]) -> Message:
        alone = place in dict(self.layout.alone)
        return ReadTables(self.start, job, place) if alone else ReadPositions(self.start, job, names)

    def _awaited(self, job: int, results: tuple[Result, ...]) -> list[Result]:
        return [each for each in results if each.destination in self.waiting.get(job, ())]

    def _is_awaited(self, answer: TablesRead | TableCommitted) -> bool:
        request = answer.request
        if request.member not in self.waiting.get(request.job, ()):
            return False
        return request.job in self.notes or any(each.awaited == request for each in self.lone.get(request.job, ()))

    def _on_tables(self, answer: TablesRead | TableCommitted) -> Effects:
        job, member = answer.request.job, answer.request.member
        if job in self.notes:
            assert isinstance(answer, TablesRead)
            return self._on_result(job, standing_of(member, answer.images))
        [step] = [each for each in self.lone[job] if each.write.name == member]
        then = step.on_read(answer.images) if isinstance(answer, TablesRead) else step.on_committed(answer)
        return self._finish(job, (then,)) if isinstance(then, Result) else [Send(Address(member, "place"), then)]

    def _on_result(self, job: int, result: Result) -> Effects:
        if result.outcome is not Outcome.STANDS or self.incarnations == 1:
            return self._finish(job, (result,))
        note = next((each for each in self.notes[job] if each.destination == result.destination), None)
        return [Send(SOURCE, CompareMark(self.start, job, result, note))]

    def _stage(self, job: FlushGroup | SeedGroup) -> Effects:
        """Read the window (or the whole source) and stage the rows of each member."""
        by_incarnation = [
            [self._staged(job, member, each) for member in job.members] for each in range(self.incarnations)
        ]
        begun = self._begin(job.job, tuple(member.destination for member in job.members), [])
        self.looking[job.job] = tuple(tuple(each for each in staged if each is not None) for staged in by_incarnation)
        self.through[job.job] = job.through
        flushes = isinstance(job, FlushGroup)
        if self.looks and (flushes or self.incarnations > 1):
            if not flushes:
                self.seeding.add(job.job)
            after, mark = (job.after, job.mark) if isinstance(job, FlushGroup) else (job.through, "")
            return [*begun, Send(SOURCE, ReadWindow(self.start, job.job, after, mark, job.through))]
        return begun + self._on_read(WindowRead(self.start, job.job, readable=True, strayed=False, incarnation=0))

    def _staged(self, job: FlushGroup | SeedGroup, member: JobMember, incarnation: int) -> StagedWrite | None:
        tenants = tenants_of(next(each for each in self.planned if each.destination == member.destination))
        mark, script = self.script.mark(incarnation, job.through), self.script.in_incarnation(incarnation)
        if job.through >= len(script.versions):
            return None  # this incarnation has no such version
        if isinstance(job, SeedGroup):
            return StagedWrite(member, job.through, seed=script.part(tenants, job.through), mark=mark)
        edits = script.edits(tenants, Span(job.after, job.through))
        return StagedWrite(member, job.through, edits, mark=mark) if edits or job.stamp else None

    def _on_read(self, read: WindowRead) -> Effects:
        job, seeds = read.job, read.job in self.seeding
        staged = self.looking.pop(job)
        self.seeding.discard(job)
        if read.strayed or not read.readable:
            outcome = Outcome.TRANSIENT if seeds else Outcome.STRAYED if read.strayed else Outcome.EXPIRED
            return self._finish(
                job, tuple(Result(name, outcome, error="not in the source") for name in self.waiting[job])
            )
        writes = staged[read.incarnation]
        self.marks[job] = self.script.mark(read.incarnation, self.through.pop(job))
        named = [write.name for write in writes]
        empty = [Result(name, Outcome.EMPTY) for name in self.waiting[job] if name not in named]
        return [*self._sent(job, writes), *self._finish(job, tuple(empty))]

    def _sent(self, job: int, writes: tuple[StagedWrite, ...]) -> Effects:
        """One transaction for each place."""
        by_place: dict[str, list[StagedWrite]] = {}
        for write in writes:
            by_place.setdefault(self.layout.place(write.name), []).append(write)
        requests: list[tuple[str, Message]] = []
        for place, members in by_place.items():
            if keys := self.layout.keys(place):
                step = LoneStep(self.start, job, members[0], keys, append=self.layout.append)
                requests.append((place, step.read()))
                self.lone[job] = (*self.lone.get(job, ()), step)
            else:
                requests.append((place, Apply(self.start, job, tuple(members))))
        return [Send(Address(place, "place"), request) for place, request in requests]

    def _begin(self, job: int, destinations: tuple[str, ...], sent: list[Send]) -> Effects:
        self.waiting[job], self.results[job] = destinations, ()
        return [*sent, SetTimer(f"job {job}", 1000)]

    def _finish(self, job: int, results: tuple[Result, ...]) -> Effects:
        """Add results of some destinations; when all have one, the job is done."""
        named = [result.destination for result in results]
        self.waiting[job] = tuple(name for name in self.waiting[job] if name not in named)
        self.results[job] = tuple(sorted((*self.results[job], *results), key=lambda each: each.destination))
        if self.waiting[job]:
            return []
        del self.waiting[job]
        for known in (self.looking, self.through, self.notes, self.lone):
            known.pop(job, None)
        self.seeding.discard(job)
        done, mark = self.results.pop(job), self.marks.pop(job, "")
        ended = Announce(JobEnded(job, done))
        return [CancelTimer(f"job {job}"), ended, Send(PLANNER, JobDone(job, done, mark=mark))]
