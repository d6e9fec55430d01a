"""``docs/cli.md`` describes the command line exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.cli.reference import reference


def test_the_page_of_the_command_line_is_not_stale(repository: Path) -> None:
    page = (repository / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == reference(), "generate it again: .venv/bin/python -m trunkline.cli.reference > docs/cli.md"


@pytest.mark.parametrize(
    "words",
    ["## trunkline check", "## trunkline version", "`--exhaustive`", "`--mutants [NAME ...]`", "`[SCENARIO ...]`"],
)
def test_the_page_names_every_command_and_how_its_options_are_written(words: str) -> None:
    assert words in reference()


def test_the_page_does_not_depend_on_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        pages.append(reference())
    assert pages[0] == pages[1]
