"""PostgreSQL as a destination: what it has beyond the contract that every kind keeps."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from msgspec.structs import replace
from psycopg.conninfo import make_conninfo

from contract.postgres_destination import PostgresKind, PostgresSite
from postgres_server import PostgresServer
from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations.contract import Applied, MemberWrite, Standing
from trunkline.delivery.destinations.postgres_place import PostgresPlace
from trunkline.destination_suite.place import Change, OneTable, Plan, Row, Table, plain, staged
from trunkline.destination_suite.steps import steps
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    DuplicateKey,
    OutcomeUnknown,
    PositionMoved,
    SchemaMismatch,
    Unreachable,
)

ORDERS: Final[Columns] = (Column("id", "BIGINT"), Column("note", "VARCHAR"))
SEED: Final = Plan(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",), seeds=True)
AGAIN: Final = replace(SEED, expected=10)  # a reseed request
FLUSH: Final = Plan(expected=10, through=20, token=1, source="lake/orders", columns=ORDERS, key=("id",))
SEEDED: Final[list[Row]] = [{"id": n, "note": "old"} for n in (1, 2, 3)]
CHANGES: Final[list[Change]] = [(Op.REPLACE, {"id": 1, "note": "new"}), (Op.INSERT, {"id": 4, "note": "new"})]


@pytest.fixture
def site(postgres: PostgresServer, tmp_path: Any) -> PostgresSite:
    return PostgresKind().make(tmp_path, lambda: postgres)


@pytest.fixture
def table(site: PostgresSite) -> Table:
    return Table(site)


@pytest.fixture
def destination(table: Table) -> Iterator[OneTable]:
    opened = table.open()
    yield opened
    opened.close()


def seed(destination: OneTable, rows: list[Row] | None = None, how: Plan = SEED) -> Applied:
    return destination.seed(how, plain(how.columns, SEEDED if rows is None else rows))


def flush(destination: OneTable, changes: list[Change], how: Plan = FLUSH) -> Applied:
    return destination.flush(how, staged(how.columns, how.key, changes))


def run(site: PostgresSite, statement: str) -> list[Any]:
    """A statement of another client; ``{t}`` is the table, ``{s}`` its schema."""
    with psycopg.connect(site.dsn) as connection:
        cursor = connection.execute(statement.replace("{t}", site.named("orders")).replace("{s}", site.home).encode())
        return cursor.fetchall() if cursor.description else []


def opened(address: PostgresAddress, session: PostgresSession | None = None) -> OneTable:
    """The table ``orders`` over another way to the database."""
    return OneTable(Table(PostgresSite(address.dsn, address.schema)), PostgresPlace(address, session))


def notes(table: Table) -> dict[int, str]:
    return {row["id"]: row["note"] for row in table.held() or []}


# -------------------------------------------------------------------------------------------------------- names, chunks


def test_names_that_postgres_would_cut_off_are_refused(site: PostgresSite, destination: OneTable) -> None:
    for name in ("x" * 64, "_trunkline_positions", "_Trunkline"):
        step = replace(SEED.table(site, "orders"), address=PostgresAddress(site.dsn, name, site.home))
        member = SEED.member(site, "shop/acme", [step])
        [error] = destination.place.apply([MemberWrite(member, {})]).values()
        assert isinstance(error, ConfigError)
        assert name in str(error)
    assert site.trace() == []
    columns = (Column("id", "BIGINT"), Column("é" * 32, "BIGINT"))
    with pytest.raises(SchemaMismatch, match="63 bytes"):
        destination.seed(replace(SEED, columns=columns), [])


def test_names_may_hold_any_character(destination: OneTable) -> None:
    columns = (Column('k"1 %s', "DECIMAL(9,2)"), Column("k'2 {} %", "BIGINT"), Column("SELECT", "VARCHAR"))
    key = ('k"1 %s', "k'2 {} %")
    rows: list[Row] = [{'k"1 %s': None, "k'2 {} %": n, "SELECT": "x"} for n in range(3)]
    seed(destination, rows, replace(SEED, columns=columns, key=key))
    changes: list[Change] = [(Op.REMOVE, rows[0]), (Op.REPLACE, rows[1])]
    how = replace(FLUSH, columns=columns, key=key)
    assert flush(destination, changes, how) == Applied(20, removed=2, written=1)


@pytest.mark.parametrize("policy", ["halt", "warn"])
def test_rows_in_many_chunks_end_as_in_one(destination: OneTable, monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    monkeypatch.setattr("trunkline.delivery.destinations.postgres_copy.CHUNK_ROWS", 3)
    columns = (Column("a", "INTEGER"), Column("b", "VARCHAR"), Column("v", "BIGINT"))
    key = ("a", "b")
    draw = random.Random(7)
    keys = [(a, b) for a in (*range(9), None) for b in ("x", "y", None)]
    model = dict.fromkeys(keys[::2], 0)
    seed(destination, [{"a": a, "b": b, "v": 0} for a, b in model], replace(SEED, columns=columns, key=key, through=1))
    for version in range(1, 12):
        changes: list[Change] = []
        for a, b in draw.sample(keys, 14):
            held = (a, b) in model
            op = draw.choice((Op.REMOVE, Op.REPLACE)) if held else Op.INSERT
            changes.append((op, {"a": a, "b": b, "v": version}))
            model.pop((a, b), None)
            if op is not Op.REMOVE:
                model[a, b] = version
        how = Plan(version + 1, 1, SEED.source, columns, key, version, duplicates=policy)
        applied = flush(destination, changes, how)
        assert (applied.duplicates, applied.missing) == (0, 0)
        _, batches = destination.rows()
        assert {(row["a"], row["b"]): row["v"] for each in batches for row in each.to_pylist()} == model


def test_keys_with_nulls_are_found_by_the_index(site: PostgresSite, destination: OneTable) -> None:
    columns = (Column("a", "BIGINT"), Column("b", "BIGINT"))
    rows: list[Row] = [{"a": n, "b": None if n % 2 else n} for n in range(20_000)]
    seed(destination, rows, replace(SEED, columns=columns, key=("a", "b")))
    run(site, "ANALYZE {t}")
    began = time.monotonic()
    changes: list[Change] = [(Op.REMOVE, row) for row in rows[:6000]]
    assert flush(destination, changes, replace(FLUSH, columns=columns, key=("a", "b"))).removed == 6000
    assert time.monotonic() - began < 10, "3,000 NULL keys times 20,000 rows would be compared one by one"


# --------------------------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize("widened", [False, True], ids=["same columns", "other columns"])
def test_readers_never_see_half_a_seed_and_never_wait_for_its_rows(
    table: Table, destination: OneTable, widened: bool
) -> None:
    columns = (*ORDERS, Column("more", "INTEGER")) if widened else ORDERS
    seed(destination)
    seen = []

    def rows() -> Iterator[pa.RecordBatch]:
        for n in range(3):
            yield from plain(columns, [{"id": 100 + n, "note": "new"}])
            seen.append(notes(table))

    destination.seed(replace(SEED, columns=columns, expected=10, through=30), rows)
    assert seen == [{1: "old", 2: "old", 3: "old"}] * 3
    assert notes(table) == {100: "new", 101: "new", 102: "new"}


def test_views_and_grants_outlive_a_seed_that_keeps_the_columns(site: PostgresSite, destination: OneTable) -> None:
    seed(destination)
    run(site, "CREATE VIEW {s}.seen AS SELECT id FROM {t}")
    run(site, "DROP ROLE IF EXISTS reader; CREATE ROLE reader; GRANT SELECT ON {t} TO reader")
    assert seed(destination, [{"id": 7, "note": "new"}], replace(SEED, expected=10, through=30)).removed == 3
    assert run(site, "SELECT id FROM {s}.seen") == [(7,)]
    assert run(site, "SELECT has_table_privilege('reader', '{t}', 'SELECT')") == [(True,)]
    with pytest.raises(DestinationHalted, match="seen"):  # a view holds the old columns
        destination.seed(replace(SEED, expected=30, through=40, columns=(*ORDERS, Column("more", "INTEGER"))), [])
    assert destination.standing() == Standing(30, 1, "lake/orders")
    run(site, "DROP OWNED BY reader; DROP ROLE reader")


def test_a_seed_for_another_mode_or_key_makes_the_index_that_it_needs(destination: OneTable) -> None:
    columns = (Column("id", "BIGINT"), Column("note", "VARCHAR"))
    seed(destination)
    with pytest.raises(SchemaMismatch, match=r"unique index on the key \(note\)"):
        flush(destination, [], replace(FLUSH, key=("note",)))
    seed(destination, SEEDED * 2, replace(AGAIN, mode="append", key=(), columns=columns))
    with pytest.raises(SchemaMismatch, match="unique index"):
        flush(destination, CHANGES)
    with pytest.raises(DuplicateKey, match="old"):
        seed(destination, SEEDED, replace(AGAIN, key=("note",)))
    seed(destination, SEEDED, AGAIN)
    assert flush(destination, CHANGES) == Applied(20, removed=1, written=2)


# ------------------------------------------------------------------------------------------------------ other writers


def test_a_table_that_another_writer_changed_is_refused_with_its_difference(
    site: PostgresSite, destination: OneTable
) -> None:
    for statement, named in {
        "ALTER TABLE {t} ALTER COLUMN note TYPE varchar(10)": "note",
        "ALTER TABLE {t} DROP COLUMN id": "unique index",
        "ALTER TABLE {t} ADD COLUMN extra integer": "extra",
        "DO $$ BEGIN EXECUTE (SELECT 'DROP INDEX {s}.\"' || indexname || '\"' FROM pg_indexes "
        "WHERE schemaname = '{s}' AND tablename <> '_trunkline_members'); END $$": "unique index",
    }.items():
        seed(destination)
        run(site, statement)
        with pytest.raises(SchemaMismatch, match=named):
            flush(destination, CHANGES)
        run(site, "DROP TABLE {t}")


def test_a_view_follows_a_renamed_column_and_keeps_another_from_being_dropped(
    site: PostgresSite, destination: OneTable
) -> None:
    seed(destination)
    run(site, "CREATE VIEW {s}.notes AS SELECT note FROM {t}")
    dropped = steps(ORDERS, {ORDERS[0]: "id"})
    with pytest.raises(DestinationHalted, match=r"view .*notes depends on column note"):
        flush(destination, [], replace(FLUSH, columns=dropped.after, steps=dropped))
    assert destination.columns() == ORDERS
    renamed = steps(ORDERS, {ORDERS[0]: "id", Column("text", "VARCHAR"): "note"})
    flush(destination, [], replace(FLUSH, columns=renamed.after, steps=renamed))
    assert run(site, "SELECT count(note) FROM {s}.notes") == [(3,)]


def test_a_dropped_table_has_no_position(site: PostgresSite, destination: OneTable) -> None:
    seed(destination)
    run(site, "DROP TABLE {t}")
    assert destination.standing() == Standing(0, 1, "lake/orders")
    assert destination.columns() is None
    with pytest.raises(PositionMoved) as moved:
        flush(destination, CHANGES)
    assert moved.value.position == 0
    inserts: list[Change] = [(Op.INSERT, row) for row in SEEDED]
    assert flush(destination, inserts, replace(FLUSH, expected=0, through=15)) == Applied(15, written=3)
    run(site, "DROP TABLE {t}")
    assert seed(destination) == Applied(10, written=3)
    run(site, "DROP TABLE {s}._trunkline_members")
    with pytest.raises(DestinationHalted, match="replace_existing"):
        flush(destination, inserts, replace(FLUSH, expected=0, through=15))
    assert destination.standing() is None


def test_rows_that_violate_another_constraint_are_not_duplicates(site: PostgresSite, destination: OneTable) -> None:
    seed(destination, [])
    run(site, "ALTER TABLE {t} ADD CONSTRAINT theirs UNIQUE (note)")
    inserts: list[Change] = [(Op.INSERT, {"id": n, "note": "same"}) for n in (1, 2)]
    with pytest.raises(DestinationHalted, match="theirs") as refused:
        flush(destination, inserts)
    assert not isinstance(refused.value, DuplicateKey)
    run(site, "ALTER TABLE {t} DROP CONSTRAINT theirs")
    run(site, "ALTER TABLE {t} ADD CONSTRAINT late UNIQUE (note) DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(DestinationHalted, match="late"):  # the server refuses the COMMIT itself: nothing happened
        flush(destination, inserts)
    assert destination.standing() == Standing(10, 1, "lake/orders")
    assert site.held("orders") == []


def test_a_view_cannot_be_a_destination(site: PostgresSite, destination: OneTable) -> None:
    run(site, "CREATE VIEW {t} AS SELECT 1::bigint AS id")
    with pytest.raises(DestinationHalted, match="plain table"):
        seed(destination, how=replace(SEED, replace_existing=True))


def test_a_locked_table_is_retried(site: PostgresSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.delivery.backends.postgres_session.SETTINGS", "SET lock_timeout = 100")
    destination = Table(site).open()
    seed(destination)
    with psycopg.connect(site.dsn) as other:
        other.execute(f"LOCK TABLE {site.named('orders')} IN EXCLUSIVE MODE".encode())
        with pytest.raises(Unreachable, match="lock timeout"):
            flush(destination, CHANGES)
    assert flush(destination, CHANGES).written == 2
    destination.close()


# ---------------------------------------------------------------------------------------------------- a server in need


def at_statement(table: Table, beginning: str, act: Callable[[], None]) -> OneTable:
    """A destination that does something just before it sends a statement."""

    def watch(statement: str) -> None:
        if statement.startswith(beginning):
            act()

    return table.open(watch)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def test_the_error_for_a_server_that_dies_states_what_is_known(own_server: PostgresServer, tmp_path: Any) -> None:
    table = Table(PostgresKind().make(tmp_path, lambda: own_server))
    destination = table.open()
    seed(destination)
    errors = {"BEGIN": Unreachable, "DELETE": Unreachable, "INSERT": Unreachable, "COMMIT": OutcomeUnknown}
    for statement, error in errors.items():
        killer = at_statement(table, statement, own_server.kill)
        with pytest.raises(error, match="shop/acme"):
            flush(killer, CHANGES)
        killer.close()
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
            table.open().standing()
        own_server.restart()
        assert destination.standing() == Standing(
            10, 1, "lake/orders"
        )  # its idle connection was lost: it makes another
    assert flush(destination, CHANGES) == Applied(20, removed=1, written=2)
    destination.close()


def test_the_connection_to_a_silent_server_is_closed(own_server: PostgresServer, tmp_path: Any) -> None:
    class HastySession(PostgresSession):
        def _connected(self, wait_ms: int) -> Any:
            return super()._connected(300)

    site = PostgresKind().make(tmp_path, lambda: own_server)
    session = HastySession(site.dsn)
    destination = opened(site.address("orders"), session)
    seed(destination)
    own_server.pause()
    try:
        with pytest.raises(Unreachable, match="no response"):
            flush(destination, CHANGES)
    finally:
        own_server.resume()
    assert flush(destination, CHANGES).written == 2
    session.close()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dbname": "nowhere"}, "nowhere"),
        ({"user": "guest", "password": "hunter2"}, "guest"),
        ({"user": "stranger"}, "stranger"),
    ],
    ids=["database", "password", "user"],
)
def test_a_wrong_address_halts_the_destination(site: PostgresSite, change: dict[str, str], named: str) -> None:
    run(site, "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN PASSWORD 'right'")
    destination = opened(replace(site.address("orders"), dsn=make_conninfo(site.dsn, **change)))
    with pytest.raises(DestinationHalted, match=named) as refused:
        destination.standing()
    assert "hunter2" not in str(refused.value)
    destination.close()


def test_a_schema_or_a_right_that_is_missing_halts_the_destination(site: PostgresSite) -> None:
    destination = opened(replace(site.address("orders"), schema="nowhere"))
    assert destination.standing() is None
    with pytest.raises(DestinationHalted, match="nowhere"):
        seed(destination)
    destination.close()
    run(site, "DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN PASSWORD 'weak'")
    weak = opened(replace(site.address("orders"), dsn=make_conninfo(site.dsn, user="weak", password="weak")))
    with pytest.raises(DestinationHalted, match=r"permission denied.*grant"):
        seed(weak)
    weak.close()


def test_the_password_comes_from_the_environment(
    postgres: PostgresServer, site: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(site, "DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN PASSWORD 'secret'; GRANT ALL ON SCHEMA {s} TO clerk")
    destination = opened(PostgresAddress(postgres.dsn(user="clerk"), "orders", site.home, "CLERK_PASSWORD"))
    with pytest.raises(ConfigError, match="CLERK_PASSWORD"):
        destination.standing()
    monkeypatch.setenv("CLERK_PASSWORD", "secret")
    assert seed(destination).written == 3
    destination.close()
    run(site, "DROP OWNED BY clerk; DROP ROLE clerk")


def test_a_dsn_that_cannot_be_read_is_refused(site: PostgresSite) -> None:
    destination = opened(replace(site.address("orders"), dsn="host=db prot=5432"))
    with pytest.raises(ConfigError, match="prot"):
        destination.standing()


# ------------------------------------------------------------------------------------------------------------- sharing


def test_destinations_of_one_database_share_a_connection(site: PostgresSite) -> None:
    many = [Table(site, f"t{n}", f"shop/m{n}").open() for n in range(20)]
    before = _connections(site)
    for destination in many:
        seed(destination)
    assert _connections(site) <= before + 1  # fewer if one of an earlier test has ended meanwhile
    for destination in many[1:]:
        destination.close()
    assert flush(many[0], CHANGES).written == 2
    many[0].close()
    many[0].close()  # twice is as good as once
    deadline = time.monotonic() + 10
    while _connections(site) > before:
        assert time.monotonic() < deadline, "the connection stays"
    assert many[0].standing() == Standing(20, 1, "lake/orders")  # and it may be used again
    many[0].close()


def test_threads_may_flush_destinations_of_one_database(site: PostgresSite) -> None:
    many = [Table(site, f"t{n}", f"shop/m{n}").open() for n in range(4)]
    failed: list[BaseException] = []

    def work(destination: OneTable) -> None:
        try:
            seed(destination)
            for n in range(5):
                change: Change = (Op.INSERT, {"id": 10 + n, "note": "x"})
                flush(destination, [change], replace(FLUSH, expected=10 + n, through=11 + n))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for destination in many:
        assert destination.standing() == Standing(15, 1, "lake/orders")
        destination.close()


def _connections(site: PostgresSite) -> int:
    [(count,)] = run(site, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
    return int(count)
