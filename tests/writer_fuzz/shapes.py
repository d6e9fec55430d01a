"""Tables for the fuzz of the direct writer: their keys, and random values of their columns."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from msgspec import Struct

from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode

KEYS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "number": (("k", "BIGINT"),),
    "small number": (("k", "INTEGER"),),
    "text": (("k", "VARCHAR"),),
    "composite": (("k", "VARCHAR"), ("n", "INTEGER")),
    "decimal": (("k", "DECIMAL(12,2)"),),
    "blob": (("k", "BLOB"),),
    "uuid": (("k", "UUID"),),
    "day": (("k", "DATE"), ("n", "SMALLINT")),
    "moment": (("k", "TIMESTAMP WITH TIME ZONE"),),
}
VALUES: Final = (
    "VARCHAR",
    "DOUBLE",
    "BIGINT",
    "DECIMAL(18,3)",
    "TIMESTAMP",
    "BOOLEAN",
    "BLOB",
    "FLOAT",
    "JSON",
    "TIME",
)
DOMAIN: Final = 40  # keys
NULL_KEYS: Final = 6  # of them are NULL instead
NULL_SHARE: Final = 0.15


class Shape(Struct, frozen=True):
    """A table, and how it is delivered to."""

    key: tuple[str, ...]
    columns: Columns
    mode: Mode
    duplicates: DuplicatePolicy
    nulls: bool  # whether keys may be NULL

    def key_value(self, draw: random.Random) -> tuple[Any, ...]:
        columns = [column for column in self.columns if column.name in self.key]
        return tuple(_key_part(draw, column.type, len(columns), nulls=self.nulls) for column in columns)

    def row(self, draw: random.Random, key: tuple[Any, ...], version: int) -> dict[str, Any]:
        values = dict(zip(self.key, key, strict=True))
        for column in self.columns:
            if column.name == "v":
                values["v"] = version
            elif column.name not in values:
                values[column.name] = None if draw.random() < NULL_SHARE else MADE[column.type](draw)
        return values


def drawn_shape(draw: random.Random) -> Shape:
    key = KEYS[draw.choice(sorted(KEYS))]
    values = draw.sample(VALUES, draw.randint(1, 4))
    columns = [Column(name, kind) for name, kind in key]
    columns += [Column("v", "BIGINT"), *(Column(f"c{at}", kind) for at, kind in enumerate(values))]
    mode: Mode = "append" if draw.random() < 0.15 else "mirror"
    duplicates: DuplicatePolicy = draw.choice(("halt", "warn"))
    return Shape(tuple(name for name, _ in key), tuple(columns), mode, duplicates, draw.random() < 0.5)


def _key_part(draw: random.Random, kind: str, parts: int, *, nulls: bool) -> Any:
    number = draw.randrange(DOMAIN if parts == 1 else 7)
    if nulls and number < (NULL_KEYS if parts == 1 else 1):
        return None
    return KEY_PARTS[kind](number)


def _moment(draw: random.Random) -> datetime.datetime:
    beginning = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC).replace(tzinfo=None)
    return beginning + datetime.timedelta(microseconds=draw.randrange(10**17))


KEY_PARTS: Final[dict[str, Callable[[int], Any]]] = {
    "BIGINT": lambda n: (n - 5) * 10**15,
    "INTEGER": lambda n: n,
    "SMALLINT": lambda n: -n,
    "VARCHAR": lambda n: "" if n == 1 else "it's" if n == 2 else "é" * n if n % 5 == 0 else f"key {n:03}",
    "DECIMAL(12,2)": lambda n: Decimal(n * 7 - 100) / 4,
    "BLOB": lambda n: bytes([n, 0, 255 - n]) * (n % 3),
    "UUID": lambda n: f"{n * 11 % 97:08x}-0000-4000-8000-{n:012x}",
    "DATE": lambda n: datetime.date(2020 + n, 1 + n % 12, 1),
    "TIMESTAMP WITH TIME ZONE": lambda n: datetime.datetime(1960 + n, 1, 1, 0, 0, n, n * 100, datetime.UTC),
}
MADE: Final[dict[str, Callable[[random.Random], Any]]] = {
    "VARCHAR": lambda draw: draw.choice(["", "x", "y" * 300, "naïve " * 60, str(draw.random())]),
    "DOUBLE": lambda draw: draw.choice([float("nan"), -0.0, 1e300, float("inf"), draw.gauss(0, 1e6)]),
    "FLOAT": lambda draw: float(draw.randrange(-1000, 1000)) / 8,
    "BIGINT": lambda draw: draw.choice([0, 2**63 - 1, -(2**63), draw.randrange(1000)]),
    "DECIMAL(18,3)": lambda draw: Decimal(draw.randrange(-(10**9), 10**9)) / 1000,
    "TIMESTAMP": lambda draw: _moment(draw),
    "BOOLEAN": lambda draw: draw.random() < 0.5,
    "BLOB": lambda draw: draw.randbytes(draw.choice([0, 3, 300])),
    "JSON": lambda draw: draw.choice(['{"a": 1}', "[]", "null", '"text"', "3.5"]),
    "TIME": lambda draw: datetime.time(draw.randrange(24), 0, 1, draw.choice([0, 500])),
}
