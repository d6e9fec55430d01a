"""The tables of a pipeline's source, and the columns that they had when they were last delivered (rule C11)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from trunkline.delivery.control.tables import Tables, json_rows


class SeenTable(Struct, frozen=True):
    version: int  # of the source
    columns: tuple[str, ...]  # their names
    identity: str = ""  # another table of the same name has another one; empty: an older release recorded it


class SeenColumns:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def read(self, pipeline: str) -> dict[str, SeenTable]:
        """Of every table that was recorded, by name."""
        with self._tables.reading():
            rows = self._tables.run(
                "SELECT c.name, c.version, c.names, t.identity FROM _trunkline_seen_columns c "
                "LEFT JOIN _trunkline_seen_tables t ON t.pipeline = c.pipeline AND t.name = c.name "
                "WHERE c.pipeline = :pipeline",
                pipeline,
            )
        return {
            str(name): SeenTable(int(version), msgspec.json.decode(names, type=tuple[str, ...]), identity or "")
            for name, version, names, identity in rows
        }

    def write(self, pipeline: str, found: Mapping[str, SeenTable]) -> None:
        """Record some tables; the others stay."""
        rows = [(name, seen.version, msgspec.json.encode(seen.columns).decode()) for name, seen in found.items()]
        with self._tables.writing():
            self._tables.run(
                self._tables.given("name text", "version bigint", "names text")
                + "INSERT INTO _trunkline_seen_columns (pipeline, name, version, names) "
                "SELECT :pipeline, i.name, i.version, i.names FROM i WHERE true "
                "ON CONFLICT (pipeline, name) DO UPDATE SET version = excluded.version, names = excluded.names",
                pipeline,
                items=json_rows(rows),
            )
            self._tables.run(
                self._tables.given("name text", "identity text")
                + "INSERT INTO _trunkline_seen_tables (pipeline, name, identity) "
                "SELECT :pipeline, i.name, i.identity FROM i WHERE true "
                "ON CONFLICT (pipeline, name) DO UPDATE SET identity = excluded.identity",
                pipeline,
                items=json_rows([(name, seen.identity) for name, seen in found.items()]),
            )
