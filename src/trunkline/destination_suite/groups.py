"""Members that are written together, in every kind of place: rules U1 to U5 of ``core/group_commit.py``, T1 and T7."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.destination_suite.place import Change, Doing, Kind, Row, Site, Table, content, needs
from trunkline.destination_suite.processes import Group, apply_group, run_until, states, tables_of, worker
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    ORDERS,
    SEED,
    SEEDED,
    applied,
    doing,
    done,
    holds,
    stands,
    steps,
)
from trunkline.errors import (
    DestinationHalted,
    DuplicateKey,
    Fenced,
    PositionMoved,
    SchemaMismatch,
    TrunklineError,
    Unreachable,
)

MEMBERS: Final = ("shop/acme", "shop/bolt", "shop/coil")
STATEMENTS_MAX: Final = 240
ROUNDS: Final = 5
MANY: Final = 30


def tables(member: str) -> tuple[str, str]:
    name = member.removeprefix("shop/")
    return f"{name}_items", f"{name}_orders"


def seeds(site: Site, members: tuple[str, ...] = MEMBERS) -> list[Doing]:
    return [doing(site, dict.fromkeys(tables(member), SEEDED), SEED, member) for member in members]


def flushes(site: Site, members: tuple[str, ...] = MEMBERS) -> list[Doing]:
    return [doing(site, dict.fromkeys(tables(member), CHANGES), FLUSH, member) for member in members]


def group_seeded(site: Site) -> None:
    assert done(site, *seeds(site)) == dict.fromkeys(MEMBERS, Applied(10, written=6))


def at(site: Site, member: str) -> Standing | None:
    return stands(site, tables(member), member)


def is_old(site: Site, member: str) -> None:
    holds(site, dict.fromkeys(tables(member), SEEDED))
    assert at(site, member) == Standing(10, 1, "lake/orders")


def is_new(site: Site, member: str) -> None:
    holds(site, dict.fromkeys(tables(member), FLUSHED))
    assert at(site, member) == Standing(20, 1, "lake/orders")


def test_members_that_share_a_place_are_written_together_each_with_its_own_record(site: Site) -> None:
    group_seeded(site)
    for member in MEMBERS:
        is_old(site, member)
    assert done(site, *flushes(site)) == dict.fromkeys(MEMBERS, Applied(20, removed=4, written=4))
    for member in MEMBERS:
        is_new(site, member)


def test_a_group_without_members_writes_nothing(site: Site) -> None:
    with closing(site.open()) as place:
        assert place.apply([]) == {}
        assert place.standings([]) == {}


# ----------------------------------------------------------------------------------------------- U2: one member fails


def _changed(one: Doing, **changed: object) -> Doing:
    return one._replace(step=replace(one.step, **changed))


def _duplicate(site: Site, one: Doing) -> Doing:
    return one._replace(rows={**one.rows, one.step.tables[1].table: [(Op.INSERT, SEEDED[2])]})


def _mismatch(site: Site, one: Doing) -> Doing:
    odd = replace(one.step.tables[1], columns=(*ORDERS[:2], Column("amount", "VARCHAR")))
    return _changed(one, tables=(one.step.tables[0], odd))._replace(rows={one.step.tables[0].table: CHANGES})


def _anothers_table(site: Site, one: Doing) -> Doing:
    theirs = tables(MEMBERS[0])[0]
    joins = replace(FLUSH, replaces=True).table(site, theirs)
    return _changed(one, tables=(*one.step.tables, joins))._replace(rows={**one.rows, theirs: SEEDED})


def _foreign_table(site: Site, one: Doing) -> Doing:
    site.make_foreign("foreign")
    joins = replace(FLUSH, replaces=True).table(site, "foreign")
    return _changed(one, tables=(*one.step.tables, joins))._replace(rows={**one.rows, "foreign": SEEDED})


def _fenced(site: Site, one: Doing) -> Doing:
    nothing: dict[str, list[Change]] = {name: [] for name in tables(one.step.member)}
    plan = replace(FLUSH, token=9, expected=10, through=11)
    applied(site, doing(site, {**nothing, tables(one.step.member)[0]: [(Op.REMOVE, {"id": 1})]}, plan, one.step.member))
    return one


def _moved(site: Site, one: Doing) -> Doing:
    return _changed(one, expected=9)


def _foreign(site: Site, one: Doing) -> Doing:
    return _changed(one, source="lake/others")


FAILURES: Final[dict[str, tuple[Callable[[Site, Doing], Doing], type[TrunklineError]]]] = {
    "duplicate key": (_duplicate, DuplicateKey),
    "other columns": (_mismatch, SchemaMismatch),
    "fenced": (_fenced, Fenced),
    "moved": (_moved, PositionMoved),
    "another source": (_foreign, DestinationHalted),
    "a table of another member": (_anothers_table, DestinationHalted),
    "a table of no member": (_foreign_table, DestinationHalted),
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "middle", "last"])
def test_u2_a_member_that_fails_is_left_out_and_the_others_commit(site: Site, how: str, which: int) -> None:
    if how == "a table of another member" and which == 0:
        which = 1
    group_seeded(site)
    doings = flushes(site)
    fail, expected = FAILURES[how]
    doings[which] = fail(site, doings[which])
    member = MEMBERS[which]
    rows = {name: content(site.held(name)) for name in tables(member)}
    record = at(site, member)
    results = done(site, *doings)
    assert type(results[member]) is expected, results
    assert {name: content(site.held(name)) for name in tables(member)} == rows
    assert at(site, member) == record
    for other in set(MEMBERS) - {member}:
        assert results[other] == Applied(20, removed=4, written=4)
        is_new(site, other)


def test_u2_several_members_fail_each_for_its_own_reason(site: Site) -> None:
    group_seeded(site)
    acme, bolt, coil = flushes(site)
    before = site.trace()
    results = done(site, _duplicate(site, acme), _mismatch(site, bolt), _moved(site, coil))
    assert [type(results[member]) for member in MEMBERS] == [DuplicateKey, SchemaMismatch, PositionMoved]
    assert site.trace() == before, "nothing was written at all"
    results = done(site, _duplicate(site, acme), bolt, _foreign(site, coil))
    assert [type(results[member]) for member in MEMBERS] == [DuplicateKey, Applied, DestinationHalted]
    is_old(site, MEMBERS[0])
    is_new(site, MEMBERS[1])
    is_old(site, MEMBERS[2])


def test_u2_a_member_that_failed_succeeds_when_its_reason_is_resolved(site: Site) -> None:
    group_seeded(site)
    acme, bolt, coil = flushes(site)
    done(site, acme, _duplicate(site, bolt), coil)
    assert done(site, acme, bolt, coil) == {
        MEMBERS[0]: Applied(20, already=True),
        MEMBERS[1]: Applied(20, removed=4, written=4),
        MEMBERS[2]: Applied(20, already=True),
    }
    for member in MEMBERS:
        is_new(site, member)


def test_t7_rows_that_break_off_leave_no_member_half_written(site: Site) -> None:
    def broken() -> object:
        yield pa.RecordBatch.from_pylist([], ORDERS_STAGED)
        raise EOFError("the rows broke off")

    group_seeded(site)
    doings = flushes(site)
    writes = [one.write() for one in doings]
    name = tables(MEMBERS[1])[1]
    writes[1] = writes[1]._replace(rows={**writes[1].rows, name: broken})  # type: ignore[dict-item]
    with closing(site.open()) as place:
        with pytest.raises(EOFError, match="broke off"):
            place.apply(writes)
        results = apply_group(place, Group(site, tuple(doings)))  # and it can be used again
    for member in MEMBERS:
        assert isinstance(results[member], Applied)
        is_new(site, member)


ORDERS_STAGED: Final = pa.schema(
    [("_trunkline_op", pa.int8()), ("id", pa.int64()), ("tenant", pa.string()), ("amount", pa.int32())]
)


def test_t7_a_place_that_cannot_be_reached_is_unreachable_for_every_member(site: Site) -> None:
    lost = site.lost()
    with closing(lost.open()) as place:
        try:
            results = place.apply([one.write() for one in flushes(lost)])
        except Unreachable:
            return
    assert {type(result) for result in results.values()} == {Unreachable}


# ------------------------------------------------------------------------------------ U4, U5: repeated, and contested


def test_u5_a_group_is_repeated_after_an_unknown_outcome_and_writes_only_what_was_not_done(site: Site) -> None:
    group_seeded(site)
    doings = flushes(site)
    done(site, doings[1])
    assert done(site, *doings) == {
        MEMBERS[0]: Applied(20, removed=4, written=4),
        MEMBERS[1]: Applied(20, already=True),
        MEMBERS[2]: Applied(20, removed=4, written=4),
    }
    before = site.trace()
    assert done(site, *doings) == dict.fromkeys(MEMBERS, Applied(20, already=True))
    assert site.trace() == before


def test_seeds_and_flushes_and_a_first_flush_share_a_group(site: Site) -> None:
    seed_one, seed_two, _ = seeds(site)
    done(site, seed_one)
    first = doing(
        site,
        {name: [(Op.INSERT, row) for row in SEEDED] for name in tables(MEMBERS[2])},
        replace(FLUSH, expected=0, through=10),
        MEMBERS[2],
    )
    assert done(site, flushes(site)[0], seed_two, first) == {
        MEMBERS[0]: Applied(20, removed=4, written=4),
        MEMBERS[1]: Applied(10, written=6),
        MEMBERS[2]: Applied(10, written=6),
    }
    is_new(site, MEMBERS[0])
    is_old(site, MEMBERS[1])
    is_old(site, MEMBERS[2])


def test_u4_of_two_processes_with_overlapping_groups_one_writes_each_member(site: Site, kind: Kind) -> None:
    group_seeded(site)
    held: list[Row] = list(SEEDED)
    with worker(Table(site)) as one, worker(Table(site)) as two:
        for number in range(ROUNDS):
            row: Row = {"id": 100 + number, "tenant": "acme", "amount": number}
            plan = replace(FLUSH, expected=10 + number, through=11 + number)
            each = {
                member: doing(site, {name: [(Op.INSERT, row)] for name in tables(member)}, plan, member)
                for member in MEMBERS
            }
            held.append(row)
            one.send(Group(site, (each["shop/acme"], each["shop/bolt"], each["shop/coil"])))
            two.send(Group(site, (each["shop/coil"], each["shop/bolt"])))
            found = [one.recv(), two.recv()]
            assert found[0]["shop/acme"] == Applied(11 + number, written=2), found
            for member in ("shop/bolt", "shop/coil"):
                answers = [each[member] for each in found]
                assert {type(answer) for answer in answers} == {Applied}, answers
                assert not all(answer.already for answer in answers), answers
                if not kind.commits_alone:  # else each may have written a table
                    expected = [Applied(11 + number, written=2), Applied(11 + number, already=True)]
                    assert sorted(answers, key=lambda answer: answer.already) == expected
    for member in MEMBERS:
        holds(site, dict.fromkeys(tables(member), held))
        assert at(site, member) == Standing(10 + ROUNDS, 1, "lake/orders")


@needs("column_steps")
def test_t6_columns_of_one_member_change_and_those_of_another_do_not(site: Site) -> None:
    group_seeded(site)
    moved = steps(ORDERS, {ORDERS[0]: "id", ORDERS[1]: "tenant", Column("sum", "INTEGER"): "amount"})
    plan = replace(FLUSH, columns=moved.after, steps=moved)
    name, other = tables("shop/bolt")
    reshaped = doing(site, {name: (plan, []), other: CHANGES}, FLUSH, "shop/bolt")
    broken = doing(site, {n: (plan, [(Op.INSERT, {"id": 3})]) for n in tables("shop/coil")}, FLUSH, "shop/coil")
    results = done(site, flushes(site)[0], reshaped, broken)
    assert results["shop/acme"] == Applied(20, removed=4, written=4)
    found = results["shop/bolt"]
    assert isinstance(found, Applied)
    assert found.reshaped.startswith(moved.spelled())
    assert isinstance(results["shop/coil"], DuplicateKey)
    renamed = [{"id": row["id"], "tenant": row["tenant"], "sum": row["amount"]} for row in SEEDED]
    holds(site, {name: renamed, other: FLUSHED})
    is_new(site, "shop/acme")
    is_old(site, "shop/coil")


def test_many_members_are_one_group(site: Site) -> None:
    members = tuple(f"shop/m{number:02}" for number in range(MANY))
    one_table = {member: member.removeprefix("shop/") for member in members}
    seeded = [doing(site, {one_table[member]: SEEDED}, SEED, member) for member in members]
    assert done(site, *seeded) == dict.fromkeys(members, Applied(10, written=3))
    changes = [doing(site, {one_table[member]: CHANGES}, FLUSH, member) for member in members]
    changes[7] = _changed(changes[7], expected=9)
    results = done(site, *changes)
    assert isinstance(results.pop(members[7]), PositionMoved)
    assert set(results.values()) == {Applied(20, removed=2, written=2)}
    with closing(site.open()) as place:
        found = place.standings([tables_of(one) for one in changes])
    assert found.pop(members[7]) == Standing(10, 1, "lake/orders")
    assert set(found.values()) == {Standing(20, 1, "lake/orders")}


# ----------------------------------------------------------------------------------------------------- killed anywhere


@pytest.mark.parametrize("first", [False, True], ids=["flush", "first seed"])
def test_t1_a_process_killed_at_any_statement_leaves_every_member_old_or_new(
    site: Site, kind: Kind, first: bool
) -> None:
    if not first:
        group_seeded(site)
    doings = seeds(site) if first else flushes(site)
    old = states(site, doings)
    rows = SEEDED if first else FLUSHED
    reached = Standing(10 if first else 20, 1, "lake/orders")
    new = [(reached, {name: content(rows) for name in tables(one.step.member)}) for one in doings]
    group = Group(site, tuple(doings), replans=True)
    seen = []
    for number in range(STATEMENTS_MAX):
        lived = run_until(Table(site), group, number)
        found = states(site, doings)
        if kind.commits_alone:
            between = [each for each, before, after in zip(found, old, new, strict=True) if each not in (before, after)]
            assert len(between) <= 1, "one member after the other"
        else:
            assert found in (old, new), f"killed before statement {number}"
        seen.append(sum(each == after for each, after in zip(found, new, strict=True)))
        if lived:
            break
    assert lived, "the step never came to its end"
    assert seen == sorted(seen), "once it is there it stays"
    assert (seen[0], seen[-2:]) == (0, [3, 3])
