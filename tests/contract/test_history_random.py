"""Mode history by real tasks in every kind of place: equal to a replay in plain Python, also if the process that
delivers is killed at any statement, and if flushes are repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from contract.history_processes import delivered_until, delivery_to, flush, seed
from contract.kinds import kinds
from delivery.many_histories import TABLES, TARGETS, ManyHistories, forget_logs, spans
from delivery.task_pipelines import standing_of
from trunkline.delivery.destinations import factory
from trunkline.destination_suite.place import Kind, Site

HISTORIES: Final = 1_002
STEPS: Final = 8
FEW: Final = 30
KILLS: Final = 12  # of each kind: 60 in all
STATEMENTS_MAX: Final = 80  # before a kill


@pytest.fixture(params=[kind for kind in kinds() if "history" not in kind.lacks], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind with histories."""
    found: Kind = request.param
    return found


@pytest.fixture
def site(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    """A place of its own for each test."""
    return kind.make(tmp_path, lambda: request.getfixturevalue("postgres"))


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    for place in factory._open_places().values():
        place.close()
    factory._open_places().clear()
    forget_logs()


def test_1000_random_histories_in_a_place_equal_a_replay_and_repeated_flushes_change_nothing(site: Site) -> None:
    many = ManyHistories(11, HISTORIES, STEPS)
    delivery = delivery_to(site, many.entries)
    seed(delivery, many.ends[0])
    for name in TARGETS:
        flush(delivery, name, many.windows(), again=True)
    for name in TARGETS:
        for table in TABLES:
            held, expected = spans(site.held(f"{name}_{table}") or []), many.replayed(table, name, many.ends[-1])
            assert held == expected
            assert len(expected) > HISTORIES


def test_a_process_killed_at_any_statement_leaves_the_history_of_its_position(
    kind: Kind, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(5)
    kills = rounds = 0
    while kills < KILLS:
        rounds += 1
        folder = tmp_path / str(rounds)
        folder.mkdir()
        site = kind.make(folder, lambda: request.getfixturevalue("postgres"))
        many = ManyHistories(100 + rounds, FEW, STEPS)
        ends, lived = many.windows(), False
        while not lived:
            at = chance.randrange(STATEMENTS_MAX) if kills < KILLS else None
            lived = delivered_until(site, many, ends, at)
            kills += not lived
            check(site, many, complete=lived)
    assert kills == KILLS


def check(site: Site, many: ManyHistories, *, complete: bool) -> None:
    """Every destination holds what the source had at its position."""
    delivery = delivery_to(site, many.entries)
    held = site.held_together([f"{name}_{table}" for name in TARGETS for table in TABLES])
    for name in TARGETS:
        standing = standing_of(delivery.work, name)
        if standing is None or standing.position == 0:
            assert not complete
            continue
        ends = {standing.position, standing.ahead or standing.position}
        for table in TABLES:
            rows = spans(held[f"{name}_{table}"] or [])
            assert rows in [many.replayed(table, name, end) for end in ends], (name, table, standing)
        assert not complete or (standing.position, standing.ahead) == (many.ends[-1], 0)
