"""What cannot be captured is refused with one message and its remedy, and leaves nothing behind on the server."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from msgspec import structs

from delivery.test_postgres_catalog import wait_unread
from local_cluster import RunningCluster, local_cluster
from postgres_server import PostgresServer
from trunkline.core.capture_messages import SlotState
from trunkline.delivery.capture.postgres import server as postgres_server
from trunkline.delivery.capture.postgres.known_tables import KnownTables
from trunkline.delivery.capture.postgres.replication import ReplicationConnection
from trunkline.delivery.capture.postgres.session import ServerAddress
from trunkline.delivery.capture.postgres.source import PostgresDatabase, PostgresSource
from trunkline.delivery.capture.source import SourceStart
from trunkline.errors import ConfigError, TrunklineError, Unreachable

NUMBERS = itertools.count()
LEFT = """
SELECT 'slot', slot_name::text, active::text FROM pg_replication_slots
UNION ALL SELECT 'publication', p.pubname::text, string_agg(r.prrelid::regclass::text, ',' ORDER BY r.prrelid)
  FROM pg_publication AS p LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid GROUP BY p.oid
UNION ALL SELECT 'identity', oid::regclass::text, relreplident::text FROM pg_class WHERE oid >= 16384 AND relkind = 'r'
ORDER BY 1, 2
"""


class Shop:
    """A database with two tables, and a capture of it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.slot = f"wrong_{next(NUMBERS)}"
        self.dsn = server.create_database(self.slot)
        self.role = self.slot  # without the rights of a superuser
        self.database = PostgresDatabase(ServerAddress(self.dsn), self.slot, ("public.*",))
        self.run(
            "CREATE TABLE orders (id bigint PRIMARY KEY, note text); CREATE TABLE lines (id bigint PRIMARY KEY);"
            f"CREATE ROLE {self.role} LOGIN REPLICATION"
        )

    def run(self, statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statements.encode())

    def left(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(LEFT.encode()).fetchall()

    def as_role(self) -> PostgresDatabase:
        dsn = self.server.dsn(self.slot, user=self.role, unix_socket=True)
        return structs.replace(self.database, address=ServerAddress(dsn))

    def refused(self, database: PostgresDatabase | None = None, kind: type[TrunklineError] = ConfigError) -> str:
        """The message; the server is as it was before."""
        before = self.left()
        source = PostgresSource(database or self.database)
        with pytest.raises(kind) as caught:
            source.reach()
        assert self.left() == before
        [line] = str(caught.value).splitlines()
        return line


@pytest.fixture
def shop(logical: PostgresServer) -> Iterator[Shop]:
    made = Shop(logical)
    yield made
    with psycopg.connect(logical.dsn(), autocommit=True) as connection:
        wait_unread(connection, made.slot)
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE %s",
            (f"{made.slot}%",),
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_a_server_that_cannot_be_captured_is_refused(
    postgres: PostgresServer, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Shop(postgres)
    assert other.refused() == "the server's wal_level is replica; set wal_level = logical and restart it"
    monkeypatch.setattr(postgres_server, "OLDEST_SERVER", 990_000)
    assert re.fullmatch(
        r"the server is PostgreSQL \d+, and 99 is the oldest that can be captured; upgrade it", shop.refused()
    )


def test_a_server_without_room_and_a_standby_are_refused() -> None:
    settings = {"wal_level": "logical", "max_replication_slots": "2", "max_wal_senders": "1"}
    with PostgresServer(settings=settings) as server:
        shop = Shop(server)
        with ReplicationConnection(shop.dsn) as stream:
            message = (
                "all 1 WAL senders of the server are in use; end one that pg_stat_replication shows, or raise "
                "max_wal_senders and restart the server"
            )
            assert shop.refused() == message
            stream.create_slot(shop.slot)
            assert shop.refused(kind=Unreachable) == message  # a capture that runs waits until there is room
            stream.drop_slot(shop.slot)
        for name in "ab":
            shop.run(f"SELECT pg_create_physical_replication_slot('{name}')")
        assert shop.refused() == (
            "all 2 replication slots of the server are in use; drop one that is not needed, or raise "
            "max_replication_slots and restart the server"
        )
        server.stop()
        (server.directory / "data" / "standby.signal").touch()
        server.restart()
        message = "the server is a standby (it is in recovery); give the dsn of its primary"
        assert shop.refused() == message


def test_a_role_without_a_right_is_refused_with_the_statement_that_grants_it(shop: Shop) -> None:
    role = shop.role
    shop.run(f"ALTER ROLE {role} NOREPLICATION; REVOKE ALL ON SCHEMA public FROM public")
    assert shop.refused(shop.as_role()) == f'the role {role} may not replicate; run: ALTER ROLE "{role}" REPLICATION'
    shop.run(f"ALTER ROLE {role} REPLICATION")
    assert shop.refused(shop.as_role()).endswith(f'run: GRANT CREATE ON DATABASE "{shop.slot}" TO "{role}"')
    shop.run(f"GRANT CREATE ON DATABASE {shop.slot} TO {role}")
    assert shop.refused(shop.as_role()).endswith(f'run: GRANT USAGE ON SCHEMA "public" TO "{role}"')
    shop.run(f"GRANT USAGE ON SCHEMA public TO {role}")
    message = (
        f'the role {role} may not read 2 tables; run: GRANT SELECT ON "public"."lines", "public"."orders" TO "{role}"'
    )
    assert shop.refused(shop.as_role()) == message
    shop.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}; ALTER TABLE lines ENABLE ROW LEVEL SECURITY")
    message = shop.refused(shop.as_role())
    assert 'may hide rows of "public"."lines" from the role' in message
    assert f'run: ALTER ROLE "{role}" BYPASSRLS' in message
    shop.run(f"ALTER ROLE {role} BYPASSRLS")
    message = shop.refused(shop.as_role())
    assert 'does not own "public"."lines", "public"."orders", and so cannot publish them' in message
    assert f'run: GRANT "postgres" TO "{role}"' in message
    shop.run(f"CREATE PUBLICATION {shop.slot} FOR TABLE orders")
    message = shop.refused(shop.as_role())
    assert f'run: GRANT "postgres" TO "{role}", or: ALTER PUBLICATION "{shop.slot}" OWNER TO "{role}"' in message
    shop.run(f"ALTER PUBLICATION {shop.slot} ADD TABLE lines")
    PostgresSource(shop.as_role()).reach()  # it owns nothing, but all is there


def test_tables_that_no_pattern_selects_or_that_have_no_changes_are_refused(shop: Shop) -> None:
    def message(*tables: str, exclude: tuple[str, ...] = ()) -> str:
        return shop.refused(structs.replace(shop.database, tables=tables, exclude=exclude))

    shop.run(
        "CREATE VIEW viewed AS SELECT * FROM orders; CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);"
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE plain (id int PRIMARY KEY)"
    )
    assert message("public.orders", "public.missing") == (
        'there is no table "public"."missing"; create it, or correct --tables'
    )
    assert message("shop.*") == "no table matches shop.*; correct --tables (schema.table, with * and ?) or --exclude"
    assert message("public.*", exclude=("*.*",)).startswith("no table matches public.* without *.*")
    assert message("viewed") == '"public"."viewed" is a view, whose rows are not in the WAL; name an ordinary table'
    assert '"public"."unlogged" is an unlogged table' in message("unlogged")
    assert '"public"."parts" is a table without partitions' in message("parts")
    with pytest.raises(ConfigError, match="names no table"):
        PostgresSource(structs.replace(shop.database, tables=("a.b.c",)))
    with pytest.raises(ConfigError, match="slot name"):
        PostgresSource(structs.replace(shop.database, slot="Odd-Name"))
    assert shop.refused(structs.replace(shop.database, address=ServerAddress("dbname")))
    absent = ServerAddress(shop.server.dsn("absent_database"))
    assert "does not exist" in shop.refused(structs.replace(shop.database, address=absent))


def test_a_restart_whose_patterns_select_none_of_the_captured_tables_is_refused(shop: Shop) -> None:
    """It would end the capture of all of them."""
    shop.run(f"CREATE PUBLICATION {shop.slot} FOR TABLE orders, lines")
    shop.run(f"SELECT pg_create_logical_replication_slot('{shop.slot}', 'pgoutput')")
    try:
        message = shop.refused(structs.replace(shop.database, tables=("public.oders",)))
        assert "no pattern selects any of the tables that are captured" in message
        assert "orders" in message
        PostgresSource(structs.replace(shop.database, tables=("public.orders",))).reach()
    finally:
        shop.run(f"SELECT pg_drop_replication_slot('{shop.slot}')")


def test_tables_without_an_identity_are_refused_with_all_statements_or_get_one(shop: Shop) -> None:
    shop.run(
        'CREATE TABLE bare (id int); CREATE TABLE "Odd" (id int PRIMARY KEY); CREATE TABLE indexed (id int NOT NULL);'
        'ALTER TABLE "Odd" REPLICA IDENTITY NOTHING; CREATE UNIQUE INDEX i ON indexed (id);'
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX i; CREATE TABLE later (id int PRIMARY KEY DEFERRABLE)"
    )
    message = shop.refused()
    assert (
        'from 3 tables, neither by a key nor whole; run: ALTER TABLE "public"."Odd" REPLICA IDENTITY DEFAULT; '
        'ALTER TABLE "public"."bare" REPLICA IDENTITY FULL; ALTER TABLE "public"."later" REPLICA IDENTITY FULL; or '
    ) in message
    shop.run("DROP INDEX i")
    assert 'ALTER TABLE "public"."indexed" REPLICA IDENTITY FULL' in shop.refused()
    source = PostgresSource(structs.replace(shop.database, set_identity=True))
    try:
        source.reach()
        assert ("identity", "bare", "d") in shop.left()
        source.open(SourceStart(0, None, create=True))
        assert {("identity", "bare", "f"), ("identity", '"Odd"', "d"), ("identity", "indexed", "f")} <= set(shop.left())
    finally:
        source.close()


def test_columns_that_no_log_can_hold_are_refused(shop: Shop) -> None:
    shop.run('CREATE TABLE cased (id int PRIMARY KEY, a int, "A" int)')
    assert shop.refused().startswith("\"public\".\"cased\": columns 'a' and 'A' differ only in case")
    shop.run('ALTER TABLE cased DROP "A"; ALTER TABLE cased RENAME a TO _trunkline_a')
    assert "reserved" in shop.refused()
    shop.run("DROP TABLE cased; CREATE TABLE empty (); ALTER TABLE empty REPLICA IDENTITY FULL")
    assert '"public"."empty": it has no columns that could be captured' in shop.refused()
    PostgresSource(structs.replace(shop.database, exclude=("empty",))).reach()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("FOR ALL TABLES", "is for all tables or for schemas"),
        ("FOR TABLES IN SCHEMA public", "is for all tables or for schemas"),
        ("FOR TABLE orders WITH (publish = 'insert, update')", "leaves out kinds of changes"),
        ("FOR TABLE orders WITH (publish_via_partition_root)", "has publish_via_partition_root"),
        ("FOR TABLE orders WHERE (id > 1)", 'leaves out rows of "public"."orders"'),
        ("FOR TABLE orders (id)", 'leaves out columns of "public"."orders"'),
        ("FOR TABLE orders, other.things", 'has tables that no pattern selects ("other"."things")'),
    ],
)
def test_a_publication_of_another_purpose_is_refused(shop: Shop, how: str, why: str) -> None:
    shop.run(f"CREATE SCHEMA other; CREATE TABLE other.things (id int); CREATE PUBLICATION {shop.slot} {how}")
    message = shop.refused()
    assert message.startswith(f"the publication {shop.slot} {why}")
    assert message.endswith(f'; choose another name with --slot, or run: DROP PUBLICATION "{shop.slot}"')


