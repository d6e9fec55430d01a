"""Records that older releases left, of kinds that these had: rule T9 of ``destinations/contract.py``."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from trunkline.delivery.destinations.contract import FENCED_TOKEN, Applied, Standing
from trunkline.destination_suite.place import Kind, SiteOfReleases, Table, content, needs
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    MARK_A,
    MARK_B,
    MARKED_FLUSH,
    MARKED_SEED,
    SEED,
    SEEDED,
    applied,
    doing,
    flushed,
    holds,
    seeded,
    standing,
    stands,
)
from trunkline.errors import Fenced, PositionMoved

BOTH: Final = ("items", "orders")


@needs("older_records")
@pytest.mark.parametrize("marks", [False, True], ids=["without marks", "with marks"])
def test_t9_the_record_of_an_older_release_is_found_and_left_with_a_token_it_cannot_reach(
    site: SiteOfReleases, kind: Kind, marks: bool
) -> None:
    table = Table(site)
    seeded(table, MARKED_SEED)
    site.make_old_record(table.name, Standing(10, 7, "lake/orders", MARK_A if marks else ""), marks=marks)
    before = table.trace()
    held = Standing(10, 7, "lake/orders", MARK_A if marks else "")
    assert standing(table) == held
    assert table.trace() == before
    assert site.old_token(table.name) == 7
    plan = replace(MARKED_FLUSH, mark=held.mark, token=8)
    with pytest.raises(Fenced):
        flushed(table, replace(plan, token=6), CHANGES)
    with pytest.raises(PositionMoved):
        flushed(table, replace(plan, mark=MARK_B), CHANGES)
    assert table.trace() == before
    assert flushed(table, plan, CHANGES) == Applied(20, removed=2, written=2)
    assert standing(table) == Standing(20, 8, "lake/orders", MARK_B)
    assert content(table.held()) == content(FLUSHED)
    assert site.old_token(table.name) == (8 if kind.commits_alone else FENCED_TOKEN)
    assert flushed(table, replace(plan, expected=20, through=30, mark=MARK_B, through_mark=""), []) == Applied(30)


@needs("older_records")
def test_t9_a_seed_also_takes_over_the_record_of_an_older_release(site: SiteOfReleases, kind: Kind) -> None:
    table = Table(site)
    seeded(table)
    site.make_old_record(table.name, Standing(10, 7, "lake/orders"), marks=True)
    seeded(table, replace(SEED, expected=10, through=20, token=8))
    assert standing(table) == Standing(20, 8, "lake/orders")
    assert site.old_token(table.name) == (8 if kind.commits_alone else FENCED_TOKEN)


@needs("older_records")
def test_t9_the_table_of_an_older_release_becomes_one_of_several(site: SiteOfReleases) -> None:
    seeded(Table(site))
    site.make_old_record("orders", Standing(10, 7, "lake/orders"), marks=True)
    joined = doing(site, {"orders": CHANGES, "items": (replace(FLUSH, replaces=True), SEEDED)}, replace(FLUSH, token=8))
    assert applied(site, joined) == Applied(20, removed=2, written=5)
    assert stands(site, BOTH) == Standing(20, 8, "lake/orders")
    holds(site, {"orders": FLUSHED, "items": SEEDED})
