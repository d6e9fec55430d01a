"""What a process answers at ``/metrics``, ``/healthz`` and ``/readyz``.

/metrics    in the text format of Prometheus
/healthz    200: the process works; 503: restart it
/readyz     200: it does its work; 503: the body says why not
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from trunkline.net.http_requests import json_response
from trunkline.observing.metrics import Histogram, Labelled, MetricSpec, MetricTable, Value, Values
from trunkline.observing.readiness import Health, Readiness

METRICS, HEALTH, READINESS = "/metrics", "/healthz", "/readyz"
MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # what ``generate_latest`` writes


async def _alive() -> Health:
    return Health()


class ObservedProcess(msgspec.Struct, frozen=True):
    """A process, as its pages show it. ``more``: further pages, each a value that is shown as JSON."""

    kind: str  # node, coordinator, capture, deliverer or proxy
    name: str
    table: MetricTable
    values: Callable[[], Awaitable[Values]]
    readiness: Callable[[], Awaitable[Readiness]]
    health: Callable[[], Awaitable[Health]] = _alive
    labels: tuple[str, ...] = ()  # the values of the labels that every metric of the table has
    more: Mapping[str, Callable[[], object]] = {}

    @property
    def paths(self) -> tuple[str, ...]:
        return (METRICS, HEALTH, READINESS, *self.more)

    async def page(self, path: str) -> web.Response | None:
        """None: there is no such page."""
        match path:
            case "/metrics":
                page = metrics_page(self.table, await self.values(), self.labels)
                return web.Response(body=page, headers={"Content-Type": MEDIA_TYPE})
            case "/healthz":
                health = await self.health()
                return self._state({"alive": health.alive}, health.facts, good=health.alive)
            case "/readyz":
                found = await self.readiness()
                return self._state({"ready": found.ready, "why": found.why}, found.facts, good=found.ready)
        return json_response(self.more[path]()) if path in self.more else None

    def _state(self, state: Mapping[str, object], facts: Mapping[str, object], *, good: bool) -> web.Response:
        body = {**state, "process": self.kind, "name": self.name, **facts}
        return json_response(body, HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE)


def metrics_page(table: MetricTable, values: Values, labels: tuple[str, ...] = ()) -> bytes:
    return generate_latest(_Families(table, values, labels))


class _Families(Collector):
    def __init__(self, table: MetricTable, values: Values, labels: tuple[str, ...]) -> None:
        self._table = table
        self._values = values
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for each in self._table.metrics:
            if each.name in self._values:
                yield self._family(each, self._values[each.name])

    def _family(self, spec: MetricSpec, value: Value) -> Metric:
        name, labels = self._table.prefix + spec.name, (*self._table.labels, *spec.labels)
        series = [Labelled((), value)] if isinstance(value, float | int | Histogram) else value
        if spec.kind == "histogram":
            histogram = HistogramMetricFamily(name, spec.meaning, labels=labels)
            for of, counted in series:
                assert isinstance(counted, Histogram)
                histogram.add_metric((*self._labels, *of), _cumulated(counted), counted.sum)
            return histogram
        family = (CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily)(
            name, spec.meaning, labels=labels
        )
        for of, number in series:
            assert not isinstance(number, Histogram)
            family.add_metric((*self._labels, *of), number)
        return family


def _cumulated(histogram: Histogram) -> list[tuple[str, float]]:
    found, so_far = [], 0
    for bucket, count in zip((*map(str, histogram.buckets), "+Inf"), histogram.counts, strict=True):
        so_far += count
        found.append((bucket, float(so_far)))
    return found
