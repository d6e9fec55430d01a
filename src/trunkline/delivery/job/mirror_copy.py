"""Seeds that copy a mirror of the same pipeline, instead of reading the source: it may no longer have all rows.

Rules
 V1  The tables of the mirror are read in one snapshot with its position and mark. A copy gets its part of exactly these
     rows, with that position and mark, and follows the source from there.
 V2  That position must be one that windows can begin at: of the source's history, and not expired. A mirror that is
     behind that, or of another source, halts its copies, with the reason; one that is not seeded yet lets them wait,
     and so does one whose tables are not level (T10), as while a flush of it commits one table after the other.
 V3  A copy that keeps a history never goes back: it waits for a mirror that is behind its position.
 V4  A mirror is read once for all its copies of a job. Rows are spooled to a file: no task has a table in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from time import monotonic
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from trunkline.core.delivery_messages import JobMember, Outcome, Result
from trunkline.delivery.changes.arrow_blobs import DividedSpool
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.rows import ROUTE_COLUMN
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.destinations.contract import Place, Standing
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.apply import apply_drafts
from trunkline.delivery.job.drafts import MemberDraft
from trunkline.delivery.job.results import JobReport, all_failed
from trunkline.delivery.job.settlement import whole_rows
from trunkline.delivery.job.table_works import known_tables, state_tables
from trunkline.delivery.job.work import SeedWork, TableWork, TaskDestination, TaskPipeline
from trunkline.errors import DestinationHalted, TrunklineError, Unreachable

READS: Final = 10  # of a mirror whose tables become others while it is opened
LEVEL_S: Final = 20.0  # for a mirror whose tables are not level; longer: its copies hold the slot of seeds
LOOK_AGAIN_S: Final = 0.1


class _NotLevel(Unreachable):
    """Some tables of the mirror are at a later version than others."""


def copy_mirrors(pipeline: TaskPipeline, members: Sequence[JobMember]) -> JobReport:
    """Seed members, each with its part of the mirror that it names; ``pipeline`` has its rules."""
    by_mirror: dict[str, list[JobMember]] = {}
    for member in members:
        target = pipeline.targets[pipeline.index[member.destination]]
        by_mirror.setdefault(target.seed_from, []).append(member)
    results: list[Result] = []
    for mirror, copies in by_mirror.items():
        try:
            results += _copied(pipeline, mirror, copies)
        except TrunklineError as error:  # of the mirror or the source: no copy was touched
            results += all_failed(copies, error).results
    return JobReport(tuple(results), path="small")


def _copied(pipeline: TaskPipeline, mirror: str, members: Sequence[JobMember]) -> list[Result]:
    if mirror not in pipeline.index:
        raise DestinationHalted(f"there is no destination {mirror} to copy; name another in `seed`")
    target, copies = pipeline.targets[pipeline.index[mirror]], pipeline.numbered(members)
    with closing(DividedSpool()) as spool:
        with _opened(pipeline, target) as (work, batches):
            for table, rows in zip(work.tables, batches, strict=True):
                for batch in _routed(table, rows, mirror):
                    for place, mine, _ in whole_rows(pipeline, table, work.through, batch, copies):
                        for piece in mine.combine_chunks().to_batches():
                            spool.add((place, table.name), piece)
        drafts = [_draft(pipeline, work, place, member, spool) for place, member in copies.items()]
        results = apply_drafts(pipeline, work, drafts)
    done = (Outcome.APPLIED, Outcome.ALREADY)
    return [replace(each, mark=work.mark) if each.outcome in done else each for each in results]


def _draft(pipeline: TaskPipeline, work: SeedWork, place: int, member: JobMember, spool: DividedSpool) -> MemberDraft:
    draft = MemberDraft(pipeline.targets[place], member)
    for table in work.tables:
        schema = arrow_schema(draft.target.step(table, whole=True).columns)
        draft.add(table, spool.reader((place, table.name), schema), whole=True)
    return draft


def _routed(table: TableWork, batches: Iterable[pa.RecordBatch], mirror: str) -> Iterator[pa.Table]:
    """The mirror's rows as a source's: ROUTE_COLUMN and every column."""
    schema = arrow_schema(table.columns)
    for batch in batches:
        if set(batch.schema.names) != set(schema.names):
            raise DestinationHalted(
                f"{table.name or 'the table'} of {mirror} does not have the columns of the source; reseed {mirror}"
            )
        rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
        route = rows.column(table.routing).cast(pa.string()) if table.routing else pa.nulls(len(rows), pa.string())
        yield rows.add_column(0, pa.field(ROUTE_COLUMN, pa.string()), route)


# ----------------------------------------------------------------------------------------------------------- the mirror

Reading = tuple[SeedWork, list[Iterator[pa.RecordBatch]], Callable[[], None]]  # and a function that ends it


@contextmanager
def _opened(
    pipeline: TaskPipeline, target: TaskDestination
) -> Iterator[tuple[SeedWork, list[Iterator[pa.RecordBatch]]]]:
    """A mirror's tables, and what a copy of them is (V1)."""
    with closing(open_place(target.address)) as place:
        work, rows, end = _level(lambda: _begun(pipeline, place, target))
        try:
            yield work, rows
        finally:
            end()


