"""Which PostgreSQL tables and values are captured, and how the rest is refused: in one line, with the way out."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

import trunkline.sync
from delivery.captured_log import CapturedLog
from delivery.captured_postgres import ROW, Server, comparable
from delivery.direct_delivery import Direct
from delivery.task_pipelines import opened_rows
from local_cluster import RunningCluster, local_cluster
from postgres_server import PostgresServer
from trunkline.delivery.capture.one_table.capture_log import CaptureLog, Transaction
from trunkline.delivery.capture.one_table.postgres import PostgresCapture
from trunkline.delivery.changes.captured import change_rows
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import ChangeKind
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.destinations.contract import MemberStep, MemberWrite, TableStep
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.verification.preflight import preflight
from trunkline.errors import ConfigError, ProtocolError

# Of each type: the texts of some values, and in brackets what DuckDB says of them where it says it in other words.
KEPT = {
    "time": ["24:00:00", "00:00:00", "23:59:59.999999"],
    "timetz": ["24:00:00+05", "23:59:59.999999-07"],
    "date": ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC (0044-03-15 (BC))", "5874897-12-31", "1969-12-31"],
    "timestamp": [
        "infinity",
        "-infinity",
        "10000-01-01 00:00:00",
        "0001-02-29 01:02:03.5 BC (0001-02-29 (BC) 01:02:03.5)",
        "294246-12-31 23:59:59.999999",
        "1969-12-31 23:59:59.999999",
    ],
    "timestamptz": [
        "infinity",
        "20000-01-01 00:00:00+05 (19999-12-31 19:00:00+00)",
        "0001-01-01 00:00:00+05 (0001-12-31 (BC) 19:00:00+00)",
    ],
    "numeric": ["NaN", "Infinity", "-Infinity", "0.10", "1" + 500 * "0"],
    "numeric(3,-2)": ["12300"],
    "numeric(12,3)": ["-0.001", "0.000"],
    "real": ["NaN (nan)", "-0 (-0.0)", "Infinity (inf)", "-Infinity (-inf)"],
    "double precision": ["NaN (nan)", "-0 (-0.0)", "5e-324", "1.7976931348623157e+308"],
    "interval": ["1 year 2 mons -3 days +04:05:06.7", "-00:00:00.000001"],
    "int4range": ["[1,5)", "empty", "(,5)"],
    "tstzrange": ['["2026-01-01 00:00:00+00",infinity)'],
    "money": ["-$1,234.50"],
    "bit(4)": ["1010"],
    "varbit": [""],
    "inet": ["10.0.0.1/8"],
    "int[]": ["{} ([])", "[2:3]={1,NULL} ([1, NULL])"],
    "int[][]": ["{1} ([1])"],
    "numeric(4,1)[]": ["{1.5,NaN}"],
    "time[]": ["{24:00:00}"],
    "jsonb": ['{"a": 1' + 400 * "0" + "}"],
    "json": ['"\\u0000"'],
}
REFUSED = {
    "numeric(12,3)": "NaN",
    "timestamp": "294276-12-31 00:00:00",  # microseconds since 1970 have no number for it
    "int[]": "{{1,2},{3,4}}",
    "date[]": "{infinity}",
    "timestamptz[]": '{"10000-01-01 00:00:00+00"}',
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def server(logical: PostgresServer, request: pytest.FixtureRequest) -> Server:
    return Server(logical, f"db_{abs(hash(request.node.name)) % 10**9}")


@pytest.fixture
def captured(cluster: RunningCluster, server: Server) -> Iterator[CapturedLog]:
    with closing(CapturedLog(cluster.connect, server.slot.replace("_", "-"))) as log:
        yield log


def captured_values(captured: CapturedLog) -> dict[int, dict[str, str]]:
    """The rows of the log by their id, as texts: Python does not have all of the values."""
    rows = pa.Table.from_batches(captured.batches())
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        texts = connection.register("rows", rows).execute("SELECT id, CAST(COLUMNS('^v.*') AS VARCHAR) FROM rows")
        names = [each[0] for each in texts.description[1:]]
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in texts.fetchall()}


def test_every_value_comes_as_it_is_in_a_snapshot_and_in_the_stream(server: Server, captured: CapturedLog) -> None:
    server.run("DROP TABLE orders", f"CREATE TABLE orders (id int, tenant text, {columns_of(KEPT)})")
    server.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    wanted: dict[int, dict[str, str | None]] = {}
    for first in (0, 100):  # in a snapshot, then in changes
        for number in range(max(len(texts) for texts in KEPT.values())):
            row: dict[str, str | None] = {}
            given = []
            for at, texts in enumerate(KEPT.values()):
                found = re.fullmatch(r"(.*?)(?: \((.*)\))?", texts[number] if number < len(texts) else "\0")
                assert found is not None
                given.append(None if found[1] == "\0" else found[1])
                row[f"v{at}"] = found[2] or given[-1]
            with psycopg.connect(server.dsn) as connection:
                marks = ", ".join(["%s"] * (len(given) + 1))
                connection.execute(f"INSERT INTO orders VALUES (%s, {marks})".encode(), [first + number, "x", *given])
            wanted[first + number] = row
        captured.capture(server.capture())
        assert captured_values(captured) == wanted


def columns_of(types: Mapping[str, object]) -> str:
    return ", ".join(f"v{number} {kind}" for number, kind in enumerate(types))


def test_moments_that_python_does_not_have_reach_every_kind_of_destination(
    server: Server, captured: CapturedLog, tmp_path: Path
) -> None:
    server.run("ALTER TABLE orders ADD COLUMN hour time")
    values = "'x', '24:00:00', 'infinity', '0044-03-15 01:02:03 BC', '-infinity'"
    server.run(f"INSERT INTO orders (id, tenant, hour, day, local, at) VALUES (1, {values})")
    captured.capture(server.capture())
    addresses: list[Address] = [
        LakeAddress(str(tmp_path / "catalog.ducklake"), "delivered", data_path=str(tmp_path / "lake")),
        DeltaAddress(str(tmp_path / "delta")),
        PostgresAddress(server.dsn, "delivered"),
    ]
    delivery = Direct(captured.source, *(TaskDestination(str(at), each, ("x",)) for at, each in enumerate(addresses)))
    delivery.seed()
    server.run(f"INSERT INTO orders (id, tenant, hour, day, local, at) VALUES (2, {values})")
    captured.capture(server.capture())
    delivery.flush()
    for address in addresses:
        with opened_rows(address) as (_, batches), duckdb.connect() as duck:
            rows = pa.Table.from_batches(list(batches))
            texts = duck.register("rows", rows).execute(
                "SELECT r.hour::VARCHAR, r.day::VARCHAR, r.local::VARCHAR, r.at::VARCHAR FROM rows AS r"
            )
            assert texts.fetchall() == 2 * [("24:00:00", "infinity", "0044-03-15 (BC) 01:02:03", "-infinity")]


def test_a_value_that_cannot_be_captured_is_refused_with_its_row_and_a_way_out_that_works(
    server: Server, captured: CapturedLog
) -> None:
    server.run(
        ROW.format(a=1, b=3), *(f"ALTER TABLE orders ADD COLUMN bad{at} {kind}" for at, kind in enumerate(REFUSED))
    )
    captured.capture(server.capture())
    for at, value in enumerate(REFUSED.values()):
        server.run(f"INSERT INTO orders (id, bad{at}) VALUES ({at + 7}, '{value}')")
        said = f'column \'bad{at}\' of "public"."orders" has the value {re.escape(value)} where id = {at + 7}, which'
        for _ in range(2):  # it says so again, and loses nothing
            with pytest.raises(ProtocolError, match=said) as refused:
                captured.capture(server.capture())
        assert f"change it in the table, drop the slot {server.slot}, and restart the capture" in str(refused.value)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [server.slot])
        with pytest.raises(ProtocolError, match=f"{said}.*; change it in the table, then restart the capture"):
            captured.capture(server.capture())  # of a snapshot
        server.run(f"UPDATE orders SET bad{at} = NULL")
        captured.capture(server.capture())
        rows = captured.rows()
        assert {row.pop(f"bad{each}") for row in rows for each in range(len(REFUSED))} == {None}
        assert comparable(rows) == comparable(server.rows())


def test_adjacent_large_rows_are_captured_and_one_that_is_too_large_for_an_entry_is_named(
    server: Server, captured: CapturedLog
) -> None:
    large = "INSERT INTO orders (id, big) SELECT n, repeat('x', {}) FROM generate_series({}, {}) n"
    server.run(large.format(0, 1, 2000), large.format(6_000_000, 3001, 3003))
    captured.capture(server.capture())
    assert {row["id"]: len(row["big"]) for row in captured.rows() if row["big"]} == dict.fromkeys(
        (3001, 3002, 3003), 6_000_000
    )
    server.run(large.format(16_000_000, 4000, 4000))
    with pytest.raises(ProtocolError, match=r"column 'big' .*xxx\.\.\. where id = 4000, .*\(its row has 16,"):
        captured.capture(server.capture())


def test_a_table_whose_rows_may_be_hidden_from_the_role_is_refused(
    server: Server, captured: CapturedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"{server.slot}_role"
    monkeypatch.setenv("CAPTURE_PASSWORD", "secret")
    dsn = make_conninfo(server.dsn, user=role, host="127.0.0.1")
    capture = PostgresCapture(PostgresAddress(dsn, "orders", password_env="CAPTURE_PASSWORD"), server.slot)
    server.run(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'", f"GRANT SELECT ON orders TO {role}")
    server.run(f"CREATE PUBLICATION {server.slot} FOR TABLE orders", ROW.format(a=1, b=4))
    server.run("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    server.run("CREATE POLICY few ON orders USING (id < 3)")
    with pytest.raises(ConfigError, match=f'row-level security of .* may hide rows .* ALTER ROLE "{role}" BYPASSRLS'):
        captured.capture(capture)
    server.run(f"ALTER TABLE orders OWNER TO {role}")  # an owner sees all
    captured.capture(capture)
    assert comparable(captured.rows()) == comparable(server.rows())
    server.run("ALTER TABLE orders FORCE ROW LEVEL SECURITY")  # which does not exempt the owner
    with pytest.raises(ConfigError, match="row-level security"):
        captured.capture(capture)
    server.run(f"ALTER ROLE {role} BYPASSRLS", ROW.format(a=5, b=6))
    captured.capture(capture)
    assert comparable(captured.rows()) == comparable(server.rows())


def test_a_policy_that_comes_while_a_capture_runs_hides_nothing_from_its_next_snapshot(
    server: Server, captured: CapturedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"{server.slot}_role"
    monkeypatch.setenv("CAPTURE_PASSWORD", "secret")
    dsn = make_conninfo(server.dsn, user=role, host="127.0.0.1")
    server.run(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'", f"GRANT SELECT ON orders TO {role}")
    server.run(f"CREATE PUBLICATION {server.slot} FOR TABLE orders", ROW.format(a=1, b=4))
    capture = PostgresCapture(PostgresAddress(dsn, "orders", password_env="CAPTURE_PASSWORD"), server.slot)
    capture.reach()
    server.run("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    capture.begin(None)
    try:
        with pytest.raises(ConfigError, match="would be affected by row-level security"):
            [list(each.changes) for each in capture.transactions()]
    finally:
        capture.close()


def test_columns_that_differ_in_case_alone_and_reserved_names_are_refused(
    server: Server, captured: CapturedLog
) -> None:
    server.run(ROW.format(a=1, b=1))
    captured.capture(server.capture())
    server.run('ALTER TABLE orders ADD COLUMN "Tenant" text')
    with pytest.raises(ConfigError, match=r"'tenant' and 'Tenant' differ only in case, .*; rename one of them"):
        captured.capture(server.capture())
    server.run('ALTER TABLE orders RENAME COLUMN "Tenant" TO _trunkline_kind')
    with pytest.raises(ConfigError, match="'_trunkline_kind' begins with _trunkline, which is reserved; rename it"):
        captured.capture(server.capture())
    server.run("CREATE TABLE bare ()", "ALTER TABLE bare REPLICA IDENTITY FULL")
    with pytest.raises(ConfigError, match="has no columns that could be captured"):
        captured.capture(PostgresCapture(PostgresAddress(server.dsn, "bare"), f"{server.slot}_bare"))


def test_a_pipeline_refuses_a_log_with_columns_that_differ_in_case_alone(
    server: Server, captured: CapturedLog, tmp_path: Path
) -> None:
    """Older captures wrote such logs, and the values of one column came in the other's place, too."""
    columns = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"), Column("Tenant", "VARCHAR"))
    rows = change_rows(ChangeKind.INSERT, pa.table({"id": [1], "tenant": ["x"], "Tenant": ["y"]}))
    with trunkline.sync.connect(captured.connect) as cluster:
        log = CaptureLog(cluster, captured.log)
        log.take_over()
        log.write(Transaction("{}", columns, [rows]))
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"pipeline: orders\nkey: [id]\nrouting: {{column: tenant}}\ncontrol: {{store: sqlite:control.db}}\n"
        f"source: {{type: log, log: {captured.log}, connect: '{captured.connect}'}}\n"
        f"destinations: [{{name: x, type: postgres, dsn: {server.dsn}, table: delivered}}]\n"
    )
    [problem] = [each for each in preflight(file)[1] if each.where == "source"]
    assert "'tenant' and 'Tenant' differ only in case" in problem.what
    address = PostgresAddress(server.dsn, "delivered")
    table = TableStep("", address, columns, ("id",), replaces=True)
    seed = MemberStep("orders/x", "public", 0, 1, 1, "log", (table,), seeds=True)
    with closing(open_place(address)) as place:
        refused = place.apply([MemberWrite(seed, {"": lambda: iter(rows.to_batches())})])["orders/x"]
    assert isinstance(refused, ConfigError)
    assert "differ only in case" in str(refused)


