"""Broken bytes in extents and manifests, for seconds here and for minutes with ``fuzz_extents``."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.fuzz_extents import Fuzzer, check_scan, mutated
from storage.workloads import frame_of
from trunkline.storage import CorruptDirectory
from trunkline.storage.layout import (
    CLOSING_MAGIC,
    footer_place,
    pack_extent_header,
    pack_frame_header,
    pack_mark,
    padding,
    stored_writer,
    unpack_footer,
)
from trunkline.storage.manifest import read_copy
from trunkline.storage.scan import ScannedFrame, scan

SALT = 77


def packed_frame(first: int, size: int, slot: int, salt: int = SALT) -> bytes:
    frame, body = frame_of(first, 1, size)
    return pack_frame_header(salt, frame, size, slot, 0, stored_writer(frame.writer)) + body + padding(size)


PIECES = st.one_of(
    st.builds(packed_frame, st.integers(1, 50), st.integers(0, 40), st.integers(0, 9)),
    st.builds(lambda mark, slots: pack_mark(SALT, mark, slots), st.integers(0, 9), st.integers(0, 9)),
    st.builds(lambda mark: pack_mark(SALT, mark, mark, CLOSING_MAGIC), st.integers(0, 9)),
    st.binary(max_size=80),
    st.integers(0, 80).map(bytes),
)
EXTENTS = st.lists(PIECES, max_size=8).map(lambda pieces: pack_extent_header(SALT, 1, 0) + b"".join(pieces))


@given(EXTENTS, st.randoms(use_true_random=False))
def test_whatever_an_extent_holds_is_scanned_to_its_end(content: bytes, chance: object) -> None:
    check_scan(SALT, content, 0)
    check_scan(SALT, mutated(content, chance), 0)  # type: ignore[arg-type]


@given(st.binary(max_size=400))
@example(b"")
def test_arbitrary_bytes_are_no_frames_no_footer_and_no_manifest(content: bytes) -> None:
    assert not any(isinstance(piece, ScannedFrame) for piece in scan(SALT, content, 0))
    place = footer_place(SALT, content, len(content))
    assert place is None or unpack_footer(place, content) is None
    try:
        assert read_copy(content).state is None
    except CorruptDirectory:
        pytest.fail("a checksum of chance")


def test_an_extent_inside_a_body_is_not_taken_for_frames() -> None:
    """Not even when the header before it is damaged, so that the scan searches for the next frame."""
    inner = packed_frame(5, 30, slot=1, salt=SALT + 1)
    frame, _ = frame_of(1, 1, len(inner))
    outer = pack_frame_header(SALT, frame, len(inner), 0, 0, stored_writer("w")) + inner + padding(len(inner))
    damaged = bytearray(pack_extent_header(SALT, 1, 0) + outer + packed_frame(9, 8, slot=1))
    damaged[30] ^= 1
    found = [piece.frame.frame.first for piece in scan(SALT, bytes(damaged), 0) if isinstance(piece, ScannedFrame)]
    assert found == [9]


def test_broken_directories_open_or_are_reported_as_corrupt() -> None:
    fuzzer = Fuzzer()
    for seed in range(300):
        fuzzer.one(seed)