def _begun(pipeline: TaskPipeline, place: Place, target: TaskDestination) -> Reading:
    work = _work(pipeline, target, _standing(pipeline, place, target))
    for _ in range(READS):
        names = [table.name for table in work.tables]
        now, rows, end = place.rows(pipeline.tables_of(target, names))
        try:
            work = _work(pipeline, target, now)
        except TrunklineError:
            end()
            raise
        if [table.name for table in work.tables] == names:
            return work, rows, end
        end()
    raise Unreachable(f"the tables of {target.name} become others all the time; retrying")


def _level(begin: Callable[[], Reading]) -> Reading:
    """Begin to read when the tables are level."""
    until = monotonic() + LEVEL_S
    while True:
        try:
            return begin()
        except _NotLevel:
            if monotonic() > until:
                raise
            threading.Event().wait(LOOK_AGAIN_S)


def _standing(pipeline: TaskPipeline, place: Place, target: TaskDestination) -> Standing | None:
    member = pipeline.tables_of(target, known_tables(pipeline))
    found = place.standings([member])[member.member]
    if isinstance(found, TrunklineError):
        raise found
    return found


def _work(pipeline: TaskPipeline, target: TaskDestination, found: Standing | None) -> SeedWork:
    """Raises what keeps a mirror that stands like this from being copied (V2)."""
    name, source = target.name, pipeline.source
    if found is None or not found.position:
        raise Unreachable(f"{name}, which it copies, is not seeded yet; waiting for it")
    if found.ahead:
        raise _NotLevel(
            f"the tables of {name}, which it copies, are at versions {found.position} and {found.ahead}; waiting for it"
        )
    lineage = source.lineage([found.position])
    if why := lineage.divergence(found.source, found.position, found.mark):
        raise DestinationHalted(f"{name} cannot be copied: {why}")
    state = source.state(found.position)
    if found.position < state.oldest:
        raise DestinationHalted(
            f"{name} cannot be copied: it is at version {found.position}, and the source has changes from version "
            f"{state.oldest} on; bring {name} up to date, or name another destination in `seed`, then resume"
        )
    survey = source.survey(Window(found.position, found.position))
    return SeedWork(found.position, state_tables(pipeline, survey), survey.identity, mark=found.mark)


def light(pipeline: TaskPipeline) -> TaskPipeline:
    """With the rules of its tables, as far as a task needs them."""
    assert pipeline.rules is not None, "only the driver has them"
    return replace(pipeline, guard=None, rules=replace(pipeline.rules, destinations=(), discover=None))


def copying(pipeline: TaskPipeline, members: Iterable[JobMember]) -> Mapping[bool, tuple[JobMember, ...]]:
    """Which members copy a mirror, and which do not."""
    found: dict[bool, list[JobMember]] = {True: [], False: []}
    for member in members:
        found[bool(pipeline.targets[pipeline.index[member.destination]].seed_from)].append(member)
    return {copies: tuple(each) for copies, each in found.items()}
