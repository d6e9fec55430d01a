"""A MariaDB server and its tables, as they are now: what may be captured, and why something may not.

Foreign keys with an action (CASCADE, SET NULL) keep a table out: the server changes rows of it without a word in the
binlog. So do engines without transactions: their rows are in the binlog even if the transaction is rolled back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from trunkline.delivery.capture.mariadb.connection import Session, quoted, texts
from trunkline.delivery.capture.mariadb.types import Family, declared, may_be_key, unfit_type
from trunkline.delivery.capture.mariadb.values import CODECS, unfit_charset
from trunkline.delivery.capture.source import OFFSET_BITS
from trunkline.delivery.changes.columns import Column, check_columns
from trunkline.delivery.changes.schemas import SourceColumn
from trunkline.errors import ConfigError

SYSTEM: Final = ("information_schema", "mysql", "performance_schema", "sys")
FIRST_OFFSET: Final = 4  # of an event in a file
NEEDED: Final = {
    "log_bin": ("ON", "log_bin"),
    "binlog_format": ("ROW", "binlog_format = ROW"),
    "binlog_row_image": ("FULL", "binlog_row_image = FULL"),
    "binlog_row_metadata": ("FULL", "binlog_row_metadata = FULL"),
}
UNFIT: Final = {"lower_case_table_names": ("1", "2"), "binlog_alter_two_phase": ("ON", "1")}
UNBOUND: Final = ("RESTRICT", "NO ACTION")
Name = tuple[str, str]  # schema and table


class Server(Struct, frozen=True):
    """``base``: of the names of binlog files. ``charsets``: by the numbers of collations."""

    system: str
    base: str
    charsets: Mapping[int, str]

    def file(self, position: int) -> str:
        return f"{self.base}.{position >> OFFSET_BITS:06d}"

    def position(self, file: str, offset: int) -> int:
        return number_of(file) << OFFSET_BITS | offset


class SeenTable(Struct, frozen=True):
    schema: str
    name: str
    columns: tuple[SourceColumn, ...]  # numbered by their order
    key: tuple[str, ...]


class Patterns:
    """``shop.*`` and ``shop.orders`` choose tables; ``!shop.tmp_*`` leaves some out."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.chosen = [pattern for pattern in patterns if not pattern.startswith("!")]
        self._left_out = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
        for pattern in (*self.chosen, *self._left_out):
            if "." not in pattern:
                raise ConfigError(f"{pattern!r} names no database: tables are chosen as DATABASE.TABLE, such as shop.*")
        if not self.chosen:
            raise ConfigError("no tables are chosen; name some, such as shop.*")

    def match(self, name: Name) -> bool:
        text = ".".join(name)
        if name[0].lower() in SYSTEM or any(fnmatchcase(text, pattern) for pattern in self._left_out):
            return False
        return any(fnmatchcase(text, pattern) for pattern in self.chosen)


def number_of(file: str) -> int:
    return int(file.rpartition(".")[2])


def server_of(session: Session, replica: int) -> Server:
    """Raises ``ConfigError`` if the server cannot be captured."""
    [(version,)] = session.ask("SELECT VERSION()")
    if "mariadb" not in str(version).lower():
        raise ConfigError(
            f"the server is MySQL {version}: it does not tell the binlog position of a snapshot; capture MariaDB 10.5 "
            "or newer"
        )
    found = session.variables(*NEEDED, *UNFIT, "server_id", "server_uid", "log_bin_basename", "hostname", "port")
    for name, (value, setting) in NEEDED.items():
        if name not in found:
            raise ConfigError(f"the server is MariaDB {version}, which lacks {name}; capture MariaDB 10.5 or newer")
        if found[name] != value:
            raise ConfigError(
                f"the server's {name} is {found[name]}; set {setting} in its configuration and restart it"
            )
    for name, values in UNFIT.items():
        if found.get(name) in values:
            raise ConfigError(f"the server's {name} is {found[name]}, which cannot be captured; turn it off")
    if int(found["server_id"]) == replica:
        raise ConfigError(f"the server itself has the server id {replica}; give the capture another one")
    identity = found.get("server_uid") or f"{found['hostname']}:{found['port']}"
    collations = session.ask("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL")
    source = "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
    applicable = session.ask(f"SELECT ID, CHARACTER_SET_NAME FROM {source}") if _has_ids(session) else []
    return Server(
        f"mariadb:{found['server_id']}:{identity}",
        found["log_bin_basename"].rpartition("/")[2],
        {int(number): name for number, name in (*collations, *applicable) if number and name},
    )


def _has_ids(session: Session) -> bool:
    """From 10.10 on a collation may have several character sets, each under its own number."""
    return bool(
        session.ask(
            "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema' "
            "AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID'"
        )
    )


def position_now(session: Session, server: Server) -> int:
    """The end of the binlog."""
    found = session.ask("SHOW MASTER STATUS")
    if not found:
        raise ConfigError("the server writes no binlog; set log_bin in its configuration and restart it")
    return server.position(found[0][0], int(found[0][1]))


