"""docs/operations.md holds every metric of the code, and names no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trunkline.delivery.capture.metrics import TABLE as CAPTURE
from trunkline.delivery.deliverer.metrics import TABLE as DELIVERER
from trunkline.proxy.counters import TABLE as PROXY
from trunkline.runtime.coordinator_metrics import TABLE as COORDINATOR
from trunkline.runtime.node_metrics import TABLE as NODE

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
TABLES = {
    "### Metrics of a node": NODE.reference(),
    "### Metrics of a coordinator": COORDINATOR.reference(),
    "### Metrics of a capture": CAPTURE.reference(),
    "### Metrics of a proxy": PROXY.reference(),
}
NAME = re.compile(r"\btrunkline_(?:node|coordinator|capture|proxy|delivery)_\w+")


def section(heading: str) -> str:
    """From the heading to the next one."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return text.partition(f"{heading}\n")[2].partition("\n#")[0]


def unknown(text: str) -> set[str]:
    tables = "".join([*TABLES.values(), DELIVERER.reference()])
    known = set(NAME.findall(tables))
    histograms = {f"{name}_{part}" for name in known for part in ("sum", "count", "bucket")}
    return set(NAME.findall(text)) - known - histograms


@pytest.mark.parametrize("heading", TABLES)
def test_every_metric_is_in_the_document_as_the_code_has_it(heading: str) -> None:
    assert section(heading).strip() == TABLES[heading].strip(), (
        "docs/operations.md is out of date: generate its tables with `python tests/observing/test_metrics_docs.py`"
    )


def test_every_metric_that_the_document_names_is_there() -> None:
    assert unknown(DOCUMENT.read_text(encoding="utf-8")) == set()


def test_a_metric_that_is_not_there_is_caught() -> None:
    text = "`trunkline_node_sync_seconds_count` and `trunkline_node_no_such_total`"
    assert unknown(text) == {"trunkline_node_no_such_total"}


def test_alarms_are_of_the_log_and_of_delivery() -> None:
    alarms = [line for line in section("## Alarms").splitlines() if line.startswith("| `")]
    assert len(alarms) >= 12
    for of in ("trunkline_node_", "trunkline_coordinator_", "trunkline_capture_", "trunkline_delivery_"):
        assert any(of in line for line in alarms), of


def main() -> None:
    """Generate the tables of the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for heading, table in TABLES.items():
        head, _, rest = text.partition(f"{heading}\n")
        text = f"{head}{heading}\n\n{table}\n{rest[rest.index('#') :]}"
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
