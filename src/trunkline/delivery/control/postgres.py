"""The control store in a PostgreSQL database: for deliverers on several machines. The clock is the server's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.control.contract import NoControlStore
from trunkline.delivery.control.database import ADDED, ADDED_TABLES, FORMAT_VERSION, TABLES, Row, Values
from trunkline.errors import ConfigError

WHAT: Final = "control store"
# An updated row stays on its page and the indexes do not change: this halves the time of ``record_empty``.
ROOM: Final = "ALTER TABLE _trunkline_destinations SET (fillfactor = 40)"
_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")


class PostgresDatabase:
    def __init__(self, dsn: str, password: str | None, *, create: bool) -> None:
        self._create_missing = create
        self._session = PostgresSession(dsn, password, permanent=ConfigError)
        self._prepared = False
        self._translated: dict[str, str] = {}  # as many as the store has statements

    @property
    def elements(self) -> Callable[[str], str]:
        return "json_array_elements(CAST(:{} AS json)) AS j (value)".format

    @contextmanager
    def transaction(self, *, writing: bool) -> Iterator[None]:
        if not self._prepared:
            self._prepare()
        with self._session.transaction(WHAT, reading=not writing):
            yield

    def now_ms(self) -> int:
        """Not the start of the transaction: it may have waited for another one."""
        [(now,)] = self.run("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)", {})
        return int(now)

    def run(self, statement: str, values: Values) -> list[Row]:
        if (translated := self._translated.get(statement)) is None:
            translated = self._translated[statement] = _PARAMETER.sub(r"%(\1)s", statement)
        cursor = self._session.run(translated, values, prepare=True)
        return cursor.fetchall() if cursor.description is not None else []

    def close(self) -> None:
        self._session.close()

    def _prepare(self) -> None:
        with self._session.transaction(WHAT):
            self._session.run("SELECT pg_advisory_xact_lock(hashtext('_trunkline_control'))")
            if self._session.run("SELECT to_regclass('_trunkline_format')::text").fetchone() == (None,):
                if not self._create_missing:
                    raise NoControlStore("this database has no control store yet; `trunkline deliver run` creates it")
                for statement in (*TABLES, ROOM):
                    self._session.run(statement)
            [(version,)] = self._session.run("SELECT version FROM _trunkline_format").fetchall()
            there = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('_trunkline_destinations')"
            known = {name for (name,) in self._session.run(there).fetchall()}
            for name in sorted(ADDED.keys() - known):
                self._session.run(ADDED[name])
            for name, statement in ADDED_TABLES.items():
                if self._session.run(f"SELECT to_regclass('{name}')::text").fetchone() == (None,):
                    self._session.run(statement)
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"{WHAT} at {self._session.place} has format {version}, and this program reads {FORMAT_VERSION}; "
                "upgrade it"
            )
        self._prepared = True
