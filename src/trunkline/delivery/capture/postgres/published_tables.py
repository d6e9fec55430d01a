"""The publication of a capture: which tables it has, and how tables join and leave it.

A table is altered for it under a lock that autovacuum and some maintenance hold, too. A table that is busy, or that the
role may not publish, does not keep the others from being captured: it is reported, and tried again with a later check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from trunkline.delivery.capture.postgres.catalog import TableDefinition, definitions_of, quoted

logger = logging.getLogger(__name__)

BATCH: Final = 100  # tables of one statement; more: more locks at once than a server may have
LOCK_MS: Final = (
    500  # the stream waits meanwhile; shorter than `deadlock_timeout`, so that no other client is the victim
)
BUSY_MAX: Final = 3  # tables of a batch that are waited for; the rest of it is tried later
PUBLISHED: Final = (
    "SELECT r.prrelid::bigint FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid "
    "WHERE p.pubname = %s"
)
UNIDENTIFIED: Final = """
SELECT c.oid::bigint FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
JOIN pg_class AS c ON c.oid = r.prrelid WHERE p.pubname = %s AND c.relreplident <> 'f' AND NOT EXISTS (
  SELECT FROM pg_index AS i WHERE i.indrelid = c.oid
  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
"""
BUSY: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedObject,
    psycopg.errors.DuplicateObject,
    psycopg.errors.InvalidParameterValue,  # it is not an ordinary table any more
)

Session = Callable[[], psycopg.Connection[Any]]
_Change = Callable[[Sequence[int], set[int]], dict[int, TableDefinition]]


class PublishedTables:
    """``session``: the connection to use, in autocommit mode. Tables are known by their oids."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name
        self._reported: dict[int, str] = {}  # tables that could not be altered, and why

    def oids(self) -> set[int]:
        return self._ask(PUBLISHED)

    def unidentified(self) -> set[int]:
        """Tables of whose rows the server refuses updates now, because nothing identifies them."""
        return self._ask(UNIDENTIFIED)

    def add(self, oids: Collection[int], again: Collection[int] = ()) -> dict[int, TableDefinition]:
        """Those that joined, or were there, as they are when their rows begin to be streamed.

        ``again``: of these, the stream describes the columns again.
        """
        present = self.oids()
        absent = sorted(set(oids) - present | set(oids) & set(again))
        found = definitions_of(self._session(), sorted(set(oids) - set(absent)))
        for batch in _batches(absent):
            found |= self._alter(batch, present, self._add)
        return found

    def drop(self, oids: Collection[int]) -> set[int]:
        """Those that have left, or are not there."""
        present = sorted(set(oids) & self.oids())
        left = set(oids) - set(present)
        for batch in _batches(present):
            left |= self._alter(batch, set(), self._drop).keys()
        return left

    def _alter(self, oids: Sequence[int], present: set[int], change: _Change) -> dict[int, TableDefinition]:
        """Together or, if one of them cannot be altered now, each alone."""
        session = self._session()
        try:
            with session.transaction():
                session.execute(f"SET LOCAL lock_timeout = {LOCK_MS}".encode())
                return change(oids, present)
        except BUSY as error:
            if len(oids) > 1:
                return self._alter_each(oids, present, change)
            [oid] = oids
            why = str(error).splitlines()[0]
            if self._reported.get(oid) != why:
                self._reported[oid] = why
                logger.warning("the publication %s is not altered for table %d; tried again: %s", self._name, oid, why)
            return {}

    def _alter_each(self, oids: Sequence[int], present: set[int], change: _Change) -> dict[int, TableDefinition]:
        found, busy = dict[int, TableDefinition](), 0
        for oid in oids:
            altered = self._alter([oid], present, change)
            found |= altered
            busy += not altered
            if busy == BUSY_MAX:
                break
        return found

    def _add(self, oids: Sequence[int], present: set[int]) -> dict[int, TableDefinition]:
        found = definitions_of(self._session(), oids)
        if described := [each for oid, each in found.items() if oid in present]:
            self._run("DROP", described)
        if found:
            self._run("ADD", list(found.values()))
        return definitions_of(self._session(), oids)  # the lock keeps them as they are

    def _drop(self, oids: Sequence[int], present: set[int]) -> dict[int, TableDefinition]:
        found = definitions_of(self._session(), oids)
        if found:
            self._run("DROP", list(found.values()))
        return found

    def _run(self, change: str, tables: Sequence[TableDefinition]) -> None:
        names = ", ".join(f"ONLY {quoted(each.schema, each.name)}" for each in tables)
        publication = sql.Identifier(self._name).as_string(None)
        self._session().execute(f"ALTER PUBLICATION {publication} {change} TABLE {names}".encode())

    def _ask(self, query: str) -> set[int]:
        return {oid for (oid,) in self._session().execute(query.encode(), (self._name,)).fetchall()}


def _batches(oids: Sequence[int]) -> list[Sequence[int]]:
    return [oids[first : first + BATCH] for first in range(0, len(oids), BATCH)]
