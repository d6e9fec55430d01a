"""A page of metrics, as Prometheus's own parser reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from trunkline.observing.metrics import MetricTable, Values
from trunkline.observing.pages import metrics_page

Series = dict[tuple[str, tuple[str, ...]], float]


def series_of(table: MetricTable, values: Values, labels: tuple[str, ...] = ()) -> Series:
    """Values by name and values of labels, which are sorted by their names."""
    return series(metrics_page(table, values, labels).decode())


def series(text: str) -> Series:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
