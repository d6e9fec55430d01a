"""docs/operations.md holds every option of the storage engine as the code has it."""

from __future__ import annotations

from pathlib import Path

from trunkline.storage.options import REMOVED, TRADE_OFFS, StorageOptions, reference

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
HEADING = "### Storage options\n"


def test_every_option_is_in_the_document_as_the_code_has_it() -> None:
    section = DOCUMENT.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n#")[0]
    assert reference().strip() in section, (
        "docs/operations.md is out of date: rewrite its table with `python tests/storage/test_options.py`"
    )
    assert {"sync", *TRADE_OFFS} == set(StorageOptions.__struct_fields__)


def test_a_removed_option_is_not_an_option() -> None:
    assert not REMOVED & set(StorageOptions.__struct_fields__)


def main() -> None:
    """Rewrite the table."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(HEADING)
    intro, _, rest = rest.partition("| key |")
    _, blank, rest = rest.partition("\n\n")
    DOCUMENT.write_text(f"{head}{HEADING}{intro}{reference().rstrip()}{blank}{rest}", encoding="utf-8")


if __name__ == "__main__":
    main()
