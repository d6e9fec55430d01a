"""Random tables, shapes and windows, and what SQL over the source's states says about them.

The judge has nothing from ``delivery.shapes``: its columns and filters are SQL texts over a table in DuckDB, and its
hashes are Python's own ``hmac`` of values that it spells itself.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import (
    KIND_COLUMN,
    ORDINAL_COLUMN,
    ROUTE_COLUMN,
    VERSION_COLUMN,
    ChangeKind,
    NetChanges,
)
from trunkline.delivery.changes.shape import Mask, Shape
from trunkline.delivery.sources.contract import ReadRequest

Row = dict[str, Any]
State = dict[int, Row]  # by the source's key
SECRET = "a secret of the test"
VARIABLE = "TRUNKLINE_TEST_SHAPE_SECRET"
TENANTS = ["acme", "globex", "Ünï", None]
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)

VALUES: dict[str, Callable[[random.Random], Any]] = {
    "INTEGER": lambda chance: chance.randrange(-5, 6),
    "VARCHAR": lambda chance: chance.choice(["draft", "live", "", "ä'\"\\", "x" * 20]),
    "DOUBLE": lambda chance: chance.choice([0.0, 1.5, -2.25, 1e300]),
    "BOOLEAN": lambda chance: chance.random() < 0.5,
    "DATE": lambda chance: dt.date(2020, 1, 1) + dt.timedelta(days=chance.randrange(3000)),
    "TIMESTAMP": lambda chance: BEGIN + dt.timedelta(microseconds=chance.randrange(10**13)),
    "TIMESTAMP WITH TIME ZONE": lambda chance: (BEGIN + dt.timedelta(seconds=chance.randrange(10**7))).replace(
        tzinfo=dt.UTC
    ),
    "DECIMAL(10,2)": lambda chance: Decimal(chance.randrange(-500, 500)) / 100,
    "UUID": lambda chance: str(uuid.UUID(int=chance.getrandbits(128))),
    "BLOB": lambda chance: bytes([chance.randrange(4)]),
}
TEXTS: dict[str, Callable[[Any], str]] = {
    "BIGINT": str,
    "INTEGER": str,
    "VARCHAR": str,
    "DOUBLE": repr,
    "BOOLEAN": lambda value: "true" if value else "false",
    "DATE": lambda value: value.isoformat(),
    "TIMESTAMP": lambda value: value.isoformat(" ", "microseconds"),
    "TIMESTAMP WITH TIME ZONE": lambda value: value.replace(tzinfo=None).isoformat(" ", "microseconds") + "Z",
    "DECIMAL(10,2)": lambda value: f"{value:f}".rstrip("0").rstrip(".") if "." in f"{value:f}" else f"{value:f}",
    "UUID": str,
    "BLOB": lambda value: value.hex(),
}
CONSTANTS = {"INTEGER": "7", "VARCHAR": "hidden", "DOUBLE": "0.5", "BOOLEAN": "true", "DATE": "2000-01-01"}
FILTERS: dict[str, list[str]] = {
    "INTEGER": ["{} > 0", "{} % 2 = 0 OR {} IS NULL", "{} BETWEEN -2 AND 3"],
    "VARCHAR": ["{} <> 'draft'", "{} LIKE '%i%'", "lower({}) IN ('live', '')"],
    "DOUBLE": ["{} >= 0", "abs({}) < 2"],
    "BOOLEAN": ["{}", "NOT {}"],
    "DATE": ["year({}) > 2023", "{} < DATE '2024-06-01'"],
    "TIMESTAMP": ["{} > TIMESTAMP '2026-02-01'"],
    "TIMESTAMP WITH TIME ZONE": ["extract(month FROM {}) <> 2"],
    "DECIMAL(10,2)": ["{} > 0.5", "CASE WHEN {} > 2 THEN true ELSE false END"],
    "UUID": ["CAST({} AS VARCHAR) > '8'"],
    "BLOB": ["hex({}) = '01'"],
}
COMPUTED: dict[str, list[str]] = {
    "INTEGER": ["{} * 2", "coalesce({}, 0)::BIGINT"],
    "VARCHAR": ["upper({})", "length({})", "nullif({}, '') || '!'"],
    "DOUBLE": ["round({}, 1)"],
    "BOOLEAN": ["NOT {}"],
    "DATE": ["year({})", "{} + INTERVAL 1 DAY"],
    "TIMESTAMP": ["date_trunc('month', {})", "CAST({} AS DATE)"],
    "TIMESTAMP WITH TIME ZONE": ["strftime({}, '%Y-%m')", "{} AT TIME ZONE 'UTC'"],
    "DECIMAL(10,2)": ["{} * 3", "CAST({} AS VARCHAR)"],
    "UUID": ["{}", "left(CAST({} AS VARCHAR), 4)"],
    "BLOB": ["octet_length({})"],
}
NAMES = ["note", "Größe", 'a"b', "order", "select", "x y", "c1", "current_date"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class RandomTable:
    """A table with a shape, and states of it."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        names = chance.sample(NAMES, chance.randrange(1, 6))
        more = [Column(name, chance.choice(list(VALUES))) for name in names]
        self.columns: Columns = (Column("id", "BIGINT", False), Column("tenant", "VARCHAR"), *more)
        self.more = more
        self.computed: dict[str, str] = {}
        self.shape = self._shape()
        self.key, self.routing = self._key(), self._routing()

    def _shape(self) -> Shape:
        chance = self.chance
        for place, column in enumerate(self.more):
            if chance.random() < 0.4:
                self.computed[f"made {place}"] = chance.choice(COMPUTED[column.type]).format(quoted(column.name))
        self.computed |= {"no": chance.choice(["id * 2 + 1", "'k' || id"])} if chance.random() < 0.3 else {}
        self.computed |= (
            {"region": chance.choice(["upper(tenant)", "tenant = 'acme'"])} if chance.random() < 0.3 else {}
        )
        chosen = [column for column in self.columns if chance.random() < 0.8]
        exclude = [column.name for column in self.columns if column not in chosen]
        include = [] if chance.random() < 0.6 else [column.name for column in chosen]
        if not chosen and not self.computed:
            self.computed["fixed"] = "1 + 1"
        rename = {column.name: f"new {column.name}" for column in chosen if chance.random() < 0.3}
        mask = {column.name: self._mask(column) for column in chosen if chance.random() < 0.3}
        condition = None
        if self.more and chance.random() < 0.7:
            column = chance.choice(self.more)
            condition = chance.choice(FILTERS[column.type]).replace("{}", quoted(column.name))
        return Shape(
            tuple(include), () if include else tuple(exclude), rename, condition, mask, self.computed, VARIABLE
        )

    def _mask(self, column: Column) -> Mask:
        if column.name in ("id", "tenant") or self.chance.random() < 0.5:
            return Mask("hash")
        if column.type in CONSTANTS and self.chance.random() < 0.5:
            return Mask("constant", CONSTANTS[column.type])
        return Mask("null")

    def _delivered(self, name: str) -> bool:
        included = not self.shape.include or name in self.shape.include
        return included and name not in self.shape.exclude

    def _key(self) -> tuple[str, ...]:
        choices = [("no",)] if "no" in self.computed else []
        choices += [(self.shape.rename.get("id", "id"),)] if self._delivered("id") else []
        return self.chance.choice(choices) if choices else ()

    def _routing(self) -> str:
        choices = ["region"] if "region" in self.computed else []
        choices.append(self.shape.rename.get("tenant", "tenant") if self._delivered("tenant") else "tenant")
        return self.chance.choice([*choices, ""])

    # ------------------------------------------------------------------------------------------------------- the source

    def row(self, key: int) -> Row:
        values = {
            column.name: None if self.chance.random() < 0.15 else VALUES[column.type](self.chance)
            for column in self.more
        }
        return {"id": key, "tenant": self.chance.choice(TENANTS), **values}

    def state(self) -> State:
        return {key: self.row(key) for key in range(self.chance.randrange(12))}

    def changed(self, state: State) -> tuple[State, list[tuple[ChangeKind, Row]]]:
        """A later state, and the changes that led to it."""
        state, changes = dict(state), []
        for _ in range(self.chance.randrange(15)):
            key = self.chance.randrange(14)
            if key not in state:
                state[key] = self.row(key)
                changes.append((ChangeKind.INSERT, state[key]))
            elif self.chance.random() < 0.3:
                changes.append((ChangeKind.DELETE, state.pop(key)))
            else:
                old = state.pop(key)
                to = self.chance.randrange(14) if self.chance.random() < 0.2 else key
                to = key if to in state else to
                new = self.row(to)
                kept = self.chance.sample(list(old), self.chance.randrange(len(old)))
                new |= {name: old[name] for name in kept if name != "id"}
                state[to] = new
                changes += [(ChangeKind.UPDATE_PREIMAGE, old), (ChangeKind.UPDATE_POSTIMAGE, new)]
        return state, changes

    def rows(self, request: ReadRequest, found: list[Row], names: tuple[str, ...]) -> pa.Table:
        """Rows as a source hands them over."""
        schema = arrow_schema([column for column in self.columns if column.name in names])
        routes = pa.array([row[request.routing] if request.routing else None for row in found], pa.string())
        columns = {field.name: pa.array([row[field.name] for row in found], field.type) for field in schema}
        return pa.table({ROUTE_COLUMN: routes, **columns})

    def ordered(self, request: ReadRequest, changes: list[tuple[ChangeKind, Row]]) -> pa.Table:
        """The changes as those of a log."""
        table = self.rows(request, [row for _, row in changes], tuple(column.name for column in request.columns))
        places = pa.array(range(len(changes)), pa.int64())
        table = table.append_column(VERSION_COLUMN, places).append_column(ORDINAL_COLUMN, places)
        return table.append_column(KIND_COLUMN, pa.array([kind.value for kind, _ in changes], pa.string()))

    def difference(self, request: ReadRequest, before: State, after: State, *, whole: bool) -> NetChanges:
        """The net changes of a window, as a lake reads them: by the identity of rows."""
        gone = [row for key, row in before.items() if after.get(key) is not row]
        came = [row for key, row in after.items() if before.get(key) is not row]
        stated = request.stated if whole else request.key
        names = tuple(column.name for column in request.columns)
        return NetChanges(self.rows(request, gone, stated), self.rows(request, came, names))

    # -------------------------------------------------------------------------------------------------------- the judge

    def judged(self, state: State) -> list[tuple[str | None, Row]]:
        """The rows of a shaped state with their routes, by SQL over the state."""
        names = [column.name for column in self.columns if self._delivered(column.name)]
        items = [f"{quoted(name)} AS {quoted(self.shape.rename.get(name, name))}" for name in names] + [
            f"({text}) AS {quoted(name)}" for name, text in self.computed.items()
        ]
        masked = {self.shape.rename.get(name, name): (name, mask) for name, mask in self.shape.mask.items()}
        taken = {self.shape.rename.get(name, name) for name in names} | set(self.computed)
        items += ['tenant AS "left out"'] if self.routing and self.routing not in taken else []
        with judge().cursor() as connection:
            listed = ", ".join(f"{quoted(column.name)} {column.type}" for column in self.columns)
            connection.execute(f"CREATE OR REPLACE TEMP TABLE state ({listed})")
            if state:
                arrays = [
                    pa.array([row[each.name] for row in state.values()], each.type)
                    for each in arrow_schema(self.columns)
                ]
                connection.register("given", pa.table(arrays, schema=arrow_schema(self.columns)))
                connection.execute("INSERT INTO state SELECT * FROM given")
            where = f" WHERE {self.shape.filter}" if self.shape.filter else ""
            relation = connection.sql(f"SELECT {', '.join(items)} FROM state{where}")
            found = [dict(zip(relation.columns, values, strict=True)) for values in relation.fetchall()]
        types = {column.name: column.type for column in self.columns}
        rows = []
        for row in found:
            for name, (source, mask) in masked.items():
                row[name] = self._masked(row[name], types[source], mask)
            route = row.pop("left out") if "left out" in row else row.get(self.routing)
            spelled = str(route).lower() if isinstance(route, bool) else route
            rows.append((spelled if self.routing else None, {name: plain(value) for name, value in row.items()}))
        return rows

    def _masked(self, value: Any, kind: str, mask: Mask) -> Any:
        if mask.kind == "null":
            return None
        if mask.kind == "constant":
            return constant(kind, mask.constant)
        if value is None:
            return None
        return hmac.new(SECRET.encode(), TEXTS[kind](value).encode(), hashlib.sha256).hexdigest()


@cache
def judge() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


@cache
def constant(kind: str, text: str | None) -> Any:
    found = judge().execute(f"SELECT CAST(? AS {kind})", [text]).fetchone()
    assert found is not None
    return found[0]


def plain(value: Any) -> Any:
    """Values that are equal, however they travelled, as one."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value
