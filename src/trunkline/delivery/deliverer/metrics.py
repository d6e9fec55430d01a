"""What Prometheus is told: one table of metrics, and the registry of one deliverer.

Counters and histograms are added to as things happen; gauges, and all series of single destinations, are taken from the
deliverer's view when somebody asks, so a destination that is gone leaves no series behind.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from trunkline.core.planner_tracks import TrackStage
from trunkline.delivery.control.contract import Unrouted
from trunkline.delivery.deliverer.progress import DelivererView, DestinationView

PREFIX: Final = "trunkline_delivery_"
DESTINATIONS_MAX: Final = 1_000  # with more, series of single destinations are left out unless they are asked for
UNROUTED_VALUES_MAX: Final = 100  # values with a series of their own; the others share one
LARGEST: Final = float("inf")
DURATION_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
VERSION_BUCKETS: Final = (1, 2, 5, 10, 100, 1_000, 10_000)
ROW_BUCKETS: Final = (0, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)

Kind = Literal["counter", "gauge", "histogram"]
Sample = tuple[tuple[str, ...], float]  # label values without the pipeline's, and the value


class Described(NamedTuple):
    """One metric. ``name`` is without the prefix; every metric has the label ``pipeline``, and then these."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE: Final = (
    Described("rows_removed_total", "counter", "rows taken out of destinations"),
    Described("rows_written_total", "counter", "rows put into destinations"),
    Described("flushes_total", "counter", "flushes of single destinations, by how they went", ("outcome",)),
    Described("seeds_total", "counter", "seeds of single destinations, by how they went", ("outcome",)),
    Described("duplicate_rows_total", "counter", "rows that shared a key with another one (policy warn)"),
    Described("missing_rows_total", "counter", "rows that somebody else had taken out of a destination"),
    Described("retries_total", "counter", "failures of a destination that are tried again"),
    Described("breakers_opened_total", "counter", "destinations that failed so often that they are tried rarely"),
    Described("halts_total", "counter", "destinations that stopped until somebody mends them"),
    Described("fenced_total", "counter", "destinations that another deliverer had taken over"),
    Described("expired_total", "counter", "destinations that fell behind what the source still has"),
    Described("source_errors_total", "counter", "looks at the source that failed"),
    Described("control_errors_total", "counter", "calls to the control store that failed"),
    Described(
        "unrouted_rows_total",
        "counter",
        "rows that no destination takes, of the whole pipeline since its beginning: every deliverer shows the same; "
        "`kind` is value, null, or other (of values without a series of their own)",
        ("kind", "value"),
    ),
    Described(
        "job_duration_seconds",
        "histogram",
        "jobs by kind (reading, flush, seed) and the way the window was read (small, large, none)",
        ("job", "path"),
        DURATION_BUCKETS_S,
    ),
    Described("window_versions", "histogram", "versions in a flushed window", buckets=VERSION_BUCKETS),
    Described("window_rows", "histogram", "rows removed and written by a flushed window", buckets=ROW_BUCKETS),
    Described("source_version", "gauge", "the newest version of the source"),
    Described("source_up", "gauge", "1 if the source answered last time"),
    Described("control_up", "gauge", "1 if the control store answered last time"),
    Described("leases_held", "gauge", "destinations that this deliverer owns"),
    Described("destinations", "gauge", "destinations by the planner's stage", ("stage",)),
    Described("halted_destinations", "gauge", "owned destinations that wait for somebody to mend them"),
    Described("lag_versions_max", "gauge", "of the owned destination that is furthest behind"),
    Described("lag_seconds_max", "gauge", "of the owned destination that is furthest behind"),
    Described("waiting_rows", "gauge", "rows that wait for the next flush, if the source tells"),
    Described("jobs", "gauge", "jobs in flight, by kind", ("job",)),
    Described("seeding_ratio", "gauge", "share of the seeds that is done, while they take long"),
    Described("catch_up_ratio", "gauge", "share of the way to the newest version, while it takes long"),
    Described("unrouted_counted_version", "gauge", "the version up to which unrouted rows are counted"),
    Described("turned_seconds", "gauge", "since the deliverer's loop last came round"),
)
ONE: Final = ("destination",)
DESTINATION_TABLE: Final = (
    Described("destination_position", "gauge", "the version stored in the destination", ONE),
    Described("destination_lag_versions", "gauge", "versions of the source that it lacks", ONE),
    Described("destination_lag_seconds", "gauge", "since the first version that it lacks was seen", ONE),
    Described("destination_halted", "gauge", "1 if it waits for somebody to mend it", ONE),
    Described("destination_failures", "gauge", "failures in a row", ONE),
    Described("destination_flushed_timestamp_seconds", "gauge", "when it was last written, since 1970", ONE),
    Described("destination_rows_removed_total", "counter", "rows taken out, since this deliverer got it", ONE),
    Described("destination_rows_written_total", "counter", "rows put in, since this deliverer got it", ONE),
    Described("destination_flushes_total", "counter", "flushes that wrote, since this deliverer got it", ONE),
    Described("destination_duplicate_rows_total", "counter", "rows that shared a key, since the grant", ONE),
    Described("destination_missing_rows_total", "counter", "rows that were not there, since the grant", ONE),
)  # only of destinations that this deliverer owns


