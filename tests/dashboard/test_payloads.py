"""Bytes as the page shows them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.extras import changes_text
from trunkline.dashboard.payloads import (
    HEADER_SHOWN_BYTES,
    HEX_SHOWN_BYTES,
    TEXT_SHOWN_BYTES,
    ShownPayload,
    shown,
    shown_header,
)
from trunkline.delivery.changes.captured import change_rows, encoded, truncation
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import ChangeKind


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", ShownPayload("empty", "")),
        (b"hello\n\tthere", ShownPayload("text", "hello\n\tthere")),
        ("grüße".encode(), ShownPayload("text", "grüße")),
        (b"12", ShownPayload("text", "12")),
        (b'{"a":', ShownPayload("text", '{"a":')),
        (b'{"a":1.0e5}', ShownPayload("json", '{\n  "a": 1.0e5\n}')),
        (b" [1]\n", ShownPayload("json", "[\n  1\n]")),
        (b"\x00A\xff", ShownPayload("hex", "000000  00 41 ff" + " " * 41 + ".A.")),
        (b"\x1b[31m", ShownPayload("hex", "000000  1b 5b 33 31 6d" + " " * 35 + ".[31m")),
    ],
    ids=["empty", "text", "unicode", "number", "broken JSON", "JSON", "JSON in spaces", "binary", "terminal codes"],
)
def test_a_payload_is_shown_as_what_it_is(payload: bytes, expected: ShownPayload) -> None:
    assert shown(payload) == expected


COLUMNS = (Column("id", "BIGINT"), Column("at", "TIMESTAMP"), Column("price", "DECIMAL(6,2)"), Column("raw", "BLOB"))


def captured(*rows: tuple[int, int | None, str, bytes]) -> bytes:
    ids, times, prices, raw = zip(*rows, strict=True)
    at = pa.array(times, pa.int64()).cast(pa.timestamp("us"))
    price = pa.array(prices).cast(pa.decimal128(6, 2))
    table = pa.table({"id": pa.array(ids), "at": at, "price": price, "raw": pa.array(raw)})
    return encoded(COLUMNS, change_rows(ChangeKind.INSERT, table))


def test_captured_changes_are_shown_row_by_row() -> None:
    assert shown(captured((7, 1_000_000, "1.50", b"\xff<"), (8, None, "0.00", b"")), changes_text) == ShownPayload(
        "changes",
        "2 changes:\n"
        'insert {"id":7,"at":"1970-01-01 00:00:01","price":"1.50","raw":"ff 3c"}\n'
        'insert {"id":8,"at":null,"price":"0.00","raw":""}',
    )
    assert shown(encoded(COLUMNS, truncation(COLUMNS)), changes_text).text == "1 change:\ntruncate"


def test_of_many_captured_changes_the_first_are_shown() -> None:
    lines = shown(
        captured(*((number, 0, "0.00", b"x" * 5000) for number in range(250))), changes_text
    ).text.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("250 changes:", "and 150 more", 102)
    assert lines[1].endswith("…")


@given(st.data())
def test_damaged_changes_are_shown_in_hex_or_as_changes(data: st.DataObject) -> None:
    payload = bytearray(captured((7, 1_000_000, "1.50", b"\xff<"), (8, None, "0.00", b"abc")))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert shown(bytes(payload[: data.draw(st.integers(4, len(payload)))]), changes_text).kind in ("hex", "changes")


def test_numbers_in_json_are_not_rounded() -> None:
    assert "12345678901234567890123" in shown(b'{"n":12345678901234567890123}').text


def test_json_that_is_nested_too_deeply_is_text() -> None:
    assert shown(b"[" * 5_000 + b"]" * 5_000).kind == "text"


def test_a_huge_payload_is_cut_with_a_note() -> None:
    assert shown(b"x" * (TEXT_SHOWN_BYTES + 7)) == ShownPayload("text", "x" * TEXT_SHOWN_BYTES, 7)
    assert shown(b"\x00" * (HEX_SHOWN_BYTES + 3)).cut_bytes == 3
    assert shown(b'{"a":"' + b"x" * TEXT_SHOWN_BYTES + b'"}').kind == "text"


def test_a_cut_in_the_middle_of_a_character_leaves_text() -> None:
    cut = shown(b"x" + "ü".encode() * TEXT_SHOWN_BYTES)
    assert (cut.kind, set(cut.text[1:])) == ("text", {"ü"})


def test_headers_are_short() -> None:
    assert shown_header(b"abc") == "abc"
    assert shown_header(b"\x00\x01") == "00 01"
    assert shown_header(b"x" * 1000) == "x" * HEADER_SHOWN_BYTES + "… (1,000 bytes)"


@given(st.binary(max_size=200))
def test_any_bytes_can_be_shown(payload: bytes) -> None:
    found = shown(payload)
    assert found.cut_bytes == 0
    assert all(letter.isprintable() or letter in "\t\n\r" for letter in found.text)
