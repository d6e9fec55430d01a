"""The shape of a table as the binlog states it before its rows: with ``binlog_row_metadata = FULL`` it is complete."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct

from trunkline.delivery.capture.mariadb.events import length_at, malformed


class Wire(IntEnum):
    """Types of columns in rows of the binlog."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


NUMERIC: Final = frozenset(
    map(
        int,
        (
            *(Wire.TINY, Wire.SHORT, Wire.INT24, Wire.LONG, Wire.LONGLONG),
            *(Wire.NEWDECIMAL, Wire.FLOAT, Wire.DOUBLE, Wire.YEAR),
        ),
    )
)
CHARACTERS: Final = frozenset(map(int, (Wire.STRING, Wire.VAR_STRING, Wire.VARCHAR, Wire.BLOB, Wire.GEOMETRY)))
LABELLED: Final = frozenset(map(int, (Wire.ENUM, Wire.SET)))
TWO_BYTES: Final = frozenset(
    map(int, (Wire.VARCHAR, Wire.VAR_STRING, Wire.STRING, Wire.NEWDECIMAL, Wire.BIT, Wire.ENUM, Wire.SET))
)  # of metadata
ONE_BYTE: Final = frozenset(
    map(
        int,
        (
            *(Wire.FLOAT, Wire.DOUBLE, Wire.BLOB, Wire.GEOMETRY, Wire.JSON),
            *(Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2),
        ),
    )
)
BINARY: Final = 63  # the collation of columns that are not text
SIGNEDNESS, DEFAULT_CHARSET, COLUMN_CHARSET, NAMES, SETS, ENUMS = 1, 2, 3, 4, 5, 6
PRIMARY_KEY, LABEL_DEFAULT_CHARSET, LABEL_CHARSET = 8, 10, 11


class WireColumn(Struct, frozen=True):
    name: str
    type: int
    first: int = 0  # of the metadata: length, precision, digits of a second, bytes of a length
    second: int = 0  # scale
    unsigned: bool = False
    collation: int = BINARY
    labels: tuple[bytes, ...] = ()


class TableMap(Struct, frozen=True):
    table: int
    schema: str
    name: str
    columns: tuple[WireColumn, ...]
    named: bool  # it has the names of the columns
    key: tuple[str, ...]  # the primary key; empty if it is of prefixes


def table_map(body: bytes) -> TableMap:
    table = int.from_bytes(body[:6], "little")
    schema, at = _text(body, 8)
    name, at = _text(body, at + 1)
    count, at = length_at(body, at + 1)
    types, at = body[at : at + count], at + count
    size, at = length_at(body, at)
    described = list(_described(types, body[at : at + size]))
    at += size + (count + 7) // 8
    fields = dict(_fields(body, at))
    columns = tuple(_completed(described, fields))
    key = tuple(columns[place].name for place in _numbers(fields.get(PRIMARY_KEY, b"")))
    return TableMap(table, schema.decode(), name.decode(), columns, NAMES in fields, key)


def _text(body: bytes, at: int) -> tuple[bytes, int]:
    size, at = length_at(body, at)
    return body[at : at + size], at + size


def _described(types: bytes, metadata: bytes) -> Iterator[tuple[int, int, int]]:
    """The real type of each column, with its metadata."""
    at = 0
    for kind in types:
        if kind in TWO_BYTES:
            first, second = metadata[at], metadata[at + 1]
            at += 2
            if kind == Wire.STRING:
                yield _string(first, second)
            elif kind in (Wire.NEWDECIMAL, Wire.BIT):
                yield kind, first, second
            else:
                yield kind, first | second << 8, 0
        elif kind in ONE_BYTE:
            yield kind, metadata[at], 0
            at += 1
        else:
            yield kind, 0, 0


def _string(first: int, second: int) -> tuple[int, int, int]:
    """Fixed strings, enumerations and sets share a type; two bits of the length are in the first byte, inverted."""
    if first & 0x30 != 0x30:
        return Wire.STRING, second | ((first & 0x30) ^ 0x30) << 4, 0
    return first, second, 0


def _fields(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(body):
        kind = body[at]
        size, at = length_at(body, at + 1)
        yield kind, body[at : at + size]
        at += size


def _completed(described: list[tuple[int, int, int]], fields: Mapping[int, bytes]) -> Iterator[WireColumn]:
    numbers = [place for place, each in enumerate(described) if each[0] in NUMERIC]
    signs = fields.get(SIGNEDNESS, b"")
    unsigned = {place for bit, place in enumerate(numbers) if _bit(signs, bit)}
    characters = [place for place, each in enumerate(described) if each[0] in CHARACTERS]
    labelled = [place for place, each in enumerate(described) if each[0] in LABELLED]
    collations = {
        **_collations(characters, fields.get(DEFAULT_CHARSET), fields.get(COLUMN_CHARSET)),
        **_collations(labelled, fields.get(LABEL_DEFAULT_CHARSET), fields.get(LABEL_CHARSET)),
    }
    labels: dict[int, tuple[bytes, ...]] = {}
    for field, labelling in ((SETS, Wire.SET), (ENUMS, Wire.ENUM)):
        places = [place for place in labelled if described[place][0] == labelling]
        labels |= dict(zip(places, _labels(fields.get(field, b"")), strict=False))
    names = list(_texts(fields[NAMES])) if NAMES in fields else [b""] * len(described)
    if len(names) != len(described):
        raise malformed("a table has another number of names than columns")
    for place, (kind, first, second) in enumerate(described):
        yield WireColumn(
            names[place].decode(),
            kind,
            first,
            second,
            place in unsigned,
            collations.get(place, BINARY),
            labels.get(place, ()),
        )


def _bit(bits: bytes, number: int) -> bool:
    return number >> 3 < len(bits) and bool(bits[number >> 3] & (0x80 >> (number & 7)))


def _collations(places: list[int], default: bytes | None, each: bytes | None) -> dict[int, int]:
    """Either the most frequent one with the exceptions, by number of the column among those, or all of them."""
    found: dict[int, int] = {}
    if default is not None:
        numbers = list(_numbers(default))
        found = dict.fromkeys(places, numbers[0])
        found |= {places[numbers[at]]: numbers[at + 1] for at in range(1, len(numbers), 2)}
    elif each is not None:
        found = dict(zip(places, _numbers(each), strict=True))
    return found


def _numbers(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        number, at = length_at(content, at)
        yield number


def _texts(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        text, at = _text(content, at)
        yield text


def _labels(content: bytes) -> Iterator[tuple[bytes, ...]]:
    at = 0
    while at < len(content):
        count, at = length_at(content, at)
        found = []
        for _ in range(count):
            text, at = _text(content, at)
            found.append(text)
        yield tuple(found)


# What reading a malformed event raises.
MALFORMED: Final = (struct.error, LookupError, ValueError, TypeError, OverflowError, zlib.error)