def reference() -> str:
    """Every metric, as a Markdown table."""
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for each in (*TABLE, *DESTINATION_TABLE):
        labels = ", ".join(f"`{label}`" for label in ("pipeline", *each.labels))
        lines.append(f"| `{PREFIX}{each.name}` | {each.kind} | {labels} | {each.meaning} |")
    return "\n".join(lines) + "\n"


class _Distribution:
    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = (*buckets, LARGEST)
        self.counts = [0] * len(self.buckets)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value

    def cumulated(self) -> list[tuple[str, float]]:
        found, so_far = [], 0
        for bucket, count in zip(self.buckets, self.counts, strict=True):
            so_far += count
            found.append(("+Inf" if bucket == LARGEST else str(bucket), float(so_far)))
        return found


class Metrics(Collector):
    """The metrics of one deliverer. ``per_destination``: ``None`` leaves out series of single destinations where they
    are more than DESTINATIONS_MAX. Any thread may call."""

    def __init__(
        self, pipeline: str, view: Callable[[], DelivererView], *, per_destination: bool | None = None
    ) -> None:
        self._pipeline = pipeline
        self._view = view
        self._per_destination = per_destination
        self._lock = threading.Lock()
        self._described = {each.name: each for each in TABLE}
        self._counts: dict[str, Counter[tuple[str, ...]]] = {
            each.name: Counter({(): 0} if not each.labels else {}) for each in TABLE if each.kind == "counter"
        }
        self._distributions: dict[str, dict[tuple[str, ...], _Distribution]] = {
            each.name: {} for each in TABLE if each.kind == "histogram"
        }
        self._unrouted_shown: dict[str, None] = {}  # once shown, always shown: what is left to `other` never shrinks
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add(self, name: str, amount: int = 1, labels: tuple[str, ...] = ()) -> None:
        with self._lock:
            self._counts[name][labels] += amount

    def observe(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        with self._lock:
            known = self._distributions[name]
            if labels not in known:
                known[labels] = _Distribution(self._described[name].buckets)
            known[labels].observe(value)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The body and its content type, in the form that the asker prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        samples = dict(_gauges(view))
        with self._lock:
            if view.unrouted is not None:
                samples["unrouted_rows_total"] = list(self._unrouted(view.unrouted))
            families = [self._family(each, samples.get(each.name, ())) for each in TABLE]
        yield from families
        owned = [each for each in view.destinations if each.owned]
        if self._per_destination or (self._per_destination is None and len(owned) <= DESTINATIONS_MAX):
            known = [((each.name,), dict(_destination_samples(each))) for each in owned]
            for described in DESTINATION_TABLE:
                name = described.name
                yield self._family(described, [(label, found[name]) for label, found in known if name in found])

    def _family(self, each: Described, samples: Sequence[Sample]) -> Metric:
        name, labels = PREFIX + each.name, ("pipeline", *each.labels)
        if each.kind == "histogram":
            histogram = HistogramMetricFamily(name, each.meaning, labels=labels)
            for values, known in self._distributions[each.name].items():
                histogram.add_metric((self._pipeline, *values), known.cumulated(), known.sum)
            return histogram
        if each.kind == "counter":
            samples = samples or list(self._counts.get(each.name, {}).items())
        family = (CounterMetricFamily if each.kind == "counter" else GaugeMetricFamily)(
            name, each.meaning, labels=labels
        )
        for values, value in samples:
            family.add_metric((self._pipeline, *values), value)
        return family

    def _unrouted(self, counted: Unrouted) -> Iterator[Sample]:
        for value in sorted(counted.values, key=lambda each: -counted.values[each]):
            if len(self._unrouted_shown) >= UNROUTED_VALUES_MAX:
                break
            self._unrouted_shown.setdefault(value)
        shown = {value: counted.values.get(value, 0) for value in self._unrouted_shown}
        yield from (((("value", value)), rows) for value, rows in shown.items())
        yield ("null", ""), counted.nulls
        yield ("other", ""), counted.rows - counted.nulls - sum(shown.values())


def _gauges(view: DelivererView) -> Iterator[tuple[str, Sequence[Sample]]]:
    owned = [each for each in view.destinations if each.owned]
    stages = Counter(each.stage for each in view.destinations)
    jobs = Counter(each.kind for each in view.jobs)
    plain: dict[str, float | None] = {
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
    }
    yield from ((name, [((), float(value))]) for name, value in plain.items() if value is not None)
    yield "destinations", [((stage.value,), stages[stage.value]) for stage in TrackStage]
    yield "jobs", [((kind,), jobs[kind]) for kind in ("reading", "flush", "seed")]


def _destination_samples(each: DestinationView) -> Iterator[tuple[str, float]]:
    known: dict[str, float | None] = {
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
    yield from ((f"destination_{name}", float(value)) for name, value in known.items() if value is not None)