def test_generated_columns_are_omitted_from_snapshot_and_stream_with_one_warning(
    server: Server, captured: CapturedLog, caplog: pytest.LogCaptureFixture
) -> None:
    server.run("ALTER TABLE orders ADD COLUMN twice bigint GENERATED ALWAYS AS (id * 2) STORED")
    server.run(ROW.format(a=1, b=2))
    capture = server.capture()
    with caplog.at_level(logging.WARNING):
        for first in (3, 5):
            captured.capture(capture)
            assert comparable(captured.rows()) == comparable(server.rows())
            server.run(ROW.format(a=first, b=first + 1))
    assert caplog.text.count('generated columns of "public"."orders" are not captured: twice') == 1


def test_a_publication_that_leaves_something_out_is_refused(server: Server, captured: CapturedLog) -> None:
    for part in ("(id, tenant)", "WHERE (id > 1)", "WITH (publish = 'insert')"):
        server.run(f"CREATE PUBLICATION {server.slot} FOR TABLE orders {part}")
        with pytest.raises(ConfigError, match=f"the publication {server.slot} leaves out rows, columns or kinds"):
            captured.capture(server.capture())
        server.run(f"DROP PUBLICATION {server.slot}")
    server.run(ROW.format(a=1, b=2))
    captured.capture(server.capture())
    assert comparable(captured.rows()) == comparable(server.rows())


def test_texts_of_a_database_in_another_encoding_come_as_they_are(
    logical: PostgresServer, server: Server, captured: CapturedLog
) -> None:
    with psycopg.connect(logical.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    dsn = logical.dsn("latin")
    with psycopg.connect(dsn, client_encoding="UTF8") as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, tenant text)")
        connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        connection.execute("INSERT INTO orders VALUES (1, 'Zürich')")
    captured.capture(PostgresCapture(PostgresAddress(dsn, "orders"), server.slot))
    with psycopg.connect(dsn, client_encoding="UTF8") as connection:
        connection.execute("INSERT INTO orders VALUES (2, 'Zürich')")
    captured.capture(PostgresCapture(PostgresAddress(dsn, "orders"), server.slot))
    assert [row["tenant"] for row in captured.rows()] == ["Zürich", "Zürich"]
