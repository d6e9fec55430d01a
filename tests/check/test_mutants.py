"""Every mutant is found within its budget by a monitor that it names.

`./run check --mutants` also shows that the correct code survives ten times the budget, which takes minutes.
"""

from __future__ import annotations

from functools import partial

import pytest

from trunkline.check.campaign import SearchBounds, hunt
from trunkline.check.catalogue import shipped
from trunkline.check.mutants import MUTANTS
from trunkline.core import reconfigurer
from trunkline.core.reader import Reader

KNOWN = shipped()


def _quiet(text: str) -> None:
    pass


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_the_mutant_is_found(name: str) -> None:
    mutant = KNOWN.mutant(name)
    report = hunt(mutant, partial(KNOWN.scenario, mutant.scenario), SearchBounds(), _quiet)
    assert report.found, f"{report.finding}; try: ./run check --mutants {name}"
    goal_missed = report.finding is not None and report.finding.monitor == "Progress"
    assert report.steps > 0 or goal_missed  # a goal may be unreachable from the beginning


def test_a_patch_is_undone_after_the_search() -> None:
    member, voters = Reader.__dict__["_member"], reconfigurer.__dict__["_voters"]
    for name in ("value-from-head", "survivors-reordered"):
        with KNOWN.mutant(name).patch():
            pass
    assert Reader.__dict__["_member"] is member
    assert reconfigurer.__dict__["_voters"] is voters


def test_every_mutant_names_a_scenario_that_exists() -> None:
    for mutant in MUTANTS:
        KNOWN.scenario(mutant.scenario)
