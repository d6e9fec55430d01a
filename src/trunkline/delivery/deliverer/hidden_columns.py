"""Keeps what a pipeline hides hidden: compares the source's tables with those that it had before.

``mask`` and ``columns.exclude`` of a pipeline are about every table of a set; a table without such a column is fine.
But a table that had it and lost it may have it under another name: its values must not be delivered as they are. And
entries of ``tables`` are about names: a table that has another name may leave the entry that hides something of it. A
window says how columns became others; a seed, a table that is read whole, or one that comes back does not. So the
tables are recorded, with their identities and columns, before they are delivered.

Rules
 H1  A column that the pipeline hides, that a table had when it was recorded and has no longer is ``ConfigError``, for a
     flush and for every kind of seed, until the pipeline hides as many columns that are new in the table, or no longer
     names the column for that table. Another change of the pipeline's file does not count.
 H2  What a window or a seed is about to deliver is recorded before it is delivered.
 H3  Destinations may be at different versions: a table is compared with a record of an older version only, unless the
     source no longer has the recorded version (it was restored from a backup).
 H4  A pipeline that hides nothing costs nothing. Tables that this process compared before are not compared again.
 H5  A table that was recorded under another name is ``ConfigError``, in the same way, if the entry that counts for that
     name hides columns or rows of it, and the one that counts now does not; unless the latter names this table alone,
     and was not there for another one of the same name before.
 H6  A column that the pipeline hides, and that has another name though another column has its name now, is
     ``ConfigError``, in the same way, if the source numbers its columns; unless ``columns.include`` or
     ``columns.rename`` names it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from trunkline.delivery.config.table_rules import (
    hides_anything,
    named_columns,
    names_alone,
    newly_shown,
    spot,
    watched_columns,
)
from trunkline.delivery.config.tree import Pipeline
from trunkline.delivery.control.seen_columns import SeenColumns, SeenTable
from trunkline.delivery.sources.contract import Source, SourceTable
from trunkline.errors import ConfigError


class HiddenColumns:
    """Of one pipeline. Any thread may call."""

    def __init__(self, pipeline: Pipeline, source: Source, record: SeenColumns) -> None:
        self._pipeline = pipeline
        self._source = source
        self._record = record
        self._lock = threading.Lock()
        self._hiding = hides_anything(pipeline)  # H4
        self._watched: dict[str, frozenset[str]] = {}
        self._known: dict[str, SourceTable] = {}  # H4
        self._begun = False

    def begin(self, version: int) -> None:
        """Before the first window of this process: the record may be older than the program that keeps it."""
        if self._begun or not self._hiding:
            return
        found = self._source.tables(version)
        with self._lock:
            self._complete(found, version)
            self._begun = True

    def check(self, tables: Iterable[SourceTable], version: int) -> None:
        """Raises ``ConfigError`` (H1, H5), or what the control store does."""
        if not self._hiding:
            return
        with self._lock:
            self._compare([each for each in tables if self._known.get(each.name) != each], version)

    def _complete(self, tables: Iterable[SourceTable], version: int) -> None:
        """Record what is not recorded yet."""
        recorded = self._record.read(self._pipeline.name)
        new: dict[str, SeenTable] = {}
        for table in tables:
            before = recorded.get(table.name)
            if before is None:
                new[table.name] = _seen(table, version)
            elif before.version <= version:
                new[table.name] = _completed(before, table)
                if new[table.name] == before:
                    del new[table.name]
        if new:
            self._record.write(self._pipeline.name, new)

    def _compare(self, changed: list[SourceTable], version: int) -> None:
        if not changed:
            return
        recorded = self._record.read(self._pipeline.name)
        newest = self._source.state(0).version
        older = {name: seen for name, seen in recorded.items() if not version < seen.version <= newest}  # H3
        last: dict[str, str] = {}  # the name under which each identity was recorded last
        for name, seen in sorted(older.items(), key=lambda each: each[1].version):
            last[seen.identity] = name
        new: dict[str, SourceTable] = {}
        for table in changed:
            if table.name in recorded and table.name not in older:
                continue
            if table.name in older:
                self._check_columns(table, older[table.name])
            if table.identity:
                self._check_name(table, last.get(table.identity, table.name), older)
            new[table.name] = table
        if new:
            self._record.write(self._pipeline.name, {name: _seen(table, version) for name, table in new.items()})
        self._known |= new

    def _hides(self, name: str) -> frozenset[str]:
        if name not in self._watched:
            self._watched[name] = frozenset(watched_columns(self._pipeline, name))
        return self._watched[name]

    def _check_columns(self, table: SourceTable, seen: SeenTable) -> None:
        """H1."""
        name, before, now = table.name, frozenset(seen.columns), frozenset(column.name for column in table.columns)
        hidden = self._hides(name)
        lost, gained = sorted(hidden & before - now), hidden & now - before
        if len(lost) > len(gained):
            raise ConfigError(
                f"{spot(self._pipeline, name)}: table {name} had the column {lost[0]!r}, which `mask` or "
                "`columns.exclude` hides, and has it no longer: its values may have another name now; hide that one, "
                "too, or, if nothing needs to be hidden, name the column only in the entries of tables that have it, "
                "and restart the deliverer"
            )

        if seen.identity == table.identity:
            self._check_numbers(table, seen, hidden)

    def _check_numbers(self, table: SourceTable, seen: SeenTable, hidden: frozenset[str]) -> None:
        """H6."""
        numbers = {number: column.name for column, number in zip(table.columns, table.numbers, strict=False)}
        allowed = hidden | frozenset(named_columns(self._pipeline, table.name))
        names = [column.name for column in table.columns]
        common = [each for each in names if each in seen.columns]
        renumbered = common == [each for each in seen.columns if each in names]  # a database restored from a dump
        for name in sorted(hidden):
            now = seen.now(name, numbers)
            if now is not None and now != name and now not in allowed and not (now in seen.columns and renumbered):
                what = f"{spot(self._pipeline, table.name)}: table {table.name}" if table.name else "the source's table"
                raise ConfigError(
                    f"{what} has the column {name!r}, which `mask` or `columns.exclude` hides, under the name {now!r} "
                    f"now, and another column has its name; hide {now!r}, too, or, if that is not needed, name it in "
                    "`columns.include` or `columns.rename`, and restart the deliverer"
                )

    def _check_name(self, table: SourceTable, former: str, recorded: Mapping[str, SeenTable]) -> None:
        """H5."""
        if former == table.name:
            return
        shown = newly_shown(self._pipeline, former, table.name, [column.name for column in table.columns])
        other = table.name in recorded and recorded[table.name].identity not in ("", table.identity)
        if not shown or (names_alone(self._pipeline, table.name) and not other):
            return
        where, there = spot(self._pipeline, table.name), spot(self._pipeline, former)
        allowed = (
            f"let {there} hide it no longer" if other else f"name {table.name} alone in an entry of its own, without it"
        )
        raise ConfigError(
            f"{where}: table {table.name} was {former}, of which {there} hides {shown}, and this entry does not; hide "
            f'it in the entry of {table.name}, too, leave the table out with "!", or, if nothing needs to be hidden, '
            f"{allowed}; then restart the deliverer"
        )


def _seen(table: SourceTable, version: int) -> SeenTable:
    return SeenTable(version, tuple(column.name for column in table.columns), table.identity, table.numbers)


def _completed(seen: SeenTable, table: SourceTable) -> SeenTable:
    """With what an older release did not record."""
    found = replace(seen, identity=seen.identity or table.identity)
    same = found.identity == table.identity and found.columns == tuple(column.name for column in table.columns)
    return replace(found, numbers=table.numbers) if same and not seen.numbers else found
