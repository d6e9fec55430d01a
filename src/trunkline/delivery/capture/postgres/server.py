"""Checks of a PostgreSQL server, a role and tables before they are captured: one message for each obstacle.

A capture needs a primary server with `wal_level = logical`, a role that may replicate, read the tables and publish
them, and tables whose changes identify their rows. What is missing is reported with the statement that adds it, and
nothing has been made on the server by then. Checks of tables are for the first start only, when the slot does not exist
yet: later, a table that cannot be captured is left out, with a warning, and the others continue.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import psycopg
from msgspec import Struct

from trunkline.delivery.backends.postgres_session import OLDEST_SERVER
from trunkline.delivery.capture.postgres.catalog import (
    ListedTable,
    definitions_of,
    listed_tables,
    names_of_tables,
    quoted,
)
from trunkline.delivery.capture.postgres.setup import OURS
from trunkline.delivery.capture.postgres.table_obstacles import (
    TableRights,
    missing_identities,
    name_of,
    obstacle_of_columns,
    rights_of,
)
from trunkline.delivery.config.table_patterns import TablePatterns, exact_name
from trunkline.errors import ConfigError, Unreachable
from trunkline.plural import plural

NAMED_MAX: Final = 20  # tables in a message that needs no statement for each
SERVER: Final = """
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('wal_level'),
       current_user::text, r.rolreplication OR r.rolsuper
         OR coalesce(pg_has_role(to_regrole('rds_replication'), 'USAGE'), false),
       has_database_privilege(current_database(), 'CREATE'), current_database()::text,
       current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication)
FROM pg_roles AS r WHERE r.rolname = current_user
"""
SLOT: Final = """
SELECT slot_type::text, plugin::text, database::text, temporary, two_phase, active_pid
FROM pg_replication_slots WHERE slot_name = %s
"""
READER: Final = "SELECT application_name FROM pg_stat_activity WHERE pid = %s"
PUBLICATION: Final = """
SELECT p.oid::bigint, p.puballtables OR EXISTS (SELECT FROM pg_publication_namespace AS s WHERE s.pnpubid = p.oid),
       p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.pubviaroot,
       pg_has_role(p.pubowner, 'USAGE'), pg_get_userbyid(p.pubowner)::text,
       coalesce(obj_description(p.oid, 'pg_publication') = %s, false)
