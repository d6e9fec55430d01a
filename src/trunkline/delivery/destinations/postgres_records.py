"""The records of members in a PostgreSQL database (T9), and which member has a table (T5).

Rules
 H1  ``_trunkline_members`` in a schema, the *home*, has one row per member. A transaction locks the rows of its members
     before it writes anything, in the order of homes and names, so that steps of one member are serial and groups do
     not wait for each other in circles.
 H2  A table is in the record of one member at most. Before a record lists a table that it did not list, its transaction
     takes a lock on the table's name, and then looks at all homes where a record may list it: the member's own, the
     schema of the table, and that of members whose tables lie in several schemas.
 H3  A member without a record has the one of its home that lists all its tables, if none of the members at hand is its
     owner; or that lists some, if no other lists any, and its pipeline has no destination of that name any more (tables
     joined since); or the one row that older releases wrote about any of its tables, in ``_trunkline_positions``. The
     first write puts it under the member's name; the older row gets a token that no older program can reach, and is not
     read again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import psycopg
from msgspec import Struct

from trunkline.delivery.backends.postgres_session import BULK_MS, PostgresRow, PostgresSession
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.config.addresses import Address, PostgresAddress
from trunkline.delivery.destinations.contract import (
    FENCED_TOKEN,
    MEMBERS,
    TAKEN_OVER,
    MemberTables,
    Standing,
    mark_of,
    renamed_from,
)
from trunkline.errors import DestinationHalted, OutcomeUnknown, Unreachable

POSITIONS: Final = f"{RESERVED_PREFIX}_positions"  # of older releases: one row per table
COMMON_HOME: Final = "public"  # of members whose tables lie in several schemas
HOMES_AT_ONCE: Final = 200  # in one statement and transaction; each costs locks, of which a server has few thousand
SEARCHED_MAX: Final = 64  # names that are looked up in the index of the records; for more, all records are read
# Half of each page stays free: then a row that moves on changes in its page, and no index is written.
HOME: Final = (
    "CREATE TABLE {home} (member text PRIMARY KEY, position bigint NOT NULL, token bigint NOT NULL, "
    "source text NOT NULL, mark text NOT NULL, tables text NOT NULL) WITH (fillfactor = 50); "
    "CREATE INDEX ON {home} USING gin ((tables::jsonb))"
)
FOUND: Final = """
    SELECT w.schema::text, w.name::text, has_schema_privilege(s.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
      FROM unnest(%s::name[], %s::name[]) AS w (schema, name)
      JOIN pg_namespace s ON s.nspname = w.schema
      JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = w.name"""
NAMES: Final = "coalesce((SELECT json_object_agg(k, NULL) FROM json_object_keys(tables::json) AS k)::text, '{}')"
CLAIM: Final = """
    SELECT pg_advisory_xact_lock(k.number)
      FROM (SELECT DISTINCT hashtextextended('trunkline ' || n, 0) AS number FROM unnest(%s::text[]) AS n
             ORDER BY number) AS k"""
MOVE_ALL: Final = """
    UPDATE {home} m SET position = w.position, token = w.token, source = w.source, mark = w.mark
      FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::text[])
           AS w (member, before, position, token, source, mark)
     WHERE m.member = w.member AND m.position = w.before AND m.token <= w.token"""
PART: Final = re.compile(r'"((?:[^"]|"")*)"|([^".]+)')

TableName = tuple[str, str]  # schema and table
ListedTables = dict[str, msgspec.Raw]  # name -> its columns, not decoded


class MemberRecord(Struct, frozen=True):
    """A record, wherever it was found."""

    home: str
    member: str  # under which it is stored; empty: in the table of older releases
    standing: Standing
    tables: ListedTables

    def columns(self, name: str) -> Columns:
        """Of a listed table, as its last writer had them; none of another."""
        found = self.tables.get(name)
        try:
            return () if found is None else msgspec.json.decode(found, type=Columns)
        except msgspec.MsgspecError as error:
            raise _damaged(self.home, self.member, error) from error


def table_name(address: Address) -> TableName:
    assert isinstance(address, PostgresAddress)
    return address.schema, address.table


def listed_name(name: TableName) -> str:
    """How a record lists a table: ``schema.table``, each part in quotation marks if it could be misread."""
    return ".".join(identifier(part) if not part or {".", '"'} & {*part} else part for part in name)


def name_listed(text: str) -> TableName:
    schema, table = (plain or quoted.replace('""', '"') for quoted, plain in PART.findall(text))
    return schema, table


def place_of_records(home: str, table: str = MEMBERS) -> str:
    return f"{identifier(home)}.{identifier(table)}"


def relations(session: PostgresSession, names: Iterable[TableName]) -> dict[TableName, bool]:
    """Those that exist, and whether the user may read them."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    arrays = [[schema for schema, _ in wanted], [name for _, name in wanted]]
    rows = session.run(FOUND, arrays, wait_ms=BULK_MS, prepare=True)
    return {(schema, name): bool(readable) for schema, name, readable in rows.fetchall()}


