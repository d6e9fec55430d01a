"""Transactions of a captured database as lines: a block for each, or JSON objects, one for each change."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from trunkline.cli.capture_status import MARIADB
from trunkline.cli.tables import plural
from trunkline.delivery.changes.change_records import RowChange, qualified
from trunkline.delivery.changes.groups import ChunkHead, Transaction
from trunkline.delivery.changes.schemas import Catalog, TableSchema

LETTERS_MAX: Final = 200  # of one value; JSON has all of them
BARE: Final = re.compile(r"[A-Za-z0-9_.:+-]+")  # text that needs no quotation marks
WORDS: Final = ("NULL", "true", "false")  # text that does
UNIX_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INDENT: Final = "    "
OFFSET_BITS: Final = 40  # of a position of MariaDB: the number of a file, then an offset


class _Kind(msgspec.Struct):
    kind: str = ""


class Lines:
    """How things are shown; each function answers whole lines."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json

    def transaction(
        self, glsn: int, transaction: Transaction, changes: Sequence[RowChange], part: int | None, source: str
    ) -> str:
        """``part``: the number of the part; only the first has a heading. ``source``: the kind of the database."""
        name, place = place_text(source, transaction.lsn)
        if self._json:
            facts = {
                "transaction": transaction.xid,
                name.lower(): place,
                "commit_time": time_text(transaction.commit_us),
            }
            return "".join(_json({"glsn": glsn, **facts, **_facts(change)}) for change in changes)
        heading = f"{glsn} transaction {transaction.xid}, committed {time_text(transaction.commit_us)}, {name} {place}"
        amount = "" if part is not None else f", {plural(len(changes), 'change')}"
        lines = [] if part else [heading + amount]
        return _block([*lines, *(INDENT + change_text(change) for change in changes)])

    def chunk(self, glsn: int, schema: TableSchema, head: ChunkHead, changes: Sequence[RowChange]) -> str:
        """Of a snapshot."""
        facts = {"table": qualified(schema), "chunk": head.chunk, "rows": len(changes), "complete": head.complete}
        if self._json:
            lines = (_json({"glsn": glsn, **_facts(change)}) for change in changes)
            return _json({"glsn": glsn, "kind": "snapshot", **facts}) + "".join(lines)
        done = ", the last" if head.complete else ""
        heading = f"{glsn} snapshot of {name_text(qualified(schema))}: chunk {head.chunk}{done}"
        heading += f", {plural(len(changes), 'row')}"
        return _block([heading, *(INDENT + change_text(change) for change in changes)])

    def schema(self, glsn: int, schema: TableSchema) -> str:
        changes = [each.value for each in schema.changes]
        columns = {column.name: column.type for column in schema.columns}
        if self._json:
            facts = {"table": qualified(schema), "number": schema.number, "generation": schema.generation}
            facts |= {"version": schema.version, "changes": changes, "columns": columns, "key": schema.key}
            return _json({"glsn": glsn, "kind": "schema", **facts})
        shown = ", ".join(f"{name_text(name)} {kind}" for name, kind in columns.items())
        key = f"; key {', '.join(map(name_text, schema.key))}" if schema.key else "; no key"
        heading = f"{glsn} schema of {name_text(qualified(schema))}: {', '.join(changes)}; version {schema.version}"
        return f"{heading}, generation {schema.generation}\n{INDENT}{shown}{key}\n"

    def catalog(self, glsn: int, catalog: Catalog) -> str:
        if self._json:
            tables = [qualified(table.newest) for table in catalog.tables]
            return _json({"glsn": glsn, "kind": "catalog", "epoch": catalog.epoch, "tables": tables})
        return f"{glsn} catalog of {plural(len(catalog.tables), 'table')}\n"

    def mark(self, glsn: int, position: str | None) -> str:
        if position is None:
            return self._said(glsn, "take-over", "take-over: a capture begins here")
        return self._said(glsn, "mark", f"mark: the source is at {position!r:.200}", position=position)

    def one_table(self, glsn: int, position: str | None, changes: Sequence[RowChange], index: int) -> str:
        """An entry of a log of one table."""
        if self._json:
            facts = {} if position is None else {"position": position}
            return "".join(_json({"glsn": glsn, **facts, **_facts(change)}) for change in changes)
        stated = "" if position is None else f", source position {position!r:.200}"
        lines = [] if index else [f"{glsn} transaction{stated}"]
        return _block([*lines, *(INDENT + change_text(change) for change in changes)])

    def interrupted(self, glsn: int) -> str:
        return self._said(glsn, "interrupted", "interrupted: the transaction before does not count; it comes again")

    def _said(self, glsn: int, kind: str, text: str, **facts: Any) -> str:
        return _json({"glsn": glsn, "kind": kind, **facts}) if self._json else f"{glsn} {text}\n"


def _json(facts: dict[str, Any]) -> str:
    return msgspec.json.encode(facts).decode() + "\n"


def _block(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _facts(change: RowChange) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": change.kind, "seq": change.seq}
    if change.table:
        facts["table"] = change.table
    if change.row is not None:
        facts["row"] = change.row
    if change.old is not None:
        facts["old"] = change.old
    if change.unchanged:
        facts["unchanged"] = change.unchanged
    return facts


def change_text(change: RowChange) -> str:
    """On one line. Of an update that states the old row: what changed, and the key."""
    return " ".join([change.kind, *([name_text(change.table)] if change.table else []), *_values(change)])


def _values(change: RowChange) -> Iterator[str]:
    row, old = change.row or {}, change.old or {}
    names = [*change.key, *(name for name in row if name not in change.key)]
    for name in names:
        if name in old and name in row and old[name] != row[name]:
            yield f"{name_text(name)}={value_text(old[name])}->{value_text(row[name])}"
        elif name in row and (name not in old or name in change.key):
            yield f"{name_text(name)}={value_text(row[name])}"
    for name in change.unchanged:
        yield f"{name_text(name)}=(unchanged)"


def name_text(name: str) -> str:
    """A name that could be mistaken for more than one word, or move the cursor, is quoted."""
    return name if BARE.fullmatch(name) else json.dumps(name, ensure_ascii=not name.isprintable())


def value_text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if BARE.fullmatch(value) and value not in WORDS and len(value) <= LETTERS_MAX:
            return value
        more = len(value) - LETTERS_MAX
        cut = value[:LETTERS_MAX]
        shown = json.dumps(cut, ensure_ascii=not cut.isprintable())
        return shown if more <= 0 else f"{shown}… ({more:,} more)"
    if isinstance(value, list):
        return f"[{', '.join(value_text(each) for each in value)}]"
    return str(value)


def place_text(source: str, lsn: int) -> tuple[str, str]:
    """What a position is called, and how the database writes it."""
    if source == MARIADB:
        return "binlog", f"{lsn >> OFFSET_BITS:06}:{lsn & (1 << OFFSET_BITS) - 1}"
    return "LSN", f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def source_of(position: str | None) -> str:
    """The kind of the database that a position is of; empty if it does not say."""
    try:
        return msgspec.json.decode(position or "", type=_Kind).kind
    except msgspec.MsgspecError:
        return ""


def time_text(commit_us: int) -> str:
    try:
        return (UNIX_EPOCH + dt.timedelta(microseconds=commit_us)).isoformat(timespec="microseconds")
    except OverflowError:  # of no calendar
        return str(commit_us)
