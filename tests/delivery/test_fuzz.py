"""The fuzz over real lakes: what ships is exact on every kind of catalog, and mistakes are found."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lake_fuzz.histories import History
from lake_fuzz.hunts import hunt, survive
from lake_fuzz.judge import SHIPPED, Rule, Suspect, judge, windows
from lake_fuzz.mutants import MUTANTS, cancelled_across_the_gap, routed_by_the_new_value
from lake_fuzz.readers import ShippedReader
from postgres_server import PostgresServer
from trunkline.delivery.changes.net import Routes, settle
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, ROUTE_COLUMN, NetChanges, Op
from trunkline.delivery.changes.versions import BEFORE_ALL

THROUGH_THE_SOURCE = Suspect(ShippedReader.opened)


def quiet(_: str) -> None:
    pass


def wrongs(history: History, suspect: Suspect = SHIPPED) -> list[object]:
    return [wrong for _, wrong in judge(history, suspect) if wrong is not None]


def test_the_same_seed_makes_the_same_history(tmp_path: Path) -> None:
    one, other = (History(7, tmp_path / name) for name in ("one", "other"))
    for history in (one, other):
        history.grow(6)
    assert one.statements == other.statements
    assert list(one.states) == list(other.states)
    assert all(one.states[version].equals(other.states[version]) for version in one.states)


def test_every_window_is_judged(tmp_path: Path) -> None:
    history = History(7, tmp_path)
    history.grow(6)
    versions = len(history.states)
    asked = list(windows(history))
    assert len(asked) == versions * (versions - 1) // 2 + versions
    assert sum(window.after == BEFORE_ALL for window in asked) == versions
    assert [window for window, _ in judge(history)] == asked


@pytest.mark.parametrize("seed", [1, 9])
def test_what_ships_is_exact_while_a_lake_grows(seed: int, tmp_path: Path) -> None:
    history = History(seed, tmp_path)
    for _ in range(2):  # later maintenance rewrites what earlier windows are read from
        history.grow(6)
        assert wrongs(history) == []


def test_what_ships_is_exact_with_a_catalog_in_sqlite(tmp_path: Path) -> None:
    history = History(3, tmp_path, f"sqlite:{tmp_path}/catalog.sqlite")
    history.grow(9)
    assert wrongs(history, THROUGH_THE_SOURCE) == []


def test_what_ships_is_exact_with_a_catalog_in_postgresql(postgres: PostgresServer, tmp_path: Path) -> None:
    history = History(6, tmp_path, f"postgres:{postgres.create_database('fuzz')}")
    history.grow(9)
    assert wrongs(history) == []


def test_what_ships_is_exact_when_the_files_were_moved(tmp_path: Path) -> None:
    history = History(12, tmp_path)
    history.grow(6)
    history.move_data(tmp_path / "elsewhere")
    assert wrongs(history) == []


def test_mutants_are_found_by_the_check_that_must_object() -> None:
    quick = "inclusive-bound", "no-inlined-rows", "no-deletes", "deletes-as-of-now"
    chosen = [mutant for mutant in MUTANTS if mutant.name in quick]
    for mutant, found in zip(chosen, hunt(chosen, 40, quiet), strict=True):
        assert found.wrong is not None
        assert found.wrong.check == mutant.check


@pytest.mark.parametrize("rule", [cancelled_across_the_gap, routed_by_the_new_value])
def test_mutants_of_the_rule_lose_sight_of_a_row_that_moves(rule: Rule) -> None:
    moved = NetChanges(pa.table({ROUTE_COLUMN: ["a"], "id": [1]}), pa.table({ROUTE_COLUMN: ["b"], "id": [1]}))
    routes = Routes({"a": (0,), "b": (1,)})
    assert settle(moved, routes, ("id",)).staged.column(OP_COLUMN).to_pylist() == [Op.REMOVE, Op.INSERT]
    assert rule(moved, routes, ("id",)).staged.column(DESTINATION_COLUMN).to_pylist() == [1]


def test_a_mutant_may_use_up_its_budget_and_what_ships_survives() -> None:
    (found,) = hunt([mutant for mutant in MUTANTS if mutant.name == "moved-rows-arrive"], 20, quiet)
    assert (found.wrong, found.windows) == (None, 20)
    survived = survive(1, 10, quiet)
    assert (survived.wrong, survived.windows) == (None, 10)
