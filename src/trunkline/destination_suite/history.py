"""History tables, in every kind of place: rule T11 of ``destinations/contract.py``.

``Applied`` counts versions: ``removed`` are those that were closed, ``written`` those that were added, ``missing`` the
keys to close that have no open version.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import pytest
from msgspec.structs import replace

from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.history import HISTORY_COLUMNS
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.destination_suite.place import Change, Kind, Plan, Row, Site, Table, content, needs
from trunkline.destination_suite.processes import Group, run_until, states
from trunkline.destination_suite.steps import (
    FLUSH,
    ORDERS,
    SEED,
    applied,
    doing,
    done,
    flushed,
    seeded,
    standing,
    steps,
)
from trunkline.errors import DuplicateKey, SchemaMismatch

VERSIONED: Final[Columns] = (*ORDERS, *HISTORY_COLUMNS)
HISTORY_SEED: Final = replace(SEED, columns=VERSIONED, mode="history")
HISTORY_FLUSH: Final = replace(FLUSH, columns=VERSIONED, mode="history")
STATEMENTS_MAX: Final = 160


def time(position: int) -> datetime.datetime:
    return datetime.datetime(2026, 11, 18, 1, 0, 0, position, tzinfo=datetime.UTC)


def version(number: int | None, amount: int, since: int, to: int | None = None, **more: Any) -> dict[str, Any]:
    """A version of a row; open if it has no end."""
    return {
        "id": number,
        "tenant": "acme",
        "amount": amount,
        "_valid_from": since,
        "_valid_to": to,
        "_valid_from_time": time(since),
        "_valid_to_time": None if to is None else time(to),
        "_current": to is None,
        **more,
    }


def closed(number: int | None, to: int) -> Change:
    return Op.REMOVE, {"id": number, "_valid_to": to, "_valid_to_time": time(to)}


def added(*arguments: Any) -> Change:
    return Op.INSERT, version(*arguments)


OPEN: Final[list[Row]] = [version(n, (n or 0) * 10, 10) for n in (1, 2, 3, None)]
CHANGES: Final[list[Change]] = [
    closed(1, 12),  # changed twice, and there at the end
    added(1, 11, 12, 15),
    added(1, 12, 15),
    closed(2, 14),  # removed
    closed(None, 20),  # changed
    added(None, 1, 20),
    added(4, 40, 11),  # new
    added(5, 50, 13, 16),  # came and went
]
CHANGED: Final[list[Row]] = [
    version(1, 10, 10, 12),
    version(1, 11, 12, 15),
    version(1, 12, 15),
    version(2, 20, 10, 14),
    version(3, 30, 10),
    version(None, 0, 10, 20) | {"amount": None},
    version(None, 1, 20),
    version(4, 40, 11),
    version(5, 50, 13, 16),
]
EXPECTED: Final = Applied(20, removed=3, written=5)


def history(table: Table) -> None:
    rows = [row | {"amount": None} if row["id"] is None else row for row in map(dict, OPEN)]
    seeded(table, HISTORY_SEED, rows)
    assert content(table.held()) == content(rows)


def spans(table: Table) -> set[tuple[Any, ...]]:
    """Each version by key, value, beginning and end."""
    names = ("id", "amount", "_valid_from", "_valid_to", "_current")
    rows = [tuple(row[name] for name in names) for row in table.held() or []]
    assert len(set(rows)) == len(rows), "no version is there twice"
    return set(rows)


@needs("history")
def test_t11_a_flush_closes_open_versions_and_adds_every_new_one(table: Table) -> None:
    history(table)
    assert flushed(table, HISTORY_FLUSH, CHANGES) == EXPECTED
    assert content(table.held()) == content(CHANGED)
    assert standing(table) == Standing(20, 1, "lake/orders")
    before = table.trace()
    assert flushed(table, HISTORY_FLUSH, CHANGES) == Applied(20, already=True)
    assert table.trace() == before


@needs("history")
def test_t11_only_the_open_version_of_a_key_is_closed(table: Table) -> None:
    history(table)
    flushed(table, HISTORY_FLUSH, CHANGES)
    later = replace(HISTORY_FLUSH, expected=20, through=30)
    again: list[Change] = [closed(1, 25), added(1, 13, 25), added(2, 21, 26)]  # 2 is back
    assert flushed(table, later, again) == Applied(30, removed=1, written=2)
    rows = [dict(row) for row in CHANGED if row != version(1, 12, 15)]
    assert content(table.held()) == content([*rows, version(1, 12, 15, 25), version(1, 13, 25), version(2, 21, 26)])


@needs("history")
def test_t11_a_key_to_close_without_an_open_version_is_missing(table: Table) -> None:
    history(table)
    flushed(table, HISTORY_FLUSH, CHANGES)
    held = table.held()
    later = replace(HISTORY_FLUSH, expected=20, through=30)
    assert flushed(table, later, [closed(2, 22), closed(77, 22)]) == Applied(30, missing=2)
    assert content(table.held()) == content(held)
    uncounted = replace(later, expected=30, through=40, counts_missing=False)
    assert flushed(table, uncounted, [closed(2, 33)]) == Applied(40)


@needs("history")
def test_t11_a_second_open_version_of_a_key_is_a_duplicate_key(table: Table) -> None:
    history(table)
    before = table.trace()
    with pytest.raises(DuplicateKey, match="3"):
        flushed(table, HISTORY_FLUSH, [closed(1, 12), added(3, 31, 12)])
    assert table.trace() == before


@needs("history")
def test_t11_a_seed_over_a_history_compares_and_never_removes(table: Table) -> None:
    history(table)
    flushed(table, HISTORY_FLUSH, CHANGES)
    now = [version(1, 12, 30), version(3, 33, 30), version(6, 60, 30), version(None, 1, 30)]  # 1 and NULL are equal
    reseed = replace(HISTORY_SEED, expected=20, through=30)
    seeded(table, reseed, now)
    kept = {(row["id"], row["amount"], row["_valid_from"], row["_valid_to"], row["_current"]) for row in CHANGED}
    kept -= {(3, 30, 10, None, True), (4, 40, 11, None, True)}
    changed = {(3, 30, 10, 30, False), (4, 40, 11, 30, False), (3, 33, 30, None, True), (6, 60, 30, None, True)}
    assert spans(table) == kept | changed
    assert standing(table) == Standing(30, 1, "lake/orders")
    seeded(table, replace(reseed, expected=30, through=40), [row | {"_valid_from": 40} for row in now])
    assert spans(table) == kept | changed, "equal rows are not written again"
    destination = table.open()
    assert destination.seed(replace(reseed, expected=40, through=50), iter(())) == Applied(50, removed=4)
    destination.close()
    assert not any(row["_current"] for row in table.held() or [])
    assert len(table.held() or []) == len(kept | changed)


@needs("history")
def test_t11_a_seed_that_discards_a_history_leaves_only_its_own_rows_in_its_own_columns(table: Table) -> None:
    history(table)
    flushed(table, HISTORY_FLUSH, CHANGES)
    columns = (Column("id", "BIGINT"), Column("sum", "VARCHAR"), *HISTORY_COLUMNS)
    reseed = replace(HISTORY_SEED, expected=20, through=20, columns=columns)
    rows = [{name: value for name, value in version(7, 0, 20, sum="x").items() if name not in ("tenant", "amount")}]
    with pytest.raises(SchemaMismatch, match="reseed it with --discard-history"):
        seeded(table, reseed, rows)
    seeded(table, replace(reseed, discards=True), rows)
    assert content(table.held()) == content(rows)
    assert standing(table) == Standing(20, 1, "lake/orders")


@needs("history")
def test_t11_a_flush_may_replace_a_history_table_beside_others(site: Site) -> None:
    history(Table(site))
    whole = replace(HISTORY_FLUSH, replaces=True)
    rows = [version(1, 10, 20), version(2, 22, 20)]
    one = doing(site, {"orders": (whole, rows), "plain": (replace(FLUSH, replaces=True), [{"id": 1}])}, HISTORY_FLUSH)
    assert applied(site, one) == Applied(20, removed=3, written=2)
    expected = {(1, 10, 10, None, True), (2, 20, 10, 20, False), (2, 22, 20, None, True), (3, 30, 10, 20, False)}
    assert spans(Table(site)) == expected | {(None, None, 10, 20, False)}
    assert applied(site, one) == Applied(20, already=True)


@needs("history")
def test_t11_a_seed_with_two_rows_of_one_key_is_refused(table: Table) -> None:
    with pytest.raises(DuplicateKey, match="1"):
        seeded(table, HISTORY_SEED, [version(1, 10, 10), version(1, 11, 10)])
    assert table.held() is None


@needs("history", "column_steps")
def test_t11_columns_of_a_history_table_follow_the_source(table: Table) -> None:
    history(table)
    flushed(table, HISTORY_FLUSH, CHANGES)
    wider = (*ORDERS, Column("note", "VARCHAR"), *HISTORY_COLUMNS)
    noted: list[Change] = [closed(3, 25), (Op.INSERT, version(3, 31, 25, note="new"))]
    plan = replace(HISTORY_FLUSH, expected=20, through=30, columns=wider)
    assert flushed(table, plan, noted) == Applied(30, removed=1, written=1)
    rows = [row | {"note": None} for row in map(dict, CHANGED) if row["id"] != 3]
    rows += [version(3, 30, 10, 25, note=None), version(3, 31, 25, note="new")]
    assert content(table.held()) == content(rows)
    renamed = {column: column.name for column in wider if column.name != "amount"}
    moved = steps(wider, {**renamed, Column("sum", "INTEGER"): "amount"})
    plan = replace(plan, expected=30, through=40, columns=moved.after, steps=moved)
    assert flushed(table, plan, [closed(4, 40)]).removed == 1
    held = {(row["id"], row["sum"], row["_valid_to"]) for row in table.held() or []}
    assert (4, 40, 40) in held
    assert len(held) == len(rows)
    with pytest.raises(SchemaMismatch):
        flushed(table, replace(plan, expected=40, through=50, steps=None, columns=VERSIONED), [])


@needs("history")
def test_t11_a_reseed_adds_columns_that_the_source_gained(table: Table) -> None:
    history(table)
    wider = (*ORDERS, Column("note", "VARCHAR"), *HISTORY_COLUMNS)
    seeded(table, replace(HISTORY_SEED, expected=10, through=20, columns=wider), [version(1, 10, 20, note="new")])
    rows = {(row["id"], row["note"], row["_valid_from"], row["_current"]) for row in table.held() or []}
    assert (1, "new", 20, True) in rows
    assert (1, None, 10, False) in rows
    assert len(rows) == 5


@needs("history")
def test_t11_members_with_history_share_a_group_with_mirrors(site: Site) -> None:
    history(Table(site))
    seeded(Table(site, "mirror", "shop/bolt"), SEED, [{"id": 1, "tenant": "x", "amount": 1}])
    results = done(
        site,
        doing(site, {"orders": CHANGES}, HISTORY_FLUSH),
        doing(site, {"mirror": [(Op.REMOVE, {"id": 1})]}, FLUSH, "shop/bolt"),
    )
    assert results == {"shop/acme": EXPECTED, "shop/bolt": Applied(20, removed=1)}
    assert content(site.held("orders")) == content(CHANGED)
    assert site.held("mirror") == []


@needs("history")
@pytest.mark.parametrize("seeds", [False, True], ids=["flush", "seed again"])
def test_t11_a_process_killed_at_any_statement_leaves_the_old_history_or_the_new(
    table: Table, kind: Kind, seeds: bool
) -> None:
    history(table)
    old = content(table.held())
    now: list[Row] = [version(1, 10, 20), version(2, 22, 20)]
    plan: Plan = replace(HISTORY_SEED, expected=10, through=20) if seeds else HISTORY_FLUSH
    one = doing(table.site, {"orders": now if seeds else CHANGES}, plan)
    seen = []
    for at in range(STATEMENTS_MAX):
        lived = run_until(table, Group(table.site, (one,)), at)
        [(before, held)] = states(table.site, [one])
        assert isinstance(before, Standing)
        seen.append(before.position == 20)
        if not seen[-1]:
            assert held == {"orders": old}
        elif not seeds:
            assert held == {"orders": content(CHANGED)}
        if lived:
            break
    assert lived
    assert seen == sorted(seen)
    assert seen[-2:] == [True, True]
    if seeds:
        expected = {(1, 10, 10, None, True), (2, 20, 10, 20, False), (2, 22, 20, None, True), (3, 30, 10, 20, False)}
        assert spans(table) == expected | {(None, None, 10, 20, False)}
