"""The shape of a random lake: its table, columns and settings, drawn from a seed.

Every value is a function of a number, so that statements need no other data.
"""

from __future__ import annotations

import random
from typing import Final

from msgspec import Struct

from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.net import Routes

INLINING: Final = (0, 3, 10)
TENANTS: Final = 4  # routing values; the last one and NULL are unrouted
NAMES: Final = ("items", "Items 2", 'it"ems, rewrite_delete:1', "select", "ämter")
FOLDERS: Final = ("data", "da ta's", "d[1]*ä#%20", "{x}")
WORDS: Final = ("''", "'it''s'", "'ä€'", "'NULL'", "E'two\\nlines\\t'", "'\\x41'", "'a,b\"c'")
VALUES: Final = {  # of a number $n, as SQL
    "BOOLEAN": "$n % 2 = 0",
    "TINYINT": "$n % 100 - 50",
    "SMALLINT": "$n % 1000 - 500",
    "INTEGER": "$n * 1000003 % 2000000000",
    "BIGINT": "$n * 40000000003",
    "UTINYINT": "$n % 256",
    "USMALLINT": "$n % 65536",
    "UINTEGER": "4294967295 - $n",
    "UBIGINT": "18446744073709551615 - $n",
    "FLOAT": "CASE $n % 5 WHEN 0 THEN 'nan' WHEN 1 THEN '-0.0' WHEN 2 THEN '-inf' ELSE ($n / 7)::VARCHAR END",
    "DOUBLE": "CASE $n % 5 WHEN 0 THEN 'nan' WHEN 1 THEN '1e300' ELSE ($n / 7)::VARCHAR END",
    "DECIMAL(4,1)": "$n % 1000 / 10",
    "DECIMAL(10,2)": "$n * 1.25",
    "DECIMAL(38,10)": "$n * 1234567890123456789.0000000001",
    "VARCHAR": f"CASE $n % 9 {' '.join(f'WHEN {at} THEN {word}' for at, word in enumerate(WORDS))} ELSE 'n' || $n END",
    "JSON": "'{\"$n\": ' || $n || '}'",
    "UUID": "md5($n::VARCHAR)",
    "BLOB": "unhex(md5($n::VARCHAR)[:$n % 5 * 2])",
    "DATE": "CASE $n % 7 WHEN 0 THEN 'infinity' ELSE (DATE '1969-12-01' + ($n % 500)::INTEGER)::VARCHAR END",
    "TIME": "TIME '00:00:00.000001' + to_microseconds($n * 100003 % 80000000000)",
    "TIMESTAMP": "CASE $n % 7 WHEN 0 THEN '-infinity' ELSE make_timestamp($n * 86400000001 - 7000000000)::VARCHAR END",
    "TIMESTAMP_S": "make_timestamp($n * 86400000000)",
    "TIMESTAMP_MS": "make_timestamp($n * 86400001000)",
    "TIMESTAMP_NS": "make_timestamp_ns($n * 86400000000001)",
    "TIMESTAMP WITH TIME ZONE": "to_timestamp($n * 86400.000001)",
    "INTEGER[]": "CASE $n % 4 WHEN 0 THEN [] WHEN 1 THEN [$n, NULL] ELSE [$n] END",
    "VARCHAR[]": "['a,b', NULL, 'n' || $n, 'it''s']",
}
KEYABLE: Final = ("BOOLEAN", "INTEGER", "UBIGINT", "DECIMAL(10,2)", "VARCHAR", "UUID", "BLOB", "DATE", "TIMESTAMP")
UUIDS: Final = tuple(f"6b4bcff5-1878-4523-993c-490a5ef910b{number}" for number in range(TENANTS))
ROUTED: Final = {  # routing values as text, by type
    "VARCHAR": ("t0", "it's", "t2", ""),
    "INTEGER": ("0", "-1", "2", "30"),
    "DATE": ("2024-01-01", "2024-01-02", "1969-12-31", "2024-01-04"),
    "UUID": UUIDS,
    "BOOLEAN": ("true", "false", "true", "false"),
}
DEFAULTS: Final = {
    "INTEGER": "7",
    "SMALLINT": "-1",
    "VARCHAR": "'it''s'",
    "DECIMAL(10,2)": "1.50",
    "TIMESTAMP": "'2024-05-05 01:02:03'",
    "UUID": "'6b4bcff5-1878-4523-993c-490a5ef910bf'",
    "FLOAT": "1.1",
    "TIMESTAMP WITH TIME ZONE": "'2024-05-05 00:00:00+02'",
}
WIDENED: Final = {
    "TINYINT": "INTEGER",
    "SMALLINT": "BIGINT",
    "INTEGER": "BIGINT",
    "UTINYINT": "UINTEGER",
    "FLOAT": "DOUBLE",
    "DECIMAL(4,1)": "DECIMAL(10,2)",
    "DECIMAL(10,2)": "DECIMAL(38,10)",
    "DATE": "TIMESTAMP",
}
PARTITIONS: Final = ("tenant", "bucket(3, id)", "id")


class Field(Struct, frozen=True):
    """A column of the table at some version; ``uid`` identifies it under any name."""

    uid: int
    name: str
    type: str
    default: str | None = None  # as SQL: the value of rows older than the column


Layout = tuple[Field, ...]


class LakeShape(Struct, frozen=True):
    """How a lake is created, and what may happen in it."""

    table: str
    folder: str
    inlining: int
    layout: Layout
    key: tuple[str, ...]
    tenants: tuple[str, ...]  # as text
    duplicates: bool  # keys may be shared and may be NULL
    partitioned: str | None
    alters: bool
    expires: bool

    @property
    def name(self) -> str:
        """The table's name in SQL."""
        return f"lake.main.{identifier(self.table)}"


def draw_shape(chance: random.Random) -> LakeShape:
    """About half of all lakes are plain, so that common cases are frequent."""
    plain = chance.random() < 0.5
    routed = "VARCHAR" if plain else chance.choice(tuple(ROUTED))
    extras = () if plain else tuple(chance.sample(tuple(VALUES), 4))
    part = Field(3, "part", "VARCHAR" if plain else chance.choice(KEYABLE))
    fields = [Field(1, "id", chance.choice(("INTEGER", "BIGINT"))), Field(2, "tenant", routed), part]
    fields += [Field(uid, f"x{uid}", kind) for uid, kind in enumerate(("VARCHAR", *extras), 4)]
    return LakeShape(
        table="items" if plain else chance.choice(NAMES),
        folder="data" if plain else chance.choice(FOLDERS),
        inlining=chance.choice(INLINING),
        layout=tuple(fields),
        key=("id",) if chance.random() < 0.6 else ("id", "part"),
        tenants=ROUTED[routed],
        duplicates=chance.random() < 0.25,
        partitioned=chance.choice(PARTITIONS) if chance.random() < 0.2 else None,
        alters=chance.random() < 0.4,
        expires=chance.random() < 0.25,
    )


def value(kind: str, number: str) -> str:
    """A value of a type as SQL, from a number (an SQL expression); sometimes NULL."""
    made = VALUES[kind].replace("$n", f"({number})::BIGINT")
    return f"CASE WHEN ({number}) % 11 = 0 THEN NULL ELSE CAST({made} AS {kind}) END"


def routes(shape: LakeShape) -> Routes:
    """One routing value has two destinations, one destination has two values, and one value is unrouted."""
    first, second, third, _ = shape.tenants
    return Routes({third: (2, 3), second: (1, 3), first: (0,)})
