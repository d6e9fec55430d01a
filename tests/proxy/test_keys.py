"""The index of keys, without a log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trunkline.client.headers import encode_headers
from trunkline.proxy.keys import KEY_HEADER, REQUEST_HEADER, KeyedAppend, KeyIndex, Stamp, digest_of, stamp_of

DIGEST = "0" * 64


def stamp(key: str) -> Stamp:
    return Stamp(key, 1, DIGEST)


def test_k1_a_stamp_is_read_as_it_was_written() -> None:
    written = Stamp("key", 3, DIGEST)
    assert stamp_of(encode_headers({**written.headers(), "other": b"\xff"})) == written


def test_k1_malformed_headers_are_no_stamp() -> None:
    good = stamp("key").headers()
    for headers in (
        {},
        {KEY_HEADER: b"key"},
        {**good, KEY_HEADER: b""},
        {**good, KEY_HEADER: b"\xff"},
        {**good, KEY_HEADER: b"k" * 129},
        {**good, REQUEST_HEADER: b""},
        {**good, REQUEST_HEADER: b"x " + DIGEST.encode()},
        {**good, REQUEST_HEADER: b"9" * 5_000 + b" " + DIGEST.encode()},
        {**good, REQUEST_HEADER: b"1 short"},
    ):
        assert stamp_of(encode_headers(headers)) is None
    assert stamp_of(b"idempotency-key, but no msgpack") is None


def test_k5_a_key_counts_while_its_entry_is_in_the_window() -> None:
    index = KeyIndex(3)
    index.add(1, stamp("a"))
    index.advance(4)
    assert index.find("a") == KeyedAppend(1, 1, DIGEST)
    index.advance(5)
    assert index.find("a") is None
    assert len(index) == 0


def test_k7_what_is_below_is_forgotten() -> None:
    index = KeyIndex(10)
    for glsn, key in enumerate("abc", 1):
        index.add(glsn, stamp(key))
    index.forget_below(3)
    assert [index.find(key) is not None for key in "abc"] == [False, False, True]
    assert index.next == 4


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=30), st.integers(1, 8), st.integers(0, 30))
def test_k5_a_proxy_that_began_later_has_the_same_keys(keys: list[str], window: int, late: int) -> None:
    """Whatever is in the log, also keys that were used twice."""
    old, new = KeyIndex(window), KeyIndex(window)
    new.advance(min(late, len(keys) + 1 - window))
    for glsn, key in enumerate(keys, 1):
        old.add(glsn, stamp(key) if key else None)
        if glsn >= new.next:
            new.add(glsn, stamp(key) if key else None)
    assert {key: old.find(key) for key in "abc"} == {key: new.find(key) for key in "abc"}


def test_k6_a_digest_depends_on_the_request_and_not_on_its_formatting() -> None:
    def digest(*payloads: bytes, headers: dict[str, bytes] | None = None, expect: int | None = None) -> str:
        return digest_of(payloads, [headers or {}] * len(payloads), expect)

    assert digest(b"a", headers={"x": b"1", "y": b"2"}) == digest(b"a", headers={"y": b"2", "x": b"1"})
    different = [
        digest(b"a"),
        digest(b"b"),
        digest(b"a", b""),
        digest(b"", b"a"),
        digest(b"a", expect=1),
        digest(b"a", headers={"x": b"1"}),
        digest(b"a", headers={"x1": b""}),
    ]
    assert len(set(different)) == len(different)
