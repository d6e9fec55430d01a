"""Runs the planner's jobs on Spark; every job ends with a report.

Rules
 J1  A window is read inside tasks, once for all tables. Only reports reach the driver: a result for each destination
     that was touched.
 J2  A destination without a result had no rows if every task finished; otherwise its outcome is unknown.
 J3  A window that changes nothing in any table starts no job. One that changes the columns of a table, or in which a
     table joins or leaves, is written to every destination, rows or not: a destination has the tables and columns that
     the source had at its position, and one that cannot follow halts then.
 J4  Small windows (as the source estimates them) are read and settled inside a few tasks without a shuffle; large ones
     by Spark's own reader, a shuffle by key, and one that brings the tables of a destination together. Windows of
     mode history are small ones: a task reads every version. (Its seeds, and tables that join, may be large.)
 J5  One task writes the destinations of one catalog: it rejects all but the first of several concurrent commits. The
     destinations that a task has in one place share a transaction.
 J6  Positions are compared with the source, which is read after the destinations. A window is read only if the source
     still has the version at which it begins, by its mark.
 J7  A row on which an expression of a shape fails halts the destinations that take it, and no other, unless the route
     itself is computed: whose row it is, is not known then.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

import msgspec
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
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.tree import Pipeline
from trunkline.delivery.job.large import PARTITIONS_MAX, TablePlan, needs_state
from trunkline.delivery.job.large_apply import apply_blobs, blob_rows
from trunkline.delivery.job.mirror_copy import copy_mirrors, copying, light
from trunkline.delivery.job.results import JobReport, all_failed, broken_off, failed, joined, merged
from trunkline.delivery.job.small import flush_portion, seed_portion, stamp_portion, unknown_values
from trunkline.delivery.job.standings import read_standings
from trunkline.delivery.job.table_works import known_tables, state_tables, window_tables
from trunkline.delivery.job.work import FlushWork, Portion, SeedWork, TaskPipeline, Work
from trunkline.delivery.sources.contract import LargeReads, Survey
from trunkline.delivery.sources.task_errors import carried_error
from trunkline.errors import DestinationHalted, SourceExpired, TrunklineError, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = ReadStandings | FlushGroup | SeedGroup
AnyWork = TypeVar("AnyWork", FlushWork, SeedWork)
Item = TypeVar("Item")
Larges = Mapping[str, LargeReads]  # by table
CAUSE_CHARACTERS_MAX = 500


class SourceReplaced(TrunklineError):
    """The source does not have the version at which a window begins."""

    def __init__(self) -> None:
        super().__init__("the source was replaced or restored from a backup; the destination is compared with it again")


class JobRunner:
    """Runs jobs. Calls block until the job has ended; several may run concurrently, each in its own thread."""

    def __init__(self, spark: SparkSession, pipeline: TaskPipeline, small_bytes: int) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self.pipeline = pipeline
        self._small_bytes = small_bytes
        self._sent = self._context.broadcast(replace(pipeline, rules=None, guard=None))

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
            if self.pipeline.guard is not None:
                self.pipeline.guard.begin(group.after)
            found = window_tables(self.pipeline, survey, window)
            self._guard(survey, group.through)
        except SourceReplaced as error:
            strayed = (Result(member.destination, Outcome.STRAYED, error=str(error)) for member in group.members)
            return JobReport(tuple(strayed))
        except TrunklineError as error:
            return all_failed(group.members, error)
        stamp = group.stamp or found.for_everyone
        if not found.tables and not stamp:
            return JobReport(mark=survey.mark, unrouted={})
        drops = self._rules.dropped_tables == "drop"
        work = FlushWork(window, found.tables, survey.identity, found.quiet, stamp, survey.mark, found.left, drops)
        if (large := self._large_reads(work)) is not None:
            return self._run(lambda: self._divided_flush(large, work, group.members), group.members, work.mark)
        return self._run(lambda: self._small(flush_portion, work, group.members), group.members, work.mark)

    def _survey_after(self, group: FlushGroup) -> Survey:
        """The survey of a window; raises ``SourceReplaced`` if it begins at no version of the source's history (J6)."""
        try:
            survey = self.pipeline.source.survey(Window(group.after, group.through))
        except SourceExpired:
            lineage = self.pipeline.source.lineage([group.after])
            if lineage.has(group.after, group.mark) and group.through <= lineage.version:
                raise
            raise SourceReplaced from None
        if group.mark and survey.after_mark and group.mark != survey.after_mark:
            raise SourceReplaced
        return survey

    def _divided_flush(self, large: Larges, work: FlushWork, members: Sequence[JobMember]) -> list[JobReport]:
        """Those in mode history get every version, which a task reads; the others by Spark."""
        histories = self._histories(work, members)
        others = [member for member in members if member not in histories]
        found = self._large_flush(large, work, others) if others else []
        return [*found, *(self._small(flush_portion, work, histories) if histories else ())]

    def _histories(self, work: FlushWork, members: Sequence[JobMember]) -> list[JobMember]:
        """Members with a table in mode history that is not read whole."""
        targets, index = self.pipeline.targets, self.pipeline.index
        tables = [table for table in work.tables if not (table.whole or table.joins)]

        def versioned(member: JobMember) -> bool:
            target = targets[index[member.destination]]
            return any(target.policy(table).mode == "history" for table in tables)

        return [member for member in members if versioned(member)]

    def _large_flush(self, large: Larges, work: FlushWork, members: Sequence[JobMember]) -> list[JobReport]:
        """Destinations with rows by Spark; if all are to be stamped, then the others."""
        try:
            plans = self._plans(large, work, work.window)
        except TrunklineError as error:  # of the source: no destination was touched yet
            return [replace(all_failed(members, error), path="large")]
        if plans is None:
            return self._small(flush_portion, work, members)
        tables = tuple(plan.table for plan in plans)
        work = replace(work, tables=tables, stamp=work.stamp or any(table.for_everyone for table in tables))
        filled = self._large_apart(plans, work, members, work.window.through)
        rest = filled.without_result(members) if work.stamp else ()
        return [filled, *(self._small(stamp_portion, work, rest) if rest else ())]

    # --- seeds ---

    def seed(self, group: SeedGroup) -> JobReport:
        """Members that copy a mirror need nothing of the source but its changes after that."""
        copies = copying(self.pipeline, group.members)
        reports = [self._seed(replace(group, members=copies[False]))] if copies[False] else []
        return joined([*reports, *([self._copy(copies[True])] if copies[True] else [])])

    def _copy(self, members: Sequence[JobMember]) -> JobReport:
        pipeline = light(self.pipeline)

        def task(mine: Sequence[JobMember]) -> JobReport:
            return copy_mirrors(pipeline, mine)

        return self._run(lambda: self._context.parallelize([members], 1).map(task).collect(), members)

    def _seed(self, group: SeedGroup) -> JobReport:
        try:
            survey = self.pipeline.source.survey(Window(BEFORE_ALL, group.through))
            tables = state_tables(self.pipeline, survey)
            self._guard(survey, group.through)
        except TrunklineError as error:
            return all_failed(group.members, error)
        work = SeedWork(group.through, tables, survey.identity, group.mode is SeedMode.NOW, survey.mark)
        if not work.nothing and (large := self._large_reads(work)) is not None:
            return self._run(lambda: self._large_seed(large, work, group.members), group.members, work.mark)
        return self._run(lambda: self._small(seed_portion, work, group.members), group.members, work.mark)

    def _large_seed(self, large: Larges, work: SeedWork, members: Sequence[JobMember]) -> list[JobReport]:
        """Destinations with rows by Spark, then the others, with none."""
        try:
            plans = self._plans(large, work, Window(BEFORE_ALL, work.through))
        except TrunklineError as error:
            return [replace(all_failed(members, error), path="large")]
        if plans is None:
            return self._small(seed_portion, work, members)
        filled = self._large_apart(plans, work, members, work.through)
        rest = filled.without_result(members)
        return [filled, *(self._small(seed_portion, replace(work, nothing=True), rest) if rest else ())]

    # --- both ---

    def _guard(self, survey: Survey, through: int) -> None:
        if self.pipeline.guard is not None:
            self.pipeline.guard.check([each.table for each in survey.tables], through)

    @property
    def _rules(self) -> Pipeline:
        assert self.pipeline.rules is not None, "the driver has them"
        return self.pipeline.rules

    def _large_reads(self, work: Work) -> Larges | None:
        """``None``: the window is small, or there is only one way to read some table (J4)."""
        if sum(table.size_bytes for table in work.tables) <= self._small_bytes or not work.tables:
            return None
        return self.pipeline.source.large_reads([table.name for table in work.tables])

    def _plans(self, large: Larges, work: Work, window: Window) -> list[TablePlan] | None:
        """``None``: some table can only be read in one piece."""
        plans = []
        for table in work.tables:
            part = Window(BEFORE_ALL, window.through) if table.late else window
            reads, request = large[table.name], table.shaped.request(table.mark)
            frames, state = reads.frames(self._spark, part, request), None
            if frames is not None and needs_state(self.pipeline, table, frames):
                state = reads.frames(self._spark, Window(BEFORE_ALL, window.through), request)
                frames = None if state is None else frames
            if frames is None:
                return None
            plans.append(TablePlan(self._spark, self.pipeline, table, frames, state))
        return plans

    def _large_apart(
        self, plans: Sequence[TablePlan], work: Work, members: Sequence[JobMember], through: int
    ) -> JobReport:
        """J7: if a row of some member cannot be shaped, the members are tried by halves."""
        unrouted = _unless_halted(lambda: self._unrouted(plans))
        waiting, results = [tuple(members)], list[Result]()
        while waiting:
            mine = waiting.pop()
            found = _unless_halted(lambda mine=mine: self._large(plans, work, mine, through))  # type: ignore[misc]
            if not isinstance(found, DestinationHalted):
                results += found
            elif len(mine) == 1 or any(plan.table.shaped.computes_route for plan in plans):
                results += all_failed(mine, found).results
            else:
                middle = len(mine) // 2
                waiting += [mine[middle:], mine[:middle]]
        counts = None if isinstance(unrouted, DestinationHalted) else dict(unrouted)
        return JobReport(tuple(results), unrouted=counts, path="large")

    def _unrouted(self, plans: Sequence[TablePlan]) -> Counter[str | None]:
        unrouted: Counter[str | None] = Counter()
        if not self.pipeline.routes.everywhere:
            counts = reduce(lambda one, other: one.unionByName(other), [plan.unrouted() for plan in plans])
            for row in counts.collect():
                unrouted[row["value"]] += row["count"]
        return unrouted

    def _large(
        self, plans: Sequence[TablePlan], work: Work, members: Sequence[JobMember], through: int
    ) -> tuple[Result, ...]:
        """The tables are settled each for itself, and meet as blobs in the tasks that write."""
        pipeline, sent = self.pipeline, self._sent
        places = pipeline.numbered(members)
        blobs = [plan.blobs(number, places, through) for number, plan in enumerate(plans)]
        hands = {pipeline.hands[member.destination] for member in members}
        together = reduce(lambda one, other: one.unionByName(other), blobs)
        dealt = together.repartition(min(len(hands), PARTITIONS_MAX), "hand")
        rows = dealt.sortWithinPartitions("place", "destination", "number").rdd
        encoded = rows.mapPartitions(lambda mine: apply_blobs(sent.value, work, places, blob_rows(mine))).collect()
        return tuple(msgspec.msgpack.decode(bytes(each), type=Result) for each in encoded)

    def _small(
        self, run: Callable[[TaskPipeline, AnyWork, Portion], JobReport], work: AnyWork, members: Sequence[JobMember]
    ) -> list[JobReport]:
        sent, hands = self._sent, self.pipeline.hands
        dealt = deal(members, self._context.defaultParallelism, lambda each: hands[each.destination])
        portions = [Portion(number, tuple(mine), number == 0) for number, mine in enumerate(dealt)]

        def task(mine: Portion) -> JobReport:
            try:
                return run(sent.value, work, mine)
            except TrunklineError as error:  # of the source: no destination was touched yet
                return replace(all_failed(mine.members, error), path="small")

        return self._context.parallelize(portions, len(portions)).map(task).collect()

    def _run(self, run: Callable[[], list[JobReport]], members: Sequence[JobMember] = (), mark: str = "") -> JobReport:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return merged(run(), mark)
        except (Py4JError, PySparkException) as error:
            if (carried := carried_error(str(error))) is not None:
                return broken_off(members, carried)
            return JobReport(rest=Outcome.UNKNOWN, error=f"the Spark job failed: {_cause(error)}")
        except TrunklineError as error:
            return broken_off(members, error)

    # --- reads without a flush ---

    def count_unrouted(self, window: Window) -> dict[str | None, int]:
        """The rows that arrived in a window and that no destination takes, by value. Raises as ``unknown_values``."""
        return {} if self.pipeline.routes.everywhere else self.unknown_values(window)

    def unknown_values(self, window: Window) -> dict[str | None, int]:
        """The rows that arrived in a window with a routing value that no destination has, by value.

        Raises ``SourceExpired``, ``Unreachable`` or ``DestinationHalted`` if the window cannot be read.
        """
        survey = self.pipeline.source.survey(window)
        if window.after == BEFORE_ALL:
            tables = state_tables(self.pipeline, survey)
        else:
            tables = window_tables(self.pipeline, replace(survey, left=()), window).tables
        tables = tuple(table for table in tables if table.routing)
        if not tables:
            return {}
        sent = self._sent

        def task(window: Window) -> JobReport:
            try:
                return JobReport(unrouted=unknown_values(sent.value, window, tables))
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
        try:
            tables = known_tables(self.pipeline)
        except TrunklineError as error:
            return JobReport(tuple(failed(name, error) for name in destinations))
        dealt = deal(destinations, self._context.defaultParallelism, self.pipeline.hands.__getitem__)

        def task(names: list[str]) -> JobReport:
            return JobReport(tuple(read_standings(sent.value, names, noted, tables)), path="small")

        return self._run(lambda: self._context.parallelize(dealt, len(dealt)).map(task).collect())

    def close(self) -> None:
        """Waits for the executors: an answer that arrives after Spark has stopped makes it print stack traces."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        with suppress(Py4JError, PySparkException):  # an executor that does not answer holds nothing any more
            self._sent.destroy(blocking=True)


def _unless_halted(run: Callable[[], Item]) -> Item | DestinationHalted:
    """What a plan comes to, or the error of its rows."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return run()
    except (Py4JError, PySparkException) as error:
        if isinstance(carried := carried_error(str(error)), DestinationHalted):
            return carried
        raise


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
