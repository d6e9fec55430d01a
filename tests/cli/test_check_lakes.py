"""``trunkline check --mutants`` and the mutants that the fuzz over real lakes finds."""

from __future__ import annotations

import json

import pytest

from trunkline.cli import check_lakes
from trunkline.cli.check_lakes import LakeHunts, lake_mutants
from trunkline.cli.check_output import Output
from trunkline.cli.main import main


@pytest.fixture
def output() -> Output:
    return Output(as_json=False, directory=None, coverage=False)


def test_the_table_says_where_each_mutant_was_found(output: Output) -> None:
    mutants = lake_mutants(["inclusive-bound", "no-inlined-rows"], output)
    hunts = LakeHunts(mutants, 2, output, budget=6)
    text = hunts.text(1.0)
    assert hunts.good
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["inclusive-bound", "no-inlined-rows"]
    assert text.endswith("2 of 2 mutants of delivery found, correct code survives 60 windows, 1.0 s")
    assert [each["found"] for each in json.loads(json.dumps(hunts.json()))] == [True, True]


def test_a_mutant_that_is_not_found_is_no_success(output: Output) -> None:
    hunts = LakeHunts(lake_mutants(["moved-rows-arrive"], output), 1, output, budget=2)
    assert not hunts.good
    assert "NOT FOUND in 2 windows" in hunts.text(1.0)


def test_they_are_listed_with_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    assert "deletes-as-of-now" in capsys.readouterr().out


def test_without_the_packages_of_delivery_they_are_left_out_with_a_note(
    output: Output, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_lakes, "NEEDED", ("a_package_that_nobody_has",))
    assert lake_mutants([], output) == []
    assert "pip install 'trunkline[delivery]'" in capsys.readouterr().err
