"""Headers: what is refused when it is appended, and how a log that holds worse is read. The rules are in headers.py."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline
from client.test_log import run
from lying_writer import EXPECTED, GARBAGE, POISONED, append_poison, payload_of
from system.processes import Processes
from trunkline.client.cluster import Cluster
from trunkline.client.dedupe import Repeats, row_headers
from trunkline.client.entries import Entry
from trunkline.client.headers import (
    ENTRY_HEADERS_BYTES_MAX,
    HEADERS_MAX,
    NAME_CHARACTERS_MAX,
    decode_headers,
    encode_all,
    encode_headers,
)
from trunkline.errors import ConfigError

WRONG: dict[str, Any] = {
    "a text": {"n": "text"},
    "a number": {"n": 1},
    "nothing": {"n": None},
    "a list": {"n": [b"x"]},
    "a name of bytes": {b"n": b"x"},
    "a number as a name": {1: b"x"},
    "no name": {"": b"x"},
    "a long name": {"n" * (NAME_CHARACTERS_MAX + 1): b"x"},
    "no UTF-8": {"\ud800": b"x"},
    "too many": {str(number): b"" for number in range(HEADERS_MAX + 1)},
    "too large": {"n": bytes(ENTRY_HEADERS_BYTES_MAX)},
    "pairs": [("n", b"x")],
    "bytes": b"n",
    "text": "n",
    "a whole number": 5,
    "a mapping too many": [{"n": b"x"}, {"n": b"x"}],
    "one that is wrong in a list": [{"n": "x"}],
}


class Name(enum.StrEnum):
    N = "n"


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_h1_headers_other_than_names_and_bytes_are_rejected(wrong: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        encode_all(wrong, 1)
    assert len(str(refused.value)) < 250


def test_h1_the_refusal_of_a_text_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"the value of header 'n' must be bytes, not str: encode it, as in"):
        encode_headers({"n": "text"})  # type: ignore[dict-item]


def test_h1_names_and_bytes_within_the_limits_come_back() -> None:
    largest: dict[str, bytes] = {str(number): b"" for number in range(HEADERS_MAX)}
    for headers in ({}, {"n": b""}, {"é" * NAME_CHARACTERS_MAX: bytes(range(256))}, largest):
        assert decode_headers(encode_headers(headers)) == headers
    other: dict[str, Any] = {Name.N: bytearray(b"a"), "m": memoryview(b"b")}
    assert decode_headers(encode_headers(other)) == {"n": b"a", "m": b"b"}
    assert encode_all({"n": b"x"}, 2) == [encode_headers({"n": b"x"})] * 2
    assert encode_all([None, {}, {"n": b"x"}], 3) == [b"", b"", encode_headers({"n": b"x"})]


def test_h1_a_refused_append_appends_nothing_by_any_api(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        for wrong in WRONG.values():
            with pytest.raises(ConfigError):
                await log.append(b"never", headers=wrong)
            with pytest.raises(ConfigError):
                await log.append([b"never", b"never"], headers=[{"n": b"good"}, wrong])
        assert await log.tail() == 1

    run(cluster, test)
    with trunkline.sync.connect(cluster.coordinators) as handle:
        log = handle.log(name)
        for wrong in WRONG.values():
            with pytest.raises(ConfigError):
                log.append(b"never", headers=wrong)
        assert log.tail() == 1


def test_h2_a_poisoned_log_is_read(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await append_poison(log)
        for dedupe in (False, True):
            entries = [entry async for entry in log.subscribe(to_tail=True, dedupe=dedupe)]
            assert [entry.payload for entry in entries] == [payload_of(each) for each in range(len(POISONED))]
            assert [entry.headers for entry in entries] == EXPECTED
            assert [entry.unreadable_headers for entry in entries] == [b"", b"", *GARBAGE, b""]
        async for batch in log.batches(3, to_tail=True):
            assert batch.headers() == EXPECTED[2:]
        assert (await log.read(3)).headers == {}

    run(cluster, test)


@given(st.binary(max_size=60))
def test_h2_whatever_lies_in_the_place_of_headers_is_headers_or_is_shown(encoded: bytes) -> None:
    entry = Entry(1, b"", encoded_headers=encoded)
    assert all(type(name) is str and type(value) is bytes for name, value in entry.headers.items())
    assert entry.unreadable_headers in (b"", encoded)
    assert not (entry.headers and entry.unreadable_headers)


def test_what_dedupe_remembers_is_small_whatever_headers_say() -> None:
    repeats = Repeats()
    long = Entry(1, b"", encoded_headers=encode_headers(row_headers("q" * 500_000, 1, 0, 0)))
    assert [repeats.is_repeat(long), repeats.is_repeat(long)] == [False, True]
    assert all(len(query) < 100 for query, _ in repeats._newest)
    huge = encode_headers({**row_headers("q", 1, 0, 0), "partition": b"9" * 4000})
    assert not repeats.is_repeat(Entry(1, b"", encoded_headers=huge))
    assert len(repeats) == 1


def test_a_map_of_too_many_headers_is_not_decoded() -> None:
    many = msgspec.msgpack.encode({str(number): b"" for number in range(70_000)})
    assert decode_headers(many) is None
