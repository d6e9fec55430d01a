"""Tables of metrics, and the page that Prometheus reads."""

from __future__ import annotations

from pathlib import Path

from observing.series import series_of
from trunkline.delivery.capture.metrics import TABLE as CAPTURE
from trunkline.delivery.deliverer.metrics import TABLE as DELIVERER
from trunkline.observing.metrics import Histogram, Labelled, MetricSpec, MetricTable, Value
from trunkline.observing.pages import metrics_page
from trunkline.proxy.counters import TABLE as PROXY
from trunkline.runtime.coordinator_metrics import TABLE as COORDINATOR
from trunkline.runtime.node_metrics import TABLE as NODE

KEPT = Path(__file__).with_name("kept_metrics.txt")
EXAMPLE = MetricTable(
    "t_",
    (
        MetricSpec("plain_total", "counter", "one number"),
        MetricSpec("named", "gauge", "with labels", ("a", "b")),
        MetricSpec("took_seconds", "histogram", "a few buckets"),
        MetricSpec("unknown", "gauge", "without a value"),
    ),
)


def test_prometheus_reads_the_page() -> None:
    took = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        took.observe(seconds)
    values: dict[str, Value] = {
        "plain_total": 3,
        "named": [Labelled(('x"\\\n', "y"), 0.25)],
        "took_seconds": took,
    }
    assert series_of(EXAMPLE, values) == {
        ("t_plain_total", ()): 3.0,
        ("t_named", ('x"\\\n', "y")): 0.25,
        ("t_took_seconds_bucket", ("0.1",)): 2.0,
        ("t_took_seconds_bucket", ("1.0",)): 3.0,
        ("t_took_seconds_bucket", ("+Inf",)): 4.0,
        ("t_took_seconds_sum", ()): 7.65,
        ("t_took_seconds_count", ()): 4.0,
    }
    page = metrics_page(EXAMPLE, values).decode()
    assert "# HELP t_plain_total one number\n# TYPE t_plain_total counter\n" in page
    assert "_created" not in page


def test_the_labels_of_a_table_come_before_those_of_a_metric() -> None:
    table = MetricTable("t_", EXAMPLE.metrics, ("pipeline",))
    values: dict[str, Value] = {"plain_total": 1, "named": [Labelled(("x", "y"), 2)]}
    assert series_of(table, values, ("orders",)) == {
        ("t_plain_total", ("orders",)): 1,
        ("t_named", ("x", "y", "orders")): 2,
    }
    assert "| `t_named` | gauge | `pipeline`, `a`, `b` | with labels |" in table.reference()


def test_no_metric_is_renamed_or_changes_its_type_or_labels() -> None:
    """Dashboards and alarms of operators use them. A new metric is a new line of the list."""
    present = [
        f"{table.prefix}{each.name} {each.kind} {','.join((*table.labels, *each.labels)) or '-'}"
        for table in (NODE, COORDINATOR, CAPTURE, PROXY, DELIVERER)
        for each in table.metrics
    ]
    assert present == KEPT.read_text().splitlines()
