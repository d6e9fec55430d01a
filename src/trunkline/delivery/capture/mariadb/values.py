"""Values of MariaDB columns as Arrow: from rows of the binlog, and from the texts of a query. Both give the same.

A reader takes a value from a row as a plain number or bytes; whole columns then become Arrow arrays at once. A date
that no calendar has (0000-00-00, or a zero month or day) becomes NULL, and is announced once for each column.
"""

from __future__ import annotations

import codecs
import ipaddress
import logging
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from trunkline.delivery.capture.mariadb.tablemap import BINARY, Wire, WireColumn
from trunkline.delivery.capture.mariadb.types import Family
from trunkline.delivery.changes.columns import Column, arrow_type
from trunkline.delivery.changes.schemas import SourceColumn
from trunkline.errors import ConfigError

logger = logging.getLogger(__name__)

Read = Callable[[bytes, int], tuple[Any, int]]  # a value of a row, and where the next begins
Finish = Callable[[list[Any]], pa.Array]
Numbers = NDArray[np.int64]
CODECS: Final = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii", "ucs2": "utf-16-be",
    "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "latin2": "iso8859-2", "latin5": "iso8859-9",
    "latin7": "iso8859-13", "greek": "iso8859-7", "cp1250": "cp1250", "cp1251": "cp1251", "cp1257": "cp1257",
    "koi8r": "koi8-r", "koi8u": "koi8-u", "cp850": "cp850", "cp852": "cp852", "cp866": "cp866",
}  # fmt: skip
# MariaDB's latin1 is Windows-1252, with the five codes that this does not define as they are.
LATIN_1: Final = "".join(
    chr(code) if code in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else bytes([code]).decode("cp1252") for code in range(256)
)
MICROS: Final = 10**6
DAY_US: Final = 86_400 * MICROS
_warned: set[tuple[str, str]] = set()


class ColumnReader(Struct, frozen=True):
    read: Read
    finish: Finish


# ------------------------------------------------------------------------------------------------ rows of the binlog


def column_reader(wire: WireColumn, column: SourceColumn, charset: str, table: str) -> ColumnReader:
    """How a column of the binlog becomes one of the log; the two fit each other. Raises ``ConfigError``."""
    kind = arrow_type(Column(column.name, column.type))
    family, place = column.type_oid, (table, column.name)
    if family in (Family.INTEGER, Family.YEAR):
        return ColumnReader(_year if family == Family.YEAR else _integer(wire), lambda raws: pa.array(raws, kind))
    if family == Family.DECIMAL:
        return ColumnReader(_decimal(wire.first, wire.second), lambda raws: decimals(raws, kind))
    if family in (Family.FLOAT, Family.DOUBLE):
        return ColumnReader(_float(wire), lambda raws: pa.array(raws, kind))
    if family == Family.DATE:
        return ColumnReader(_fixed(3), lambda raws: dates(raws, place))
    if family == Family.DATETIME:
        return ColumnReader(_datetime(wire.first), lambda raws: datetimes(raws, place))
    if family == Family.TIMESTAMP:
        return ColumnReader(_timestamp(wire.first), lambda raws: timestamps(raws, place))
    if family == Family.TIME:
        return ColumnReader(_time(wire.first), lambda raws: pa.array(raws, kind))
    if family == Family.BIT:
        size = wire.second + (wire.first > 0)
        truth = column.type == "BOOLEAN"
        return ColumnReader(_bits(size), lambda raws: pa.array(_truths(raws) if truth else raws, kind))
    if family in (Family.ENUM, Family.SET):
        return _labelled(wire, _decoding(charset, place), kind)
    return _characters(wire, column, charset, place, kind)


def _integer(wire: WireColumn) -> Read:
    size = {Wire.TINY: 1, Wire.SHORT: 2, Wire.INT24: 3, Wire.LONG: 4, Wire.LONGLONG: 8}[Wire(wire.type)]
    if size == 3:
        signed = not wire.unsigned
        return lambda row, at: (int.from_bytes(row[at : at + 3], "little", signed=signed), at + 3)
    letter = {1: "b", 2: "h", 4: "i", 8: "q"}[size]
    unpack = struct.Struct("<" + (letter.upper() if wire.unsigned else letter)).unpack_from
    return lambda row, at: (unpack(row, at)[0], at + size)


