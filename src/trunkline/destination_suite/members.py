"""A member with several tables, in every kind of place: rules T1, T5, T9 and T10 of ``destinations/contract.py``.

Where tables commit alone (Delta), a killed process may leave some of them ahead; one more step makes them level.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Final

import pytest
from msgspec.structs import replace

from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations.contract import Applied, MemberTables, Standing
from trunkline.destination_suite.place import MEMBER, Change, Doing, Kind, Plan, Row, Rows, Site, Table, content, needs
from trunkline.destination_suite.processes import Group, apply_group, run_until, standings, states, tables_of
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    MARK_A,
    MARK_B,
    MARKED_FLUSH,
    MARKED_SEED,
    ORDERS,
    SEED,
    SEEDED,
    applied,
    doing,
    holds,
    seeded,
    standing,
    stands,
    steps,
)
from trunkline.errors import DestinationHalted, DuplicateKey, Fenced, PositionMoved, SchemaMismatch, TrunklineError

BOTH: Final = ("items", "orders")
INSERTS: Final[list[Change]] = [(Op.INSERT, row) for row in SEEDED]
STATEMENTS_MAX: Final = 240


def both_seeded(site: Site) -> None:
    assert applied(site, doing(site, dict.fromkeys(BOTH, SEEDED), SEED)) == Applied(10, written=6)


def both_unchanged(site: Site) -> None:
    holds(site, dict.fromkeys(BOTH, SEEDED))
    assert stands(site, BOTH) == Standing(10, 1, "lake/orders")


# ------------------------------------------------------------------------------------------------------ T1: together


def test_t1_all_tables_of_a_member_have_one_position(site: Site) -> None:
    assert stands(site, BOTH) is None
    both_seeded(site)
    both_unchanged(site)
    flush = doing(site, {"items": CHANGES, "orders": [(Op.REMOVE, {"id": 3})]}, replace(FLUSH, token=3))
    assert applied(site, flush) == Applied(20, removed=3, written=2)
    holds(site, {"items": FLUSHED, "orders": SEEDED[:2]})
    assert stands(site, BOTH) == Standing(20, 3, "lake/orders")
    before = site.trace()
    assert applied(site, flush) == Applied(20, already=True)
    assert site.trace() == before


@pytest.mark.parametrize("touched", BOTH)
def test_t1_a_table_without_rows_moves_with_the_others(site: Site, touched: str) -> None:
    both_seeded(site)
    for at in (10, 20, 30):
        change: list[Change] = [(Op.REPLACE, {"id": 1, "tenant": "acme", "amount": at})]
        plan = replace(FLUSH, expected=at, through=at + 10)
        one = doing(site, {name: change if name == touched else [] for name in BOTH}, plan)
        if at == 20:  # its rows may be left out
            one = one._replace(rows={touched: change})
        assert applied(site, one) == Applied(at + 10, removed=1, written=1)
        assert stands(site, BOTH) == Standing(at + 10, 1, "lake/orders")
    assert (
        applied(site, doing(site, {name: [] for name in BOTH}, replace(FLUSH, expected=40, through=50))).position == 50
    )
    assert stands(site, BOTH) == Standing(50, 1, "lake/orders")
    last = doing(site, dict.fromkeys(BOTH, CHANGES), replace(FLUSH, expected=50, through=60))
    assert applied(site, last) == Applied(60, removed=4, written=4)
    holds(site, dict.fromkeys(BOTH, FLUSHED))


@pytest.mark.parametrize("broken", BOTH)
@pytest.mark.parametrize("how", ["duplicate key", "other columns", "a seed's keys"])
def test_t1_a_table_that_cannot_be_written_keeps_the_others_as_they_are(site: Site, broken: str, how: str) -> None:
    both_seeded(site)
    [other] = set(BOTH) - {broken}
    before = site.trace()
    expected: type[TrunklineError] = DuplicateKey
    if how == "duplicate key":
        one = doing(site, {other: CHANGES, broken: [(Op.INSERT, SEEDED[2])]})
    elif how == "other columns":
        odd = replace(FLUSH, columns=(*ORDERS[:2], Column("amount", "VARCHAR")))
        one, expected = doing(site, {other: CHANGES, broken: (odd, [])}), SchemaMismatch
    else:
        one = doing(site, {other: SEEDED, broken: [*SEEDED, SEEDED[0]]}, replace(SEED, expected=10, through=20))
    with pytest.raises(expected):
        applied(site, one)
    assert site.trace() == before
    both_unchanged(site)


def test_t2_the_tokens_position_and_mark_of_a_member_count_for_all_its_tables(site: Site) -> None:
    applied(site, doing(site, dict.fromkeys(BOTH, SEEDED), replace(MARKED_SEED, token=5)))
    before = site.trace()
    rows = dict.fromkeys(BOTH, CHANGES)
    for plan, expected in (
        (replace(MARKED_FLUSH, token=4), Fenced),
        (replace(MARKED_FLUSH, token=5, expected=9), PositionMoved),
        (replace(MARKED_FLUSH, token=5, mark=MARK_B), PositionMoved),
        (replace(MARKED_FLUSH, token=5, source="lake/others"), DestinationHalted),
    ):
        with pytest.raises(expected):
            applied(site, doing(site, rows, plan))
    assert site.trace() == before
    assert applied(site, doing(site, rows, replace(MARKED_FLUSH, token=5))).removed == 4
    assert stands(site, BOTH) == Standing(20, 5, "lake/orders", MARK_B)


def test_the_rows_of_all_tables_are_read_with_the_record(site: Site) -> None:
    both_seeded(site)
    applied(site, doing(site, {"items": CHANGES, "orders": []}))
    member = MemberTables(MEMBER, site.home, tuple(map(site.address, ("orders", "items"))))
    before = site.trace()
    with closing(site.open()) as place:
        at, tables, end = place.rows(member)
        assert at == Standing(20, 1, "lake/orders")
        found = [content(row for batch in batches for row in batch.to_pylist()) for batches in tables]
        end()
        assert found == [content(SEEDED), content(FLUSHED)]
        assert place.columns(site.address("items")) == ORDERS
        assert place.columns(site.address("nothing")) is None
        with pytest.raises(DestinationHalted):
            place.rows(replace(member, member="shop/none", tables=(site.address("nothing"),)))
    assert site.trace() == before


def test_a_retired_member_keeps_its_tables_and_has_no_record(site: Site) -> None:
    both_seeded(site)
    member = MemberTables(MEMBER, site.home, tuple(map(site.address, BOTH)))
    with closing(site.open()) as place:
        place.retire(member)
        place.retire(member)  # twice is as good as once
    assert stands(site, BOTH) is None
    holds(site, dict.fromkeys(BOTH, SEEDED))
    with pytest.raises(DestinationHalted, match="replace_existing"):
        both_seeded(site)
    again = doing(site, dict.fromkeys(BOTH, SEEDED), replace(SEED, replace_existing=True))
    assert applied(site, again) == Applied(10, removed=6, written=6)
    both_unchanged(site)


def test_a_member_that_lost_a_table_has_position_0_and_is_seeded_again(site: Site) -> None:
    both_seeded(site)
    applied(site, doing(site, {"items": [], "orders": []}))
    site.drop("items")
    held = stands(site, BOTH)
    assert held is not None
    assert (held.position, held.token) == (0, 1)
    assert applied(site, doing(site, dict.fromkeys(BOTH, SEEDED), replace(SEED, through=30))).position == 30
    holds(site, dict.fromkeys(BOTH, SEEDED))
    assert stands(site, BOTH) == Standing(30, 1, "lake/orders")


# -------------------------------------------------------------------------------------------- tables join and leave


def test_t5_a_table_joins_in_a_flush_with_all_its_rows(site: Site) -> None:
    seeded(Table(site))
    joined = doing(site, {"orders": CHANGES, "items": (replace(FLUSH, replaces=True), SEEDED)})
    assert applied(site, joined) == Applied(20, removed=2, written=5)
    holds(site, {"orders": FLUSHED, "items": SEEDED})
    assert stands(site, BOTH) == Standing(20, 1, "lake/orders")
    before = site.trace()
    assert applied(site, joined) == Applied(20, already=True)
    assert site.trace() == before
    next_one = doing(site, {name: [(Op.REMOVE, {"id": 2})] for name in BOTH}, replace(FLUSH, expected=20, through=30))
    assert applied(site, next_one) == Applied(30, removed=2)


def test_t5_a_flush_replaces_a_table_that_was_emptied_whatever_it_holds(site: Site) -> None:
    both_seeded(site)
    other = (Column("id", "BIGINT"), Column("note", "VARCHAR"))
    rows: list[Row] = [{"id": 7, "note": "x"}]
    whole = replace(FLUSH, replaces=True, columns=other)
    assert applied(site, doing(site, {"orders": CHANGES, "items": (whole, rows)})) == Applied(20, removed=5, written=3)
    holds(site, {"orders": FLUSHED, "items": rows})


@pytest.mark.parametrize("seeds", [False, True])
def test_t5_a_table_that_no_member_has_is_replaced_only_with_replace_existing(site: Site, seeds: bool) -> None:
    seeded(Table(site))
    site.make_foreign("items")
    before = site.trace()
    plan = replace(SEED, expected=10, through=20) if seeds else FLUSH
    joined = doing(
        site, {"orders": SEEDED if seeds else CHANGES, "items": (replace(plan, replaces=True), SEEDED)}, plan
    )
    with pytest.raises(DestinationHalted, match="replace_existing"):
        applied(site, joined)
    assert site.trace() == before
    assert applied(site, Doing(replace(joined.step, replace_existing=True), joined.rows)).position == 20
    holds(site, {"orders": SEEDED if seeds else FLUSHED, "items": SEEDED})


@pytest.mark.parametrize("seeds", [False, True])
@pytest.mark.parametrize("replace_existing", [False, True])
def test_t5_a_table_that_another_member_has_is_not_touched(
    site: Site, kind: Kind, seeds: bool, replace_existing: bool
) -> None:
    seeded(Table(site))
    seeded(Table(site, "items", "shop/bolt"))
    before = site.trace()
    plan = replace(SEED, expected=10, through=20) if seeds else FLUSH
    joined = doing(
        site, {"orders": SEEDED if seeds else CHANGES, "items": (replace(plan, replaces=True), SEEDED)}, plan
    )
    joined = Doing(replace(joined.step, replace_existing=replace_existing), joined.rows)
    with pytest.raises(DestinationHalted, match="another destination" if kind.commits_alone else "shop/bolt"):
        applied(site, joined)
    assert site.trace() == before
    assert standing(Table(site)) == Standing(10, 1, "lake/orders")
    assert standing(Table(site, "items", "shop/bolt")) == Standing(10, 1, "lake/orders")


@pytest.mark.parametrize("drop", [False, True], ids=["kept", "dropped"])
@pytest.mark.parametrize("leaver", BOTH)
def test_a_table_that_the_source_no_longer_has_leaves_as_configured(site: Site, leaver: str, drop: bool) -> None:
    both_seeded(site)
    [stays] = set(BOTH) - {leaver}
    left = doing(site, {stays: CHANGES}, leaving={leaver: drop})
    assert applied(site, left) == Applied(20, removed=2, written=2)
    holds(site, {stays: FLUSHED, leaver: None if drop else SEEDED})
    assert stands(site, (stays,)) == Standing(20, 1, "lake/orders")
    before = site.trace()
    assert applied(site, left) == Applied(20, already=True)
    assert site.trace() == before
    taken = replace(SEED, replace_existing=not drop)
    if not drop:  # it belongs to no member now
        with pytest.raises(DestinationHalted, match="replace_existing"):
            seeded(Table(site, leaver, "shop/bolt"))
    seeded(Table(site, leaver, "shop/bolt"), taken)
    assert standing(Table(site, leaver, "shop/bolt")) == Standing(10, 1, "lake/orders")
    last = doing(site, {stays: [(Op.REMOVE, {"id": 3})]}, replace(FLUSH, expected=20, through=30))
    assert applied(site, last) == Applied(30, removed=1)


def test_a_table_that_leaves_and_was_never_there_disturbs_no_step(site: Site) -> None:
    both_seeded(site)
    left = doing(site, dict.fromkeys(BOTH, CHANGES), leaving={"other": True, "more": False})
    assert applied(site, left).position == 20
    holds(site, dict.fromkeys(BOTH, FLUSHED))


# ---------------------------------------------------------------------------------------------- T9: names of records


def test_t9_the_record_of_a_renamed_member_is_found_by_its_tables(site: Site) -> None:
    applied(site, doing(site, dict.fromkeys(BOTH, SEEDED), MARKED_SEED))
    before = site.trace()
    assert stands(site, BOTH, "shop/renamed") == Standing(10, 1, "lake/orders", MARK_A)
    assert stands(site, ("other",), "shop/renamed") is None
    assert site.trace() == before
    assert applied(site, doing(site, dict.fromkeys(BOTH, CHANGES), MARKED_FLUSH, "shop/renamed")).position == 20
    assert stands(site, BOTH, "shop/renamed") == Standing(20, 1, "lake/orders", MARK_B)
    holds(site, dict.fromkeys(BOTH, FLUSHED))


def named(found: Doing, *living: str) -> Doing:
    return found._replace(step=replace(found.step, living=frozenset(living)))


def standing_of(site: Site, names: Sequence[str], member: str, *living: str) -> Standing | TrunklineError | None:
    tables = MemberTables(member, site.home, tuple(map(site.address, names)), frozenset(living))
    with closing(site.open()) as place:
        return place.standings([tables])[member]


def test_t9_a_renamed_member_is_found_also_if_a_table_joined_meanwhile(site: Site, kind: Kind) -> None:
    applied(site, doing(site, dict.fromkeys(BOTH, SEEDED), MARKED_SEED))
    before, three = Standing(10, 1, "lake/orders", MARK_A), (*BOTH, "more")
    assert standing_of(site, three, "shop/renamed") is None, "nothing says that no one has the old name"
    assert standing_of(site, three, "shop/renamed", "shop/renamed", MEMBER) is None, "it is in use"
    assert standing_of(site, three, "other/renamed", "other/renamed") is None, "another pipeline"
    found = standing_of(site, three, "shop/renamed", "shop/renamed")
    if kind.commits_alone:
        assert found is None, "its records do not say of which pipeline they are"
        with pytest.raises(DestinationHalted):
            applied(site, named(doing(site, dict.fromkeys(three, SEEDED), MARKED_SEED, "shop/renamed")))
        return
    assert found == before
    joins = {"more": (replace(MARKED_FLUSH, replaces=True), SEEDED)}
    flush = doing(site, {**dict.fromkeys(BOTH, CHANGES), **joins}, MARKED_FLUSH, "shop/renamed")
    assert applied(site, named(flush, "shop/renamed")).position == 20
    assert standing_of(site, three, "shop/renamed", "shop/renamed") == Standing(20, 1, "lake/orders", MARK_B)
    assert standing_of(site, BOTH, MEMBER, MEMBER) == Standing(20, 1, "lake/orders", MARK_B), "the one record there is"
    holds(site, {**dict.fromkeys(BOTH, FLUSHED), "more": SEEDED})


def test_t9_a_seed_of_a_renamed_member_replaces_its_tables_and_those_that_joined(site: Site, kind: Kind) -> None:
    applied(site, doing(site, dict.fromkeys(BOTH, SEEDED), MARKED_SEED))
    again = replace(MARKED_SEED, expected=10, through=20, mark=MARK_A, through_mark=MARK_B)
    seed = doing(site, dict.fromkeys((*BOTH, "more"), SEEDED), again, "shop/renamed")
    with pytest.raises((DestinationHalted, PositionMoved)):
        applied(site, named(seed, "shop/renamed", MEMBER))
    if not kind.commits_alone:
        assert applied(site, named(seed, "shop/renamed")).position == 20
        holds(site, dict.fromkeys((*BOTH, "more"), SEEDED))


# ----------------------------------------------------------------------------------- processes that die, and columns

RENAMED: Final = steps(ORDERS, {ORDERS[0]: "id", ORDERS[1]: "tenant", Column("sum", "INTEGER"): "amount"})
STEPPED: Final = [{"id": row["id"], "tenant": row["tenant"], "sum": row["amount"]} for row in SEEDED]


@needs("column_steps")
def test_t6_one_table_of_a_member_follows_the_steps_of_its_columns(site: Site) -> None:
    both_seeded(site)
    plan = replace(FLUSH, columns=RENAMED.after, steps=RENAMED)
    found = applied(site, doing(site, {"orders": CHANGES, "items": (plan, [])}))
    assert found.reshaped.startswith(RENAMED.spelled())
    holds(site, {"orders": FLUSHED, "items": STEPPED})


def a_step(site: Site, what: str) -> tuple[Doing, dict[str, Sequence[Row] | None]]:
    """What to do to a member with both tables at 10, and what it leaves."""
    whole = replace(FLUSH, replaces=True, token=2)
    flush = replace(FLUSH, token=2)
    match what:
        case "flush of both":
            return doing(site, dict.fromkeys(BOTH, CHANGES), flush), {name: list(FLUSHED) for name in BOTH}
        case "flush of the first":
            return doing(site, {"items": CHANGES, "orders": []}, flush), {"items": list(FLUSHED), "orders": SEEDED}
        case "flush of the last":
            return doing(site, {"items": [], "orders": CHANGES}, flush), {"items": SEEDED, "orders": list(FLUSHED)}
        case "one joins":
            each: dict[str, Sequence[Row] | None] = {"items": SEEDED, "orders": list(FLUSHED), "also": SEEDED}
            return doing(site, {"also": (whole, SEEDED), "items": [], "orders": CHANGES}, flush), each
        case "the first leaves":
            return doing(site, {"orders": CHANGES}, flush, leaving={"items": True}), {
                "items": None,
                "orders": list(FLUSHED),
            }
        case "columns of one change":
            plan = replace(flush, columns=RENAMED.after, steps=RENAMED)
            return doing(site, {"items": (plan, []), "orders": CHANGES}, flush), {
                "items": STEPPED,
                "orders": list(FLUSHED),
            }
    seed = replace(SEED, expected=10, through=20, token=2)
    return doing(site, {name: list(FLUSHED) for name in BOTH}, seed), {name: list(FLUSHED) for name in BOTH}


STEPS: Final = (
    "flush of both",
    "flush of the first",
    "flush of the last",
    "one joins",
    "the first leaves",
    "seed again",
)


def killed_everywhere(site: Site, kind: Kind, one: Doing, old: object, new: object) -> None:
    """Do a step in one process after another, each killed one statement later, until one lives.

    Where tables commit alone, a state in between shows in the standing; the next process plans from it.
    """
    seen = []
    for at in range(STATEMENTS_MAX):
        lived = run_until(Table(site), Group(site, (one,), replans=True), at)
        [found] = states(site, [one])
        seen.append(found == new)
        if found not in (old, new):
            held = found[0]
            assert kind.commits_alone, f"killed before statement {at}: {found}"
            assert isinstance(held, Standing)
            assert held.ahead == one.step.through or (one.step.seeds and held.position == 0), held
        if lived:
            break
    assert lived, "the step never came to its end"
    assert seen == sorted(seen), "once it is there it stays"
    assert not seen[0]
    assert seen[-1]
    assert seen[-2] or kind.commits_alone, "killed when it was done"


def killed_and_continued(site: Site, kind: Kind, what: str) -> None:
    both_seeded(site)
    one, expected = a_step(site, what)
    [old] = states(site, [one])
    new = (Standing(20, 2, "lake/orders"), {name: content(rows) for name, rows in sorted(expected.items())})
    killed_everywhere(site, kind, one, old, new)
    names = [table.table for table in one.step.tables]
    later = replace(FLUSH, expected=20, through=30, token=2)
    tables: dict[str, Rows | tuple[Plan, Rows]] = {name: [(Op.REMOVE, {"id": 3})] for name in names}
    if what.startswith("columns"):
        tables["items"] = replace(later, columns=RENAMED.after), []
    assert applied(site, doing(site, tables, later)).position == 30


@pytest.mark.parametrize("what", STEPS)
def test_t1_a_process_killed_at_any_statement_leaves_all_tables_old_or_new(site: Site, kind: Kind, what: str) -> None:
    killed_and_continued(site, kind, what)


@needs("column_steps")
def test_t1_a_process_killed_while_columns_change_leaves_all_tables_old_or_new(site: Site, kind: Kind) -> None:
    killed_and_continued(site, kind, "columns of one change")


def test_t1_a_process_killed_at_any_statement_of_the_first_seed_leaves_no_table_or_all(site: Site, kind: Kind) -> None:
    one = doing(site, dict.fromkeys(BOTH, SEEDED), SEED)
    old = (None, dict.fromkeys(BOTH))
    new = (Standing(10, 1, "lake/orders"), {name: content(SEEDED) for name in BOTH})
    killed_everywhere(site, kind, one, old, new)


def test_t10_tables_that_are_ahead_are_level_after_a_step_that_ends_there(site: Site, kind: Kind) -> None:
    """As a planner sees it: a process dies, others read the record, and go on from there with other tokens."""
    both_seeded(site)
    one, _ = a_step(site, "flush of both")
    seen = 0
    for at in range(STATEMENTS_MAX):
        if run_until(Table(site), Group(site, (one,), replans=True), at):
            break
        held = standings(site, [one])[MEMBER]
        assert isinstance(held, Standing)
        if not held.ahead:
            continue
        seen += 1
        before = site.trace()
        elsewhere = replace(one.step, expected=held.position, mark=held.mark, ahead=held.ahead, through=19)
        with closing(site.open()) as place:
            found = apply_group(place, Group(site, (Doing(elsewhere, one.rows),)))[MEMBER]
        assert isinstance(found, PositionMoved), "no step may end elsewhere"
        assert site.trace() == before
        member = tables_of(one)
        with closing(site.open()) as place:
            at_it, _, end = place.rows(member)
            end()
        assert replace(at_it, at=()) == held
        assert set(at_it.at) <= {held.position, held.ahead}, "each table has rows of one of the two"
    assert bool(seen) == kind.commits_alone
    assert stands(site, BOTH) == Standing(20, 2, "lake/orders")
    holds(site, dict.fromkeys(BOTH, FLUSHED))