def test_a_slot_of_another_purpose_is_refused(shop: Shop) -> None:
    slot = shop.slot
    with (
        psycopg.connect(shop.server.dsn(), autocommit=True) as other,
        psycopg.connect(shop.dsn, autocommit=True) as own,
    ):
        for connection, how, why in [
            (own, f"pg_create_physical_replication_slot('{slot}')", "is a physical slot"),
            (own, f"pg_create_logical_replication_slot('{slot}', 'test_decoding')", "the plug-in test_decoding"),
            (other, f"pg_create_logical_replication_slot('{slot}', 'pgoutput')", "belongs to the database postgres"),
            (own, f"pg_create_logical_replication_slot('{slot}', 'pgoutput', true)", "is a temporary slot"),
            (own, f"pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)", "prepared transactions"),
        ]:
            connection.execute(f"SELECT {how}".encode())
            message = shop.refused()
            assert why in message
            assert message.endswith("choose another name with --slot, or drop it")
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def test_a_slot_that_another_process_reads_is_refused_with_its_pid(shop: Shop) -> None:
    first = PostgresSource(structs.replace(shop.database, reader="trunkline capture orders"))
    try:
        first.reach()
        assert first.open(SourceStart(0, None, create=True)).slot is SlotState.PRESENT
        with psycopg.connect(shop.dsn) as connection:
            [(pid,)] = connection.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (shop.slot,)
            ).fetchall()
        message = shop.refused(structs.replace(shop.database, reader="trunkline capture lines"))
        assert f"is in use by process {pid} of the server (trunkline capture orders)" in message
        assert f"SELECT pg_terminate_backend({pid})" in message
        PostgresSource(structs.replace(shop.database, reader="trunkline capture orders")).reach()  # it takes over
    finally:
        first.close()