class PostgresRecords:
    """The records that a session reads and writes, in transactions of the caller; only ``make_home`` has its own."""

    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._seen: dict[TableName, bool] = {}  # tables of records that exist, and whether they can be read

    def forget(self) -> bool:
        """After an error: another program may have dropped a table of records. Whether one was known."""
        known = bool(self._seen)
        self._seen.clear()
        return known

    def present(self, names: Iterable[TableName]) -> set[TableName]:
        """Those of these tables of records that exist."""
        wanted = set(names)
        if unknown := wanted - self._seen.keys():
            self._seen |= relations(self._session, unknown)
        return wanted & self._seen.keys()

    def _readable(self, homes: Iterable[str]) -> set[str]:
        """Homes of other members whose records the user may read."""
        return {
            home for home, table in self.present((home, MEMBERS) for home in homes) if self._seen.get((home, table))
        }

    def make_home(self, home: str) -> None:
        """Before the transaction that needs it, so that a long seed blocks no other process."""
        table = place_of_records(home)
        try:
            with self._session.transaction(f"schema {home}"):
                self._session.run(f"SELECT pg_advisory_xact_lock(hashtextextended({literal(table)}, 0))")
                if not relations(self._session, [(home, MEMBERS)]):
                    self._session.run(HOME.replace("{home}", table))
        except OutcomeUnknown as error:  # nothing of any member was written
            raise Unreachable(str(error)) from error

    # -------------------------------------------------------------------------------------------------------- reading

    def found(
        self, members: Sequence[MemberTables], *, lock: bool = False, names_only: bool = False
    ) -> dict[str, MemberRecord]:
        """The records of members (H3). ``lock``: until the transaction ends (H1). ``names_only``: without columns."""
        homes: dict[str, list[str]] = {}
        for each in members:
            homes.setdefault(each.home, []).append(each.member)
        there = {home for home, _ in self.present((home, MEMBERS) for home in homes)}
        named = self._named({home: names for home, names in homes.items() if home in there}, lock, names_only)
        records = {each.member: named[each.home, each.member] for each in members if (each.home, each.member) in named}
        lacking = [each for each in members if each.member not in records and each.tables]
        records |= self._renamed([each for each in lacking if each.home in there], named, lock, names_only)
        unknown = {each.member: set(map(table_name, each.tables)) for each in lacking if each.member not in records}
        older = self._older({name for names in unknown.values() for name in names}, lock=lock)
        for member, names in unknown.items():
            if len(found := names & older.keys()) == 1:
                records[member] = older[found.pop()]
        return records

    def _named(
        self, names: Mapping[str, Sequence[str]], lock: bool, names_only: bool
    ) -> dict[tuple[str, str], MemberRecord]:
        """By home and name."""
        homes = sorted(names)
        tables = NAMES if names_only else "tables"
        arms = [
            f"SELECT {_escaped(literal(home))} AS home, member, position, token, source, mark, {tables} "
            f"FROM {_escaped(place_of_records(home))} WHERE member = ANY(%s) ORDER BY member"
            for home in homes
        ]
        return {
            (home, member): MemberRecord(
                home, member, Standing(position, token, source, mark), _tables(home, member, tables)
            )
            for home, member, position, token, source, mark, tables in self._united(
                arms, [[names[home]] for home in homes], lock=lock
            )
        }

    def _renamed(
        self, lacking: Sequence[MemberTables], taken: Collection[tuple[str, str]], lock: bool, names_only: bool
    ) -> dict[str, MemberRecord]:
        """Of members that have another name now; ``taken`` are the records of members at hand."""
        tables = {each.member: [table_name(table) for table in each.tables] for each in lacking}
        asked: dict[str, set[TableName]] = {}
        for each in lacking:
            asked.setdefault(each.home, set()).update(tables[each.member])
        owners = self.owners(asked)
        wanted: dict[str, tuple[str, str]] = {}
        former: set[str] = set()
        for each in lacking:
            holders = {owners.get((each.home, name)) for name in tables[each.member]}
            joined = None in holders  # tables that no record lists
            known = sorted(filter(None, holders))
            if len(known) != 1 or (joined and not renamed_from(known[0], each)):
                continue
            [holder] = known
            if (each.home, holder) not in taken:
                wanted[each.member] = (each.home, holder)
                former |= {each.member} if joined else set()
        names: dict[str, list[str]] = {}
        for home, holder in sorted(set(wanted.values())):
            names.setdefault(home, []).append(holder)
        named = self._named(names, lock, names_only)
        return {
            member: named[place]
            for member, place in wanted.items()
            if place in named
            and (member in former or named[place].tables.keys() >= {listed_name(name) for name in tables[member]})
        }

    def owners(self, asked: Mapping[str, Collection[TableName]]) -> dict[tuple[str, TableName], str]:
        """The members whose records list a table, by home and table: of each home, which exists, some tables."""
        homes = sorted(home for home, names in asked.items() if names)
        arms, parameters = [], []
        for home in homes:
            names = sorted(map(listed_name, asked[home]))
            indexed = "m.tables::jsonb ?| %s AND " if len(names) <= SEARCHED_MAX else ""
            arms.append(
                f"SELECT {_escaped(literal(home))} AS home, m.member, k.name "
                f"FROM {_escaped(place_of_records(home))} m, jsonb_object_keys(m.tables::jsonb) AS k (name) "
                f"WHERE {indexed}k.name = ANY(%s)"
            )
            parameters.append([names, names] if indexed else [names])
        rows = self._united(arms, parameters)
        return {(home, name_listed(name)): member for home, member, name in rows}

    def remembered(self, name: TableName) -> Columns:
        """The columns of a table as its last writer had them."""
        homes = self._readable((name[0], COMMON_HOME))
        for (home, _), member in self.owners({home: [name] for home in homes}).items():
            return self._named({home: [member]}, False, False)[home, member].columns(listed_name(name))
        older = self._older([name], lock=False)
        return older[name].columns(listed_name(name)) if older else ()

    def _older(self, names: Collection[TableName], *, lock: bool) -> dict[TableName, MemberRecord]:
        """What older releases left, by table. They had no marks at first: then there is no column."""
        schemas: dict[str, list[str]] = {}
        for schema, table in names:
            schemas.setdefault(schema, []).append(table)
        there = sorted(schema for schema, _ in self.present((schema, POSITIONS) for schema in schemas))
        arms = [
            f"SELECT {_escaped(literal(schema))} AS schema, table_name, position, token, source, columns, "
            f"to_jsonb(p) ->> 'mark' AS mark FROM {_escaped(place_of_records(schema, POSITIONS))} p "
            f"WHERE table_name = ANY(%s) AND token < {FENCED_TOKEN} ORDER BY table_name"
            for schema in there
        ]
        return {
            (schema, table): MemberRecord(
                schema,
                "",
                Standing(position, token, source, mark_of(position, mark)),
                {listed_name((schema, table)): msgspec.Raw(columns.encode())},
            )
            for schema, table, position, token, source, columns, mark in self._united(
                arms, [[schemas[schema]] for schema in there], lock=lock
            )
        }

    def _united(
        self, arms: Sequence[str], parameters: Sequence[Sequence[object]], *, lock: bool = False
    ) -> list[PostgresRow]:
        """The rows of many queries, in few statements."""
        rows: list[PostgresRow] = []
        how = " FOR UPDATE" if lock else ""
        for start in range(0, len(arms), HOMES_AT_ONCE):
            part = slice(start, start + HOMES_AT_ONCE)
            united = " UNION ALL ".join(f"SELECT * FROM ({arm}{how}) AS a{n}" for n, arm in enumerate(arms[part]))
            given = [each for some in parameters[part] for each in some]
            rows += self._session.run(united, given, wait_ms=BULK_MS).fetchall()
        return rows

    # -------------------------------------------------------------------------------------------------------- writing

    def claim(self, names: Collection[TableName]) -> None:
        """Lock tables that a record shall list; ask for their ``holders`` then (H2)."""
        self._session.run(CLAIM, [sorted(map(listed_name, names))], prepare=True)

    def holders(self, home: str, names: Collection[TableName]) -> dict[TableName, str]:
        """The members that have one of these tables, in any home where a record may list it."""
        asked = {home: set(names), COMMON_HOME: set(names)}
        for name in names:
            asked.setdefault(name[0], set()).add(name)
        found = self.owners({each: asked[each] for each in self._readable(asked)})
        return {name: member for (_, name), member in found.items()}

    def begin(self, home: str, member: str, source: str) -> bool:
        """Make a record, so that others wait for this transaction; ``False``: another one was faster."""
        statement = f"INSERT INTO {_escaped(place_of_records(home))} VALUES (%s, 0, 0, %s, '', '{{}}')"
        return self._session.run(f"{statement} ON CONFLICT DO NOTHING", [member, source]).rowcount == 1

    def rename(self, record: MemberRecord, member: str) -> bool:
        """``False``: there is one of this name by now."""
        table = _escaped(place_of_records(record.home))
        try:
            self._session.run(f"UPDATE {table} SET member = %s WHERE member = %s", [member, record.member])
        except psycopg.errors.UniqueViolation:
            return False
        return True

    def fence_older(self, names: Iterable[TableName]) -> None:
        """Older programs can write these tables no more."""
        schemas: dict[str, list[str]] = {}
        for schema, table in names:
            schemas.setdefault(schema, []).append(table)
        for schema, _ in sorted(self.present((schema, POSITIONS) for schema in schemas)):
            self._session.run(
                f"UPDATE {_escaped(place_of_records(schema, POSITIONS))} SET token = {FENCED_TOKEN}, source = %s "
                f"WHERE table_name = ANY(%s) AND token < {FENCED_TOKEN}",
                [TAKEN_OVER, schemas[schema]],
            )

    def move(self, home: str, member: str, before: int, reached: Standing, tables: ListedTables | None) -> bool:
        """Update a record if it is still as found; ``tables``: all that it lists, if they changed."""
        words = None if tables is None else msgspec.json.encode(tables).decode()
        done = self._session.run(
            f"UPDATE {_escaped(place_of_records(home))} SET position = %s, token = %s, source = %s, mark = %s, "
            "tables = coalesce(%s, tables) WHERE member = %s AND position = %s AND token <= %s",
            [
                *_moved(reached),
                *(words, member, before, reached.token),
            ],
        )
        return done.rowcount == 1

    def move_all(self, home: str, moves: Mapping[str, tuple[int, Standing]]) -> int:
        """Update records that are still as found, of members by name: the position before, and what they reached.
        Returns how many were; the tables that they list stay."""
        columns = zip(
            *((name, before, *_moved(reached)) for name, (before, reached) in sorted(moves.items())), strict=True
        )
        return self._session.run(
            MOVE_ALL.replace("{home}", _escaped(place_of_records(home))), [list(each) for each in columns], prepare=True
        ).rowcount

    def remove(self, record: MemberRecord) -> None:
        if record.member:
            table = _escaped(place_of_records(record.home))
            self._session.run(f"DELETE FROM {table} WHERE member = %s", [record.member])
            return
        for schema, name in map(name_listed, record.tables):
            table = _escaped(place_of_records(schema, POSITIONS))
            self._session.run(f"DELETE FROM {table} WHERE table_name = %s", [name])


def _moved(reached: Standing) -> tuple[int, int, str, str]:
    return reached.position, reached.token, reached.source, reached.mark


def _tables(home: str, member: str, text: str) -> ListedTables:
    try:
        return msgspec.json.decode(text, type=ListedTables)
    except msgspec.MsgspecError as error:
        raise _damaged(home, member, error) from error


def _damaged(home: str, member: str, error: Exception) -> DestinationHalted:
    return DestinationHalted(
        f"{member}: its record in {place_of_records(home)} is damaged ({error}); remove it, and seed it again"
    )


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
