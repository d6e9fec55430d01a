"""A part of ``./run writer-fuzz``: the direct writer of lakes, judged by DuckDB's own reader."""

from __future__ import annotations

import pytest

from postgres_server import PostgresServer
from writer_fuzz.__main__ import CATALOGS, hunt, main
from writer_fuzz.mutants import MUTANTS

STEPS = 40


@pytest.mark.parametrize("catalog", CATALOGS)
def test_the_writer_survives_random_steps(catalog: str, request: pytest.FixtureRequest) -> None:
    def postgres() -> PostgresServer:
        server: PostgresServer = request.getfixturevalue("postgres")
        return server

    found = hunt(catalog, STEPS, postgres)
    assert found.wrong is None, f"./run writer-fuzz --budget 0 --catalog {catalog} --seed {found.seed}: {found.wrong}"
    assert found.kinds["direct flush"] > STEPS // 4


@pytest.mark.parametrize("name", ["row-id-start", "no-widening", "stale-delete-file", "record-stays"])
def test_a_mutant_is_found(name: str) -> None:
    [mutant] = [each for each in MUTANTS if each.name == name]
    found = hunt("sqlite", STEPS, lambda: pytest.fail("this test needs no server"), mutant)
    assert found.wrong is not None


def test_mutants_are_listed_and_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "stale-delete-file" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["no-such-mutant"])
    assert "there is no mutant 'no-such-mutant'" in capsys.readouterr().err