def _float(wire: WireColumn) -> Read:
    size, letter = (4, "f") if wire.type == Wire.FLOAT else (8, "d")
    unpack = struct.Struct("<" + letter).unpack_from
    return lambda row, at: (unpack(row, at)[0], at + size)


def _fixed(size: int) -> Read:
    return lambda row, at: (int.from_bytes(row[at : at + size], "little"), at + size)


def _bits(size: int) -> Read:
    return lambda row, at: (int.from_bytes(row[at : at + size], "big"), at + size)


def _truths(raws: list[Any]) -> list[bool | None]:
    return [None if raw is None else raw != 0 for raw in raws]


def _year(row: bytes, at: int) -> tuple[int, int]:
    return row[at] + 1900 if row[at] else 0, at + 1


DIGITS_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # of a group of digits


def _decimal(precision: int, scale: int) -> Read:
    """Groups of nine digits in four bytes, big-endian; the first bit is the sign, inverted; negative: all inverted."""
    whole_groups, whole_rest = divmod(precision - scale, 9)
    part_groups, part_rest = divmod(scale, 9)
    sizes = [*([DIGITS_BYTES[whole_rest]] if whole_rest else []), *[4] * (whole_groups + part_groups)]
    powers = [*([10**whole_rest] if whole_rest else []), *[10**9] * (whole_groups + part_groups)]
    if part_rest:
        sizes.append(DIGITS_BYTES[part_rest])
        powers.append(10**part_rest)
    groups, total = tuple(zip(sizes, powers, strict=True)), sum(sizes)
    first_bit, ones = 1 << (8 * total - 1), (1 << 8 * total) - 1

    def read(row: bytes, at: int) -> tuple[Decimal, int]:
        bits = int.from_bytes(row[at : at + total], "big") ^ first_bit
        negative = bits & first_bit
        content = (bits ^ ones if negative else bits).to_bytes(total, "big")
        number = begin = 0
        for size, power in groups:
            number = number * power + int.from_bytes(content[begin : begin + size], "big")
            begin += size
        return Decimal(f"{-number if negative else number}e-{scale}"), at + total

    return read