def test_a_start_that_fails_late_removes_what_it_made(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run("CREATE TABLE bare (id int)")
    database = structs.replace(shop.database, set_identity=True)
    before = shop.left()
    seen = list[list[tuple[Any, ...]]]()

    def fail(tables: KnownTables) -> list[Any]:
        seen.append(shop.left())
        raise Unreachable("the server fails now")

    with monkeypatch.context() as patched:
        patched.setattr(KnownTables, "begin", fail)
        source = PostgresSource(database)
        source.reach()
        with pytest.raises(Unreachable, match="fails now"):
            source.open(SourceStart(0, None, create=True))
    assert {kind for kind, name, _ in seen[0] if name == shop.slot} == {"slot", "publication"}
    assert ("identity", "bare", "f") in seen[0]
    assert shop.left() == before
    source.reach()
    assert source.open(SourceStart(0, None, create=True)).slot is SlotState.PRESENT
    source.close()


def test_a_start_that_fails_removes_its_slot_also_while_the_server_has_yet_to_see_that_the_stream_ended(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shop.left()
    goes_on = list[threading.Timer]()

    def fail(tables: KnownTables) -> list[Any]:
        with psycopg.connect(shop.dsn) as connection:
            query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
            [(pid,)] = connection.execute(query, (shop.slot,)).fetchall()
        os.kill(pid, signal.SIGSTOP)
        goes_on.append(threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)))
        goes_on[0].start()
        raise Unreachable("the server fails now")

    monkeypatch.setattr(KnownTables, "begin", fail)
    with pytest.raises(Unreachable, match="fails now"):
        PostgresSource(shop.database).open(SourceStart(0, None, create=True))
    goes_on[0].join()
    assert shop.left() == before


