"""Where transactions of a log end, whatever its headers."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from delivery.hostile_entries import MemoryLogReader
from trunkline.client.entries import Entry
from trunkline.delivery.changes.captured import EntryPlace
from trunkline.delivery.config.addresses import LogAddress
from trunkline.errors import CorruptEntry

ADDRESS = LogAddress("log", "nowhere:1")
Places = list[EntryPlace | None]  # None: a hole


def log_of(places: Places, trimmed: int = 0) -> MemoryLogReader:
    entries: list[Entry | CorruptEntry | None] = [
        None if place is None else Entry(glsn, b"", encoded_headers=msgspec.msgpack.encode(place.headers()))
        for glsn, place in enumerate(places, start=1)
    ]
    return MemoryLogReader(ADDRESS, entries, trimmed)


@st.composite
def honest(draw: st.DrawFn) -> tuple[Places, int]:
    """Transactions with holes between their entries, the last one perhaps open; and where the last whole one ends."""
    places: Places = []
    ended = 0
    sizes = draw(st.lists(st.integers(1, 5), max_size=6))
    is_open = draw(st.booleans())
    for number, size in enumerate(sizes):
        for index in range(size):
            places += [None] * draw(st.sampled_from((0, 0, 0, 1, 3)))
            is_last = index == size - 1 and not (is_open and number == len(sizes) - 1)
            places.append(EntryPlace(index, is_last))
            ended = len(places) if is_last else ended
    return places, ended


@given(honest())
def test_x2_a_version_is_where_the_last_whole_transaction_ends(made: tuple[Places, int]) -> None:
    places, ended = made
    log = log_of(places)
    assert log.complete_at(len(places), 1) == ended
    found = list(log.transactions(1, len(places)))
    assert not any(isinstance(each, CorruptEntry) for each in found)
    whole = sum(place is not None and place.last for place in places)
    assert len(found) == whole
    assert log.reads <= 4 * len(places) + 4


@given(honest(), st.integers(0, 12), st.integers(0, 30), st.booleans())
def test_x2_an_entry_that_lies_hides_no_transaction(
    made: tuple[Places, int], index: int, trimmed: int, is_trimmed: bool
) -> None:
    """It counts as an end, so that a read up to it halts; or it continues the open transaction."""
    places, ended = made
    trimmed = min(trimmed, ended) if is_trimmed else 0
    log = log_of([*places, EntryPlace(index, False)], trimmed)
    version = log.complete_at(len(places) + 1, trimmed + 1)
    assert version >= max(ended, trimmed)
    if version > ended:
        assert version == len(places) + 1
        found = list(log.transactions(max(ended, trimmed) + 1, version))
        assert any(isinstance(each, CorruptEntry) for each in found)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12), st.integers(0, 12))
def test_x2_whatever_headers_say_both_ways_of_reading_come_to_an_end(
    said: list[tuple[int, bool]], trimmed: int
) -> None:
    log = log_of([EntryPlace(*each) for each in said], min(trimmed, len(said)))
    oldest = min(trimmed, len(said)) + 1
    assert oldest - 1 <= log.complete_at(len(said), oldest) <= len(said)
    for each in log.transactions(oldest, len(said), cut=oldest > 1):
        if isinstance(each, CorruptEntry):
            assert f"entry {each.first} " in str(each)
