"""Replays: an action file gives the same run again, and one that does not fit is refused by its line."""

from __future__ import annotations

import pytest

from toy_store import careless, impatient, put_scenario, unshrinkable_scenario
from trunkline.check.action_file import ActionFile, ActionFileError, parse_action_file
from trunkline.check.campaign import SchedulePlan, SearchBounds, check_exhaustively, check_schedules
from trunkline.check.random_search import walk
from trunkline.check.replay import lines, replay_file, replay_walk
from trunkline.check.results import ViolationReport
from trunkline.check.world import World


def silent(_text: str) -> None:
    """Discards progress."""


def careless_violation() -> ViolationReport:
    return check_exhaustively(unshrinkable_scenario(), SearchBounds(), silent).violations[0]


def test_an_action_file_reads_back_to_the_same_value() -> None:
    actions = ("deliver a>b X()", "crash k")
    full = ActionFile("put", actions, smaller=1, mutant="m", fifo=True, without=("loss", "wipe"), fair_steps=20)
    assert parse_action_file(full.text()) == full
    plain = ActionFile("put", actions)
    assert parse_action_file(plain.text()) == plain


def test_a_run_of_a_mix_replays_in_that_mix() -> None:
    scenario = put_scenario()
    mixed = ActionFile("put", (), fifo=True, without=("loss",)).version_of(scenario)
    assert (mixed.fifo, mixed.faults.loss, mixed.faults.crash) == (True, 0, scenario.faults.crash)


def test_a_written_violation_replays_to_the_same_finding_and_lines() -> None:
    with careless():
        violation = careless_violation()
        assert violation.file is not None
        assert violation.replay is not None
        file = parse_action_file(violation.file.text())
        again = replay_file(World(file.version_of(unshrinkable_scenario())), file)
    assert again.finding == violation.finding
    assert list(lines(again)) == list(lines(violation.replay))
    assert len(again.states) == len(again.steps) + 1


def test_a_failure_of_the_fair_phase_replays_with_the_fair_phase() -> None:
    with impatient():
        report = check_schedules(put_scenario(), SchedulePlan("random", 0, 500), SearchBounds(), silent)
        violation = report.violations[0]
        assert violation.file is not None
        again = replay_file(World(violation.file.version_of(put_scenario())), violation.file)
    assert again.finding == violation.finding
    assert again.fair_from == len(violation.file.actions)


def test_steps_of_a_seed_have_one_line_each() -> None:
    one = walk(World(put_scenario()), 5, "random")
    shown = list(lines(replay_walk(one)))
    assert len(shown) == one.steps
    assert all("\n" not in line for line in shown)


def test_an_action_that_cannot_happen_is_refused_with_its_number() -> None:
    with careless():
        violation = careless_violation()
        assert violation.file is not None
    first = violation.file.actions[0]
    file = ActionFile("pair", (first, first.replace("c1", "c9")))
    with pytest.raises(ActionFileError, match="action 2 cannot happen here"):
        replay_file(World(unshrinkable_scenario()), file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: expected `trunkline-actions 1`"),
        ("trunkline-actions 1\n", "lacks a scenario line"),
        ("trunkline-actions 1\nscenario put\ncolour red\n", "line 3: not a valid head line"),
        ("trunkline-actions 1\nscenario put\nfair soon\n", "line 3: bad value for fair"),
        ("trunkline-actions 1\nscenario put\nwithout luck\n", "line 3: bad value for without"),
        ("trunkline-actions 1\nscenario put\nscenario put\n", "line 3: not a valid head line"),
    ],
)
def test_a_malformed_head_is_refused(text: str, words: str) -> None:
    with pytest.raises(ActionFileError, match=words):
        parse_action_file(text)


def test_an_unknown_smaller_version_is_refused() -> None:
    with pytest.raises(ActionFileError, match="no smaller version 3"):
        ActionFile("put", (), smaller=3).version_of(put_scenario())
