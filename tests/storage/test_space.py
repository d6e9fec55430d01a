"""A full disk: when appends are refused, and what the reserve is good for."""

from __future__ import annotations

import pytest

from storage.recording_files import RecordingFiles
from storage.workloads import BOOT, ROOT, Desk, faults, formatted
from trunkline.storage import Engine, StorageError, StorageOptions
from trunkline.storage.options import KIB
from trunkline.storage.space import LOOK_AGAIN_S, Space

OPTIONS = StorageOptions(extent_bytes=4 * KIB, reserve_bytes=64 * KIB, margin_bytes=16 * KIB)


def small_disk(free: int) -> RecordingFiles:
    files = RecordingFiles(ROOT)
    formatted(files)
    files.free = free
    return files


def test_a_disk_is_full_when_only_the_reserve_and_the_margin_are_left() -> None:
    now = 100.0
    files = small_disk(200 * KIB)
    space = Space(files, ROOT, OPTIONS, clock=lambda: now)
    assert space.reserved_bytes == 64 * KIB
    assert not space.full()
    files.free = 15 * KIB
    assert not space.full()  # it has looked just now
    now += LOOK_AGAIN_S
    assert space.full()
    files.free = 16 * KIB
    now += LOOK_AGAIN_S
    assert not space.full()


def test_fills_and_seals_go_on_with_the_reserve() -> None:
    files = small_disk(200 * KIB)
    desk = Desk(files, OPTIONS)
    desk.open("s1")
    desk.write("s1", 1)
    desk.sync()
    files.free = 10  # somebody else took the rest
    for glsn in range(3, 20):
        desk.fill("s1", glsn)
    desk.seal("s1")
    desk.open("s2")
    desk.sync()
    assert desk.engine.full()
    assert desk.engine.status().reserved_bytes == 0
    engine = Engine.open(ROOT, OPTIONS, RecordingFiles(ROOT, files.now()), boot=BOOT)
    assert list(faults(engine, desk.puts, len(desk.puts))) == []


def test_the_reserve_is_filled_again_when_there_is_space() -> None:
    now = 100.0
    files = small_disk(200 * KIB)
    space = Space(files, ROOT, OPTIONS, clock=lambda: now)
    fd = files.open(ROOT / "lock")
    files.free = 0
    space.write(fd, [b"x" * 100], 0)
    assert (space.full(), space.reserved_bytes) == (True, 0)
    files.free = 70 * KIB  # not enough for reserve and margin
    now += LOOK_AGAIN_S
    assert (space.full(), space.reserved_bytes) == (True, 0)
    files.free = 100 * KIB
    now += LOOK_AGAIN_S
    assert (space.full(), space.reserved_bytes) == (False, 64 * KIB)


def test_a_write_that_was_cut_short_is_made_whole() -> None:
    files = small_disk(200 * KIB)
    desk = Desk(files, OPTIONS)
    desk.open("s1")
    desk.sync()
    files.free = 500
    frame = desk.write("s1", 1, size=3000)
    assert desk.engine.read(("orders/2024", "s1"), [frame], 1, may_block=True) == [desk.puts[-1].body]


def test_a_disk_without_any_space_stops_the_engine() -> None:
    files = small_disk(70 * KIB)
    desk = Desk(files, StorageOptions(extent_bytes=4 * KIB, reserve_bytes=0, margin_bytes=0))
    desk.open("s1")
    desk.sync()
    files.free = 0
    with pytest.raises(StorageError, match="free space"):
        desk.write("s1", 1)


def test_a_disk_too_small_for_the_reserve_is_full_from_the_start() -> None:
    desk = Desk(small_disk(50 * KIB), OPTIONS)
    assert desk.engine.full()
