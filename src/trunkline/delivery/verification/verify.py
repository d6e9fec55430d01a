"""Compares a destination with its part of the source, at the destination's own position.

Rules
 Y1  Both sides are of one version: the destination's rows are read with their position, and the source at exactly that
     version. So the pipeline may run at the same time.
 Y2  The source is read by the reader of its format (DuckLake's, delta-rs's), not by the one that delivered the windows.
 Y3  The guarantee depends on the mode and on how the destination was seeded:

         mirror                it equals its part of the source. With policy warn, of rows that share a key one is
                               wanted: the winner of rule R3
         append                it has every row of the source, as often. Rows that were changed or removed later stay,
                               so it may hold more; if the source never changed nor removed a row, it may not
         mirror, seed: now     its rows are in the source; rows that did not change since the seed are missing
         append, seed: now     if the source never changed nor removed a row, its rows are in the source;
                               otherwise nothing is guaranteed, and the counts are only reported
 Y4  A destination that cannot be compared (unreachable, nothing delivered yet, its version expired in the source) is
     unverified, with the reason. It is neither different nor equal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal

import duckdb
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.backends.sql import first_line, identifier
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.net import settle
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.tree import SeedMode
from trunkline.delivery.destinations.contract import Destination, Standing
from trunkline.delivery.destinations.factory import open_destination
from trunkline.delivery.job.work import TaskDestination, TaskPipeline
from trunkline.delivery.sources.contract import RouteFilter
from trunkline.delivery.sources.route_filter import filtered_rows, route_item
from trunkline.delivery.verification.comparison import (
    Comparison,
    ComparisonResult,
    RowDifference,
    comparison_connection,
)
from trunkline.errors import ProtocolError, TrunklineError, Unreachable
from trunkline.plural import plural

if TYPE_CHECKING:
    from pyspark import SparkContext

KEYS_SHOWN: Final = 10  # of a destination that differs
BUSY_S: Final = 3.0  # retries for a catalog that another process has open
BUSY_WAIT_S: Final = 0.2

VerifyOutcome = Literal["equal", "kept", "differs", "unverified"]


class VerifyVerdict(Struct, frozen=True):
    """The result for one destination. ``kept``: not equal, but the guarantee holds (Y3)."""

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


def verify_all(
    pipeline: TaskPipeline,
    names: Sequence[str],
    seeds: Mapping[str, SeedMode],
    *,
    at_once: int = 1,
    context: SparkContext | None = None,
) -> Iterator[VerifyVerdict]:
    """Verify destinations in threads of this process, or (``context``) in Spark tasks; results are in order."""
    if context is not None:
        sent = context.broadcast(pipeline)
        pairs = [(name, seeds[name]) for name in names]
        slices = max(1, min(len(names), context.defaultParallelism))

        def task(pair: tuple[str, SeedMode]) -> VerifyVerdict:
            return verify_target(sent.value, pair[0], seed=pair[1])

        yield from context.parallelize(pairs, slices).map(task).collect()
        sent.destroy()
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="verify") as threads:
        yield from threads.map(lambda name: verify_target(pipeline, name, seed=seeds[name]), names)


def verify_target(
    pipeline: TaskPipeline, name: str, *, seed: SeedMode = "scan", keys_shown: int = KEYS_SHOWN
) -> VerifyVerdict:
    """Compare one destination of a pipeline; ``seed``: how it was seeded. Never raises a ``TrunklineError``."""
    target = pipeline.targets[pipeline.index[name]]
    until = monotonic() + BUSY_S
    while True:
        try:
            with closing(open_destination(target.address)) as destination:
                return _Verification(pipeline, target, seed, keys_shown).verdict(destination)
        except Unreachable as error:  # such as a catalog that a flush has open
            if monotonic() > until:
                return VerifyVerdict(name, "unverified", note=str(error))
            threading.Event().wait(BUSY_WAIT_S)
        except TrunklineError as error:
            return VerifyVerdict(name, "unverified", note=f"cannot be verified: {error}")


class _Verification:
    """The comparison of one destination."""

    def __init__(self, pipeline: TaskPipeline, target: TaskDestination, seed: SeedMode, keys_shown: int) -> None:
        self._pipeline = pipeline
        self._target = target
        self._seed = seed
        self._keys_shown = keys_shown

    def verdict(self, destination: Destination) -> VerifyVerdict:
        standing = destination.standing()
        if standing is None or standing.position <= 0:
            return VerifyVerdict(
                self._target.name, "unverified", note="nothing was delivered to it yet; run the pipeline"
            )
        source = self._pipeline.source
        native = source.native_reads()
        with comparison_connection(*(native.extensions if native else ())) as connection:
            if divergence := self._divergence(standing):
                return VerifyVerdict(self._target.name, "differs", standing.position, note=divergence)
            before = source.survey(Window(standing.position, standing.position))
            moved, batches = destination.rows()
            # Another survey opens the source's catalog beside the destination's, and they may be one file.
            found = before if moved == standing else source.survey(Window(moved.position, moved.position))
            standing = moved
            if found.identity != standing.source:
                note = f"its rows are of another source table ({standing.source}, not {found.identity}); reseed it"
                return VerifyVerdict(self._target.name, "differs", standing.position, note=note)
            both = Comparison(connection, found.columns, self._pipeline.key if self._target.mode == "mirror" else ())
            if problem := _read_destination(both, batches, found.columns):
                return VerifyVerdict(self._target.name, "differs", standing.position, note=problem)
            grew = self._read_source(connection, both, standing.position, found.columns)
            shared = self._settle_shared(both, found.columns)
            return self._judged(standing.position, both, shared, only_grew=grew)

    def _divergence(self, standing: Standing) -> str:
        """Why the source has no version to compare with."""
        lineage = self._pipeline.source.lineage([standing.position])
        return lineage.divergence(standing.source, standing.position, standing.mark)

    def _read_source(
        self, connection: duckdb.DuckDBPyConnection, both: Comparison, version: int, columns: Columns
    ) -> bool:
        """Read the part of the source; returns whether certainly no row was ever changed or removed."""
        source, target = self._pipeline.source, self._target
        native = source.native_reads()
        if native is None:
            request, routes = self._pipeline.request(columns), RouteFilter(target.values)
            both.add_batches("wanted", source.scan(version, request, routes))
            return False
        with native.snapshot(connection, version) as snapshot:
            if _described(snapshot.columns) != _described(columns):
                raise ProtocolError(
                    f"the columns of version {version} are {_described(snapshot.columns)} for the format's own reader, "
                    f"and {_described(columns)} for Trunkline's; this is a bug, please report it"
                )
            routed = f"SELECT *, {self._route()} FROM {snapshot.table}"
            with filtered_rows(connection, routed, RouteFilter(target.values)) as chosen:
                both.add_query("wanted", chosen)
            return snapshot.only_grew

    def _settle_shared(self, both: Comparison, columns: Columns) -> int:
        """With policy warn one of the rows that share a key is wanted, by R3."""
        if self._target.mode != "mirror" or self._target.duplicates != "warn":
            return 0
        request = self._pipeline.request(columns)
        removed = request.empty_rows().select([ROUTE_COLUMN, *request.key])
        routes = dict.fromkeys(self._target.values, (0,))

        def settled(rows: pa.Table) -> pa.Table:
            return settle(NetChanges(removed, rows), routes, request.key).staged.select([each.name for each in columns])

        return both.settle_shared(self._route(), settled)

    def _route(self) -> str:
        return route_item(identifier(self._pipeline.routing))

    def _judged(self, position: int, both: Comparison, shared: int, *, only_grew: bool) -> VerifyVerdict:
        found = both.differences(self._keys_shown)
        append, now = self._target.mode == "append", self._seed == "now"
        wrong = found.different or (found.missing and not now) or (found.extra and (not append or only_grew))
        outcome: VerifyOutcome = "differs" if wrong else "kept" if found.missing or found.extra else "equal"
        notes = (
            [f"{plural(shared, 'row')} of the source lost to another with the same key (policy warn)"] if shared else []
        )
        notes += _allowed_notes(found, append=append, now=now) if outcome == "kept" else []
        if append and only_grew and found.extra:
            notes.append("the source never changed or removed a row, so none may be extra")
        if append and self._pipeline.key:
            found = replace(found, first=tuple(_keyed(each, self._pipeline.key) for each in found.first))
        return VerifyVerdict(
            self._target.name,
            outcome,
            position,
            both.rows("held"),
            both.rows("wanted"),
            found.missing,
            found.extra,
            found.different,
            found.first if outcome == "differs" else (),
            "; ".join(notes),
        )


def _read_destination(both: Comparison, batches: Iterator[pa.RecordBatch], columns: Columns) -> str:
    """Read the destination; returns what is wrong with its columns, or an empty text."""
    wanted = {column.name for column in columns}
    try:
        for batch in batches:
            held = set(batch.schema.names)
            if held != wanted:
                absent = [f"it has no column {name!r}" for name in sorted(wanted - held)]
                return "; ".join(
                    absent + [f"its column {name!r} is not in the source" for name in sorted(held - wanted)]
                )
            both.add_batches("held", [batch])
    except (duckdb.ConversionException, duckdb.OutOfRangeException) as error:
        return f"it has a value that does not fit the source's type: {first_line(error)}"
    return ""


def _allowed_notes(found: ComparisonResult, *, append: bool, now: bool) -> list[str]:
    """Notes about differences that the guarantee allows."""
    notes = []
    if found.extra:
        extra = plural(found.extra, "row")
        notes.append(f"{extra} that the source no longer has: mode append keeps what is changed or removed later")
    if found.missing:
        missing = plural(found.missing, "row of the source is", "rows of the source are")
        notes.append(f"{missing} missing: seed: now leaves out earlier rows")
    if append and now:
        notes.append("with both, nothing is guaranteed")
    return notes


def _keyed(difference: RowDifference, key: Sequence[str]) -> RowDifference:
    """With the key columns only."""
    return replace(difference, key={name: difference.key[name] for name in key})


def _described(columns: Columns) -> dict[str, str]:
    return {column.name: column.type for column in columns}
