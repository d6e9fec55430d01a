"""Runs the planner's jobs on Spark, and answers each one to its end.

Rules
 J1  A window is read inside tasks. What reaches the driver are answers: a result for each destination that was touched.
 J2  A destination without a result had no rows, if every task came to its end; otherwise its outcome is unknown.
 J3  A window that touches nothing of the table starts no job. One that changes its columns is written everywhere, rows
     or not: a destination has the columns that the source had at its position, and one that cannot follow halts then.
 J4  Small windows (by the source's own books) are read and settled inside a few tasks without a shuffle; large ones by
     Spark's own reader and one shuffle.
 J5  Destinations of one place (tables of one catalog) are written by one task, one after another: a catalog refuses all
     but the first of several commits.
 J6  What a reading says of destinations is compared with the source, which is asked after them. A window is read only
     if the source still has the version that it begins at, by its mark: its rows are of no use to anybody else.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.delivery_messages import FlushGroup, JobDone, JobMember, Note, Outcome, Result, SeedGroup, SeedMode
from trunkline.delivery.changes.columns import check_columns
from trunkline.delivery.changes.windows import BEFORE_ALL, Window
from trunkline.delivery.job.answers import ANSWER_TEXT, report
from trunkline.delivery.job.large import (
    appended_frame,
    applier,
    one_frame,
    routes_frame,
    settled_frame,
    settled_live_frame,
    unrouted_frame,
)
from trunkline.delivery.job.outcomes import failed
from trunkline.delivery.job.small import flush_portion, seed_portion, stamp_portion, unrouted_values
from trunkline.delivery.job.standings import read_standings
from trunkline.delivery.job.work import Counted, FlushWork, Policy, Portion, ReadPath, SeedWork, TaskReport, Work
from trunkline.delivery.sources.contract import LargeReads, Survey, WindowFrames
from trunkline.errors import DestinationHalted, SourceExpired, TrunklineError, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Asked = TypeVar("Asked")
Item = TypeVar("Item")
CAUSE_CHARACTERS_MOST = 500
LARGE_PARTITIONS_MOST = 64  # of a shuffle; more destinations than this share a partition


class SourceReplaced(TrunklineError):
    """The source does not have the version that a window begins at; destinations are compared with it again."""

    def __init__(self) -> None:
        super().__init__("the source was made anew or restored from a backup; the destination is compared with it")


class JobReport(Struct, frozen=True):
    """How a job went: what the planner is told, and what people are told."""

    done: JobDone
    counted: tuple[Counted, ...] = ()
    unrouted: dict[str | None, int] | None = None  # arrivals that nobody takes, by value; None: they were not counted
    path: ReadPath | None = None  # None: nothing had to be read


class JobRunner:
    """Carries out jobs. Calls block until the job has ended; several may run at once, in threads of their own."""

    def __init__(self, spark: SparkSession, work: Work, small_bytes: int) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._work = work
        self._small_bytes = small_bytes
        self._sent = self._context.broadcast(work)

    # --- flushes ---

    def flush(self, group: FlushGroup) -> JobReport:
        window = Window(group.after, group.through)
        try:
            survey = self._survey_after(group)
        except SourceReplaced as error:
            results = (Result(member.destination, Outcome.STRAYED, error=str(error)) for member in group.members)
            return JobReport(JobDone(group.job, tuple(results), Outcome.EMPTY))
        except TrunklineError as error:
            return _nothing_happened(group.job, group.members, error)
        stamp = group.stamp or survey.altered
        if survey.backlog.quiet and not stamp:
            return JobReport(JobDone(group.job, (), Outcome.EMPTY, mark=survey.mark), unrouted={})
        work = FlushWork(window, survey.columns, survey.identity, stamp, survey.mark)
        if (large := self._large_reads(survey)) is not None:
            return self._ran(group.job, lambda: self._large_flush(large, work, group.members), work.mark)
        return self._ran(group.job, lambda: self._small(flush_portion, work, group.members), work.mark)

    def _survey_after(self, group: FlushGroup) -> Survey:
        """The survey of a window that begins at a version of the source's present history (J6).

        Raises ``SourceReplaced`` if it does not.
        """
        try:
            survey = self._survey(Window(group.after, group.through))
        except SourceExpired:
            lineage = self._work.source.lineage([group.after])
            if lineage.has(group.after, group.mark) and group.through <= lineage.version:
                raise
            raise SourceReplaced from None
        if group.mark and survey.after_mark and group.mark != survey.after_mark:
            raise SourceReplaced
        if survey.restated:
            raise SourceExpired(f"{survey.restated}; the destination is seeded again")
        return survey

    def _large_flush(self, large: LargeReads, work: FlushWork, members: Sequence[JobMember]) -> list[TaskReport]:
        """Those with rows by Spark; if all are to be stamped, the others after them."""
        filled = self._large(large, work, members, work.window)
        rest = filled.without_result(members) if work.stamp else ()
        return [filled, *(self._small(stamp_portion, work, rest) if rest else ())]

    # --- seeds ---

    def seed(self, group: SeedGroup) -> JobReport:
        window = Window(BEFORE_ALL, group.through)
        try:
            survey = self._survey(window)
        except TrunklineError as error:
            return _nothing_happened(group.job, group.members, error)
        nothing = group.mode is SeedMode.NOW
        work = SeedWork(group.through, survey.columns, survey.identity, nothing, survey.mark)
        if not work.nothing and (large := self._large_reads(survey)) is not None:
            return self._ran(group.job, lambda: self._large_seed(large, work, group.members), work.mark)
        return self._ran(group.job, lambda: self._small(seed_portion, work, group.members), work.mark)

    def _large_seed(self, large: LargeReads, work: SeedWork, members: Sequence[JobMember]) -> list[TaskReport]:
        """Those with rows by Spark; the others after them, with none."""
        filled = self._large(large, work, members, Window(BEFORE_ALL, work.through))
        rest = filled.without_result(members)
        return [filled, *(self._small(seed_portion, replace(work, nothing=True), rest) if rest else ())]

    # --- both ---

    def _survey(self, window: Window) -> Survey:
        """Raises ``ConfigError`` for columns that cannot be delivered: the source's may change at any time."""
        survey = self._work.source.survey(window)
        check_columns(survey.columns, self._work.key, self._work.routing)
        return survey

    def _large_reads(self, survey: Survey) -> LargeReads | None:
        """``None``: the window is small, or the source has only one way to read (J4)."""
        return self._work.source.large_reads() if survey.backlog.size_bytes > self._small_bytes else None

    def _large(
        self, large: LargeReads, work: FlushWork | SeedWork, members: Sequence[JobMember], window: Window
    ) -> TaskReport:
        places = {self._work.index[member.destination]: member for member in members}
        request = self._work.request(work.columns, work.mark)
        frames = large.frames(self._spark, window, request)
        live = Window(BEFORE_ALL, window.through)
        apply = applier(self._work, work, places)
        everywhere = routes_frame(self._spark, self._work, set(range(len(self._work.targets))))
        answers = unrouted_frame(frames.arrived(), everywhere)
        alike = [
            self._settled(work, policy, each, frames, lambda: large.frames(self._spark, live, request))
            for policy, each in self._work.by_policy(places).items()
        ]
        rows = one_frame(alike, self._work.key, min(len(places), LARGE_PARTITIONS_MOST))
        answers = answers.unionByName(rows.mapInArrow(apply, ANSWER_TEXT))
        return report((row.kind, row.text, row.number, row.body) for row in answers.collect())

    def _settled(
        self,
        work: FlushWork | SeedWork,
        policy: Policy,
        places: set[int],
        frames: WindowFrames,
        live: Callable[[], WindowFrames],
    ) -> DataFrame:
        """The rows of destinations that are treated alike; ``live``: all rows at the end of the window."""
        routes = routes_frame(self._spark, self._work, places)
        key, partitions = self._work.key, min(len(places), LARGE_PARTITIONS_MOST)
        if policy == "append":
            return appended_frame(frames.arrived(), routes, partitions)
        if policy == "halt" or isinstance(work, SeedWork):
            return settled_frame(frames.removed(), frames.arrived(), routes, key, partitions)
        return settled_live_frame(frames.removed(), frames.arrived(), live().arrived(), routes, key, partitions)

    def _small(
        self, run: Callable[[Work, Asked, Portion], TaskReport], work: Asked, members: Sequence[JobMember]
    ) -> list[TaskReport]:
        sent = self._sent
        dealt = deal(members, self._context.defaultParallelism, lambda each: self._work.shared_places[each.destination])
        found = [Portion(number, tuple(mine), number == 0) for number, mine in enumerate(dealt)]

        def task(mine: Portion) -> TaskReport:
            try:
                return run(sent.value, work, mine)
            except TrunklineError as error:  # of the source: no destination was touched yet
                return TaskReport(_all_failed(mine.members, error), (), None, "small")

        return self._context.parallelize(found, len(found)).map(task).collect()

    def _ran(self, job: int, run: Callable[[], list[TaskReport]], mark: str = "") -> JobReport:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            reports = run()
        except (Py4JError, PySparkException) as error:
            return JobReport(JobDone(job, (), Outcome.UNKNOWN, f"the Spark job broke off: {_cause(error)}"))
        except TrunklineError as error:
            return JobReport(JobDone(job, (), Outcome.UNKNOWN, str(error)))
        results = tuple(result for part in reports for result in part.results)
        unrouted = next((part.unrouted for part in reports if part.unrouted is not None), None)
        counted = tuple(count for part in reports for count in part.counted)
        return JobReport(JobDone(job, results, Outcome.EMPTY, mark=mark), counted, unrouted, reports[0].path)

    # --- reads without a flush ---

    def count_unrouted(self, window: Window) -> dict[str | None, int]:
        """The arrivals of a window that no destination takes.

        Raises ``SourceExpired``, ``Unreachable`` or ``DestinationHalted`` if it cannot be read, and says why.
        """
        survey = self._work.source.survey(window)
        if survey.backlog.quiet:
            return {}
        sent, columns = self._sent, survey.columns

        def task(asked: Window) -> TaskReport:
            try:
                return TaskReport((), (), unrouted_values(sent.value, asked, columns), "small")
            except TrunklineError as error:
                return TaskReport((failed("not counted", error),), (), None, "small")

        found = self._ran(0, lambda: self._context.parallelize([window], 1).map(task).collect())
        if found.unrouted is None:
            told = found.done.results[0] if found.done.results else Result("", Outcome.UNKNOWN, error=found.done.error)
            kind = {Outcome.PERMANENT: DestinationHalted, Outcome.EXPIRED: SourceExpired}.get(told.outcome, Unreachable)
            raise kind(f"the rows of {window} that nobody takes could not be counted: {told.error}")
        return found.unrouted

    def standings(self, job: int, destinations: Sequence[str], notes: Sequence[Note] = ()) -> JobReport:
        """Read where destinations stand, in tasks: there may be thousands."""
        sent = self._sent
        noted = {note.destination: note for note in notes}
        dealt = deal(destinations, self._context.defaultParallelism, self._work.shared_places.__getitem__)

        def task(names: list[str]) -> list[Result]:
            return read_standings(sent.value, names, noted)

        def run() -> list[TaskReport]:
            found = self._context.parallelize(dealt, len(dealt)).flatMap(task).collect()
            return [TaskReport(tuple(found), (), None, "small")]

        return self._ran(job, run)

    def close(self) -> None:
        """Awaits the answers of executors: one that comes when Spark has stopped makes it print stack traces."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        with suppress(Py4JError, PySparkException):  # who does not answer any more has forgotten it, too
            self._sent.destroy(blocking=True)


def deal(items: Sequence[Item], slots: int, place_of: Callable[[Item], int]) -> list[list[Item]]:
    """Dealt out to as many tasks as run at once, about as many to each; what is of one place goes to one task (J5)."""
    places: dict[int, list[Item]] = {}
    for item in items:
        places.setdefault(place_of(item), []).append(item)
    hands: list[list[Item]] = [[] for _ in range(max(1, min(slots, len(places))))]
    smallest = [(0, number) for number in range(len(hands))]
    for alike in sorted(places.values(), key=len, reverse=True):
        size, number = heapq.heappop(smallest)
        hands[number] += alike
        heapq.heappush(smallest, (size + len(alike), number))
    return hands


def _nothing_happened(job: int, members: Sequence[JobMember], error: TrunklineError) -> JobReport:
    return JobReport(JobDone(job, _all_failed(members, error), Outcome.EMPTY))


def _all_failed(members: Sequence[JobMember], error: TrunklineError) -> tuple[Result, ...]:
    return tuple(failed(member.destination, error) for member in members)


def _cause(error: Exception) -> str:
    """The line of a long text that says what happened: the last one of a Python traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return ([*raised[-1:], *lines, type(error).__name__])[0][:CAUSE_CHARACTERS_MOST]
