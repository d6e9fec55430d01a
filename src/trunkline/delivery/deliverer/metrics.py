"""The metrics of a deliverer.

Counters and histograms grow as things happen. Gauges, and all series of single destinations, are read from the
deliverer's view for each request, so a destination that was removed leaves no series behind.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Final

from trunkline.core.planner_tracks import TrackStage
from trunkline.delivery.control.contract import UnroutedCounts
from trunkline.delivery.deliverer.views import DelivererView, DestinationView
from trunkline.observing.metrics import Histogram, Labelled, MetricSpec, MetricTable, Value, Values

DESTINATIONS_MAX: Final = 1_000  # with more, series of single destinations are left out by default
UNROUTED_VALUES_MAX: Final = 100  # values with a series of their own; the others share one
BUCKETS: Final[dict[str, tuple[float, ...]]] = {
    "job_duration_seconds": (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
    "window_versions": (1, 2, 5, 10, 100, 1_000, 10_000),
    "window_rows": (0, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000),
}

OVERALL: Final = (
    MetricSpec("rows_removed_total", "counter", "rows taken out of destinations"),
    MetricSpec("rows_written_total", "counter", "rows put into destinations"),
    MetricSpec("flushes_total", "counter", "flushes of single destinations, by how they went", ("outcome",)),
    MetricSpec("seeds_total", "counter", "seeds of single destinations, by how they went", ("outcome",)),
    MetricSpec("duplicate_rows_total", "counter", "rows that shared a key with another one (policy warn)"),
    MetricSpec("missing_rows_total", "counter", "rows that another program had taken out of a destination"),
    MetricSpec("retries_total", "counter", "failures of a destination that are tried again"),
    MetricSpec("breakers_opened_total", "counter", "destinations that failed so often that they are tried rarely"),
    MetricSpec("halts_total", "counter", "destinations that halted until an operator resolves the problem"),
    MetricSpec("fenced_total", "counter", "destinations that another deliverer had taken over"),
    MetricSpec("expired_total", "counter", "destinations that fell behind what the source still has"),
    MetricSpec("source_errors_total", "counter", "reads of the source's version that failed"),
    MetricSpec("control_errors_total", "counter", "calls to the control store that failed"),
    MetricSpec(
        "unrouted_rows_total",
        "counter",
        "rows that no destination takes, of the whole pipeline since its beginning: every deliverer shows the same; "
        "`kind` is value, null, or other (of values without a series of their own)",
        ("kind", "value"),
    ),
    MetricSpec(
        "job_duration_seconds",
        "histogram",
        "jobs by kind (reading, flush, seed) and the way the window was read (small, large, none)",
        ("job", "path"),
    ),
    MetricSpec("window_versions", "histogram", "versions in a flushed window"),
    MetricSpec("window_rows", "histogram", "rows removed and written by a flushed window"),
    MetricSpec("source_version", "gauge", "the newest version of the source"),
    MetricSpec("source_up", "gauge", "1 if the source answered last time"),
    MetricSpec("control_up", "gauge", "1 if the control store answered last time"),
    MetricSpec("leases_held", "gauge", "destinations that this deliverer owns"),
    MetricSpec("destinations", "gauge", "destinations by the planner's stage", ("stage",)),
    MetricSpec("halted_destinations", "gauge", "owned destinations that are halted"),
    MetricSpec("lag_versions_max", "gauge", "of the owned destination that is furthest behind"),
    MetricSpec("lag_seconds_max", "gauge", "of the owned destination that is furthest behind"),
    MetricSpec("waiting_rows", "gauge", "rows that wait for the next flush, if the source reports them"),
    MetricSpec("jobs", "gauge", "jobs in flight, by kind", ("job",)),
    MetricSpec("seeding_ratio", "gauge", "share of the seeds that is done, while they take long"),
    MetricSpec("catch_up_ratio", "gauge", "share of the way to the newest version, while it takes long"),
    MetricSpec("unrouted_counted_version", "gauge", "the version up to which unrouted rows are counted"),
    MetricSpec("turned_seconds", "gauge", "since the deliverer's loop last came round"),
)
ONE: Final = ("destination",)
PER_DESTINATION: Final = (
    MetricSpec("destination_position", "gauge", "the version stored in the destination", ONE),
    MetricSpec("destination_lag_versions", "gauge", "versions of the source that it lacks", ONE),
    MetricSpec("destination_lag_seconds", "gauge", "since the first version that it lacks was seen", ONE),
    MetricSpec("destination_halted", "gauge", "1 if it is halted", ONE),
    MetricSpec("destination_failures", "gauge", "failures in a row", ONE),
    MetricSpec("destination_flushed_timestamp_seconds", "gauge", "when it was last written, since 1970", ONE),
    MetricSpec("destination_rows_removed_total", "counter", "rows taken out, since this deliverer got it", ONE),
    MetricSpec("destination_rows_written_total", "counter", "rows put in, since this deliverer got it", ONE),
    MetricSpec("destination_flushes_total", "counter", "flushes that wrote, since this deliverer got it", ONE),
    MetricSpec("destination_duplicate_rows_total", "counter", "rows that shared a key, since the grant", ONE),
    MetricSpec("destination_missing_rows_total", "counter", "rows that were not there, since the grant", ONE),
)  # only of destinations that this deliverer owns
TABLE: Final = MetricTable("trunkline_delivery_", (*OVERALL, *PER_DESTINATION), ("pipeline",))


class DelivererMetrics:
    """``per_destination``: whether to show series of single destinations; None: unless there are too many.

    Any thread may call.
    """

    def __init__(self, view: Callable[[], DelivererView], *, per_destination: bool | None = None) -> None:
        self._view = view
        self._per_destination = per_destination
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[tuple[str, ...]]] = {
            each.name: Counter({} if each.labels else {(): 0}) for each in OVERALL if each.kind == "counter"
        }
        self._histograms: dict[str, dict[tuple[str, ...], Histogram]] = {name: {} for name in BUCKETS}
        self._unrouted_shown: dict[str, None] = {}  # once shown, always shown: what is left to `other` never shrinks

    def add(self, name: str, amount: int = 1, labels: tuple[str, ...] = ()) -> None:
        with self._lock:
            self._counts[name][labels] += amount

    def observe(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        with self._lock:
            known = self._histograms[name]
            if labels not in known:
                known[labels] = Histogram(BUCKETS[name])
            known[labels].observe(value)

    async def values(self) -> Values:
        view = self._view()
        with self._lock:
            counted = deepcopy((self._counts, self._histograms))
            unrouted = list(self._unrouted(view.unrouted)) if view.unrouted is not None else []
        values: dict[str, Value] = {
            name: [Labelled(labels, value) for labels, value in series.items()]
            for kind in counted
            for name, series in kind.items()
        }
        values |= {"unrouted_rows_total": unrouted} if unrouted else {}
        values |= _gauges(view)
        owned = [each for each in view.destinations if each.owned]
        if self._per_destination or (self._per_destination is None and len(owned) <= DESTINATIONS_MAX):
            values |= _destination_values(owned)
        return values

    def _unrouted(self, counted: UnroutedCounts) -> Iterator[Labelled]:
        for value in sorted(counted.values, key=lambda each: -counted.values[each]):
            if len(self._unrouted_shown) >= UNROUTED_VALUES_MAX:
                break
            self._unrouted_shown.setdefault(value)
        shown = {value: counted.values.get(value, 0) for value in self._unrouted_shown}
        yield from (Labelled(("value", value), rows) for value, rows in shown.items())
        yield Labelled(("null", ""), counted.nulls)
        yield Labelled(("other", ""), counted.rows - counted.nulls - sum(shown.values()))


def _gauges(view: DelivererView) -> dict[str, Value]:
    owned = [each for each in view.destinations if each.owned]
    stages = Counter(each.stage for each in view.destinations)
    jobs = Counter(each.kind for each in view.jobs)
    values: dict[str, Value | None] = {
        "source_version": view.source_version,
        "source_up": not view.source_error,
        "control_up": not view.store_error,
        "leases_held": view.held,
        "halted_destinations": sum(each.stage == TrackStage.HALTED.value for each in owned),
        "lag_versions_max": max((each.lag_versions or 0 for each in owned), default=0),
        "lag_seconds_max": max((each.lag_ms or 0 for each in owned), default=0) / 1000,
        "waiting_rows": view.waiting_rows,
        "seeding_ratio": None if view.seeding is None else view.seeding.percent / 100,
        "catch_up_ratio": None if view.catching_up is None else view.catching_up.percent / 100,
        "unrouted_counted_version": view.unrouted_through,
        "turned_seconds": view.turned_ms_ago / 1000,
        "destinations": [Labelled((stage.value,), stages[stage.value]) for stage in TrackStage],
        "jobs": [Labelled((kind,), jobs[kind]) for kind in ("reading", "flush", "seed")],
    }
    return {name: value for name, value in values.items() if value is not None}


def _destination_values(owned: list[DestinationView]) -> dict[str, Value]:
    series: dict[str, list[Labelled]] = {each.name: [] for each in PER_DESTINATION}
    for destination in owned:
        for name, value in _destination(destination).items():
            if value is not None:
                series[f"destination_{name}"].append(Labelled((destination.name,), value))
    return dict(series)


def _destination(each: DestinationView) -> dict[str, float | None]:
    return {
        "position": each.position,
        "lag_versions": each.lag_versions,
        "lag_seconds": None if each.lag_ms is None else each.lag_ms / 1000,
        "halted": each.stage == TrackStage.HALTED.value,
        "failures": each.failures,
        "flushed_timestamp_seconds": None if each.flushed_at_ms is None else each.flushed_at_ms / 1000,
        "rows_removed_total": each.removed,
        "rows_written_total": each.written,
        "flushes_total": each.flushes,
        "duplicate_rows_total": each.duplicates,
        "missing_rows_total": each.missing,
    }
