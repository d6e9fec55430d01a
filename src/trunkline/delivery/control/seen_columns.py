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
    numbers: tuple[int, ...] = ()  # of the columns, if the source numbers them and this was recorded

    def now(self, name: str, numbers: Mapping[int, str]) -> str | None:
        """The name that a column has now; ``None``: it is not known, or there is no such column."""
        found = dict(zip(self.columns, self.numbers, strict=False)).get(name)
        return None if found is None else numbers.get(found)


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
            str(name): SeenTable(int(version), *_decoded(names, identity or ""))
            for name, version, names, identity in rows
        }

    def write(self, pipeline: str, found: Mapping[str, SeenTable]) -> None:
        """Record some tables; the others stay."""
        rows = [(name, seen.version, _encoded(seen)) for name, seen in found.items()]
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


def _encoded(seen: SeenTable) -> str:
    """Names, or pairs of names and numbers."""
    listed = list(zip(seen.columns, seen.numbers, strict=True)) if seen.numbers else seen.columns
    return msgspec.json.encode(listed).decode()


def _decoded(text: str, identity: str) -> tuple[tuple[str, ...], str, tuple[int, ...]]:
    found = msgspec.json.decode(text, type=list[str | tuple[str, int]])
    pairs = [each for each in found if not isinstance(each, str)]
    names = tuple(each if isinstance(each, str) else each[0] for each in found)
    return names, identity, tuple(number for _, number in pairs)
