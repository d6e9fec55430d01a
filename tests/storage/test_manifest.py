"""The two copies of the manifest."""

from __future__ import annotations

import msgspec
import pytest

from storage.workloads import descriptor, key_of
from trunkline.core.effects import Record
from trunkline.core.streams import (
    StreamDropping,
    StreamEnding,
    StreamLosing,
    StreamOpened,
    StreamSealing,
    StreamTrimming,
)
from trunkline.storage import AnotherVersion, CorruptDirectory, SyncPolicy
from trunkline.storage.manifest import (
    VERSION,
    Copy,
    ManifestEntry,
    Snapshot,
    WrittenLate,
    chosen_copy,
    entry_of,
    pack_block,
    read_copy,
)

KEY = key_of("s1")
SNAPSHOT = pack_block(msgspec.msgpack.encode(Snapshot(VERSION, SyncPolicy.NEVER, "boot", clean=False)), 5)


def batch(sequence: int, *entries: ManifestEntry) -> bytes:
    return pack_block(msgspec.msgpack.encode(entries), sequence)


OPENED = batch(6, entry_of(StreamOpened(descriptor("s1")), salt=9))
SEALED = batch(7, entry_of(StreamSealing(KEY), slots=3))
WHOLE = SNAPSHOT + OPENED + SEALED


def test_records_add_up() -> None:
    records: list[tuple[Record, dict[str, int]]] = [
        (StreamTrimming(KEY, 4), {"first_extent": 2, "first_slot": 2}),
        (WrittenLate(KEY), {}),
        (StreamLosing(KEY), {}),
        (StreamEnding(KEY, 9), {"slots": 4}),
        (StreamDropping(key_of("s2")), {}),
    ]
    copy = read_copy(WHOLE + batch(8, *(entry_of(record, **known) for record, known in records)))
    assert copy.state is not None
    state = copy.state.streams[KEY]
    assert (copy.last, copy.state.policy, copy.state.boot) == (8, SyncPolicy.NEVER, "boot")
    assert (state.salt, state.sealed, state.end, state.trim, state.mark) == (9, True, 9, 4, 4)
    assert (state.first_extent, state.first_slot, state.late, state.data_loss) == (2, 2, True, True)
    assert list(copy.state.tombstones) == [key_of("s2")]


def test_a_snapshot_says_the_same_as_the_records_that_led_to_it() -> None:
    copy = read_copy(WHOLE)
    assert copy.state is not None
    again = read_copy(pack_block(msgspec.msgpack.encode(copy.state.snapshot()), 8))
    assert again.state is not None
    assert again.state.snapshot() == copy.state.snapshot()


def test_m2_a_copy_that_ends_inside_a_block_is_torn_and_not_bad() -> None:
    for size in range(len(SNAPSHOT) + len(OPENED) + 1, len(WHOLE)):
        copy = read_copy(WHOLE[:size])
        assert (copy.last, copy.torn, copy.bad) == (6, True, False)


def test_m2_a_complete_block_with_a_wrong_checksum_is_bad() -> None:
    for at in range(len(SNAPSHOT) + len(OPENED), len(WHOLE)):
        content = bytearray(WHOLE)
        content[at] ^= 16
        copy = read_copy(bytes(content))
        assert (copy.last, copy.bad) == (6, True)


def test_blocks_out_of_order_are_bad() -> None:
    assert read_copy(SNAPSHOT + SEALED).bad
    assert read_copy(b"").bad


GOOD, SHORTER = read_copy(WHOLE), read_copy(SNAPSHOT + OPENED)
TORN = read_copy(WHOLE + OPENED[:9])
BAD = read_copy(WHOLE + OPENED)
GONE = Copy(None)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (GOOD, SHORTER, GOOD),
        (SHORTER, GOOD, GOOD),
        (GOOD, GONE, GOOD),
        (GONE, GOOD, GOOD),
        (TORN, SHORTER, TORN),
        (TORN, GONE, TORN),
        (BAD, GOOD, GOOD),
        (GOOD, BAD, GOOD),
        (BAD, SHORTER, BAD),
    ],
)
def test_m2_the_copy_that_holds_everything_wins(a: Copy, b: Copy, expected: Copy) -> None:
    assert chosen_copy(a, b) is expected


@pytest.mark.parametrize(("a", "b"), [(BAD, BAD), (BAD, GONE), (GONE, BAD), (GONE, GONE)])
def test_m2_two_damaged_copies_are_rejected(a: Copy, b: Copy) -> None:
    with pytest.raises(CorruptDirectory, match="replace the node"):
        chosen_copy(a, b)


@pytest.mark.parametrize(
    "snapshot", [Snapshot(99, SyncPolicy.NEVER, "", clean=True), [99], [99, {"streams": 7}, None], [99, "always", 1, 2]]
)
def test_a_manifest_of_a_newer_version_in_whatever_shape_asks_for_an_upgrade(snapshot: object) -> None:
    with pytest.raises(AnotherVersion, match=r"version 99.*written by a newer version of Trunkline; upgrade"):
        read_copy(pack_block(msgspec.msgpack.encode(snapshot), 1))


@pytest.mark.parametrize("entry", [["unheard-of", b"\x90"], ["opened", 7], "opened", ["trimming", [["log", "1.0.0"]]]])
def test_an_undamaged_record_that_this_version_does_not_know_asks_for_an_upgrade(entry: object) -> None:
    known = pack_block(msgspec.msgpack.encode(Snapshot(VERSION, SyncPolicy.ALWAYS, "", clean=True)), 1)
    with pytest.raises(AnotherVersion, match="written by a newer version of Trunkline; upgrade"):
        read_copy(known + pack_block(msgspec.msgpack.encode([entry]), 2))
