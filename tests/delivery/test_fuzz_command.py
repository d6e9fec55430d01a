"""``./run fuzz``: the report on mutants of delivery."""

from __future__ import annotations

import pytest

from lake_fuzz.__main__ import fuzz, main
from lake_fuzz.mutants import MUTANTS


def test_the_table_shows_where_each_mutant_was_found() -> None:
    mutants = [mutant for mutant in MUTANTS if mutant.name in ("inclusive-bound", "no-inlined-rows")]
    result = fuzz(mutants, 2, budget=6)
    text = result.text(1.0)
    assert result.good
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["inclusive-bound", "no-inlined-rows"]
    assert text.endswith("2 of 2 mutants found, correct code survives 60 windows, 1.0 s")


def test_a_mutant_that_is_not_found_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["moved-rows-arrive", "--jobs", "1", "--budget", "2"]) == 1
    assert "NOT FOUND in 2 windows" in capsys.readouterr().out


def test_mutants_are_listed_and_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "deletes-as-of-now" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["no-such-mutant"])
    assert "there is no mutant 'no-such-mutant'" in capsys.readouterr().err