def decimals(raws: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return pa.array(raws, kind)
    return pa.array([None if raw is None else f"{raw:f}" for raw in raws], kind)


def _fraction(row: bytes, at: int, digits: int) -> tuple[int, int]:
    """Microseconds; the server keeps them in as many bytes as it needs."""
    size = (digits + 1) // 2
    return int.from_bytes(row[at : at + size], "big") * 100 ** (3 - size), at + size


def _datetime(digits: int) -> Read:
    def read(row: bytes, at: int) -> tuple[int, int]:
        packed = int.from_bytes(row[at : at + 5], "big") - 0x8000000000
        micros, end = _fraction(row, at + 5, digits)
        return packed << 20 | micros, end

    return read


def _timestamp(digits: int) -> Read:
    def read(row: bytes, at: int) -> tuple[int, int]:
        micros, end = _fraction(row, at + 4, digits)
        return int.from_bytes(row[at : at + 4], "big") * MICROS + micros, end

    return read


def _time(digits: int) -> Read:
    """The text that the server would write."""
    size = 3 + (digits + 1) // 2
    zero, shift = 1 << (8 * size - 1), 8 * (size - 3)

    def read(row: bytes, at: int) -> tuple[str, int]:
        number = int.from_bytes(row[at : at + size], "big") - zero
        sign, number = ("-", -number) if number < 0 else ("", number)
        whole, micros = number >> shift, (number & ((1 << shift) - 1)) * 100 ** (6 - size)
        text = f"{sign}{whole >> 12 & 0x3FF:02d}:{whole >> 6 & 0x3F:02d}:{whole & 0x3F:02d}"
        return (f"{text}.{micros:06d}"[: len(text) + 1 + digits] if digits else text), at + size

    return read


def _labelled(wire: WireColumn, decode: Callable[[bytes], str], kind: pa.DataType) -> ColumnReader:
    labels = [decode(label) for label in wire.labels]
    if wire.type == Wire.ENUM:
        known = ["", *labels]  # 0: a value that the column did not accept
        return ColumnReader(
            _fixed(wire.first), lambda raws: pa.array([None if raw is None else known[raw] for raw in raws], kind)
        )

    def joined(raw: int) -> str:
        return ",".join(label for number, label in enumerate(labels) if raw >> number & 1)

    return ColumnReader(
        _fixed(wire.first), lambda raws: pa.array([None if raw is None else joined(raw) for raw in raws], kind)
    )


def _characters(
    wire: WireColumn, column: SourceColumn, charset: str, place: tuple[str, str], kind: pa.DataType
) -> ColumnReader:
    wide = wire.first if wire.type in (Wire.BLOB, Wire.GEOMETRY) else 1 if wire.first < 256 else 2

    def read(row: bytes, at: int) -> tuple[bytes, int]:
        begin = at + wide
        end = begin + int.from_bytes(row[at:begin], "little")
        if end > len(row):
            raise IndexError("a text goes beyond its row")
        return row[begin:end], end

    def whole(row: bytes, at: int) -> tuple[bytes, int]:
        found, end = read(row, at)
        return found.ljust(wire.first, b"\0"), end

    fixed = wire.type == Wire.STRING and wire.collation == BINARY  # the server cuts zeros off
    return ColumnReader(whole if fixed else read, _finish_characters(column, charset, place, kind))


def _finish_characters(column: SourceColumn, charset: str, place: tuple[str, str], kind: pa.DataType) -> Finish:
    forms: dict[int, Callable[[bytes], str]] = {
        Family.UUID: uuid_text, Family.INET6: inet6_text, Family.INET4: lambda raw: str(ipaddress.IPv4Address(raw))
    }  # fmt: skip
    if (form := forms.get(column.type_oid)) is not None:
        return lambda raws: pa.array([None if raw is None else form(raw) for raw in raws], kind)
    if column.type == "BLOB":
        return lambda raws: pa.array(raws, kind)
    if CODECS.get(charset) in ("utf-8", "ascii"):
        return lambda raws: pa.array(raws, pa.binary()).cast(pa.string())
    decode = _decoding(charset, place)
    return lambda raws: pa.array([None if raw is None else decode(raw) for raw in raws], kind)


def _decoding(charset: str, place: tuple[str, str]) -> Callable[[bytes], str]:
    if charset == "latin1":
        return lambda raw: codecs.charmap_decode(raw, "strict", LATIN_1)[0]
    if charset == "binary":
        return lambda raw: raw.decode()
    codec = CODECS.get(charset)
    if codec is None:
        raise unfit_charset(*place, charset)
    return lambda raw: raw.decode(codec)


def unfit_charset(table: str, column: str, charset: str) -> ConfigError:
    return ConfigError(
        f"column {column!r} of {table} has the character set {charset}, which cannot be captured; "
        "convert it to utf8mb4, or leave the table out"
    )


def uuid_text(raw: bytes) -> str:
    """MariaDB stores the parts of versions 1 to 5 in another order, so that those made at one time are neighbours."""
    if raw[6] & 0x80 and 0 < raw[8] < 0x60:
        raw = raw[12:16] + raw[10:12] + raw[8:10] + raw[6:8] + raw[0:6]
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def inet6_text(raw: bytes) -> str:
    """As the server writes it: the first of the longest runs of zeros is left out, even if it is a single one."""
    words = struct.unpack(">8H", raw)
    runs = [next((n for n in range(8 - place) if words[place + n]), 8 - place) for place in range(8)]
    length = max(runs)
    place = runs.index(length)
    if length == 0:
        return ":".join(f"{word:x}" for word in words)
    if place == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        return f"::{'ffff:' * (length == 5)}{ipaddress.IPv4Address(raw[12:])}"
    parts = [[f"{word:x}" for word in some] for some in (words[:place], words[place + length :])]
    return "::".join(":".join(part) for part in parts)


# ------------------------------------------------------------------------------------------------------------- times


def _days(years: Numbers, months: Numbers, days: Numbers) -> Numbers:
    """Since 1970, in the calendar of today for all years."""
    shifted = years - (months <= 2)
    eras = shifted // 400
    of_era = shifted - eras * 400
    of_year = (153 * (months + np.where(months > 2, -3, 9)) + 2) // 5 + days - 1
    found: Numbers = eras * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return found


def _split(raws: list[Any]) -> tuple[Numbers, NDArray[np.bool_]]:
    """Numbers with zeros for NULL, and where NULL is."""
    return np.array([raw or 0 for raw in raws], np.int64), np.array([raw is None for raw in raws], np.bool_)


def _without_zeros(
    months: Numbers, days: Numbers, absent: NDArray[np.bool_], place: tuple[str, str]
) -> NDArray[np.bool_]:
    """What has no value: NULL, and what no calendar has."""
    zero = ((months == 0) | (days == 0)) & ~absent
    if zero.any():
        warn_zero(place)
    found: NDArray[np.bool_] = absent | zero
    return found


def warn_zero(place: tuple[str, str]) -> None:
    if place not in _warned:
        _warned.add(place)
        logger.warning(
            "column %s of %s has dates with a zero month or day: they are captured as NULL", *reversed(place)
        )


def dates(raws: list[Any], place: tuple[str, str]) -> pa.Array:
    packed, absent = _split(raws)
    years, months, days = packed >> 9, packed >> 5 & 15, packed & 31
    absent = _without_zeros(months, days, absent, place)
    return pa.array(_days(years, months, days).astype(np.int32), pa.int32(), mask=absent).cast(pa.date32())


def datetimes(raws: list[Any], place: tuple[str, str]) -> pa.Array:
    packed, absent = _split(raws)
    micros, clock, calendar = packed & 0xFFFFF, packed >> 20 & 0x1FFFF, packed >> 37
    days, year_months = calendar & 31, calendar >> 5
    years, months = year_months // 13, year_months % 13
    absent = _without_zeros(months, days, absent, place)
    seconds = (clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
    whole = _days(years, months, days) * DAY_US + seconds * MICROS + micros
    return pa.array(whole, pa.int64(), mask=absent).cast(pa.timestamp("us"))


def timestamps(raws: list[Any], place: tuple[str, str]) -> pa.Array:
    """Zero is 0000-00-00, and never 1970."""
    micros, absent = _split(raws)
    zero = (micros == 0) & ~absent
    if zero.any():
        warn_zero(place)
    return pa.array(micros, pa.int64(), mask=absent | zero).cast(pa.timestamp("us", tz="UTC"))


# --------------------------------------------------------------------------------------------------- texts of queries


def expression(column: SourceColumn, name: str) -> str:
    """What a query selects so that nothing of a value is lost. ``name`` is quoted."""
    if column.type_oid == Family.FLOAT:
        return f"CAST({name} AS DOUBLE)"  # the text of a FLOAT is rounded
    if column.type_oid == Family.BIT:
        return f"{name} + 0"
    return name


def from_texts(column: SourceColumn, texts: Sequence[Any], table: str) -> pa.Array:
    """A column of a query: texts, or bytes for BLOB. Raises ``pa.ArrowInvalid`` or ``ValueError``."""
    kind, place = arrow_type(Column(column.name, column.type)), (table, column.name)
    if column.type == "BLOB":
        return pa.array([each.encode() if isinstance(each, str) else each for each in texts], kind)
    found = pa.array([each.decode() if isinstance(each, bytes) else each for each in texts], pa.string())
    if column.type == "BOOLEAN":
        return pc.not_equal(found.cast(pa.uint64()), 0)
    if column.type_oid == Family.FLOAT:
        return found.cast(pa.float64()).cast(kind)
    if column.type_oid == Family.DATE:
        return _parsed(found, kind, lambda: dates(_packed(found, _packed_date), place))
    if column.type_oid in (Family.DATETIME, Family.TIMESTAMP):
        return _parsed(found, kind, lambda: datetimes(_packed(found, _packed_datetime), place))
    return found.cast(kind)


def _parsed(found: pa.Array, kind: pa.DataType, alone: Callable[[], pa.Array]) -> pa.Array:
    """Arrow reads a column at once, unless it has a date that no calendar has."""
    plain = pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
    try:
        return found.cast(plain).cast(kind)
    except pa.ArrowInvalid:
        return alone().cast(kind)


def _packed(found: pa.Array, packed: Callable[[str], int]) -> list[int | None]:
    return [None if text is None else packed(text) for text in found.to_pylist()]


def _packed_date(text: str) -> int:
    year, month, day = (int(part) for part in text.split("-"))
    return year << 9 | month << 5 | day


def _packed_datetime(text: str) -> int:
    date, _, clock = text.partition(" ")
    year, month, day = (int(part) for part in date.split("-"))
    hours, minutes, seconds = clock.split(":")
    whole, _, part = seconds.partition(".")
    packed = ((year * 13 + month) << 5 | day) << 17 | int(hours) << 12 | int(minutes) << 6 | int(whole)
    return packed << 20 | int(part.ljust(6, "0") or 0)
