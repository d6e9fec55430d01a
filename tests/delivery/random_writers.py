"""Writers that change a PostgreSQL database at random: rows, keys and shapes, in transactions of every kind.

Each transaction adds its number to the table ``ledger``, so that a state of a copy says which transactions it has.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg
from msgspec import Struct

SETUP: Final = """
CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE ledger (id bigint PRIMARY KEY);
CREATE TABLE ints (id int PRIMARY KEY, v int, note text);
CREATE TABLE texts (k text COLLATE caseless PRIMARY KEY, v int, big text);
CREATE TABLE pairs (a int, b text COLLATE "C", v int, u numeric(12, 2), PRIMARY KEY (b, a));
CREATE TABLE uuids (id uuid PRIMARY KEY, v int, ok boolean);
CREATE TABLE plain (a int, t text);
CREATE TABLE bigs (id int PRIMARY KEY, big text, v int, more text);
CREATE TABLE parents (id int PRIMARY KEY, v int);
CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents ON DELETE CASCADE, v int);
CREATE TABLE parted (id int, part int, v int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES IN (0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
ALTER TABLE plain REPLICA IDENTITY FULL;
ALTER TABLE texts ALTER big SET STORAGE EXTERNAL;
ALTER TABLE bigs ALTER big SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL;
INSERT INTO ints SELECT i, i, 'note ' || i FROM generate_series(1, 60) i;
INSERT INTO texts SELECT chr(65 + i % 26) || i, i, repeat('t', 2500) || i FROM generate_series(1, 40) i;
INSERT INTO pairs SELECT i % 7, 'b' || i, i, i / 3.0 FROM generate_series(1, 50) i;
INSERT INTO uuids SELECT md5(i::text)::uuid, i, i % 2 = 0 FROM generate_series(1, 40) i;
INSERT INTO plain SELECT i % 5, 'plain ' || i % 9 FROM generate_series(1, 60) i;
INSERT INTO bigs SELECT i, repeat('b', 2500) || i, i, repeat('m', 2500) || i FROM generate_series(1, 40) i;
INSERT INTO parents SELECT i, i FROM generate_series(1, 20) i;
INSERT INTO children SELECT i, 1 + i % 20, i FROM generate_series(1, 40) i;
INSERT INTO parted SELECT i, i % 2, i FROM generate_series(1, 40) i;
"""
ALTERED: Final = ("ints", "pairs", "bigs", "children", "plain")
SESSION: Final = "SET lock_timeout = '1500ms'; SET idle_in_transaction_session_timeout = '20s'"


class Written(Struct):
    transactions: int = 0
    failures: int = 0
    alterations: int = 0
    prepared: int = 0


class Writers:
    """``quiet``: held while shapes change; what reads several tables at one snapshot holds it, too."""

    def __init__(self, dsn: str, seed: int, *, large: int, alters: bool) -> None:
        self.dsn = dsn
        self.written = Written()
        self.quiet = threading.Lock()
        self._seed = seed
        self._large = large
        self._alters = alters
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self._extra: dict[str, list[str]] = {name: [] for name in ALTERED}
        self._made: list[str] = []
        self._prepared: list[str] = []
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, count: int, pause_s: float) -> None:
        for number in range(count):
            chance = random.Random(f"{self._seed}/{number}")
            self._threads.append(threading.Thread(target=self._work, args=(chance, pause_s), daemon=True))
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """The server must answer. Every table can be captured afterwards."""
        self._done.set()
        for thread in self._threads:
            thread.join()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for (name,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                connection.execute(f"COMMIT PREPARED '{name}'".encode())

    # --- transactions ---

    def _work(self, chance: random.Random, pause_s: float) -> None:
        connection: psycopg.Connection[Any] | None = None
        while not self._done.wait(chance.random() * pause_s):
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(self.dsn, autocommit=True, connect_timeout=5)
                    connection.execute(SESSION)
                    if chance.random() < 0.5:
                        connection.execute("SET synchronous_commit = off")  # a crash loses its last transactions
                self._transaction(chance, connection)
                self.written.transactions += 1
            except psycopg.Error:
                self.written.failures += 1
                if connection is not None:
                    with suppress(psycopg.Error):
                        connection.execute("ROLLBACK")
        if connection is not None:
            connection.close()

    def _transaction(self, chance: random.Random, connection: psycopg.Connection[Any]) -> None:
        if self._prepared and chance.random() < 0.3:
            name = self._prepared.pop(0)
            connection.execute(f"{chance.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED '{name}'".encode())
            return
        kind = chance.random()
        if kind < 0.03:
            connection.execute("BEGIN; SELECT pg_current_xact_id(); COMMIT")
        elif kind < 0.05 and self._alters:
            with self.quiet:
                connection.execute(f"VACUUM FULL {chance.choice(ALTERED)}".encode())
        elif kind < 0.16:
            with self.quiet:
                self._run(chance, connection, exclusive=True)
        else:
            self._run(chance, connection, exclusive=False)

    def _run(self, chance: random.Random, connection: psycopg.Connection[Any], *, exclusive: bool) -> None:
        number = next(self._numbers)
        connection.execute("BEGIN")
        early = chance.random() < 0.5
        if early:
            connection.execute("INSERT INTO ledger VALUES (%s)", (number,))
        statements = [self._change(chance) for _ in range(chance.randint(1, 6))]
        if exclusive:
            alters = self._alters and chance.random() < 0.75
            statements.insert(
                chance.randint(0, len(statements)), self._alteration(chance) if alters else self._truncation(chance)
            )
        elif chance.random() < 0.05:
            first = chance.randint(1_000, 10**8)
            statements.append(f"INSERT INTO ints SELECT i, i FROM generate_series({first}, {first + self._large}) i")
            if chance.random() < 0.8:
                statements.append(f"DELETE FROM ints WHERE id BETWEEN {first + 2} AND {first + self._large}")
        for statement in statements:
            self._one(chance, connection, statement)
        if not early:
            connection.execute("INSERT INTO ledger VALUES (%s)", (number,))
        if not exclusive and chance.random() < 0.06:
            name = f"p{number}"
            connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
            self._prepared.append(name)
            self.written.prepared += 1
            return
        connection.execute("ROLLBACK" if chance.random() < 0.07 else "COMMIT")

    def _one(self, chance: random.Random, connection: psycopg.Connection[Any], statement: str) -> None:
        if chance.random() < 0.25:
            connection.execute("SAVEPOINT s")
            connection.execute(statement.encode())
            connection.execute("ROLLBACK TO s" if chance.random() < 0.4 else "RELEASE s")
        else:
            connection.execute(statement.encode())

    # --- rows ---

    def _change(self, chance: random.Random) -> str:
        table = chance.choice(("ints", "texts", "pairs", "uuids", "plain", "bigs", "parents", "children", "parted"))
        v = chance.randint(0, 10**6)
        write: Callable[[random.Random, int], str] = getattr(self, f"_{table}")
        if self._made and chance.random() < 0.1:
            name = chance.choice(self._made)
            return f"INSERT INTO {name} VALUES ({chance.randint(1, 30)}, {v}) ON CONFLICT (id) DO UPDATE SET v = {v}"
        if table in self._extra and self._extra[table] and chance.random() < 0.4:
            column, key = chance.choice(self._extra[table]), {"plain": "a", "pairs": "a"}.get(table, "id")
            return f"UPDATE {table} SET {column} = {chance.randint(0, 99)} WHERE {key} = {chance.randint(0, 60)}"
        return write(chance, v)

    def _ints(self, chance: random.Random, v: int) -> str:
        key, to = chance.randint(1, 60), chance.randint(1, 60)
        return chance.choice((
            f"INSERT INTO ints (id, v) VALUES ({key}, {v}) ON CONFLICT (id) DO UPDATE SET v = {v}",
            f"UPDATE ints SET v = {v} WHERE id = {key}",
            f"UPDATE ints SET id = {to} WHERE id = {key} AND NOT EXISTS (SELECT FROM ints WHERE id = {to})",
            f"DELETE FROM ints WHERE id = {key}",
            f"UPDATE ints SET v = v + 1 WHERE id BETWEEN {key} AND {key + 9}",
        ))  # fmt: skip

    def _texts(self, chance: random.Random, v: int) -> str:
        key, to = (f"{chance.choice('abcABCéÉzZ')}{chance.randint(1, 9)}" for _ in range(2))
        return chance.choice((
            f"INSERT INTO texts VALUES ('{key}', {v}, repeat('x', 2500)) ON CONFLICT (k) DO UPDATE SET v = {v}",
            f"UPDATE texts SET v = {v} WHERE k = '{key}'",
            f"UPDATE texts SET k = '{to}' WHERE k = '{key}' AND NOT EXISTS (SELECT FROM texts WHERE k = '{to}')",
            f"UPDATE texts SET k = upper(k) WHERE k = '{key}'",
            f"DELETE FROM texts WHERE k = '{key}'",
        ))  # fmt: skip

    def _pairs(self, chance: random.Random, v: int) -> str:
        a, b = chance.randint(0, 6), f"b{chance.randint(1, 50)}"
        return chance.choice((
            f"INSERT INTO pairs (a, b, v, u) VALUES ({a}, '{b}', {v}, {v / 7:.2f}) ON CONFLICT DO NOTHING",
            f"UPDATE pairs SET v = {v} WHERE b = '{b}'",
            f"UPDATE pairs SET a = a + 100 WHERE b = '{b}' AND a < 100",
            f"DELETE FROM pairs WHERE b = '{b}'",
        ))  # fmt: skip

    def _uuids(self, chance: random.Random, v: int) -> str:
        key = f"md5('{chance.randint(1, 60)}')::uuid"
        return chance.choice((
            f"INSERT INTO uuids VALUES ({key}, {v}) ON CONFLICT (id) DO UPDATE SET ok = NOT uuids.ok",
            f"DELETE FROM uuids WHERE id = {key}",
        ))  # fmt: skip

    def _plain(self, chance: random.Random, v: int) -> str:
        one = f"(SELECT ctid FROM plain WHERE a = {chance.randint(0, 5)} LIMIT 1)"
        return chance.choice((
            f"INSERT INTO plain (a, t) VALUES ({chance.randint(0, 5)}, 'plain {v % 9}')",
            f"INSERT INTO plain (a, t) VALUES ({chance.randint(0, 5)}, repeat('p', 2500))",
            f"UPDATE plain SET a = {v % 6} WHERE ctid = {one}",
            f"DELETE FROM plain WHERE ctid = {one}",
        ))  # fmt: skip

    def _bigs(self, chance: random.Random, v: int) -> str:
        key, to = chance.randint(1, 40), chance.randint(1, 40)
        return chance.choice((
            f"INSERT INTO bigs (id, big, v) VALUES ({key}, repeat('n', 2600), {v}) ON CONFLICT DO NOTHING",
            f"UPDATE bigs SET v = {v} WHERE id = {key}",
            f"UPDATE bigs SET v = {v}, more = repeat('{v % 10}', 2700) WHERE id = {key}",
            f"UPDATE bigs SET big = repeat('{v % 10}', 2700) WHERE id = {key}",
            f"UPDATE bigs SET id = {to}, v = {v} WHERE id = {key} AND NOT EXISTS (SELECT FROM bigs WHERE id = {to})",
            f"UPDATE bigs SET id = 100 + {to}, big = 'b', more = 'm' WHERE id = {key}",  # states all columns
            f"DELETE FROM bigs WHERE id = {key}",
        ))  # fmt: skip

    def _parents(self, chance: random.Random, v: int) -> str:
        key = chance.randint(1, 20)
        return chance.choice((
            f"INSERT INTO parents VALUES ({key}, {v}) ON CONFLICT (id) DO UPDATE SET v = {v}",
            f"DELETE FROM parents WHERE id = {key}",
        ))  # fmt: skip

    def _children(self, chance: random.Random, v: int) -> str:
        key = chance.randint(1, 40)
        return f"INSERT INTO children (id, v) VALUES ({key}, {v}) ON CONFLICT (id) DO UPDATE SET v = {v}"

    def _parted(self, chance: random.Random, v: int) -> str:
        key, part = chance.randint(1, 40), chance.randint(0, 1)
        return chance.choice((
            f"INSERT INTO parted VALUES ({key}, {part}, {v}) ON CONFLICT DO NOTHING",
            f"UPDATE parted SET part = 1 - part WHERE id = {key} AND part = {part}",
            f"DELETE FROM parted WHERE id = {key}",
        ))  # fmt: skip

    # --- whole tables ---

    def _truncation(self, chance: random.Random) -> str:
        return chance.choice((
            "TRUNCATE parents CASCADE", "TRUNCATE ints, uuids", "TRUNCATE bigs", "TRUNCATE plain",
            "TRUNCATE texts, pairs", "TRUNCATE parted", "TRUNCATE parted_1",
        ))  # fmt: skip

    def _alteration(self, chance: random.Random) -> str:
        """An alteration that computes values is followed by a row, because the stream has no place for it otherwise."""
        self.written.alterations += 1
        table, extra = (name := chance.choice(ALTERED)), self._extra[name]
        touch = "; " + self._insert(table)
        maybe = chance.choice(("", touch))
        new = f"c{next(self._names)}"
        default = chance.choice(("", " DEFAULT 7", " DEFAULT 9 NOT NULL"))
        choices = [f"ALTER TABLE {table} ADD {new} int{default}{maybe}"]
        if extra:
            old = chance.choice(extra)
            choices += [
                f"ALTER TABLE {table} DROP {old}{maybe}",
                f"ALTER TABLE {table} RENAME {old} TO {new}{maybe}",
                f"ALTER TABLE {table} DROP {old}, ADD {old} int{default}{maybe}",
                f"ALTER TABLE {table} ALTER {old} TYPE bigint{touch}",
                f"ALTER TABLE {table} ALTER {old} TYPE bigint USING {old} + 1{touch}",
                f"ALTER TABLE {table} ALTER {old} SET DEFAULT 5{maybe}",
            ]
        choices += [
            f"ALTER TABLE {table} RENAME TO renamed_{table}; ALTER TABLE renamed_{table} RENAME TO {table}{maybe}",
            "ALTER TABLE ints REPLICA IDENTITY FULL" + maybe,
            "ALTER TABLE ints REPLICA IDENTITY DEFAULT" + maybe,
            "ALTER TABLE bigs REPLICA IDENTITY FULL",
            "ALTER TABLE bigs REPLICA IDENTITY DEFAULT",
            "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD CONSTRAINT pairs_pkey PRIMARY KEY (a, b)",
            "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD CONSTRAINT pairs_pkey PRIMARY KEY (b, a)",
            f"CREATE TABLE t{new} (id int PRIMARY KEY, v int); INSERT INTO t{new} SELECT generate_series(1, 12), 1",
            "ALTER TABLE parted DETACH PARTITION parted_1; UPDATE parted_1 SET v = 5 WHERE id < 20",
            "ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES IN (1)",
        ]
        if self._made:
            made = chance.choice(self._made)
            choices += [
                f"DROP TABLE {made}",
                f"DROP TABLE {made}; CREATE TABLE {made} (id int PRIMARY KEY, v bigint); INSERT INTO {made} VALUES (1)",
                f"ALTER TABLE {made} RENAME TO t{new}",
            ]
        chosen = chance.choice(choices)
        self._note(chosen, table, new)
        return chosen

    def _insert(self, table: str) -> str:
        key = 10**6 + next(self._names)
        return {
            "ints": f"INSERT INTO ints (id, v) VALUES ({key}, 1)",
            "pairs": f"INSERT INTO pairs (a, b, v) VALUES ({key}, 'new', 1)",
            "bigs": f"INSERT INTO bigs (id, v) VALUES ({key}, 1)",
            "children": f"INSERT INTO children (id, v) VALUES ({key}, 1)",
            "plain": f"INSERT INTO plain (a) VALUES ({key})",
        }[table]

    def _note(self, statement: str, table: str, new: str) -> None:
        """Names that may exist from now on; a transaction with one that does not fails, which does no harm."""
        if f" ADD {new} " in statement or f" TO {new}" in statement:
            self._extra[table] = [*self._extra[table][-3:], new]
        elif f"t{new}" in statement:
            self._made = [*self._made[-4:], f"t{new}"]