def binlog_files(session: Session) -> list[tuple[int, int]]:
    """Numbers and sizes of the files that the server still has, oldest first."""
    return [(number_of(row[0]), int(row[1])) for row in session.ask("SHOW BINARY LOGS")]


def look(session: Session, patterns: Patterns) -> dict[Name, SeenTable]:
    """All chosen tables. Raises ``ConfigError`` for one that cannot be captured."""
    schemas = [row[0] for row in session.ask("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")]
    return _seen(session, patterns, [schema for schema in schemas if schema.lower() not in SYSTEM], None)


def look_at(session: Session, name: Name) -> SeenTable | None:
    """One table; ``None`` if there is none."""
    return _seen(session, None, [name[0]], name[1]).get(name)


def _seen(
    session: Session, patterns: Patterns | None, schemas: Sequence[str], table: str | None
) -> dict[Name, SeenTable]:
    if not schemas:
        return {}

    def ask(what: str, source: str, prefix: str = "TABLE", more: str = "") -> list[tuple[str, ...]]:
        alone = f" AND TABLE_NAME = {texts([table])}" if table is not None else ""
        return session.ask(
            f"SELECT {prefix}_SCHEMA, TABLE_NAME, {what} FROM information_schema.{source} "
            f"WHERE {prefix}_SCHEMA IN ({texts(schemas)}){alone} {more}"
        )

    chosen: dict[Name, str] = {}
    for schema, name, kind, engine in ask("TABLE_TYPE, ENGINE", "TABLES"):
        if (patterns is None or patterns.match((schema, name))) and kind in ("BASE TABLE", "SYSTEM VERSIONED"):
            chosen[schema, name] = engine if kind == "BASE TABLE" else kind
    columns: dict[Name, list[tuple[str, ...]]] = defaultdict(list)
    for schema, name, *rest in ask("COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME", "COLUMNS", more=ORDER):
        columns[schema, name].append(tuple(rest))
    json = {
        (schema, name, column)
        for schema, name, column, clause in ask("CONSTRAINT_NAME, CHECK_CLAUSE", "CHECK_CONSTRAINTS", "CONSTRAINT")
        if clause == f"json_valid(`{column}`)"
    }
    keys: dict[Name, list[tuple[str, str | None]]] = defaultdict(list)
    for schema, name, column, prefix in ask("COLUMN_NAME, SUB_PART", "STATISTICS", more=PRIMARY):
        keys[schema, name].append((column, prefix))
    actions = {
        (schema, name): constraint
        for schema, name, constraint, *rules in ask(
            "CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE", "REFERENTIAL_CONSTRAINTS", "CONSTRAINT"
        )
        if any(rule not in UNBOUND for rule in rules)
    }
    found = {}
    for each, engine in chosen.items():
        _check_table(each, engine, actions.get(each))
        found[each] = _table(each, columns[each], keys[each], json)
    return found


ORDER: Final = "ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION"
PRIMARY: Final = "AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX"


def _check_table(name: Name, engine: str, action: str | None) -> None:
    text = ".".join(name)
    if engine == "SYSTEM VERSIONED":
        raise ConfigError(f"{text} is system-versioned, which cannot be captured; leave it out: --exclude '{text}'")
    if engine != "InnoDB":
        raise ConfigError(
            f"{text} has the engine {engine}, which has no transactions; run: ALTER TABLE {quoted(*name)} ENGINE = "
            f"InnoDB, or leave it out: --exclude '{text}'"
        )
    if action is not None:
        raise ConfigError(
            f"the foreign key {action} of {text} has an action (CASCADE or SET NULL), and the binlog does not have the "
            f"rows that it changes; give it NO ACTION, or leave the table out: --exclude '{text}'"
        )


def _table(
    name: Name,
    columns: Iterable[tuple[str, ...]],
    key: Sequence[tuple[str, str | None]],
    json: set[tuple[str, str, str]],
) -> SeenTable:
    text, found = ".".join(name), []
    for number, (column, kind, charset) in enumerate(columns, 1):
        shape = declared("json" if (*name, column) in json else kind)
        if shape is None:
            raise unfit_type(text, column, kind)
        if shape.family in (Family.TEXT, Family.ENUM, Family.SET) and charset not in (*CODECS, "latin1", None):
            raise unfit_charset(text, column, charset)
        found.append(shape.column(column, number))
    if not found:
        raise ConfigError(f"the columns of {text} cannot be seen; grant SELECT on it to the user of the capture")
    seen = SeenTable(*name, tuple(found), key_of(found, key))
    try:
        check_columns([Column(column.name, column.type) for column in found], seen.key, None)
    except ConfigError as error:
        raise ConfigError(f"{text}: {error}") from None
    return seen


def key_of(columns: Sequence[SourceColumn], key: Sequence[tuple[str, str | None]]) -> tuple[str, ...]:
    """The primary key; empty if it is of prefixes, or of values that cannot be compared exactly."""
    names = tuple(column for column, _ in key)
    if any(prefix is not None for _, prefix in key) or not may_be_key([each for each in columns if each.name in names]):
        return ()
    return names
