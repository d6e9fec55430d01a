"""Runs the planner's jobs on Spark; every job ends with a report.

Rules
 J1  A window is read inside tasks. Only reports reach the driver: a result for each destination that was touched.
 J2  A destination without a result had no rows if every task finished; otherwise its outcome is unknown.
 J3  A window that changes nothing in the table starts no job. One that changes the columns is written to every
     destination, rows or not: a destination has the columns that the source had at its position, and one that cannot
     follow halts then.
 J4  Small windows (as the source estimates them) are read and settled inside a few tasks without a shuffle; large ones
     by Spark's own reader and one shuffle.
 J5  One task writes the destinations of one place (tables of one catalog), one after another: a catalog rejects all but
     the first of several concurrent commits.
 J6  Positions are compared with the source, which is read after the destinations. A window is read only if the source
     still has the version at which it begins, by its mark.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from trunkline.core.delivery_messages import (
    FlushGroup,
    JobMember,
    Note,
    Outcome,
    ReadStandings,
    Result,
    SeedGroup,
    SeedMode,
)
from trunkline.delivery.changes.column_steps import check_names
from trunkline.delivery.changes.columns import check_columns
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.job.large import (
    ANSWER_TEXT,
    answers_report,
    appended_frame,
    applier,
    one_frame,
    routes_frame,
    settled_frame,
    settled_live_frame,
    unrouted_frame,
)
from trunkline.delivery.job.results import JobReport, all_failed, failed, merged
from trunkline.delivery.job.small import flush_portion, seed_portion, stamp_portion, unrouted_values
from trunkline.delivery.job.standings import read_standings
from trunkline.delivery.job.work import FlushWork, Policy, Portion, SeedWork, TaskPipeline
from trunkline.delivery.sources.contract import LargeReads, Survey, WindowFrames
from trunkline.errors import DestinationHalted, SourceExpired, TrunklineError, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Job = ReadStandings | FlushGroup | SeedGroup
AnyWork = TypeVar("AnyWork", FlushWork, SeedWork)
Item = TypeVar("Item")
CAUSE_CHARACTERS_MAX = 500
LARGE_PARTITIONS_MAX = 64  # of a shuffle; more destinations than this share a partition


class SourceReplaced(TrunklineError):
    """The source does not have the version at which a window begins."""

    def __init__(self) -> None:
        super().__init__("the source was replaced or restored from a backup; the destination is compared with it again")


class JobRunner:
    """Runs jobs. Calls block until the job has ended; several may run concurrently, each in its own thread."""

    def __init__(self, spark: SparkSession, pipeline: TaskPipeline, small_bytes: int) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._pipeline = pipeline
        self._small_bytes = small_bytes
        self._sent = self._context.broadcast(pipeline)

    def run(self, job: Job) -> JobReport:
        match job:
            case ReadStandings(_, destinations, notes):
                return self.standings(destinations, notes)
            case FlushGroup():
                return self.flush(job)
            case SeedGroup():
                return self.seed(job)

    # --- flushes ---

    def flush(self, group: FlushGroup) -> JobReport:
        window = Window(group.after, group.through)
        try:
            survey = self._survey_after(group)
        except SourceReplaced as error:
            strayed = (Result(member.destination, Outcome.STRAYED, error=str(error)) for member in group.members)
            return JobReport(tuple(strayed))
        except TrunklineError as error:
            return all_failed(group.members, error)
        stamp = group.stamp or survey.altered or not (survey.steps is None or survey.steps.unchanged)
        if survey.backlog.quiet and not stamp:
            return JobReport(mark=survey.mark, unrouted={})
        work = FlushWork(window, survey.columns, survey.identity, stamp, survey.mark, survey.steps)
        if (large := self._large_reads(survey)) is not None:
            return self._run(lambda: self._large_flush(large, work, group.members), work.mark)
        return self._run(lambda: self._small(flush_portion, work, group.members), work.mark)

    def _survey_after(self, group: FlushGroup) -> Survey:
        """The survey of a window; raises ``SourceReplaced`` if it begins at no version of the source's history (J6)."""
        try:
            survey = self._survey(Window(group.after, group.through))
        except SourceExpired:
            lineage = self._pipeline.source.lineage([group.after])
            if lineage.has(group.after, group.mark) and group.through <= lineage.version:
                raise
            raise SourceReplaced from None
        if group.mark and survey.after_mark and group.mark != survey.after_mark:
            raise SourceReplaced
        if survey.restated:
            raise SourceExpired(f"{survey.restated}; the destination is seeded again")
        return survey

    def _large_flush(self, large: LargeReads, work: FlushWork, members: Sequence[JobMember]) -> list[JobReport]:
        """Destinations with rows by Spark; if all are to be stamped, then the others."""
        filled = self._large(large, work, members, work.window)
        rest = filled.without_result(members) if work.stamp else ()
        return [filled, *(self._small(stamp_portion, work, rest) if rest else ())]

    # --- seeds ---

    def seed(self, group: SeedGroup) -> JobReport:
        try:
            survey = self._survey(Window(BEFORE_ALL, group.through))
        except TrunklineError as error:
            return all_failed(group.members, error)
        nothing = group.mode is SeedMode.NOW
        work = SeedWork(group.through, survey.columns, survey.identity, nothing, survey.mark)
        if not work.nothing and (large := self._large_reads(survey)) is not None:
            return self._run(lambda: self._large_seed(large, work, group.members), work.mark)
        return self._run(lambda: self._small(seed_portion, work, group.members), work.mark)

    def _large_seed(self, large: LargeReads, work: SeedWork, members: Sequence[JobMember]) -> list[JobReport]:
        """Destinations with rows by Spark, then the others, with none."""
        filled = self._large(large, work, members, Window(BEFORE_ALL, work.through))
        rest = filled.without_result(members)
        return [filled, *(self._small(seed_portion, replace(work, nothing=True), rest) if rest else ())]

    # --- both ---

    def _survey(self, window: Window) -> Survey:
        """Raises ``ConfigError`` for columns that cannot be delivered: the source's may change at any time."""
        survey = self._pipeline.source.survey(window)
        if survey.steps is not None:
            check_names(survey.steps, self._pipeline.key, self._pipeline.routing)
        check_columns(survey.columns, self._pipeline.key, self._pipeline.routing)
        return survey

    def _large_reads(self, survey: Survey) -> LargeReads | None:
        """``None``: the window is small, or the source has only one way to read (J4)."""
        return self._pipeline.source.large_reads() if survey.backlog.size_bytes > self._small_bytes else None

    def _large(
        self, large: LargeReads, work: FlushWork | SeedWork, members: Sequence[JobMember], window: Window
    ) -> JobReport:
        pipeline = self._pipeline
        places = {pipeline.index[member.destination]: member for member in members}
        request = pipeline.request(work.columns, work.mark)
        frames = large.frames(self._spark, window, request)
        live = Window(BEFORE_ALL, window.through)
        everywhere = routes_frame(self._spark, pipeline, set(range(len(pipeline.targets))))
        answers = unrouted_frame(frames.arrived(), everywhere)
        by_policy = [
            self._settled(work, policy, each, frames, lambda: large.frames(self._spark, live, request))
            for policy, each in pipeline.by_policy(places).items()
        ]
        rows = one_frame(by_policy, pipeline.key, min(len(places), LARGE_PARTITIONS_MAX))
        answers = answers.unionByName(rows.mapInArrow(applier(pipeline, work, places), ANSWER_TEXT))
        return answers_report((row.kind, row.text, row.number, row.body) for row in answers.collect())

    def _settled(
        self,
        work: FlushWork | SeedWork,
        policy: Policy,
        places: set[int],
        frames: WindowFrames,
        live: Callable[[], WindowFrames],
    ) -> DataFrame:
        """The rows of destinations with one policy; ``live``: all rows at the end of the window."""
        routes = routes_frame(self._spark, self._pipeline, places)
        key, partitions = self._pipeline.key, min(len(places), LARGE_PARTITIONS_MAX)
        if policy == "append":
            return appended_frame(frames.arrived(), routes, partitions)
        if policy == "halt" or isinstance(work, SeedWork):
            return settled_frame(frames.removed(), frames.arrived(), routes, key, partitions)
        return settled_live_frame(frames.removed(), frames.arrived(), live().arrived(), routes, key, partitions)

    def _small(
        self, run: Callable[[TaskPipeline, AnyWork, Portion], JobReport], work: AnyWork, members: Sequence[JobMember]
    ) -> list[JobReport]:
        sent, places = self._sent, self._pipeline.shared_places
        dealt = deal(members, self._context.defaultParallelism, lambda each: places[each.destination])
        portions = [Portion(number, tuple(mine), number == 0) for number, mine in enumerate(dealt)]

        def task(mine: Portion) -> JobReport:
            try:
                return run(sent.value, work, mine)
            except TrunklineError as error:  # of the source: no destination was touched yet
                return replace(all_failed(mine.members, error), path="small")

        return self._context.parallelize(portions, len(portions)).map(task).collect()

    def _run(self, run: Callable[[], list[JobReport]], mark: str = "") -> JobReport:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return merged(run(), mark)
        except (Py4JError, PySparkException) as error:
            return JobReport(rest=Outcome.UNKNOWN, error=f"the Spark job failed: {_cause(error)}")
        except TrunklineError as error:
            return JobReport(rest=Outcome.UNKNOWN, error=str(error))

    # --- reads without a flush ---

    def count_unrouted(self, window: Window) -> dict[str | None, int]:
        """The unrouted rows that arrived in a window, by value.

        Raises ``SourceExpired``, ``Unreachable`` or ``DestinationHalted`` if the window cannot be read.
        """
        survey = self._pipeline.source.survey(window)
        if survey.backlog.quiet:
            return {}
        sent, columns = self._sent, survey.columns

        def task(window: Window) -> JobReport:
            try:
                return JobReport(unrouted=unrouted_values(sent.value, window, columns))
            except TrunklineError as error:
                return JobReport((failed("source", error),))

        report = self._run(lambda: self._context.parallelize([window], 1).map(task).collect())
        if report.unrouted is None:
            failure = report.results[0] if report.results else Result("", Outcome.UNKNOWN, error=report.error)
            kinds = {Outcome.PERMANENT: DestinationHalted, Outcome.EXPIRED: SourceExpired}
            kind = kinds.get(failure.outcome, Unreachable)
            raise kind(f"the unrouted rows of {window} could not be counted: {failure.error}")
        return report.unrouted

    def standings(self, destinations: Sequence[str], notes: Sequence[Note] = ()) -> JobReport:
        """Read the positions of destinations, in tasks: there may be thousands."""
        sent = self._sent
        noted = {note.destination: note for note in notes}
        dealt = deal(destinations, self._context.defaultParallelism, self._pipeline.shared_places.__getitem__)

        def task(names: list[str]) -> JobReport:
            return JobReport(tuple(read_standings(sent.value, names, noted)), path="small")

        return self._run(lambda: self._context.parallelize(dealt, len(dealt)).map(task).collect())

    def close(self) -> None:
        """Waits for the executors: an answer that arrives after Spark has stopped makes it print stack traces."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        with suppress(Py4JError, PySparkException):  # an executor that does not answer holds nothing any more
            self._sent.destroy(blocking=True)


def deal(items: Sequence[Item], slots: int, place_of: Callable[[Item], int]) -> list[list[Item]]:
    """Spread items evenly over as many tasks as run concurrently; items of one place go to one task (J5)."""
    places: dict[int, list[Item]] = {}
    for item in items:
        places.setdefault(place_of(item), []).append(item)
    hands: list[list[Item]] = [[] for _ in range(max(1, min(slots, len(places))))]
    smallest = [(0, number) for number in range(len(hands))]
    for together in sorted(places.values(), key=len, reverse=True):
        size, number = heapq.heappop(smallest)
        hands[number] += together
        heapq.heappush(smallest, (size + len(together), number))
    return hands


def _cause(error: Exception) -> str:
    """The line of a long text that names the cause: the last one of a Python traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return ([*raised[-1:], *lines, type(error).__name__])[0][:CAUSE_CHARACTERS_MAX]
