"""PostgreSQL as a place: what groups of members have there beyond the contract that every kind keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import psycopg
import pytest
from msgspec.structs import replace
from psycopg import sql
from psycopg.conninfo import make_conninfo

from contract.postgres_destination import PostgresKind, PostgresSite
from postgres_server import PostgresServer
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations import postgres_place
from trunkline.delivery.destinations.contract import Applied, MemberStep, MemberTables, MemberWrite, Standing, TableStep
from trunkline.delivery.destinations.postgres_place import PostgresPlace
from trunkline.destination_suite.place import Change, Doing, Row, Table, content
from trunkline.destination_suite.steps import CHANGES, FLUSH, FLUSHED, SEED, SEEDED, applied, doing, done, holds, stands
from trunkline.errors import DestinationHalted, OutcomeUnknown, TrunklineError, Unreachable

NAMES: Final = ("acme", "bolt", "coil")
STANDS: Final = Standing(20, 1, "lake/orders")
MANY: Final = 10_000
MANY_S_MAX: Final = 120.0  # of a loaded machine; usually seconds
TABLES: Final = 300
WAIT_S: Final = 30.0
LAST: Final = 40


@pytest.fixture
def site(postgres: PostgresServer, tmp_path: Path) -> PostgresSite:
    return PostgresKind().make(tmp_path, lambda: postgres)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def member(name: str) -> str:
    return f"shop/{name}"


def seeded(site: PostgresSite, names: tuple[str, ...] = NAMES) -> None:
    found = done(site, *(doing(site, {name: SEEDED}, SEED, member(name)) for name in names))
    assert found == {member(name): Applied(10, written=3) for name in names}


def flushes(site: PostgresSite, names: tuple[str, ...] = NAMES) -> list[Doing]:
    return [doing(site, {name: CHANGES}, FLUSH, member(name)) for name in names]


def errors(results: dict[str, Any]) -> dict[str, type[TrunklineError]]:
    return {name.removeprefix("shop/"): type(each) for name, each in results.items() if not isinstance(each, Applied)}


def at_statement(site: PostgresSite, beginning: str, act: Callable[[], object]) -> PostgresPlace:
    """A place that does something just before it sends the first statement that begins like this."""
    left = [act]

    def watch(statement: str) -> None:
        if statement.lstrip().startswith(beginning) and left:
            left.pop()()

    return site.open(watch)


# -------------------------------------------------------------------------------------------------- errors of the group


def test_errors_of_a_lost_connection_say_what_is_known_of_every_member(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    site = PostgresKind().make(tmp_path, lambda: own_server)
    seeded(site)
    without_key: Change = (Op.REPLACE, {"id": None, "tenant": "acme", "amount": 0})  # not for a pipeline
    others = [doing(site, {name: [*CHANGES, without_key]}, FLUSH, member(name)) for name in NAMES]
    for statement, error, doings in (
        ("SELECT * FROM (SELECT 's", Unreachable, flushes(site)),
        ("DELETE", Unreachable, flushes(site)),
        ("INSERT", Unreachable, flushes(site)),
        ("UPDATE", Unreachable, flushes(site)),
        ("COMMIT", OutcomeUnknown, flushes(site)),
        ("COPY", Unreachable, others),
        ("RELEASE SAVEPOINT member; SAVEPOINT", Unreachable, others),
        ("COMMIT", OutcomeUnknown, others),
    ):
        writes = [one.write() for one in doings]
        writes[1] = writes[1]._replace(step=replace(writes[1].step, expected=5))
        with closing(at_statement(site, statement, own_server.kill)) as place:
            found = place.apply(writes)
        assert {type(found["shop/acme"]), type(found["shop/coil"])} == {error}, statement
        own_server.restart()
        for name in NAMES:
            assert stands(site, (name,), member(name)) == Standing(10, 1, "lake/orders")
            holds(site, {name: SEEDED})
    assert errors(done(site, *flushes(site))) == {}


def test_a_deadlock_is_a_lost_race(site: PostgresSite) -> None:
    seeded(site)
    with psycopg.connect(site.dsn) as other:
        other.execute("SET deadlock_timeout = '10s'")
        other.execute(f"LOCK TABLE {site.named('coil')} IN EXCLUSIVE MODE".encode())
        record = f"UPDATE \"{site.home}\"._trunkline_members SET mark = '' WHERE member = 'shop/acme'"

        def other_waits() -> None:
            thread.start()
            waiting = (
                f"SELECT 1 AS n FROM pg_stat_activity WHERE pid = {other.info.backend_pid} AND wait_event_type = 'Lock'"
            )
            deadline = time.monotonic() + WAIT_S
            while not site.run(waiting):
                assert time.monotonic() < deadline

        def update() -> None:
            other.execute(record.encode())
            other.rollback()

        thread = threading.Thread(target=update)
        with closing(at_statement(site, "DELETE", other_waits)) as place:
            found = place.apply([one.write() for one in flushes(site)])
        thread.join()
    assert found == dict.fromkeys(map(member, NAMES), Applied(20, removed=2, written=2))
    for name in NAMES:
        holds(site, {name: FLUSHED})


def test_a_member_that_another_process_holds_does_not_keep_the_others(
    site: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.delivery.backends.postgres_session.SETTINGS", "SET lock_timeout = 100")
    seeded(site)
    with psycopg.connect(site.dsn) as other, closing(site.open()) as place:
        table = f'"{site.home}"._trunkline_members'
        other.execute(f"SELECT FROM {table} WHERE member = 'shop/bolt' FOR UPDATE".encode())
        found = place.apply([one.write() for one in flushes(site)])
        assert errors(found) == {"bolt": Unreachable}
        other.rollback()
        assert errors(place.apply([one.write() for one in flushes(site)])) == {}
    for name in NAMES:
        assert stands(site, (name,), member(name)) == STANDS
        holds(site, {name: FLUSHED})


def test_a_commit_that_the_server_refuses_is_found_out_member_by_member(site: PostgresSite) -> None:
    seeded(site)
    bolt = site.address("bolt").table
    site.run("ALTER TABLE {} ADD CONSTRAINT late UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED", bolt)
    doings = flushes(site)
    doings[1] = doing(site, {"bolt": [(Op.INSERT, {**SEEDED[1], "id": 7})]}, FLUSH, "shop/bolt")
    found = done(site, *doings)
    assert errors(found) == {"bolt": DestinationHalted}
    assert "late" in str(found["shop/bolt"])
    holds(site, {"acme": FLUSHED, "bolt": SEEDED, "coil": FLUSHED})
    assert stands(site, ("bolt",), "shop/bolt") == Standing(10, 1, "lake/orders")


def test_a_home_that_cannot_be_used_stops_only_its_members(site: PostgresSite) -> None:
    names = {"weak": f"{site.home}_weak", "none": f"{site.home}_none", "fine": f"{site.home}_fine"}
    role = f"r{site.home}"
    site.run(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    for schema in (names["weak"], names["fine"]):
        site.run(f"CREATE SCHEMA {schema}")
    site.run(f"GRANT ALL ON SCHEMA {names['fine']} TO {role}")
    for tries in range(2):
        if tries:  # now there is a record that it may not read
            site.run(f"CREATE TABLE {names['weak']}._trunkline_members (member text)")
        where = make_conninfo(site.dsn, user=role, password="x")
        homes = {name: PostgresSite(where, schema) for name, schema in names.items()}
        plan = replace(SEED, expected=10 * tries, through=10 * tries + 10)
        doings = [doing(home, {"orders": SEEDED}, plan, member(name)) for name, home in homes.items()]
        doings = [one if tries == 0 or one.step.member == "shop/fine" else _from_zero(one) for one in doings]
        found = done(homes["fine"], *doings)
        assert errors(found) == {"weak": DestinationHalted, "none": DestinationHalted}
        assert "permission denied" in str(found["shop/weak"])
        assert names["none"] in str(found["shop/none"])
        with closing(homes["fine"].open()) as place:
            stands = place.standings([_tables(one) for one in doings])
        assert stands["shop/fine"] == Standing(10 * tries + 10, 1, "lake/orders")
        assert stands["shop/none"] is None
        assert isinstance(stands["shop/weak"], DestinationHalted) == bool(tries)
    site.run(f"DROP OWNED BY {role} CASCADE")
    site.run(f"DROP ROLE {role}")


def _from_zero(one: Doing) -> Doing:
    return one._replace(step=replace(one.step, expected=0))


def _tables(one: Doing) -> MemberTables:
    return MemberTables(one.step.member, one.step.home, tuple(table.address for table in one.step.tables))


# ----------------------------------------------------------------------------------------------------------------- size


def test_tables_without_changes_cost_nothing(site: PostgresSite) -> None:
    names = [f"t{n}" for n in range(40)]
    assert applied(site, doing(site, dict.fromkeys(names, SEEDED), SEED)).written == 120
    statements: list[str] = []
    flush = doing(site, {name: [] for name in names})
    flush = Doing(flush.step, {"t7": CHANGES})
    with closing(site.open(statements.append)) as place:
        place.standings([_tables(flush)])
        statements.clear()
        assert place.apply([flush.write()]) == {"shop/acme": Applied(20, removed=2, written=2)}
    assert len(statements) <= 9, statements  # three of them go out together


def test_a_group_of_many_homes_needs_few_statements(site: PostgresSite) -> None:
    homes = [PostgresSite(site.dsn, f"{site.home}_{n}") for n in range(50)]
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        for home in homes:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(home.home)))
    seeds = [doing(home, {"orders": SEEDED}, SEED, member(home.home)) for home in homes]
    assert set(done(site, *seeds).values()) == {Applied(10, written=3)}
    statements: list[str] = []
    writes = [doing(home, {"orders": CHANGES}, FLUSH, member(home.home)).write() for home in homes]
    with closing(site.open(statements.append)) as place:
        assert set(place.apply(writes).values()) == {Applied(20, removed=2, written=2)}
    assert len(statements) <= 4 * len(homes) + 6
    with closing(site.open()) as place:
        found = place.standings([_tables(one) for one in seeds])
    assert set(found.values()) == {STANDS}


def test_the_standings_of_many_members_take_seconds(site: PostgresSite) -> None:
    applied(site, doing(site, {"orders": SEEDED}, SEED, "shop/first"))
    site.run(
        "INSERT INTO {} SELECT 'shop/' || n, 10, 1, 'lake/orders', '', json_build_object(%s || n, '[]'::json)::text "
        "FROM generate_series(1, %s) n",
        "_trunkline_members",
        given=(f"{site.home}.table ", MANY),
    )
    members = [
        MemberTables(f"shop/{n}", site.home, (PostgresAddress(site.dsn, f"table {n}", site.home),))
        for n in range(1, MANY + 1)
    ]
    first = MemberTables("shop/first", site.home, (site.address("orders"),))
    began = time.monotonic()
    with closing(site.open()) as place:
        found = place.standings([first, *members])
        assert time.monotonic() - began < MANY_S_MAX
        assert found.pop("shop/first") == Standing(10, 1, "lake/orders")
        assert set(found.values()) == {Standing(0, 1, "lake/orders")}, "their tables are not there"
        renamed = [replace(each, member=f"{each.member} now") for each in members]
        began = time.monotonic()
        found = place.standings([*renamed, replace(members[0], member="new", tables=(site.address("new"),))])
        assert time.monotonic() - began < MANY_S_MAX
        assert found.pop("new") is None
        assert set(found.values()) == {Standing(0, 1, "lake/orders")}
        began = time.monotonic()  # one among many is found by an index
        assert applied(site, doing(site, {"late": SEEDED}, SEED, "shop/late")).written == 3
        assert time.monotonic() - began < MANY_S_MAX / 4


def test_300_tables_need_few_connections_and_locks(tmp_path: Path) -> None:
    """Alone, as one member of many tables, and as many members: seeds, then flushes."""
    with PostgresServer(settings={"max_connections": "20", "max_locks_per_transaction": "10"}) as server:
        site = PostgresKind().make(tmp_path, lambda: server)
        names = tuple(f"t{n}" for n in range(TABLES))
        places = [site.open() for _ in range(25)]
        seeds = [doing(site, {name: SEEDED}, SEED, member(name)).write() for name in names]
        found: dict[str, Any] = {}
        for number, place in enumerate(places):
            found |= place.apply(seeds[number::25])
        assert errors(found) == {}
        flushed = places[0].apply([one.write() for one in flushes(site, names)])
        assert set(flushed.values()) == {Applied(20, removed=2, written=2)}
        for place in places:
            place.close()


def test_a_group_with_more_locks_than_the_server_has_is_written_member_by_member(tmp_path: Path) -> None:
    settings = {"max_connections": "10", "max_locks_per_transaction": "10", "max_wal_senders": "0"}
    settings |= {"max_worker_processes": "1", "autovacuum_max_workers": "1"}
    with PostgresServer(settings=settings) as server:
        site = PostgresKind().make(tmp_path, lambda: server)
        tables = {name: [f"{name}{n}" for n in range(25)] for name in NAMES}
        large = [doing(site, dict.fromkeys(tables[name], SEEDED), SEED, member(name)).write() for name in NAMES]
        with closing(site.open()) as place:
            found = place.apply(large)
            assert set(found.values()) == {Applied(10, written=75)}, errors(found)
            huge = doing(site, dict.fromkeys([f"h{n}" for n in range(1000)], SEEDED), SEED, "shop/huge").write()
            [error] = place.apply([huge]).values()
            assert isinstance(error, Unreachable)
            assert "max_locks_per_transaction" in str(error)
            assert stands(site, ("h0",), "shop/huge") is None


def test_a_group_with_very_many_tables_is_several_transactions_of_whole_members(
    site: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_place, "TABLES_MAX", 5)
    commits: list[str] = []
    members = {member(f"m{n}"): [f"m{n}a", f"m{n}b"] for n in range(5)}
    doings = [doing(site, dict.fromkeys(tables, SEEDED), SEED, name) for name, tables in members.items()]
    with closing(site.open(lambda statement: commits.append(statement) if statement == "COMMIT" else None)) as place:
        found = place.apply([one.write() for one in doings])
    assert found == dict.fromkeys(members, Applied(10, written=6))
    assert len(commits) == 3 + 1  # and one for the table of records


# ----------------------------------------------------------------------------------------------------------------- rows


def test_rows_of_several_tables_are_of_one_snapshot(site: PostgresSite) -> None:
    names = ("a", "b", "c")
    applied(site, doing(site, dict.fromkeys(names, SEEDED), SEED))
    tables = MemberTables("shop/acme", site.home, tuple(map(site.address, names)))
    with closing(site.open()) as place:
        standing, batches, end = place.rows(tables)
        first = next(batches[0]).to_pylist()
        assert applied(site, doing(site, dict.fromkeys(names, CHANGES))).position == 20
        rest = [[row for batch in each for row in batch.to_pylist()] for each in batches]
        end()
        end()  # twice is as good as once
    assert standing == Standing(10, 1, "lake/orders")
    assert [content(rows) for rows in ([*first, *rest[0]], *rest[1:])] == [content(SEEDED)] * 3


def test_every_reader_sees_all_tables_of_a_member_at_its_position(site: PostgresSite) -> None:
    """While tables are flushed, replaced, seeded again and join; each of its reads is inside one snapshot."""
    names = ("a", "b", "c")
    seed = replace(SEED, through=1)
    applied(site, doing(site, {name: [_at(1)] for name in names[:2]}, seed))
    seen: SimpleQueue[int] = SimpleQueue()
    stop = threading.Event()
    failures: list[object] = []

    def read() -> None:
        with psycopg.connect(site.dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            while not stop.is_set():
                with connection.transaction():
                    position = connection.execute(f'SELECT position FROM "{site.home}"._trunkline_members'.encode())
                    [[at]] = position.fetchall()
                    tables = names if at >= LAST // 2 else names[:2]
                    found = [connection.execute(f"SELECT amount FROM {site.named(name)}".encode()) for name in tables]
                    if any(rows.fetchall() != [(at,)] for rows in found):
                        failures.append(at)
                    seen.put(at)

    reader = threading.Thread(target=read)
    reader.start()
    with closing(site.open()) as place:
        for number in range(2, LAST):
            plan = replace(FLUSH, expected=number - 1, through=number)
            rows: dict[str, Any] = {
                name: [(Op.REPLACE, _at(number))] for name in names[: 3 if number > LAST // 2 else 2]
            }
            if number % 3 == 0:
                rows["b"] = replace(plan, replaces=True), [_at(number)]
            if number == LAST // 2:
                rows["c"] = replace(plan, replaces=True), [_at(number)]
            if number % 7 == 0:
                plan = replace(plan, seeds=True)
                rows = {name: [_at(number)] for name in rows}
            [result] = place.apply([doing(site, rows, plan).write()]).values()
            assert isinstance(result, Applied), result
            while seen.get(timeout=WAIT_S) < number:
                pass
    stop.set()
    reader.join()
    assert not failures


def _at(position: int) -> Row:
    return {"id": 1, "tenant": "acme", "amount": position}


def test_a_reading_that_ends_early_leaves_no_connection(site: PostgresSite) -> None:
    rows: list[Row] = [{"id": n, "tenant": "x" * 1000, "amount": n} for n in range(50_000)]
    applied(site, doing(site, {"a": rows, "b": SEEDED}, SEED))
    tables = MemberTables("shop/acme", site.home, (site.address("a"), site.address("b")))
    count = "SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database()"
    with closing(site.open()) as place:
        place.standings([tables])
        before = site.run(count)[0]["n"]
        _, batches, end = place.rows(tables)
        next(batches[0])
        end()
        deadline = time.monotonic() + WAIT_S
        while site.run(count)[0]["n"] > before:
            assert time.monotonic() < deadline
        with pytest.raises(DestinationHalted, match="has not delivered it"):
            place.rows(replace(tables, tables=(site.address("c"),)))
        with pytest.raises(DestinationHalted, match="has no record"):
            place.rows(MemberTables("shop/none", site.home, ()))


# ---------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    ["50%", "a.b", 'say "hi"', "it's", "{}", "ü" * 31 + "x", "\\N", " ", "%s %(x)s", ".", '"', "a\nb", "select"],
)
def test_names_of_members_schemas_and_tables_may_hold_any_character(site: PostgresSite, name: str) -> None:
    home = name if name != " " else "  "
    site.run(f"DROP SCHEMA IF EXISTS {_quoted(home)} CASCADE")
    site.run(f"CREATE SCHEMA {_quoted(home)}")
    tables = [PostgresAddress(site.dsn, each, home) for each in (name, f"{name[:20]}.x")]

    def write(who: str, seeds: bool) -> MemberWrite:
        plan = SEED if seeds else FLUSH
        steps = [replace(plan.table(site, str(n)), address=address) for n, address in enumerate(tables)]
        step: MemberStep = replace(plan.member(site, who, steps), home=home)
        return Doing(step, dict.fromkeys(("0", "1"), SEEDED if seeds else CHANGES)).write()

    with closing(site.open()) as place:
        assert place.apply([write(f"shop/{name}", True)]) == {f"shop/{name}": Applied(10, written=6)}
        assert place.apply([write(f"{name} renamed", False)]) == {f"{name} renamed": Applied(20, removed=4, written=4)}
        member = MemberTables(f"{name} renamed", home, tuple(tables))
        assert place.standings([member]) == {f"{name} renamed": STANDS}
        assert place.columns(tables[1]) == SEED.columns
        _, batches, end = place.rows(member)
        for each in batches:
            assert content(row for batch in each for row in batch.to_pylist()) == content(FLUSHED)
        end()
        [refused] = place.apply([write("another", True)]).values()
        assert isinstance(refused, TrunklineError)
        place.retire(member)
        assert place.standings([member]) == {f"{name} renamed": None}
    site.run(f"DROP SCHEMA {_quoted(home)} CASCADE")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("{", "{{").replace("}", "}}") + '"'


def test_tables_whose_names_are_alike_with_dots_are_different(site: PostgresSite) -> None:
    one, two = f"{site.home}.a", site.home
    site.run(f"CREATE SCHEMA {_quoted(one)}")
    first = PostgresAddress(site.dsn, "b", one)
    second = PostgresAddress(site.dsn, "a.b", two)
    with closing(site.open()) as place:
        for name, address in (("one", first), ("two", second)):
            step: TableStep = replace(SEED.table(site, "orders"), address=address)
            write = Doing(SEED.member(site, member(name), [step]), {"orders": SEEDED}).write()
            assert place.apply([write]) == {member(name): Applied(10, written=3)}
    site.run(f"DROP SCHEMA {_quoted(one)} CASCADE")


# ------------------------------------------------------------------------------------------------------------ many rows


def test_members_of_one_group_may_have_rows_in_many_chunks(site: PostgresSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.delivery.destinations.postgres_copy.CHUNK_ROWS", 2)
    seeded(site)
    changes: list[Change] = [*CHANGES, *((Op.INSERT, {"id": n, "tenant": "x", "amount": n}) for n in range(10, 20))]
    duplicate: list[Change] = [*changes, (Op.INSERT, SEEDED[2])]
    doings = [doing(site, {name: changes}, FLUSH, member(name)) for name in NAMES]
    doings[1] = doing(site, {"bolt": duplicate}, FLUSH, "shop/bolt")
    found = done(site, *doings)
    assert set(errors(found)) == {"bolt"}
    holds(site, {"bolt": SEEDED, "acme": [*FLUSHED, *(row for _, row in changes[3:])]})
    assert Table(site, "bolt", "shop/bolt").held() is not None
