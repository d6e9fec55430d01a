"""The tables that a capture of PostgreSQL knows, at the end of what it has received: their numbers and versions.

Rules
 J1  Only a shape or a mark in the stream moves a table that is known; checks of the catalog are ahead of the stream.
     What a check finds counts at a mark that is written after it, if a second check finds the same (H2 of
     ``shape_changes``): so a table without writers changes, too.
 J2  A new table counts at once: nothing of it was streamed. It is published first, in a transaction that keeps its
     shape. If a known table still has its name, it waits until that one has been dropped or renamed.
 J3  A table that is to be read names the transactions that are running then: what they changed before may never be
     streamed, or it may be in the log already.
 J4  A table that cannot be captured is reported once, and left out until it changes. It is not published either: the
     server would refuse updates of a table without an identity.
 J5  A commit is streamed before other sessions see it, so a definition is read when they see the transactions in which
     the shape was received: an older one could pass for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from typing import Any, Final

import psycopg
from msgspec.structs import replace

from trunkline.delivery.capture.postgres.catalog import (
    ListedTable,
    TableDefinition,
    definitions_of,
    listed_tables,
    quoted,
    relation_of,
    schema_of,
)
from trunkline.delivery.capture.postgres.change_batches import Table
from trunkline.delivery.capture.postgres.decoder import Cut
from trunkline.delivery.capture.postgres.pgoutput import Relation
from trunkline.delivery.capture.postgres.published_tables import PublishedTables, Session
from trunkline.delivery.capture.postgres.shape_changes import Changed, Recapture, Refused, Same, Verdict, judged
from trunkline.delivery.capture.postgres.snapshots import seen_of
from trunkline.delivery.capture.postgres.table_obstacles import obstacle_of_shape, obstacles
from trunkline.delivery.capture.source import SchemaUnit, Unit
from trunkline.delivery.changes.schemas import Catalog, SchemaChange, TableSchema
from trunkline.delivery.config.table_patterns import TablePatterns
from trunkline.errors import Unreachable

logger = logging.getLogger(__name__)

BUSY: Final = "it could not be published yet"
UNPUBLISHED: Final = "another program removed it from the publication"
RUNNING: Final = "SELECT pg_current_xact_id()::text, pg_current_snapshot()::text"
SNAPSHOT: Final = "SELECT pg_current_snapshot()::text"
VISIBLE_S: Final = 10.0  # a commit may wait for a synchronous standby; longer: the server ends a silent stream
VISIBLE_AGAIN_S: Final = 0.005
LEFT_OUT_EVERY: Final = 10  # checks: a key that is added to a table does not show in the list of tables


class KnownTable:
    """A table of the log."""

    def __init__(self, schema: TableSchema, *, complete: bool = False) -> None:
        self.schema = schema
        self.complete = complete  # all rows of its generation were read
        self.definition: TableDefinition | None = None  # the first of those that found it as it is known
        self.table = Table(schema)

    def note(self, found: TableDefinition | None) -> None:
        """The earlier of two equal ones says more about what lies between them in the stream."""
        if self.definition is None or found is None or not self.definition.same_catalog(found):
            self.definition = found


class KnownTables:
    """Of one stream. ``catalog``: what the log has at its beginning."""

    def __init__(self, session: Session, patterns: TablePatterns, publication: str, catalog: Catalog | None) -> None:
        self._session = session
        self._patterns = patterns
        self._published = PublishedTables(session, publication)
        self._next_number = 1 if catalog is None else catalog.next_number
        tables = () if catalog is None else catalog.tables
        self._interrupted = {  # K12: only a new generation can read them again
            each.newest.number: each.newest.generation
            for each in tables
            if each.chunks and not each.complete and not each.newest.key
        }
        self._known = {each.newest.number: KnownTable(each.newest, complete=each.complete) for each in tables}
        self._oids = {each.schema.oid: each for each in self._known.values()}
        self._described: set[int] = set()  # oids of tables that the decoder has
        self._ignored: set[int] = set()  # oids of tables that were described, and are not known
        self._listed: dict[int, ListedTable] = {}  # by oid, in the last check
        self._left_out: dict[int, str] = {}  # by oid: why (J4)
        self._awaited: dict[int, dict[int, TableDefinition | None]] = {}  # by the number of the check whose mark is due
        self._leaving: set[int] = set()  # oids of tables that are still published
        self._moved: set[int] = set()  # oids of tables that must be checked again
        self._checks = 0
        self._fresh: dict[int, TableDefinition] = {}  # of the tables whose shapes were just received

    # --- for chunks ---

    def newest(self, number: int) -> Table | None:
        """Any thread may ask."""
        known = self._known.get(number)
        return None if known is None else known.table

    def check_again(self, number: int) -> None:
        """A table was seen to be different. Any thread may say so."""
        if (known := self._known.get(number)) is not None:
            self._moved.add(known.schema.oid)

    def reading(self, number: int, *, complete: bool) -> None:
        if (known := self._known.get(number)) is not None:
            known.complete = complete

    # --- the stream ---

    def expect(self, oids: Collection[int], xids: Collection[int]) -> None:
        """Shapes of these tables were received, in these transactions: one check for all of them (J5)."""
        if oids:
            self._wait_visible(xids)
        self._fresh = definitions_of(self._session(), sorted(oids)) if oids else {}

    def _wait_visible(self, xids: Collection[int]) -> None:
        deadline = time.monotonic() + VISIBLE_S
        while True:
            [(text,)] = self._session().execute(SNAPSHOT.encode()).fetchall()
            seen = seen_of(text)
            if all(seen.has(xid) for xid in xids):
                return
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"PostgreSQL has streamed a transaction and not shown it to others for {VISIBLE_S:g} s (does it "
                    "wait for a synchronous standby?); the capture connects again"
                )
            time.sleep(VISIBLE_AGAIN_S)

    def relation(self, relation: Relation, lsn: int) -> Cut | None:
        known = self._oids.get(relation.oid)
        if known is None:
            self._ignored.add(relation.oid)
            return Cut((), ((relation.oid, None),))
        found = self._fresh.get(relation.oid)
        earlier = known.definition if known.definition is not None and known.definition.lsn <= lsn else None
        return self._moves(known, relation, found, earlier)

    def _moves(
        self, known: KnownTable, relation: Relation, found: TableDefinition | None, earlier: TableDefinition | None
    ) -> Cut | None:
        verdict = judged(known.schema, relation, found, earlier=earlier)
        match verdict:
            case Same(schema):
                known.schema = schema
                known.note(found)
                if relation.oid in self._described:
                    return None
                self._described.add(relation.oid)
                known.table = Table(schema, relation.key)
                return Cut((), ((relation.oid, known.table),))
            case Changed(schema):
                return self._version(known, schema, relation, found)
            case Recapture(schema, reason):
                logger.warning("all rows of %s are captured again: %s", quoted(schema.schema, schema.name), reason)
                return self._version(known, schema, relation, found, reason)
            case Refused(reason):
                return self._leave(known, reason)

    def _version(
        self,
        known: KnownTable,
        schema: TableSchema,
        relation: Relation,
        found: TableDefinition | None,
        reason: str = "",
    ) -> Cut:
        self._described.add(relation.oid)
        again = SchemaChange.RECAPTURED in schema.changes
        known.complete = known.complete and not again
        known.schema, known.definition, known.table = schema, found, Table(schema, relation.key)
        unit = SchemaUnit(schema, self.running() if again else (), reason)
        return Cut((unit,), ((relation.oid, known.table),))

    def _leave(self, known: KnownTable, reason: str) -> Cut:
        """The table is captured no more."""
        schema, oid = known.schema, known.schema.oid
        if reason:
            logger.warning("%s is captured no more: %s", quoted(schema.schema, schema.name), reason)
            self._left_out[oid] = reason
        del self._known[schema.number], self._oids[oid]
        self._described.discard(oid)
        self._ignored.add(oid)
        self._leaving.add(oid)
        gone = replace(schema, version=schema.version + 1, changes=(SchemaChange.TABLE_DROPPED,), defaults=b"")
        return Cut((SchemaUnit(gone, why=reason),), ((oid, None),))

    def resnapshot(self, schema: str, name: str, why: str, oid: int = 0) -> Cut | None:
        tables = {(each.schema.schema, each.schema.name): each for each in self._known.values()}
        known = self._oids.get(oid) if oid else tables.get((schema, name))
        if known is None:
            logger.warning("a new snapshot of %s was requested, which is not captured", quoted(schema, name))
            return None
        return self._again(known, why)

    def _again(self, known: KnownTable, why: str) -> Cut:
        """A new generation, in the same shape."""
        old = known.schema
        logger.warning("all rows of %s are captured again: %s", quoted(old.schema, old.name), why)
        changes = (SchemaChange.RECAPTURED,)
        known.schema = replace(
            old, generation=old.generation + 1, version=old.version + 1, changes=changes, defaults=b""
        )
        known.complete = False
        known.table = Table(known.schema, known.table.key)
        described = ((old.oid, known.table),) if old.oid in self._described else ()
        return Cut((SchemaUnit(known.schema, self.running(), why),), described)

    # --- checks ---

    def begin(self) -> Cut:
        """At the beginning of the stream: what it lacks for the tables of the log."""
        first = self._republish(listed_tables(self._session(), self._patterns))
        tables = [each for each in self._known.values() if self._interrupted.get(each.schema.number)]
        broken = [each for each in tables if self._interrupted[each.schema.number] == each.schema.generation]
        return _together([first, *(self._again(each, "it has no key, and was not read whole") for each in broken)])

    def _republish(self, listed: Collection[int]) -> Cut:
        """Tables that another program has removed from the publication: their changes were not streamed."""
        present = self._published.oids()
        absent = [oid for oid in self._oids if oid in listed and oid not in present]
        if not absent:
            return Cut()
        found = definitions_of(self._session(), absent)
        fit = [oid for oid, each in found.items() if not obstacle_of_shape(each)]
        self._moved |= set(absent) - set(fit)  # they leave at the next mark
        joined = self._published.add(fit)
        known = [(oid in joined, self._oids[oid]) for oid in fit]
        return _together([(self._again if again else self._leave)(each, UNPUBLISHED) for again, each in known])

    def check(self) -> tuple[Cut, int | None]:
        """What counts at once, and the number of the check if a mark must confirm what it found (J1)."""
        session = self._session()
        self._checks += 1
        listed = listed_tables(session, self._patterns)
        republished = self._republish(listed)
        refused = self._published.unidentified()  # clients cannot update them now: this does not wait for a mark
        self._moved |= refused
        if leaving := self._leaving | refused:
            self._leaving -= self._published.drop(leaving)
        moved, self._moved = self._moved, set()
        again = set(self._left_out) if self._checks % LEFT_OUT_EVERY == 0 else set()
        chosen = {oid for oid, each in listed.items() if self._listed.get(oid) != each}
        chosen |= (moved | again) & set(listed)
        self._listed = listed
        found = definitions_of(session, sorted(chosen)) if chosen else {}
        awaited: dict[int, TableDefinition | None] = {oid: None for oid in self._oids if oid not in listed}
        awaited |= {
            oid: seen
            for oid, seen in found.items()
            if (known := self._oids.get(oid)) is not None and not self._as_known(known, seen)
        }
        joined = self._join([each for oid, each in found.items() if oid not in self._oids])
        cut = Cut((*republished.units, *joined), republished.tables)
        pending = {oid for each in self._awaited.values() for oid in each}
        awaited = {oid: each for oid, each in awaited.items() if oid not in pending}
        if not awaited:
            return cut, None
        self._awaited[self._checks] = awaited
        return cut, self._checks

    def _as_known(self, known: KnownTable, seen: TableDefinition) -> bool:
        verdict: Verdict = judged(known.schema, relation_of(seen), seen, earlier=seen)
        if not isinstance(verdict, Same) or obstacle_of_shape(seen):
            return False
        known.note(seen)
        return True

    def marked(self, number: int) -> Cut:
        """The stream is at the mark of a check."""
        awaited = self._awaited.pop(number, {})
        now = definitions_of(self._session(), sorted(awaited))
        cuts = list[Cut | None]()
        for oid, before in sorted(awaited.items(), key=lambda each: each[1] is not None):  # drops first
            known, seen = self._oids.get(oid), now.get(oid)
            if known is None:
                continue
            if before is None:
                cuts.append(self._leave(known, "" if seen is None else "no pattern selects it any more"))
            elif seen is None or not seen.same_catalog(before):
                self._moved.add(oid)
            elif reason := obstacle_of_shape(seen):
                cuts.append(self._leave(known, reason))
            else:
                cuts.append(self._moves(known, relation_of(seen), seen, before))
        return _together([cut for cut in cuts if cut is not None])

    def _join(self, found: Iterable[TableDefinition]) -> list[Unit]:
        """New tables (J2)."""
        names = {(each.schema.schema, each.schema.name) for each in self._known.values()}
        joining, found = [], list(found)
        reasons = obstacles(self._session(), found, self._published.oids()) if found else {}
        for seen in found:
            if (seen.schema, seen.name) in names:
                self._moved.add(seen.oid)
            elif reason := reasons.get(seen.oid, ""):
                if self._left_out.get(seen.oid) != reason:
                    logger.warning("%s is not captured: %s", quoted(seen.schema, seen.name), reason)
                self._left_out[seen.oid] = reason
            else:
                joining.append(seen.oid)
        if not joining:
            return []
        units = list[Unit]()
        shapes = self._published.add(joining, self._ignored)
        running = self.running()
        for oid in joining:
            if (shape := shapes.get(oid)) is None or obstacle_of_shape(shape):
                self._left_out.setdefault(oid, BUSY)
                continue
            known = KnownTable(schema_of(shape, self._next_number))
            known.definition = shape
            self._next_number += 1
            self._known[known.schema.number] = self._oids[oid] = known
            self._left_out.pop(oid, None)
            self._leaving.discard(oid)
            units.append(SchemaUnit(known.schema, running))
        return units

    # --- the server ---

    def running(self) -> tuple[int, ...]:
        """J3."""
        return running_transactions(self._session())


def _together(cuts: Iterable[Cut]) -> Cut:
    found = list(cuts)
    return Cut(tuple(unit for cut in found for unit in cut.units), tuple(each for cut in found for each in cut.tables))


def running_transactions(session: psycopg.Connection[Any]) -> tuple[int, ...]:
    """Every transaction that has begun and that a snapshot taken now does not see."""
    [(own, text)] = session.execute(RUNNING.encode()).fetchall()
    seen = seen_of(text)
    return (*seen.running, *range(seen.xmax, int(own)))
