"""docs/delivery.md holds what the code says about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.delivery.config import reference as configuration_reference
from trunkline.delivery.deliverer.metrics import TABLE

DOCUMENT = Path(__file__).parents[2] / "docs" / "delivery.md"


@pytest.mark.parametrize("reference", [configuration_reference, TABLE.reference])
def test_every_key_and_every_metric_is_in_the_document_as_the_code_has_it(reference: object) -> None:
    assert callable(reference)
    assert reference().strip() in DOCUMENT.read_text(), (
        "docs/delivery.md is out of date: write the tables again with `python tests/delivery/test_delivery_docs.py`"
    )


def main() -> None:
    """Write the tables of the document."""
    text = DOCUMENT.read_text()
    head = text[: text.index("## Every configuration key")]
    tables = f"## Every configuration key\n\n{configuration_reference().strip()}\n\n"
    DOCUMENT.write_text(f"{head}{tables}## Every metric\n\n{TABLE.reference().strip()}\n")


if __name__ == "__main__":
    main()
