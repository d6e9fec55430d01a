"""docs/operations.md holds every metric as the code has it, and names none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trunkline.delivery.deliverer import metrics as delivery
from trunkline.proxy import counters
from trunkline.runtime import observing_capture, observing_coordinator, observing_node
from trunkline.runtime.observing_format import reference

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
TABLES = {
    "### Metrics of a node": reference(observing_node.PREFIX, observing_node.TABLE),
    "### Metrics of a coordinator": reference(observing_coordinator.PREFIX, observing_coordinator.TABLE),
    "### Metrics of a capture": reference(observing_capture.PREFIX, observing_capture.TABLE),
    "### Metrics of a proxy": reference(counters.PREFIX, counters.TABLE),
}
NAME = re.compile(r"\btrunkline_(?:node|coordinator|capture|proxy|delivery)_\w+")


def section(heading: str) -> str:
    """From the heading to the next one."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return text.partition(f"{heading}\n")[2].partition("\n#")[0]


def unknown(text: str) -> set[str]:
    tables = "".join([*TABLES.values(), delivery.reference()])
    known = set(NAME.findall(tables))
    histograms = {f"{name}_{part}" for name in known for part in ("sum", "count", "bucket")}
    return set(NAME.findall(text)) - known - histograms


@pytest.mark.parametrize("heading", TABLES)
def test_every_metric_is_in_the_document_as_the_code_has_it(heading: str) -> None:
    assert section(heading).strip() == TABLES[heading].strip(), (
        "docs/operations.md is out of date: write its tables anew with `python tests/runtime/test_observing_docs.py`"
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
    """Write the document's tables anew."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for heading, table in TABLES.items():
        head, _, rest = text.partition(f"{heading}\n")
        text = f"{head}{heading}\n\n{table}\n{rest[rest.index('#') :]}"
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