def test_the_command_says_what_is_wrong_and_ends_with_the_server_and_the_cluster_as_before(
    shop: Shop, postgres: PostgresServer, cluster: RunningCluster
) -> None:
    other = Shop(postgres)
    shop.run("CREATE TABLE bare (id int)")
    usual = ("--postgres", shop.dsn, "--slot", shop.slot, "--exclude", "bare")
    wrong = [
        (("--postgres", other.dsn, "--tables", "public.*"), "wal_level is replica; set wal_level = logical"),
        ((*usual, "--tables", "public.missing"), 'there is no table "public"."missing"'),
        ((*usual, "--tables", "a.b.c"), "names no table; write it like schema.table"),
        (("--postgres", shop.dsn, "--slot", shop.slot, "--tables", "public.*"), "--set-replica-identity"),
        (("--postgres", shop.dsn, "--slot", "Odd", "--tables", "public.*"), "use a-z, 0-9 and _"),
    ]
    before = shop.left(), other.left(), cluster.json("log", "list")
    for options, message in wrong:
        done = cluster.trunkline("capture", "refused", "--once", *options)
        assert done.returncode != 0, options
        assert message in done.stderr.decode(), options
        assert "Traceback" not in done.stderr.decode()
    assert (shop.left(), other.left(), cluster.json("log", "list")) == before
