"""The capture of a MariaDB database, against a real server: its types, its stream, its chunks and its tables."""

from __future__ import annotations

import math
import random
import socket
import struct
import threading
import uuid
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from decimal import Decimal
from typing import Any, Protocol

import pymysql
import pytest

from delivery.source_driver import SourceDriver
from mariadb_server import MariadbServer
from trunkline.core.capture_messages import SlotState
from trunkline.delivery.capture.mariadb.catalog import Patterns, look, server_of
from trunkline.delivery.capture.mariadb.connection import BinlogConnection, Session, parse_dsn
from trunkline.delivery.capture.mariadb.events import CRC
from trunkline.delivery.capture.mariadb.rows import Limits
from trunkline.delivery.capture.mariadb.source import MariaSource
from trunkline.delivery.capture.mariadb.stream import Stream
from trunkline.delivery.capture.mariadb.tables import Tables
from trunkline.delivery.capture.source import OFFSET_MAX, Changes, SchemaUnit, SourceStart
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.schemas import SchemaChange
from trunkline.errors import ConfigError, TrunklineError, Unreachable

SMALL = Limits(rows=50, bytes=16 * 1024)
TYPES = """
CREATE TABLE typed (
    id INT UNSIGNED PRIMARY KEY, ti TINYINT, tiu TINYINT UNSIGNED, si SMALLINT, siu SMALLINT UNSIGNED, mi MEDIUMINT,
    miu MEDIUMINT UNSIGNED, bi BIGINT, biu BIGINT UNSIGNED, de DECIMAL(20,5), wide DECIMAL(65,30), f FLOAT, d DOUBLE,
    c CHAR(5), vc VARCHAR(300), latin VARCHAR(20) CHARACTER SET latin1, u16 VARCHAR(10) CHARACTER SET utf16, tx TEXT,
    bin BINARY(4), vb VARBINARY(20), bl BLOB, da DATE, dt DATETIME, dt6 DATETIME(6), ts TIMESTAMP NULL,
    ts6 TIMESTAMP(6) NULL, tm TIME, tm3 TIME(3), y YEAR, j JSON, b1 BIT(1), b20 BIT(20), e ENUM('a', 'b''c', 'ü'),
    s SET('x', 'y', 'z'), u UUID, i6 INET6, i4 INET4, g POINT, virt INT AS (ti + 1) VIRTUAL,
    stor INT AS (ti + 2) STORED, hidden INT INVISIBLE DEFAULT 7, zf INT ZEROFILL
)"""
NAMES = (
    "id ti tiu si siu mi miu bi biu de wide f d c vc latin u16 tx bin vb bl da dt dt6 ts ts6 tm tm3 y j b1 b20 e s u "
    "i6 i4 g zf"
)
LOW = (
    "1 -128 255 -32768 65535 -8388608 16777215 -9223372036854775808 18446744073709551615 -123456789012345.12345 "
    "-12345678901234567890123456789012345.123456789012345678901234567890 0.1 0.1 'a_' REPEAT('ä',200) '€é' '😀x' "
    "'text' X'0102' X'010000' X'00ff' '1999-12-31' '2024-02-29T12:34:56' '2024-02-29T12:34:56.123456' "
    "'2038-01-19T03:14:07' '2001-01-01T00:00:00.000001' '-838:59:59' '-00:00:00.001' 2155 '{\"a\":1}' 1 b'10101' "
    "'b''c' 'x,z' '123e4567-e89b-12d3-a456-426614174000' '::ffff:1.2.3.4' '1.2.3.4' POINT(1,2) 42"
)
ZERO = (
    "2 0 0 0 0 0 0 0 0 0 0 1e-30 1.7976931348623157e308 '' '' X'81' '' '' '' '' '' '0000-00-00' '0000-00-00' "
    "'2024-00-10' 0 0 '00:00:00' '838:59:59.999' 0 '[]' 0 0 '' '' '00000000-0000-0000-0000-000000000000' '::' "
    "'0.0.0.0' NULL 0"
)
EXPECTED = {
    "biu": 18446744073709551615, "de": Decimal("-123456789012345.12345"), "c": "a_", "latin": "€é", "u16": "😀x",
    "wide": "-12345678901234567890123456789012345.123456789012345678901234567890", "bin": b"\x01\x02\x00\x00",
    "vb": b"\x01\x00\x00", "tm": "-838:59:59", "tm3": "-00:00:00.001", "y": 2155, "j": '{"a":1}', "b1": True, "b20": 21,
    "e": "b'c", "s": "x,z", "u": "123e4567-e89b-12d3-a456-426614174000", "i6": "::ffff:1.2.3.4", "i4": "1.2.3.4",
    "virt": -127, "stor": -126, "hidden": 7, "zf": 42,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    with MariadbServer() as running:
        yield running


@pytest.fixture
def database(server: MariadbServer, request: pytest.FixtureRequest) -> str:
    name = f"d{abs(hash(request.node.name)) % 10**9}"
    server.execute(f"CREATE OR REPLACE DATABASE {name}")
    return name


class Drive(Protocol):
    def __call__(
        self, server: MariadbServer, *patterns: str, limits: Limits = SMALL, reads: bool = True
    ) -> SourceDriver: ...


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Makes drivers, whose sources are closed at the end."""
    with ExitStack() as stack:

        def made(server: MariadbServer, *patterns: str, limits: Limits = SMALL, reads: bool = True) -> SourceDriver:
            source = MariaSource(server.dsn(), patterns, limits=limits)
            stack.callback(source.close)
            return SourceDriver(source, reads=reads)

        yield made


def catch_up(driver: SourceDriver, server: MariadbServer) -> None:
    """Everything is streamed, and every table is read."""
    driver.until(lambda: bool(driver.tables))
    driver.until(lambda: all(table.complete for table in driver.tables.values()))
    driver.until_streamed(server.position())
    driver.until(lambda: all(table.complete for table in driver.tables.values()))


def rows_in(server: MariadbServer, database: str, table: str) -> Counter[tuple[Any, ...]]:
    return Counter(server.execute(f"SELECT * FROM `{table}`", database=database))


def reasons(driver: SourceDriver) -> list[str]:
    return [unit.why for unit in driver.units if isinstance(unit, SchemaUnit) and unit.why]


def test_every_type_is_the_same_from_the_binlog_and_from_a_snapshot(
    server: MariadbServer, database: str, drive: Drive
) -> None:
    server.execute(TYPES, database=database)
    generator = random.Random(7)
    streaming = drive(server, f"{database}.*", reads=False)
    streaming.open()
    values = [LOW.split(), ZERO.split(), ["3", *["NULL"] * (len(NAMES.split()) - 1)]]
    inserts = [f"INSERT INTO typed ({', '.join(NAMES.split())}) VALUES ({', '.join(row)})" for row in values]
    for number in range(10, 400):
        floats = struct.unpack("<fd", generator.randbytes(4) + generator.randbytes(8) if number else b"")
        address = bytearray(generator.randbytes(16))
        for place in range(0, 16, 2):
            address[place : place + 2] = bytes(2) if generator.random() < 0.6 else address[place : place + 2]
        chosen = [
            str(number),
            *(repr(each) if math.isfinite(each) else "1" for each in floats),
            f"'{uuid.UUID(int=generator.getrandbits(128))}'",
            f"'{socket.inet_ntop(socket.AF_INET6, bytes(address))}'",
            f"{generator.randint(-(10**19), 10**19)}e-5",
        ]
        inserts.append(f"INSERT INTO typed (id, f, d, u, i6, de) VALUES ({', '.join(chosen)})")
    server.execute("SET sql_mode = ''", "BEGIN", *inserts, "COMMIT", database=database)
    streaming.until_streamed(server.position())
    reading = drive(server, f"{database}.*")
    reading.open()
    catch_up(reading, server)
    streamed, read = streaming.table("typed").values(), reading.table("typed").values()
    assert streamed == read
    assert len(streamed) == 393
    columns = [column.name for column in reading.table("typed").schema.columns]
    [low] = [row for row in read if row[0] == 1]
    assert {name: low[columns.index(name)] for name in EXPECTED} == EXPECTED
    [zero] = [row for row in read if row[0] == 2]
    assert [zero[columns.index(name)] for name in ("da", "dt", "dt6", "ts", "e", "latin")] == [None] * 4 + ["", "\x81"]


def transact(cursor: Any, generator: random.Random) -> None:
    """A transaction that removes, adds and moves rows."""
    number, other = generator.randint(1, 25000), generator.randint(25001, 90000)
    cursor.execute("BEGIN")
    cursor.execute("DELETE FROM pairs WHERE a = %s AND b = %s", (f"K{number % 37}", number))
    cursor.execute("REPLACE INTO pairs VALUES (%s, %s, 2, 'new')", (f"k{other % 37}", other))
    moved = generator.randint(1, 25000)
    cursor.execute("UPDATE IGNORE pairs SET b = b + 1000000 WHERE a = %s AND b = %s", (f"K{moved % 37}", moved))
    cursor.execute("INSERT INTO loose VALUES (%s, NULL)", (number % 50,))
    cursor.execute("DELETE FROM loose WHERE n = %s LIMIT 1", (number % 100,))
    cursor.execute(generator.choice(("COMMIT", "COMMIT", "ROLLBACK")))


def test_chunks_beside_writers_give_the_rows_of_the_database(
    server: MariadbServer, database: str, drive: Drive
) -> None:
    server.execute(
        "CREATE TABLE pairs (a VARCHAR(20), b BIGINT, e ENUM('z', 'y', 'x'), note TEXT, PRIMARY KEY (a, e, b))",
        "CREATE TABLE loose (n INT, note VARCHAR(20))",
        "INSERT INTO pairs SELECT CONCAT('K', seq % 37), seq, 1 + seq % 3, REPEAT('n', seq % 50) FROM seq_1_to_25000",
        "INSERT INTO loose SELECT seq % 100, 'same' FROM seq_1_to_12000",
        database=database,
    )
    stop = threading.Event()

    def write(seed: int) -> None:
        generator = random.Random(seed)
        with closing(server.connect(database)) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                with suppress(pymysql.err.OperationalError):  # a deadlock rolls it back
                    transact(cursor, generator)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for writer in writers:
        writer.start()
    driver = drive(server, f"{database}.*", limits=Limits())
    try:
        driver.open()
        driver.until(lambda: driver.complete("pairs", "loose"))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    catch_up(driver, server)
    assert driver.table("pairs").chunks >= 3
    for table in ("pairs", "loose"):
        assert driver.table(table).values() == rows_in(server, database, table)


def test_a_large_transaction_comes_in_parts_and_others_whole(
    server: MariadbServer, database: str, drive: Drive
) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY, note TEXT)", database=database)
    driver = drive(server, f"{database}.*")
    driver.open()
    driver.until(lambda: driver.complete("t"))
    server.execute(
        "INSERT INTO t VALUES (0, 'before')",
        "INSERT INTO t SELECT seq, REPEAT('x', 100) FROM seq_1_to_5000",
        "UPDATE t SET id = -id WHERE id < 100",
        "DELETE FROM t WHERE id > 4000",
        database=database,
    )
    catch_up(driver, server)
    changes = [unit for unit in driver.units if isinstance(unit, Changes)]
    parts = [unit for unit in changes if unit.part is not None]
    assert max(unit.size for unit in parts) < 4 * SMALL.bytes
    begun = [unit for unit in parts if unit.part == 0]
    assert len(begun) == len([unit for unit in parts if unit.last]) == 3
    for first in begun:
        same = [unit for unit in parts if unit.transactions[0].lsn == first.transactions[0].lsn]
        assert [unit.part for unit in same] == list(range(len(same)))
        assert [unit.last for unit in same] == [False] * (len(same) - 1) + [True]
    lsns = [each.lsn for unit in changes for each in unit.transactions]
    assert lsns == sorted(lsns)
    assert driver.table("t").values() == rows_in(server, database, "t")


def test_a_stream_goes_on_after_kills_of_the_server_and_new_files(
    server: MariadbServer, database: str, drive: Drive
) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)", "CREATE TABLE loose (n INT)", database=database)
    driver = drive(server, f"{database}.*")
    opened = driver.open()
    for number in range(3):
        server.execute(
            f"INSERT INTO t SELECT seq + {number * 1000}, 0 FROM seq_1_to_300",
            "FLUSH BINARY LOGS",
            f"UPDATE t SET n = {number} WHERE id % 3 = 0",
            f"INSERT INTO loose VALUES ({number})",
            database=database,
        )
        if number == 1:
            server.kill()
            with pytest.raises(Unreachable):
                driver.until_streamed(1 << 62)
            with pytest.raises(Unreachable):
                driver.source.reach()
            server.restart()
        else:
            driver.until_streamed(server.position())
            driver.source.close()
        driver.source.reach()
        assert driver.open().origin == opened.origin
    catch_up(driver, server)
    for table in ("t", "loose"):
        assert driver.table(table).values() == rows_in(server, database, table)
    assert not [why for why in reasons(driver) if "key" not in why]


def test_schema_changes_are_followed_in_their_place(server: MariadbServer, database: str, drive: Drive) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(10))", database=database)
    driver = drive(server, f"{database}.*")
    driver.open()
    statements = [
        "INSERT INTO t VALUES (1, 1, 'one'), (2, 2, 'two')",
        "ALTER TABLE t ADD COLUMN c INT NOT NULL DEFAULT 5, ADD d VARCHAR(5) DEFAULT 'it''s' AFTER id",
        "INSERT INTO t VALUES (3, 'x', 3, 'three', 3)",
        "ALTER TABLE t RENAME COLUMN A TO z, ADD KEY (b)",
        "CREATE SEQUENCE numbers",
        "SELECT NEXTVAL(numbers)",
        "UPDATE t SET z = 20 WHERE id = 2",
        "ALTER TABLE t CHANGE z a BIGINT, MODIFY b VARCHAR(50)",
        "INSERT INTO t VALUES (4, NULL, 5000000000, 'a longer text', 4)",
        "ALTER TABLE t DROP COLUMN c, ADD COLUMN c DECIMAL(5,1)",
        "INSERT INTO t VALUES (5, NULL, 5, NULL, 1.5)",
        "RENAME TABLE t TO other, other TO u",
        "INSERT INTO u VALUES (6, NULL, 6, NULL, 2.5)",
        "CREATE TABLE copied AS SELECT * FROM u",
        "CREATE TABLE gone (id INT PRIMARY KEY)",
        "INSERT INTO gone VALUES (1)",
        "DROP TABLE gone",
        "CREATE TABLE emptied (id INT PRIMARY KEY)",
        "INSERT INTO emptied VALUES (1)",
        "TRUNCATE emptied",
        "INSERT INTO emptied VALUES (2)",
    ]
    for statement in statements:
        server.execute(statement, database=database)
        driver.until_streamed(server.position())
    catch_up(driver, server)
    assert reasons(driver) == []
    assert sorted(each.schema.name for each in driver.tables.values()) == ["copied", "emptied", "u"]
    for table in ("u", "copied", "emptied"):
        assert driver.table(table).values() == rows_in(server, database, table)
    changes = [unit.schema.changes for unit in driver.units if isinstance(unit, SchemaUnit) and unit.schema.number == 1]
    assert changes == [
        (SchemaChange.CREATED,),
        (SchemaChange.ADDED,),
        (SchemaChange.RENAMED,),
        (SchemaChange.RENAMED, SchemaChange.WIDENED),
        (SchemaChange.ADDED, SchemaChange.DROPPED),
        (SchemaChange.TABLE_RENAMED,),
    ]


def test_statements_that_were_streamed_late_or_twice_give_the_same_tables(
    server: MariadbServer, database: str, drive: Drive
) -> None:
    """The tables are looked at long after some statements; and a crash streams statements again."""
    server.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT)", database=database)
    driver = drive(server, f"{database}.*")
    driver.open()
    driver.until(lambda: driver.complete("t"))
    position = driver.position
    server.execute(
        "INSERT INTO t VALUES (1, 1)",
        "CREATE TABLE early (id INT PRIMARY KEY, u UUID)",
        "INSERT INTO early VALUES (1, '123e4567-e89b-12d3-a456-426614174000')",
        "ALTER TABLE early ADD COLUMN n INT, DROP COLUMN u",
        "INSERT INTO early VALUES (2, 2)",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)",
        "INSERT INTO t VALUES (1, 2)",
        "ALTER TABLE t RENAME TO v, ALGORITHM = COPY",
        "INSERT INTO v VALUES (1, 3)",
        database=database,
    )
    catch_up(driver, server)
    for table in ("v", "early"):
        assert driver.table(table).values() == rows_in(server, database, table)
    server.execute("ALTER TABLE v ADD COLUMN b INT, RENAME COLUMN a TO c", database=database)
    position = driver.position  # before the statement
    driver.until_streamed(server.position())
    versions = {number: table.schema.version for number, table in driver.tables.items()}
    driver.source.close()
    driver.position = position
    driver.open()
    driver.until_streamed(server.position())
    assert {number: table.schema.version for number, table in driver.tables.items()} == versions
    driver.source.close()
    server.execute("RENAME TABLE v TO w", "INSERT INTO w VALUES (7, 7, 7)", "RENAME TABLE w TO x", database=database)
    driver.open()  # the name of a later moment is already there
    catch_up(driver, server)
    assert sorted(table.schema.name for table in driver.tables.values()) == ["early", "x"]
    assert driver.table("x").values() == rows_in(server, database, "x")


def test_what_the_binlog_does_not_state_is_captured_again(server: MariadbServer, database: str, drive: Drive) -> None:
    server.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)",
        "CREATE TABLE other (id INT PRIMARY KEY) ENGINE = Aria",
        "INSERT INTO t SELECT seq, seq, seq FROM seq_1_to_500",
        database=database,
    )
    driver = drive(server, f"{database}.*", f"!{database}.other")
    driver.open()
    catch_up(driver, server)
    cases = [
        (("BEGIN", "INSERT INTO t VALUES (1001, 1, 1)", "INSERT INTO other VALUES (1)", "ROLLBACK"), ""),
        (
            (
                "BEGIN",
                "INSERT INTO t SELECT seq, 0, 0 FROM seq_2000_to_2200",
                "SAVEPOINT s",
                "INSERT INTO other VALUES (2)",
                "INSERT INTO t SELECT seq, 0, 0 FROM seq_3000_to_3300",
                "ROLLBACK TO s",
                "COMMIT",
            ),
            None,
        ),
        (("XA START 'x'", "UPDATE t SET a = 0 WHERE id < 10", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"), "XA"),
        (("XA START 'y'", "DELETE FROM t WHERE id < 20", "XA END 'y'", "XA PREPARE 'y'", "XA ROLLBACK 'y'"), ""),
        (("SET binlog_row_image = MINIMAL", "UPDATE t SET b = 7 WHERE id < 50"), "binlog_row_image"),
        (("SET binlog_format = STATEMENT", "UPDATE t SET b = 8 WHERE id < 60"), "a statement may have changed it"),
        (("ALTER TABLE t MODIFY b SMALLINT",), "turned from INTEGER into SMALLINT"),
        (("ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 2",), "a statement may have changed it"),
        (("ALTER TABLE t TRUNCATE PARTITION p1",), "a statement may have changed it"),
        (("ALTER TABLE t ADD COLUMN c TIMESTAMP DEFAULT CURRENT_TIMESTAMP",), "a statement may have changed it"),
    ]
    for statements, why in cases:
        before = len(reasons(driver))
        server.execute(*statements, database=database)
        catch_up(driver, server)
        given = reasons(driver)[before:]
        assert why is None or (not given if why == "" else any(why in each for each in given)), (statements, given)
        assert len(driver.table("t").values()) == len(rows_in(server, database, "t"))
        if "c TIMESTAMP" not in statements[0]:
            assert driver.table("t").values() == rows_in(server, database, "t"), statements
    assert len(reasons(driver)) <= len(cases)


def test_a_capture_says_what_the_server_or_a_table_lacks(server: MariadbServer, database: str) -> None:
    server.execute(
        "CREATE TABLE good (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES good (id) ON DELETE CASCADE)",
        "CREATE TABLE aria (id INT PRIMARY KEY) ENGINE = Aria",
        "CREATE TABLE versioned (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
        "CREATE TABLE greek (a VARCHAR(10) CHARACTER SET sjis)",
        "CREATE TABLE packed (a TEXT COMPRESSED)",
        "CREATE VIEW seen AS SELECT 1 AS a",
        "CREATE OR REPLACE USER reader IDENTIFIED BY 'secret'",
        "GRANT SELECT ON *.* TO reader",
        database=database,
    )

    def refusal(*patterns: str, user: str = "root", password: str = "", port: int = 0, replica: int = 0) -> str:
        dsn = server.dsn(user=user, password=password)
        source = MariaSource(
            dsn.replace(str(server.port), str(port)) if port else dsn, patterns, replica=replica or None
        )
        with pytest.raises((ConfigError, Unreachable)) as caught:
            source.reach()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    good = f"{database}.good"
    assert "CASCADE" in refusal(f"{database}.child")
    assert "engine Aria" in refusal(f"{database}.a*")
    assert "system-versioned" in refusal(f"{database}.versioned")
    assert "character set sjis" in refusal(f"{database}.greek")
    assert "cannot be captured" in refusal(f"{database}.packed")
    assert "no table matches" in refusal(f"{database}.seen", f"{database}.nothing")
    assert "server id 1" in refusal(good, replica=1)
    assert "check the user, the password" in refusal(good, user="stranger", password="wrong")
    assert "BINLOG MONITOR" in refusal(good, user="reader", password="secret")
    server.execute("GRANT BINLOG MONITOR ON *.* TO reader")
    assert "REPLICATION SLAVE" in refusal(good, user="reader", password="secret")
    server.execute("GRANT REPLICATION SLAVE ON *.* TO reader")
    MariaSource(server.dsn(user="reader", password="secret"), [good]).reach()
    server.execute("REVOKE SELECT ON *.* FROM reader", f"GRANT INSERT ON {good} TO reader")
    assert "SELECT" in refusal(good, user="reader", password="secret")
    server.execute("REVOKE ALL PRIVILEGES, GRANT OPTION FROM reader", "GRANT BINLOG MONITOR ON *.* TO reader")
    assert "no table matches" in refusal(good, user="reader", password="secret")
    for name, value, usual in (
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
    ):
        server.execute(f"SET GLOBAL {name} = {value}")
        assert f"set {name} = {usual}" in refusal(good)
        server.execute(f"SET GLOBAL {name} = {usual}")
    for patterns in ([], ["good"], ["!a.b"]):
        with pytest.raises(ConfigError, match="tables"):
            MariaSource(server.dsn(), patterns)
    for dsn in (
        "postgres://a@b",
        "mariadb://host",
        "mariadb://u@h:port",
        "mariadb://u@h?unknown=1",
        "mariadb://u@h?ssl-ca=/no",
    ):
        with pytest.raises(ConfigError):
            MariaSource(dsn, [good])
    assert "does not answer" in refusal(good, port=9)


def test_a_server_without_a_binlog_is_refused() -> None:
    settings = {"skip-log-bin": "", "log-bin": "", "binlog-format": "ROW"}
    running = MariadbServer(settings=settings)
    del running.settings["log-bin"]
    with running:
        running.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        with pytest.raises(ConfigError, match="log_bin"):
            MariaSource(running.dsn(), ["shop.*"]).reach()


def test_purged_binlogs_and_a_reset_are_noticed(drive: Drive) -> None:
    with MariadbServer() as running:
        running.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        driver = drive(running, "shop.*")
        opened = driver.open()
        running.execute("INSERT INTO shop.t VALUES (1), (2)")
        catch_up(driver, running)
        driver.source.close()
        position, catalog = driver.position, driver.catalog()
        running.execute("INSERT INTO shop.t VALUES (3)", "FLUSH BINARY LOGS")
        while (
            running.execute("SHOW BINARY LOGS")[0][0] != "binlog.000002"
        ):  # the old stream ends with its next heartbeat
            running.execute("PURGE BINARY LOGS TO 'binlog.000002'")
        lost = driver.source.open(SourceStart(position, catalog))
        assert (lost.slot, lost.origin) == (SlotState.LOST, opened.origin)
        again = driver.source.open(SourceStart(0, catalog, create=True))
        assert again.slot is SlotState.PRESENT
        units = driver.source.receive(0, close=True)
        shapes = [unit for unit in units if isinstance(unit, SchemaUnit)]
        assert [unit.schema.changes for unit in shapes] == [(SchemaChange.RECAPTURED,)]
        running.execute("RESET MASTER", "CREATE TABLE shop.u (id INT PRIMARY KEY)")
        for position in (2 << 40 | 400, 1 << 40 | 350, 1 << 40 | 10**6):
            assert driver.source.open(SourceStart(position, catalog)).slot is SlotState.LOST


def test_compressed_binlogs_and_other_checksums_are_read(drive: Drive) -> None:
    with MariadbServer(settings={"log-bin-compress": "ON", "binlog-checksum": "NONE"}) as running:
        running.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, note TEXT, gone TEXT)")
        driver = drive(running, "shop.*")
        driver.open()
        running.execute(
            "USE shop",
            "INSERT INTO shop.t SELECT seq, REPEAT('text', 200), 'x' FROM seq_1_to_300",
            "UPDATE shop.t SET note = CONCAT(note, id) WHERE id < 100",
            "DELETE FROM shop.t WHERE id > 200",
            f"ALTER TABLE shop.t DROP COLUMN gone, COMMENT '{'a long comment ' * 40}'",
            "SET GLOBAL binlog_checksum = CRC32",
            "INSERT INTO shop.t VALUES (1000, NULL)",
        )
        catch_up(driver, running)
        assert driver.table("t").values() == rows_in(running, "shop", "t")
        deleted = [
            kind
            for unit in driver.units
            if isinstance(unit, Changes)
            for rows in unit.tables
            for kind in rows.batch.column(2).to_pylist()
        ]
        assert deleted.count(RowKind.DELETE) == 100
        assert reasons(driver) == []


def test_damaged_events_are_refused_and_nothing_else_happens(server: MariadbServer, database: str) -> None:
    """Bytes of real events change, with checksums that match: the stream ends with an error of ours, or goes on."""
    server.execute(TYPES, database=database)
    values = [
        f"INSERT INTO typed ({', '.join(NAMES.split())}) VALUES ({', '.join(row.split())})" for row in (LOW, ZERO)
    ]
    begin = server.position()
    server.execute(
        "SET sql_mode = ''",
        *values,
        "UPDATE typed SET ti = 3",
        "DELETE FROM typed WHERE id = 1",
        "ALTER TABLE typed ADD COLUMN more INT NOT NULL DEFAULT 3, RENAME COLUMN ti TO other",
        "INSERT INTO typed (id) VALUES (9)",
        "TRUNCATE typed",
        database=database,
    )
    with closing(Session(parse_dsn(server.dsn()))) as session:
        state = server_of(session, 5)
        [seen] = look(session, Patterns([f"{database}.*"])).values()
    packets: list[bytes] = []
    with closing(BinlogConnection(parse_dsn(server.dsn()), 7, state.file(begin), begin & OFFSET_MAX)) as binlog:
        while not any(b"TRUNCATE" in packet for packet in packets):
            packets += binlog.receive(1000)
    generator = random.Random(11)
    outcomes = Counter[str]()
    for _ in range(600):
        damaged = list(packets)
        for _ in range(generator.choice((1, 1, 3))):
            place = generator.randrange(len(damaged))
            damaged[place] = _damaged(damaged[place], generator)
        tables = Tables(None)
        tables.create(seen, 1)
        stream = Stream(state, Patterns([f"{database}.*"]), tables, lambda _: seen, begin, SMALL, set())
        try:
            stream.feed(deque(damaged), None)
            stream.close_group()
            outcomes["read"] += 1
        except TrunklineError as error:
            outcomes[type(error).__name__] += 1
    assert outcomes["read"] > 10
    assert outcomes["ProtocolError"] > 10


def _damaged(packet: bytes, generator: random.Random) -> bytes:
    """Behind the header, or its flags and offset."""
    content = bytearray(packet[: -CRC.size])
    for _ in range(generator.choice((1, 2, 8))):
        content[generator.randrange(13, len(content))] = generator.randrange(256)
    return bytes(content) + CRC.pack(zlib.crc32(content))