FROM pg_publication AS p WHERE p.pubname = %s
"""
PUBLISHED: Final = """
SELECT r.prrelid::bigint, n.nspname::text, c.relname::text, r.prqual IS NOT NULL, r.prattrs IS NOT NULL
FROM pg_publication_rel AS r JOIN pg_class AS c ON c.oid = r.prrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE r.prpubid = %s ORDER BY 2, 3
"""
KIND: Final = "SELECT c.relkind::text, c.relpersistence::text FROM pg_class AS c WHERE c.oid = to_regclass(%s)"
KINDS: Final = {
    "v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index",
    "I": "an index", "c": "a type", "t": "a system table",
}  # fmt: skip


class Wanted(Struct, frozen=True):
    """What is to be captured, and how. The slot and the publication have one name."""

    slot: str
    patterns: TablePatterns
    set_identity: bool = False  # give tables the replica identity that they lack
    reader: str = ""  # application_name of this capture: no other may read the slot; empty: any may, and is ended


class Checked(Struct, frozen=True):
    tables: dict[int, ListedTable]
    role: str
    first: bool  # the slot does not exist yet
    identities: tuple[tuple[str, str], ...] = ()  # statements that give tables an identity, and that take it back


class _Server(Struct, frozen=True):
    version: int
    recovery: bool
    wal_level: str
    role: str
    replicates: bool
    may_publish: bool
    database: str
    slots_max: int
    slots: int
    senders_max: int
    senders: int


def check_server(connection: psycopg.Connection[Any], wanted: Wanted) -> Checked:
    """Raises ``ConfigError`` for the first obstacle, ``Unreachable`` for one that may pass by itself."""
    server = _Server(*_ask(connection, SERVER)[0])
    _check_version(server)
    first, active = _check_slot(connection, wanted, server)
    _check_room(server, first=first, active=active)
    tables = listed_tables(connection, wanted.patterns)
    if first:
        _check_names(connection, wanted.patterns, tables)
    published = _check_publication(connection, wanted.slot, server, tables, first=first)
    rights = rights_of(connection, tables)
    missing = missing_identities(rights)
    if first:
        _check_rights(server, rights, published, wanted)
        _check_columns(connection, tables)
    if first and missing and not wanted.set_identity:
        raise ConfigError(
            f"the server does not record which rows are removed from {plural(len(missing), 'table')}, neither by a key "
            f"nor whole; run: {'; '.join(run for run, _ in missing)}; or restart with --set-replica-identity, or "
            "exclude them"
        )
    return Checked(tables, server.role, first, tuple(missing) if wanted.set_identity else ())


def _check_version(server: _Server) -> None:
    if server.version < OLDEST_SERVER:
        raise ConfigError(
            f"the server is PostgreSQL {server.version // 10_000}, and {OLDEST_SERVER // 10_000} is the oldest that "
            "can be captured; upgrade it"
        )
    if server.recovery:
        raise ConfigError("the server is a standby (it is in recovery); give the dsn of its primary")
    if server.wal_level != "logical":
        raise ConfigError(f"the server's wal_level is {server.wal_level}; set wal_level = logical and restart it")
    if not server.replicates:
        raise ConfigError(
            f"the role {server.role} may not replicate; run: ALTER ROLE {name_of(server.role)} REPLICATION"
        )


def _check_slot(connection: psycopg.Connection[Any], wanted: Wanted, server: _Server) -> tuple[bool, bool]:
    """Whether the slot is absent, and whether it is being read."""
    found = _ask(connection, SLOT, wanted.slot)
    if not found:
        return True, False
    [(kind, plugin, database, temporary, two_phase, pid)] = found
    other = (
        "is a physical slot" if kind != "logical"
        else f"belongs to the plug-in {plugin}" if plugin != "pgoutput"
        else f"belongs to the database {database}" if database != server.database
        else "is a temporary slot of a session" if temporary
        else "decodes prepared transactions (two_phase)" if two_phase
        else ""
    )  # fmt: skip
    if other:
        raise ConfigError(f"the slot {wanted.slot} {other}; choose another name with --slot, or drop it")
    if pid is not None:
        [(reader,)] = _ask(connection, READER, pid) or [("",)]
        if wanted.reader and reader != wanted.reader:
            raise ConfigError(
                f"the slot {wanted.slot} is in use by process {pid} of the server ({reader or 'without a name'}); stop "
                f"that reader (SELECT pg_terminate_backend({pid})), or choose another name with --slot"
            )
    return False, pid is not None


def _check_room(server: _Server, *, first: bool, active: bool) -> None:
    if first and server.slots >= server.slots_max:
        raise ConfigError(
            f"all {server.slots_max} replication slots of the server are in use; drop one that is not needed, or raise "
            "max_replication_slots and restart the server"
        )
    if server.senders - active >= server.senders_max:
        text = (
            f"all {server.senders_max} WAL senders of the server are in use; end one that pg_stat_replication shows, "
            "or raise max_wal_senders and restart the server"
        )
        raise ConfigError(text) if first else Unreachable(text)


def _check_names(connection: psycopg.Connection[Any], patterns: TablePatterns, tables: dict[int, ListedTable]) -> None:
    names = names_of_tables(connection)
    for pattern in patterns.include:
        if (exact := exact_name(pattern)) is None or exact in names:
            continue
        text = quoted(*exact)
        found = _ask(connection, KIND, text)
        if not found:
            raise ConfigError(f"there is no table {text}; create it, or correct --tables")
        [(kind, persistence)] = found
        what = KINDS.get(kind) or ("an unlogged table" if persistence == "u" else "a table without partitions")
        raise ConfigError(f"{text} is {what}, whose rows are not in the WAL; name an ordinary table")
    if not tables:
        said = ", ".join(patterns.include) + ("" if not patterns.exclude else f" without {', '.join(patterns.exclude)}")
        raise ConfigError(f"no table matches {said}; correct --tables (schema.table, with * and ?) or --exclude")


def _check_publication(
    connection: psycopg.Connection[Any],
    name: str,
    server: _Server,
    tables: Collection[int],
    *,
    first: bool,
) -> set[int]:
    """The tables that are published already. Raises ``ConfigError`` for a publication that is not for this capture."""
    remedy = f"choose another name with --slot, or run: DROP PUBLICATION {name_of(name)}"
    found = _ask(connection, PUBLICATION, OURS, name)
    if not found:
        if not server.may_publish:
            raise ConfigError(
                f"the role {server.role} may not create a publication; run: GRANT CREATE ON DATABASE "
                f"{name_of(server.database)} TO {name_of(server.role)}"
            )
        return set()
    [(oid, whole, everything, via_root, owned, owner, ours)] = found
    rows = _ask(connection, PUBLISHED, oid)
    if whole:
        raise ConfigError(
            f"the publication {name} is for all tables or for schemas, and not made by a capture; {remedy}"
        )
    if not everything:
        raise ConfigError(f"the publication {name} leaves out kinds of changes; {remedy}")
    if via_root:
        raise ConfigError(f"the publication {name} has publish_via_partition_root, which hides truncations; {remedy}")
    for _, schema, table, filtered, shortened in rows:
        if filtered or shortened:
            what = "rows" if filtered else "columns"
            raise ConfigError(f"the publication {name} leaves out {what} of {quoted(schema, table)}; {remedy}")
    others = [quoted(schema, table) for each, schema, table, _, _ in rows if each not in tables]
    if first and others and not ours:
        raise ConfigError(f"the publication {name} has tables that no pattern selects ({_some(others)}); {remedy}")
    if others and not tables:  # a typing error must not end the capture of every table
        raise ConfigError(
            f"no pattern selects any of the tables that are captured ({_some(others)}); correct --tables or --exclude"
        )
    published = {each for each, *_ in rows}
    if not owned and set(tables) - published:
        raise ConfigError(
            f"the role {server.role} does not own the publication {name}, and so cannot add tables to it; run: "
            f"GRANT {name_of(owner)} TO {name_of(server.role)}, or: ALTER PUBLICATION {name_of(name)} OWNER TO "
            f"{name_of(server.role)}"
        )
    return published


def _check_rights(server: _Server, rights: Sequence[TableRights], published: set[int], wanted: Wanted) -> None:
    role = name_of(server.role)
    if lacking := [each for each in rights if not each.enters]:
        schemas = ", ".join(sorted({name_of(each.schema) for each in lacking}))
        raise ConfigError(f"the role {server.role} may not use schemas; run: GRANT USAGE ON SCHEMA {schemas} TO {role}")
    if lacking := [each for each in rights if not each.reads]:
        names = ", ".join(each.text for each in lacking)
        raise ConfigError(
            f"the role {server.role} may not read {plural(len(lacking), 'table')}; "
            f"run: GRANT SELECT ON {names} TO {role}"
        )
    if lacking := [each for each in rights if each.hides]:
        raise ConfigError(
            f"row-level security may hide rows of {_some([each.text for each in lacking])} from the role "
            f"{server.role}, so that a snapshot would lack them; run: ALTER ROLE {role} BYPASSRLS, or capture as a "
            "role that has it"
        )
    alters = {each.oid for each in rights if wanted.set_identity and each.missing_identity is not None}
    if lacking := [each for each in rights if not each.owns and (each.oid not in published or each.oid in alters)]:
        owners = ", ".join(sorted({name_of(each.owner) for each in lacking}))
        raise ConfigError(
            f"the role {server.role} does not own {_some([each.text for each in lacking])}, and so cannot publish "
            f"them; run: GRANT {owners} TO {role}; or let their owner add them to the publication "
            f"{name_of(wanted.slot)}"
        )


def _check_columns(connection: psycopg.Connection[Any], tables: Collection[int]) -> None:
    for found in definitions_of(connection, sorted(tables)).values():
        if reason := obstacle_of_columns(found):
            raise ConfigError(f"{quoted(found.schema, found.name)}: {reason}; or exclude the table")


def _ask(connection: psycopg.Connection[Any], query: str, *values: object) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode(), values or None).fetchall()


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
