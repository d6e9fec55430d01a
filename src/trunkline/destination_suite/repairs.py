"""A repair rewrites rows of the position that a member has, in every kind of place: rule T12 of its contract."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from trunkline.core.fence import Decision
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations.contract import Applied, MemberResult, Standing
from trunkline.destination_suite.place import Change, Kind, Plan, Row, Site, Table, content, needs
from trunkline.destination_suite.processes import Group, run_until, states
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSHED,
    MARK_A,
    MARK_B,
    MARKED_FLUSH,
    MARKED_SEED,
    ORDERS,
    SEEDED,
    applied,
    doing,
    done,
    holds,
    outcome_of,
    seeded,
    stands,
)
from trunkline.errors import Fenced, PositionMoved

BOTH: Final = ("items", "orders")
STATEMENTS_MAX: Final = 240
REPAIR: Final = Plan(
    *(10, 2, "lake/orders", ORDERS, ("id",), 10),
    mark=MARK_A,
    through_mark=MARK_A,
    repairs=True,
    counts_missing=False,
)
DAMAGED: Final[list[Row]] = [{"id": n, "tenant": "acme", "amount": n} for n in (1, 2, 9)]  # 3 is missing
DIFFERING: Final[list[Change]] = [(Op.REMOVE, {"id": 9}), *((Op.REPLACE, row) for row in SEEDED)]


def damaged(site: Site) -> None:
    """Two tables that are not as the source has them."""
    applied(site, doing(site, dict.fromkeys(BOTH, DAMAGED), MARKED_SEED))


def _counts(result: MemberResult) -> tuple[int, int, int]:
    assert isinstance(result, Applied), result
    assert not result.already
    assert result.missing == 0, "what it replaces need not be there"
    return result.position, result.removed, result.written


@needs("repairs")
def test_t12_a_repair_rewrites_the_keys_it_has_rows_for_and_keeps_the_position(site: Site) -> None:
    damaged(site)
    assert _counts(applied(site, doing(site, {"items": DIFFERING, "orders": []}, REPAIR))) == (10, 3, 3)
    holds(site, {"items": SEEDED, "orders": DAMAGED})
    assert stands(site, BOTH) == Standing(10, 2, "lake/orders", MARK_A)
    again = replace(REPAIR, token=3)
    assert _counts(applied(site, doing(site, {"items": [], "orders": DIFFERING}, again))) == (10, 3, 3)
    holds(site, dict.fromkeys(BOTH, SEEDED))
    flush = doing(site, dict.fromkeys(BOTH, CHANGES), replace(MARKED_FLUSH, token=4))
    assert applied(site, flush).position == 20
    holds(site, dict.fromkeys(BOTH, FLUSHED))
    assert stands(site, BOTH) == Standing(20, 4, "lake/orders", MARK_B)


@needs("repairs")
def test_t12_a_late_repair_and_a_late_flush_are_refused(site: Site) -> None:
    damaged(site)
    applied(site, doing(site, {"items": DIFFERING, "orders": DIFFERING}, REPAIR))
    late = doing(site, dict.fromkeys(BOTH, CHANGES), MARKED_FLUSH)
    with pytest.raises(Fenced):
        applied(site, late)
    holds(site, dict.fromkeys(BOTH, SEEDED))
    applied(site, doing(site, dict.fromkeys(BOTH, CHANGES), replace(MARKED_FLUSH, token=3)))
    before = site.trace()
    for plan, error in ((REPAIR, Fenced), (replace(REPAIR, token=4), PositionMoved)):
        with pytest.raises(error):
            applied(site, doing(site, dict.fromkeys(BOTH, DIFFERING), plan))
    assert site.trace() == before
    holds(site, dict.fromkeys(BOTH, FLUSHED))


@needs("repairs")
@pytest.mark.parametrize(
    ("plan", "decision"),
    [
        (REPAIR, Decision.PROCEED),
        (replace(REPAIR, token=0), Decision.FENCED),
        (replace(REPAIR, expected=9, through=9), Decision.MOVED),
        (replace(REPAIR, mark=MARK_B, through_mark=MARK_B), Decision.MOVED),
        (replace(REPAIR, source="lake/others"), Decision.FOREIGN),
    ],
)
def test_t12_the_fence_decides_about_a_repair(table: Table, plan: Plan, decision: Decision) -> None:
    seeded(table, MARKED_SEED)
    assert outcome_of(table, plan) is decision


@needs("repairs")
def test_t12_a_repair_in_a_group_is_one_member_of_many(site: Site) -> None:
    for name in BOTH:
        applied(site, doing(site, {name: DAMAGED}, MARKED_SEED, member=f"shop/{name}"))
    repair = doing(site, {"items": DIFFERING}, REPAIR, member="shop/items")
    flush = doing(site, {"orders": [(Op.REMOVE, {"id": 9})]}, replace(MARKED_FLUSH, token=0), member="shop/orders")
    results = done(site, repair, flush)
    assert _counts(results["shop/items"]) == (10, 3, 3)
    assert isinstance(results["shop/orders"], Fenced)
    holds(site, {"items": SEEDED, "orders": DAMAGED})


@needs("repairs")
def test_t12_a_repair_that_is_killed_leaves_each_table_as_it_was_or_repaired(kind: Kind, site: Site) -> None:
    """In one transaction all tables together; where tables commit alone, each for itself."""
    damaged(site)
    repair = doing(site, dict.fromkeys(BOTH, DIFFERING), REPAIR)
    group = Group(site, (repair,))
    seen = set[str]()
    for at in range(STATEMENTS_MAX):
        lived = run_until(Table(site, "items"), group, at)
        [(held, tables)] = states(site, [repair])
        found = [tables[name] for name in BOTH]
        seen.add(str(found))
        assert all(rows in (content(DAMAGED), content(SEEDED)) for rows in found)
        assert kind.commits_alone or found[0] == found[1]
        assert isinstance(held, Standing)
        assert (held.position, held.mark, held.ahead) == (10, MARK_A, 0)
        if lived:
            break
    assert lived, "the repair never came to its end"
    assert len(seen) >= 2
    holds(site, dict.fromkeys(BOTH, SEEDED))
