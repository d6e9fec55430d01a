"""Compares destinations with their parts of the source, each at its own position, table by table.

Rules
 Y1  Both sides are of one version: the rows of all tables of a destination are read with their position, in one
     snapshot, and the source at exactly that version. So the pipeline may run at the same time. Where tables commit
     alone and are at two versions after a crash (T10), each is compared at its own.
 Y2  The source is read by the reader of its format (DuckLake's, delta-rs's), not by the one that delivered the windows.
     A source that has no such reader, as a log, is read once for all destinations of one position.
 Y3  The guarantee depends on the mode and on how the destination was seeded:

         mirror                it equals its part of the source. With policy warn, of rows that share a key one is
                               wanted: the winner of rule R3
         append                it has every row of the source, as often. Rows that were changed or removed later stay,
                               so it may hold more; if the source never changed nor removed a row, it may not
         history               its current versions equal its part of the source; earlier versions are not compared
         mirror, seed: now     its rows are in the source; rows that did not change since the seed are missing
         append, seed: now     if the source never changed nor removed a row, its rows are in the source;
                               otherwise nothing is guaranteed, and the counts are only reported
 Y4  A destination that cannot be compared (unreachable, nothing delivered yet, its version expired in the source) is
     unverified, with the reason. It is neither different nor equal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import duckdb
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.changes.versions import Lineage, Window
from trunkline.delivery.config.tree import SeedMode
from trunkline.delivery.destinations.contract import Place, Standing
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.table_works import known_tables, state_tables
from trunkline.delivery.job.work import TableWork, TaskDestination, TaskPipeline
from trunkline.delivery.verification.compared_tables import ComparedTable, TableVerdict, read_wanted
from trunkline.delivery.verification.comparison import RowDifference, comparison_connection
from trunkline.errors import DestinationHalted, TrunklineError, Unreachable

if TYPE_CHECKING:
    from pyspark import SparkContext

KEYS_SHOWN: Final = 10  # of a destination that differs
TABLES_TOGETHER_MAX: Final = 1_000  # compared with one read of the source; more: more memory, fewer: more reads
BUSY_S: Final = 3.0  # retries for a catalog that another process has open
BUSY_WAIT_S: Final = 0.2

VerifyOutcome = Literal["equal", "kept", "differs", "unverified"]
Found = TypeVar("Found")


class VerifyVerdict(Struct, frozen=True):
    """The result for one destination, over all its tables. ``kept``: not equal, but the guarantee holds (Y3)."""

    destination: str
    outcome: VerifyOutcome
    position: int | None = None
    rows: int | None = None  # of the destination
    source_rows: int | None = None  # of its part of the source
    missing: int = 0
    extra: int = 0
    different: int = 0
    differences: tuple[RowDifference, ...] = ()  # the first of them
    note: str = ""  # explains the outcome
    tables: int = 1  # that were compared


def verify_all(
    pipeline: TaskPipeline,
    names: Sequence[str],
    seeds: Mapping[str, SeedMode],
    *,
    at_once: int = 1,
    context: SparkContext | None = None,
) -> Iterator[VerifyVerdict]:
    """Verify destinations in threads of this process, or (``context``) in Spark tasks; results are in order."""
    return spread(pipeline, names, lambda found, mine: verify_together(found, mine, seeds), at_once, context)


def spread(
    pipeline: TaskPipeline,
    names: Sequence[str],
    run: Callable[[TaskPipeline, Sequence[str]], Sequence[Found]],
    at_once: int = 1,
    context: SparkContext | None = None,
) -> Iterator[Found]:
    """Run something for destinations in portions, of which each reads the source for itself; results are in order."""
    together = _read_together(pipeline)
    portions = _portions(pipeline, names) if together else [[name] for name in names]
    if context is not None:
        sent = context.broadcast(pipeline)
        slices = max(1, min(len(portions), context.defaultParallelism))

        def task(mine: list[str]) -> Sequence[Found]:
            return run(sent.value, mine)

        for found in context.parallelize(portions, slices).map(task).collect():
            yield from found
        sent.destroy()
        return
    if together or at_once == 1:  # in this thread, which Ctrl-C interrupts
        for mine in portions:
            yield from run(pipeline, mine)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="verify") as threads:
        for found in threads.map(lambda mine: run(pipeline, mine), portions):
            yield from found


def _read_together(pipeline: TaskPipeline) -> bool:
    """Whether one read of the source is for all destinations (Y2)."""
    return pipeline.source.native_reads("") is None


def _portions(pipeline: TaskPipeline, names: Sequence[str]) -> list[list[str]]:
    size = max(1, TABLES_TOGETHER_MAX // max(1, len(known_tables(pipeline))))
    return [list(names[first : first + size]) for first in range(0, len(names), size)]


def verify_target(
    pipeline: TaskPipeline, name: str, *, seed: SeedMode = "scan", keys_shown: int = KEYS_SHOWN
) -> VerifyVerdict:
    """Compare one destination of a pipeline; ``seed``: how it was seeded. Never raises a ``TrunklineError``."""
    (verdict,) = verify_together(pipeline, [name], {name: seed}, keys_shown=keys_shown)
    return verdict


def verify_together(
    pipeline: TaskPipeline, names: Sequence[str], seeds: Mapping[str, SeedMode], *, keys_shown: int = KEYS_SHOWN
) -> list[VerifyVerdict]:
    """Compare destinations; the source is read once for those at one position. Never raises a ``TrunklineError``."""
    with verification(pipeline, seeds, keys_shown) as work:
        found = {verdict.destination: verdict for verdict, _ in work.verdicts(names)}
    return [found[name] for name in names]


@contextmanager
def verification(
    pipeline: TaskPipeline, seeds: Mapping[str, SeedMode], keys_shown: int = KEYS_SHOWN, *, keeps: bool = False
) -> Iterator[Verification]:
    """``keeps``: what differs can be read afterwards, see ``ComparedTable.rewrites``."""
    native = pipeline.source.native_reads("")  # of any table
    with comparison_connection(*(native.extensions if native is not None else ())) as connection:
        yield Verification(pipeline, connection, seeds, keys_shown, keeps=keeps)


class HeldDestination(Struct, frozen=True):
    """A destination whose rows were read."""

    target: TaskDestination
    standing: Standing
    tables: dict[str, ComparedTable]
    versions: dict[str, int]  # of each table: the position, unless the tables are not level

    @property
    def position(self) -> int:
        return self.standing.position


class _SourceState(Struct, frozen=True):
    """The source at a version."""

    lineage: Lineage
    identity: str
    tables: tuple[TableWork, ...]


class Verification:
    """The comparison of some destinations, in one connection."""

    def __init__(
        self,
        pipeline: TaskPipeline,
        connection: duckdb.DuckDBPyConnection,
        seeds: Mapping[str, SeedMode],
        keys_shown: int,
        *,
        keeps: bool,
    ) -> None:
        self._pipeline = pipeline
        self._connection = connection
        self._seeds = seeds
        self._keys_shown = keys_shown
        self._keeps = keeps
        self._numbers = count()
        self._known = known_tables(pipeline)
        self._states: dict[int, _SourceState] = {}

    def verdicts(self, names: Sequence[str]) -> Iterator[tuple[VerifyVerdict, HeldDestination | None]]:
        """In any order; what was read of a destination can be used until the next verdict."""
        at: dict[tuple[tuple[str, int], ...], list[HeldDestination]] = {}
        for name in names:
            target = self._pipeline.targets[self._pipeline.index[name]]
            held = _tried(name, partial(self._held, target))
            if isinstance(held, VerifyVerdict):
                yield held, None
            else:
                at.setdefault(tuple(held.versions.items()), []).append(held)
        for members in at.values():
            read = _tried(members[0].target.name, partial(self._read_source, members))
            for each in members:
                if read is None:
                    yield self._judged(each), each
                else:
                    yield replace(read, destination=each.target.name), None
                for table in each.tables.values():
                    table.drop()

    # --- destinations ---

    def _held(self, target: TaskDestination) -> HeldDestination | VerifyVerdict:
        with closing(open_place(target.address)) as place:
            return self._read(place, target)

    def _read(self, place: Place, target: TaskDestination) -> HeldDestination | VerifyVerdict:
        name, pipeline = target.name, self._pipeline
        member = pipeline.tables_of(target, self._known)
        standing = place.standings([member])[member.member]
        if isinstance(standing, TrunklineError):
            raise standing
        if standing is None or standing.position <= 0:
            return VerifyVerdict(name, "unverified", note="nothing was delivered to it yet; run the pipeline")
        while True:
            state = self._state(standing.position)
            if divergence := state.lineage.divergence(standing.source, standing.position, standing.mark):
                return VerifyVerdict(name, "differs", standing.position, note=divergence)
            if state.identity != standing.source:
                note = f"its rows are of another source table ({standing.source}, not {state.identity}); reseed it"
                return VerifyVerdict(name, "differs", standing.position, note=note)
            found = self._compared(place, target, standing, state.tables)
            if not isinstance(found, Standing):
                return found
            standing = found  # it moved meanwhile: its tables may be others

    def _state(self, position: int) -> _SourceState:
        """Asked once for all destinations at a position."""
        if position not in self._states:
            lineage = self._pipeline.source.lineage([position])
            if position > lineage.version:
                return _SourceState(lineage, lineage.identity, ())
            survey = self._pipeline.source.survey(Window(position, position))
            self._states[position] = _SourceState(lineage, survey.identity, state_tables(self._pipeline, survey))
        return self._states[position]

    def _compared(
        self, place: Place, target: TaskDestination, standing: Standing, tables: Sequence[TableWork]
    ) -> HeldDestination | VerifyVerdict | Standing:
        member = self._pipeline.tables_of(target, [table.name for table in tables])
        now, rows, end = place.rows(member)
        try:
            if now.position != standing.position or now.mark != standing.mark:
                return now
            if now.ahead > (newest := self._state(now.position).lineage.version):
                note = f"some of its tables are at version {now.ahead}, and the source is at {newest}; reseed it"
                return VerifyVerdict(target.name, "differs", now.position, note=note)
            compared = {}
            versions = dict(zip((table.name for table in tables), now.at or [now.position] * len(tables), strict=True))
            for table, batches in zip(self._as_of(tables, versions), rows, strict=True):
                mine = ComparedTable(self._connection, table, target, next(self._numbers))
                if problem := mine.read_held(batches):
                    return VerifyVerdict(target.name, "differs", now.position, note=problem)
                compared[table.name] = mine
            return HeldDestination(target, now, compared, versions)
        finally:
            end()

    def _as_of(self, tables: Sequence[TableWork], versions: Mapping[str, int]) -> Iterator[TableWork]:
        """Each table as it was at its own version."""
        for table in tables:
            later = {each.name: each for each in self._state(versions[table.name]).tables}
            if table.name not in later:
                raise DestinationHalted(
                    f"{table.name} is at version {versions[table.name]}, at which the source has none"
                )
            yield later[table.name]

    # --- the source ---

    def _read_source(self, members: Sequence[HeldDestination]) -> None:
        """For members whose tables are at the same versions."""
        versions = members[0].versions
        for version in sorted(set(versions.values())):
            by_table = {
                name: {self._pipeline.index[each.target.name]: each.tables[name] for each in members}
                for name, at in versions.items()
                if at == version
            }
            read_wanted(self._pipeline, self._connection, version, by_table)

    def _judged(self, held: HeldDestination) -> VerifyVerdict:
        seed = self._seeds[held.target.name]
        found = [each.judged(seed, self._keys_shown, keeps=self._keeps) for each in held.tables.values()]
        return _summed(held, found, self._keys_shown)


def _summed(held: HeldDestination, found: Sequence[TableVerdict], keys_shown: int) -> VerifyVerdict:
    outcomes = {each.outcome for each in found}
    outcome: VerifyOutcome = "differs" if "differs" in outcomes else "kept" if "kept" in outcomes else "equal"
    differences = [difference for each in found if each.outcome == "differs" for difference in each.differences]
    notes = [f"{each.table}: {note}" if each.table else note for each in found for note in each.notes]
    if ahead := held.standing.ahead:
        level = "each was compared at its own, and the next flush makes them level"
        notes.append(f"its tables are at the versions {held.position} and {ahead}: {level}")
    return VerifyVerdict(
        held.target.name,
        outcome,
        held.position,
        sum(each.rows for each in found),
        sum(each.source_rows for each in found),
        sum(each.missing for each in found),
        sum(each.extra for each in found),
        sum(each.different for each in found),
        tuple(differences[:keys_shown]),
        "; ".join(notes),
        len(found),
    )


def _tried(name: str, action: Callable[[], Found]) -> Found | VerifyVerdict:
    """The result; again for a while if a catalog is busy, such as one that a flush has open."""
    until = monotonic() + BUSY_S
    while True:
        try:
            return action()
        except Unreachable as error:
            if monotonic() > until:
                return VerifyVerdict(name, "unverified", note=str(error))
            threading.Event().wait(BUSY_WAIT_S)
        except TrunklineError as error:
            return _unverified(name, error)


def _unverified(name: str, error: TrunklineError) -> VerifyVerdict:
    note = str(error) if isinstance(error, Unreachable) else f"cannot be verified: {error}"
    return VerifyVerdict(name, "unverified", note=note)
