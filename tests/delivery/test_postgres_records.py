"""The records of members in PostgreSQL: found by name, by tables, or as an older release left them; one per table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.conninfo import make_conninfo

from contract.postgres_destination import PostgresKind, PostgresSite
from postgres_server import PostgresServer
from trunkline.core.fence import Decision, PlannedWrite, StoredPosition, decide
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations.contract import Applied, MemberResult, MemberTables, Standing
from trunkline.delivery.destinations.postgres_place import PostgresPlace
from trunkline.destination_suite.place import Doing, Row, Table, content
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    MARK_A,
    ORDERS,
    SEED,
    SEEDED,
    applied,
    doing,
    done,
    flushed,
    holds,
    seeded,
    standing,
    stands,
)
from trunkline.errors import DestinationHalted, PositionMoved

WAIT_S: Final = 30.0


@pytest.fixture
def site(postgres: PostgresServer, tmp_path: Path) -> PostgresSite:
    return PostgresKind().make(tmp_path, lambda: postgres)


def records(site: PostgresSite) -> dict[str, tuple[Any, ...]]:
    rows = site.run("SELECT member, position, token, tables::json FROM {}", "_trunkline_members")
    return {row["member"]: (row["position"], row["token"], sorted(row["tables"])) for row in rows}


def listed(site: PostgresSite, *names: str) -> list[str]:
    return sorted(f"{site.home}.{site.address(name).table}" for name in names)


# ------------------------------------------------------------------------------------------------------------- renamed


def test_a_renamed_member_has_one_record_under_its_new_name(site: PostgresSite) -> None:
    applied(site, doing(site, {"a": SEEDED, "b": SEEDED}, SEED, "shop/old"))
    assert applied(site, doing(site, {"a": CHANGES, "b": []}, FLUSH, "shop/new")).position == 20
    assert records(site) == {"shop/new": (20, 1, listed(site, "a", "b"))}
    # a program that still uses the old name finds the same record, and its position
    with pytest.raises(PositionMoved):
        applied(site, doing(site, {"a": CHANGES, "b": CHANGES}, replace(FLUSH, through=21), "shop/old"))


def test_a_renamed_member_may_have_lost_tables_since_but_gained_none(site: PostgresSite) -> None:
    applied(site, doing(site, {"a": SEEDED, "b": SEEDED}, SEED, "shop/old"))
    assert stands(site, ("a",), "shop/new") == Standing(10, 1, "lake/orders")
    assert stands(site, ("a", "b", "c"), "shop/new") is None
    with pytest.raises(DestinationHalted, match="shop/old"):
        applied(site, doing(site, {"a": SEEDED, "c": SEEDED}, SEED, "shop/new"))
    assert site.held("c") is None
    left = doing(site, {"a": CHANGES}, FLUSH, "shop/new", leaving={"b": True})
    assert applied(site, left) == Applied(20, removed=2, written=2)
    assert records(site) == {"shop/new": (20, 1, listed(site, "a"))}
    holds(site, {"a": FLUSHED, "b": None})


def test_a_renamed_member_is_found_also_by_a_step_that_has_only_a_table_that_joins(site: PostgresSite) -> None:
    applied(site, doing(site, {"a": SEEDED}, SEED, "shop/old"))
    joins = doing(site, {"b": (replace(FLUSH, replaces=True), SEEDED)}, FLUSH, "shop/new")
    with pytest.raises(PositionMoved):  # nothing says that it is the same one
        applied(site, joins)
    joins = joins._replace(step=replace(joins.step, known=(site.address("a"),)))
    assert applied(site, joins) == Applied(20, written=3)
    assert records(site) == {"shop/new": (20, 1, listed(site, "a", "b"))}


def test_a_member_beside_the_owner_of_its_tables_is_another_one(site: PostgresSite) -> None:
    """Both are written at once, so neither is the other under a new name."""
    applied(site, doing(site, {"a": SEEDED}, SEED, "shop/one"))
    found = done(
        site, doing(site, {"a": CHANGES}, FLUSH, "shop/one"), doing(site, {"a": CHANGES}, replace(FLUSH), "shop/two")
    )
    assert found["shop/one"] == Applied(20, removed=2, written=2)
    assert isinstance(found["shop/two"], PositionMoved)
    first = replace(FLUSH, expected=0)
    again = replace(FLUSH, expected=20, through=30)
    found = done(site, doing(site, {"a": []}, again, "shop/one"), doing(site, {"a": CHANGES}, first, "shop/two"))
    assert isinstance(found["shop/two"], DestinationHalted)
    assert "shop/one" in str(found["shop/two"])
    assert records(site) == {"shop/one": (30, 1, listed(site, "a"))}


def test_retiring_a_name_that_was_never_written_leaves_the_record_of_a_larger_member(site: PostgresSite) -> None:
    applied(site, doing(site, {"a": SEEDED, "b": SEEDED}, SEED, "shop/one"))
    with closing(site.open()) as place:
        place.retire(MemberTables("shop/two", site.home, (site.address("a"),)))
        assert set(records(site)) == {"shop/one"}
        place.retire(MemberTables("shop/renamed", site.home, (site.address("a"), site.address("b"))))
        assert records(site) == {}


def test_a_damaged_record_stops_only_its_member(site: PostgresSite) -> None:
    for name in ("a", "b"):
        applied(site, doing(site, {name: SEEDED}, SEED, f"shop/{name}"))
    for damage in ('{"x": 1}', "[]"):
        site.run("UPDATE {} SET tables = %s WHERE member = 'shop/a'", "_trunkline_members", given=(damage,))
        position = stands(site, ("b",), "shop/b")
        assert position is not None
        plan = replace(FLUSH, expected=position.position, through=position.position + 1)
        found = done(site, *(doing(site, {name: []}, plan, f"shop/{name}") for name in "ab"))
        assert isinstance(found["shop/a"], DestinationHalted), damage
        assert found["shop/b"] == Applied(position.position + 1)


# ------------------------------------------------------------------------------------------------------ older releases

OLDER: Final = Standing(10, 7, "lake/orders", MARK_A)


def older_program(site: PostgresSite, name: str, step: PlannedWrite) -> Decision:
    """What a release without members does in its transaction before it writes: lock its record, and ask the fence."""
    with psycopg.connect(site.dsn) as connection:
        found = connection.execute(
            f'SELECT position, token, source FROM "{site.home}"._trunkline_positions '
            "WHERE table_name = %s FOR UPDATE".encode(),
            [site.address(name).table],
        ).fetchone()
    return decide(StoredPosition() if found is None else StoredPosition(found[0], found[1], "", found[2]), step)


def test_an_older_program_is_fenced_after_the_first_write(site: PostgresSite) -> None:
    table = Table(site)
    seeded(table)
    site.make_old_record(table.name, OLDER, marks=False)
    flush = PlannedWrite(10, "", 20, "", 8, "lake/orders")
    assert older_program(site, table.name, flush) is Decision.PROCEED
    assert flushed(table, replace(FLUSH, token=8), CHANGES).position == 20
    for step in (
        flush,
        flush._replace(token=2**40),
        flush._replace(expected=20, through=30),
        flush._replace(source=None),
    ):
        assert older_program(site, table.name, step) is Decision.FENCED
    assert standing(table) == Standing(20, 8, "lake/orders")


def test_a_flush_without_rows_takes_over_the_record_of_an_older_release_too(site: PostgresSite) -> None:
    table = Table(site)
    seeded(table)
    site.make_old_record(table.name, OLDER, marks=True)
    step = doing(site, {table.name: []}, replace(FLUSH, token=8, mark=MARK_A))
    assert applied(site, Doing(step.step, {})) == Applied(20)
    assert records(site) == {"shop/acme": (20, 8, listed(site, "orders"))}
    assert older_program(site, table.name, PlannedWrite(10, "", 20, "", 8, "lake/orders")) is Decision.FENCED
    with closing(table.open()) as destination:
        assert destination.columns() == ORDERS


def test_a_step_for_another_table_takes_over_the_record_of_an_older_release_too(site: PostgresSite) -> None:
    seeded(Table(site))
    site.make_old_record("orders", OLDER, marks=False)
    joins = doing(site, {"items": (replace(FLUSH, replaces=True), SEEDED)}, replace(FLUSH, token=8))
    joins = joins._replace(step=replace(joins.step, known=(site.address("orders"),)))
    assert applied(site, joins) == Applied(20, written=3)
    assert records(site) == {"shop/acme": (20, 8, listed(site, "orders", "items"))}
    assert older_program(site, "orders", PlannedWrite(10, "", 20, "", 9, "lake/orders")) is Decision.FENCED


def test_an_older_program_and_a_new_one_that_write_at_once_are_serial(site: PostgresSite) -> None:
    table = Table(site)
    seeded(table)
    site.make_old_record(table.name, OLDER, marks=True)
    row = (site.address("orders").table,)
    with psycopg.connect(site.dsn) as older:
        positions = f'"{site.home}"._trunkline_positions'
        older.execute(f"SELECT FROM {positions} WHERE table_name = %s FOR UPDATE".encode(), row)
        results: list[Results] = []
        plan = replace(FLUSH, token=8, mark=MARK_A)
        thread = threading.Thread(target=lambda: results.append(done(site, doing(site, {"orders": CHANGES}, plan))))
        thread.start()
        until(lambda: waits(site))
        older.execute(f"UPDATE {positions} SET position = 15, token = 7 WHERE table_name = %s".encode(), row)
    thread.join()
    moved = results[0]["shop/acme"]
    assert isinstance(moved, PositionMoved)
    assert moved.position == 15
    assert standing(table) == Standing(15, 7, "lake/orders")


def test_a_set_takes_over_tables_of_several_older_records_only_with_replace_existing(site: PostgresSite) -> None:
    for name in ("a", "b"):
        seeded(Table(site, name, f"shop/{name}"))
    site.make_old_record("a", OLDER, marks=True)
    site.run("INSERT INTO {} SELECT %s, 11, 7, source, columns FROM {}", "_trunkline_positions", "_trunkline_positions",
             given=(site.address("b").table,))  # fmt: skip
    assert stands(site, ("a", "b")) is None
    seed = doing(site, {"a": SEEDED, "b": SEEDED}, replace(SEED, token=8))
    with pytest.raises(DestinationHalted, match="replace_existing"):
        applied(site, seed)
    assert [site.old_token(name) for name in "ab"] == [7, 7]
    assert applied(site, Doing(replace(seed.step, replace_existing=True), seed.rows)).position == 10
    for name in ("a", "b"):
        assert older_program(site, name, PlannedWrite(10, "", 20, "", 9, "lake/orders")) is Decision.FENCED


def test_the_record_of_a_retired_member_is_not_found_in_what_an_older_release_left(site: PostgresSite) -> None:
    table = Table(site)
    seeded(table)
    site.make_old_record(table.name, OLDER, marks=True)
    flushed(table, replace(FLUSH, token=8, mark=MARK_A), CHANGES)
    with closing(table.open()) as destination:
        destination.retire()
        assert destination.standing() is None
    with pytest.raises(DestinationHalted, match="replace_existing"):
        seeded(table)


def test_an_older_record_that_was_never_taken_over_is_retired(site: PostgresSite) -> None:
    table = Table(site)
    seeded(table)
    site.make_old_record(table.name, OLDER, marks=True)
    with closing(table.open()) as destination:
        destination.retire()
        assert destination.standing() is None
    assert site.old_token(table.name) is None


# ----------------------------------------------------------------------------------------------- one member per table


def test_of_members_that_claim_one_table_at_once_one_gets_it(site: PostgresSite) -> None:
    """In one home and in two, each before the other has committed."""
    other_home = PostgresSite(site.dsn, f"{site.home}_other")
    site.run(f'CREATE SCHEMA "{other_home.home}"')
    for number, home in enumerate((site, other_home)):
        name = f"contested{number}"
        seed_other = doing(site, {name: SEEDED}, SEED, f"shop/second{number}")
        seed_other = seed_other._replace(step=replace(seed_other.step, home=home.home, replace_existing=True))
        first, found = while_committing(site, doing(site, {name: SEEDED}, SEED, f"shop/first{number}"), seed_other)
        assert first == {f"shop/first{number}": Applied(10, written=3)}
        refused = found[f"shop/second{number}"]
        assert isinstance(refused, DestinationHalted)
        assert f"shop/first{number}" in str(refused)
        assert stands(site, (name,), f"shop/first{number}") == Standing(10, 1, "lake/orders")


def test_of_two_processes_that_begin_one_member_at_once_one_writes_it(site: PostgresSite) -> None:
    rows: list[Row] = [{"id": 9, "tenant": "late", "amount": 9}]
    late = doing(site, {"orders": rows}, SEED)
    first, second = while_committing(site, doing(site, {"orders": SEEDED}, SEED), late)
    assert first == {"shop/acme": Applied(10, written=3)}
    assert second == {"shop/acme": Applied(10, already=True)}
    holds(site, {"orders": SEEDED})


def test_a_table_in_the_schema_of_another_members_home_is_that_members(site: PostgresSite) -> None:
    """A member whose tables lie in several schemas has its record in the schema public."""
    seeded(Table(site))
    public = PostgresSite(site.dsn, "public")
    step = doing(site, {"orders": SEEDED}, SEED, f"shop/{site.home}")
    found = done(public, step._replace(step=replace(step.step, home="public", replace_existing=True)))
    refused = found[f"shop/{site.home}"]
    assert isinstance(refused, DestinationHalted)
    assert "shop/acme" in str(refused)
    wide = doing(site, {"items": SEEDED}, SEED, f"shop/{site.home}")
    wide = wide._replace(step=replace(wide.step, home="public"))
    assert applied(public, wide) == Applied(10, written=3)
    with pytest.raises(DestinationHalted, match=f"shop/{site.home}"):
        seeded(Table(site, "items", "shop/bolt"), replace(SEED, replace_existing=True))
    with closing(public.open()) as place:
        assert place.columns(site.address("items")) == ORDERS
        place.retire(MemberTables(f"shop/{site.home}", "public", ()))


def test_records_that_the_user_may_not_read_are_those_of_other_homes(site: PostgresSite) -> None:
    """Of members in the schema public, say, which belong to another user."""
    public = PostgresSite(site.dsn, "public")
    wide = doing(site, {"items": SEEDED}, SEED, f"shop/{site.home}")
    assert applied(public, wide._replace(step=replace(wide.step, home="public"))) == Applied(10, written=3)
    role = f"r{site.home}"
    site.run(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    site.run(f"GRANT ALL ON SCHEMA {site.home} TO {role}")
    weak = PostgresSite(make_conninfo(site.dsn, user=role, password="x"), site.home)
    assert applied(weak, doing(weak, {"orders": SEEDED}, SEED)) == Applied(10, written=3)
    with pytest.raises(DestinationHalted):  # not this one
        applied(weak, doing(weak, {"orders": [], "items": (replace(FLUSH, replaces=True), SEEDED)}))
    with closing(weak.open()) as place:
        assert place.columns(weak.address("orders")) == ORDERS
    with closing(public.open()) as place:
        place.retire(MemberTables(f"shop/{site.home}", "public", ()))
    site.run(f"DROP OWNED BY {role} CASCADE")
    site.run(f"DROP ROLE {role}")


def test_a_join_that_fails_at_its_rows_leaves_the_table_to_others(site: PostgresSite) -> None:
    seeded(Table(site))
    joined = doing(site, {"orders": [], "items": (replace(FLUSH, replaces=True), [SEEDED[0], SEEDED[0]])})
    with pytest.raises(DestinationHalted):
        applied(site, joined)
    assert site.held("items") is None
    assert records(site)["shop/acme"] == (10, 1, listed(site, "orders"))
    seeded(Table(site, "items", "shop/bolt"))
    assert content(site.held("items")) == content(SEEDED)


def test_a_place_serves_addresses_of_any_schema_and_table(site: PostgresSite) -> None:
    with closing(PostgresPlace(PostgresAddress(site.dsn, "{table}", "{schema}"))) as place:
        assert place.apply([doing(site, {"orders": SEEDED}, SEED).write()]) == {"shop/acme": Applied(10, written=3)}


# -------------------------------------------------------------------------------------------------------------- others


Results = dict[str, MemberResult]


def while_committing(site: PostgresSite, first: Doing, second: Doing) -> tuple[Results, Results]:
    """The second is begun when the first has written its rows; the first commits when the second waits for it."""
    results: list[Results] = []
    thread = threading.Thread(target=lambda: results.append(done(site, second)))
    written = False

    def watch(statement: str) -> None:
        nonlocal written
        written |= statement.startswith(("COPY", "INSERT INTO"))
        if statement == "COMMIT" and written:
            thread.start()
            until(lambda: waits(site))

    with closing(site.open(watch)) as place:
        found = place.apply([first.write()])
    thread.join()
    return found, results[0]


def waits(site: PostgresSite) -> bool:
    """Whether another session waits for a lock."""
    waiting = "SELECT 1 AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(site.run(waiting))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
