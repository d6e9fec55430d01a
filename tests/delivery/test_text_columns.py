"""A whole column of PostgreSQL's texts becomes the Arrow values that each text alone becomes, or the same refusal."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.delivery.capture.postgres import text_columns
from trunkline.delivery.capture.postgres.pgoutput import RelationColumn
from trunkline.delivery.capture.postgres.text_columns import TableReader, table_reader
from trunkline.delivery.capture.postgres.tuple_columns import JoinedMessages, changed_rows, copied_rows
from trunkline.delivery.capture.postgres.values import ROW_BYTES_MAX, UnfitValue, table_values
from trunkline.errors import ProtocolError

Text = str | None
NUMERIC_12_3 = 4 + (12 << 16 | 3)
TYPES: dict[str, tuple[int, int]] = {
    "boolean": (16, -1),
    "smallint": (21, -1),
    "integer": (23, -1),
    "bigint": (20, -1),
    "real": (700, -1),
    "double": (701, -1),
    "bytea": (17, -1),
    "text": (25, -1),
    "date": (1082, -1),
    "time": (1083, -1),
    "timestamp": (1114, -1),
    "timestamptz": (1184, -1),
    "uuid": (2950, -1),
    "jsonb": (3802, -1),
    "numeric(12,3)": (1700, NUMERIC_12_3),
    "numeric": (1700, -1),
    "int[]": (1007, -1),
    "timestamptz[]": (1185, -1),
    "uuid[]": (2951, -1),
    "inet": (869, -1),
}
KEPT: dict[str, list[str]] = {
    "boolean": ["t", "f"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["NaN", "-0", "Infinity", "-Infinity", "1e-45", "3.4028235e+38", "0.1", "16777216"],
    "double": ["NaN", "-0", "5e-324", "1.7976931348623157e+308", "0.1", "-1e-07"],
    "bytea": ["\\x", "\\x00ff", "\\x" + "ab" * 1000],
    "text": ["", "twelve bytes", "thirteen byte", "ä€𝄞", "NULL", "x" * 10_000, "\\N\t\n"],
    "date": ["2026-05-06", "infinity", "-infinity", "10000-01-01", "0044-03-15 BC", "5874897-12-31", "0001-01-01"],
    "time": ["24:00:00", "00:00:00", "23:59:59.999999", "01:02:03.5"],
    "timestamp": ["infinity", "-infinity", "10000-01-01 00:00:00", "0001-02-28 01:02:03.5 BC", "2026-01-01 00:00:00.1"],
    "timestamptz": ["infinity", "-infinity", "19999-12-31 19:00:00+00", "0001-12-31 19:00:00+00 BC"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "jsonb": ['{"a": 1}', "null", '"\\u00e4"'],
    "numeric(12,3)": ["-0.001", "0.000", "999999999.999", "-999999999.999"],
    "numeric": ["NaN", "Infinity", "0.10", "1" + 500 * "0"],
    "int[]": ["{}", "[2:3]={1,NULL}", "{-1,2,3}"],
    "timestamptz[]": ['{"2026-01-01 00:00:00.5+00",NULL}'],
    "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}"],
    "inet": ["10.0.0.1/8"],
}
REFUSED = {
    "numeric(12,3)": "NaN",
    "timestamp": "294276-12-31 00:00:00",
    "int[]": "{{1,2},{3,4}}",
    "timestamptz[]": '{"10000-01-01 00:00:00+00"}',
    "smallint": "40000",
    "uuid": "not a uuid",
}


def message(values: Sequence[bytes | None]) -> bytes:
    fields = [b"n" if each is None else b"t" + struct.pack(">I", len(each)) + each for each in values]
    return b"I\0\0\0\1N" + struct.pack(">H", len(values)) + b"".join(fields)


def read(reader: TableReader, rows: Sequence[Sequence[bytes | None]]) -> list[pa.Array]:
    joined = JoinedMessages([message(row) for row in rows])
    numbers = pa.array(range(len(rows)), pa.int64()).to_numpy()
    return reader.arrays(changed_rows(joined, numbers, len(reader.columns), ()).first, joined)


def check(kind: str, texts: Sequence[Text]) -> None:
    column = RelationColumn("v", *TYPES[kind])
    values = [None if each is None else each.encode() for each in texts]
    [found] = read(table_reader([column]), [[each] for each in values])
    wanted = table_values([column]).arrow([(each,) for each in values]).column(0).combine_chunks()
    found.validate(full=kind != "time")  # Arrow refuses 24:00:00
    assert numbers(found).equals(numbers(wanted)), (found, wanted)


def numbers(array: pa.Array) -> pa.Array:
    """Bits instead of floats and times: NaN equals NaN, and 0 is not -0."""
    kind = array.type
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return array


@pytest.mark.parametrize("kind", KEPT)
def test_every_value_is_that_of_the_exact_reader(kind: str) -> None:
    for each in KEPT[kind]:
        check(kind, [each])
        check(kind, [None, each])
    check(kind, [*KEPT[kind], None, *KEPT[kind]])
    check(kind, [None, None])


def moments(form: str) -> st.SearchStrategy[str]:
    found = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))  # noqa: DTZ001
    return found.map(lambda at: f"{at.year:04}" + at.strftime(form)).map(lambda text: text.replace(".000000", ""))


RANDOM: dict[str, st.SearchStrategy[str]] = {
    "boolean": st.sampled_from("tf"),
    "bigint": st.integers(-(2**63), 2**63 - 1).map(str),
    "real": st.floats(width=32).map(lambda x: {"inf": "Infinity", "-inf": "-Infinity"}.get(str(x), str(x))),
    "double": st.floats().map(lambda x: {"inf": "Infinity", "-inf": "-Infinity"}.get(str(x), str(x))),
    "bytea": st.binary(max_size=30).map(lambda x: "\\x" + x.hex()),
    "text": st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30),
    "date": moments("-%m-%d"),
    "timestamp": moments("-%m-%d %H:%M:%S.%f"),
    "timestamptz": moments("-%m-%d %H:%M:%S.%f+00"),
    "time": moments("-%m-%d %H:%M:%S.%f").map(lambda text: text[11:]),
    "uuid": st.uuids().map(str),
    "numeric(12,3)": st.decimals(-(10**9) + 1, 10**9 - 1, places=3).map(lambda x: format(x, "f")),
}


@given(st.data())
def test_random_columns_are_those_of_the_exact_reader(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(RANDOM)))
    odd = st.sampled_from(KEPT[kind])
    check(kind, data.draw(st.lists(st.one_of(st.none(), RANDOM[kind], RANDOM[kind], odd), min_size=1, max_size=20)))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_that_cannot_be_captured_is_named_with_its_row(kind: str) -> None:
    reader = table_reader([RelationColumn("id", 23, -1), RelationColumn("v", *TYPES[kind])])
    bad = (b"2", REFUSED[kind].encode())
    with pytest.raises(UnfitValue) as found:
        read(reader, [(b"1", None), bad, (b"3", None)])
    assert (found.value.index, found.value.row) == (1, bad)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UnfitValue):
        read(table_reader([RelationColumn("v", 25, -1)]), [[b"fine"], [b"\xff\xfe"]])


def test_a_row_that_no_entry_can_hold_is_refused_before_it_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = table_reader([RelationColumn("id", 23, -1), RelationColumn("v", 25, -1)])
    with pytest.raises(UnfitValue, match="an entry of a log holds") as found:
        read(reader, [(b"1", b"x" * (ROW_BYTES_MAX + 1)), (b"2", b"y")])
    assert found.value.row[0] == b"1"
    monkeypatch.setattr(text_columns, "TEXT_BYTES_MAX", 1000)
    monkeypatch.setattr(TableReader, "_array", None)
    with pytest.raises(UnfitValue, match="an entry of a log holds") as found:
        read(reader, [(b"1", b"x"), (b"2", b"y" * 1001)])
    assert found.value.row[0] == b"2"


def copied(*values: bytes | None) -> bytes:
    """A row in the binary format of COPY, of texts."""
    fields = [struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each for each in values]
    return struct.pack(">H", len(values)) + b"".join(fields)


def copied_texts(rows: Sequence[bytes], columns: int) -> list[tuple[bytes | None, ...]]:
    joined = JoinedMessages(rows)
    found = copied_rows(joined, columns)
    return [tuple(each.text(joined, row) for each in found) for row in range(len(rows))]


def test_rows_of_a_copy_are_read_side_by_side() -> None:
    rows = [(b"1", None, b""), (None, b"x" * 300, b"\xff\xff"), (b"", b"", None)]
    assert copied_texts([copied(*row) for row in rows], 3) == rows
    assert copied_texts([], 3) == []


def test_a_damaged_row_of_a_copy_is_refused_or_read_as_it_stands() -> None:
    chance = random.Random(7)
    whole = copied(b"12", None, b"abc")
    for _ in range(500):
        damaged = bytearray(whole)
        if chance.random() < 0.5:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            [_, found, _] = copied_texts([whole, bytes(damaged), whole], 3)
        except ProtocolError:
            continue
        assert copied(*found) == bytes(damaged)
