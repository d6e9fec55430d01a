"""A disk with little space: what it has room for, what the reserve is good for, and what waits."""

from __future__ import annotations

import errno

import pytest

from storage.recording_files import RecordingFiles
from storage.workloads import BOOT, NEXT_BOOT, ROOT, SMALL, Desk, faults, formatted, key_of
from trunkline.core.messages import Space
from trunkline.storage import Engine, StorageError, StorageOptions, SyncPolicy
from trunkline.storage.options import KIB
from trunkline.storage.space import CHECK_S, DiskSpace

OPTIONS = StorageOptions(extent_bytes=4 * KIB, reserve_bytes=64 * KIB, margin_bytes=16 * KIB)
MANIFEST_PART = 8 * KIB  # of the reserve
TIGHT = 64 * KIB + 4 * 16 * KIB


def small_disk(free: int) -> RecordingFiles:
    files = RecordingFiles(ROOT)
    formatted(files)
    files.free = free
    return files


def judged(files: RecordingFiles, desk: Desk) -> list[str]:
    """What a restart with enough space finds wrong."""
    again = Engine.open(ROOT, OPTIONS, RecordingFiles(ROOT, files.now()), boot=BOOT)
    return list(faults(again, desk.puts, len(desk.puts)))


def test_a_disk_is_full_when_only_the_reserve_and_the_margin_are_left() -> None:
    now = 100.0
    files = small_disk(200 * KIB)
    space = DiskSpace(files, ROOT, OPTIONS, clock=lambda: now)
    assert space.reserved_bytes == 64 * KIB
    assert space.level() < Space.FULL
    files.free = 15 * KIB
    assert space.level() < Space.FULL  # it has just been read
    now += CHECK_S
    assert space.level() is Space.FULL
    files.free = 16 * KIB
    now += CHECK_S
    assert space.level() is Space.TIGHT


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (TIGHT, Space.ROOMY),
        (TIGHT - 1, Space.TIGHT),
        (80 * KIB, Space.TIGHT),
        (80 * KIB - 1, Space.FULL),
        (2 * MANIFEST_PART, Space.FULL),
        (2 * MANIFEST_PART - 1, Space.EXHAUSTED),
    ],
)
def test_a_request_counts_with_its_own_bytes(left: int, expected: Space) -> None:
    space = DiskSpace(small_disk(500 * KIB), ROOT, OPTIONS, clock=lambda: 100.0)
    assert space.level(500 * KIB - left) is expected


def test_a_disk_on_which_no_file_can_be_made_is_exhausted() -> None:
    now = 100.0
    files = small_disk(500 * KIB)
    space = DiskSpace(files, ROOT, OPTIONS, clock=lambda: now)
    files.files_left = 2
    now += CHECK_S
    assert (space.level(), space.reported()) == (Space.EXHAUSTED, Space.FULL)
    files.files_left = 1000
    now += CHECK_S
    assert space.level() is Space.ROOMY


def test_more_room_is_reported_only_with_a_margin_to_spare() -> None:
    now = 100.0
    files = small_disk(500 * KIB)
    space = DiskSpace(files, ROOT, OPTIONS, clock=lambda: now)
    reported = []
    for left in (TIGHT, TIGHT - 1, TIGHT, TIGHT + 16 * KIB, 79 * KIB, 80 * KIB, 96 * KIB, 10 * KIB):
        files.free = left - space.reserved_bytes
        now += CHECK_S
        reported.append(space.reported())
    roomy, tight, full = Space.ROOMY, Space.TIGHT, Space.FULL
    assert reported == [roomy, tight, tight, roomy, full, full, tight, full]


def test_p1_fills_and_seals_use_the_reserve_and_leave_the_last_of_it_to_the_manifest() -> None:
    files = small_disk(200 * KIB)
    desk = Desk(files, OPTIONS)
    desk.open("s1")
    desk.write("s1", 1)
    desk.sync()
    files.free = 10  # another program took the rest
    for glsn in range(3, 20):
        desk.fill("s1", glsn)
    desk.seal("s1")
    desk.open("s2")
    desk.sync()
    assert desk.engine.space() is Space.FULL
    assert MANIFEST_PART < desk.engine.status().reserved_bytes < 64 * KIB
    assert judged(files, desk) == []


def test_p1_without_space_for_frames_streams_are_still_sealed_ended_trimmed_and_dropped() -> None:
    files = small_disk(200 * KIB)
    desk = Desk(files, OPTIONS)
    for stream in ("s1", "s2", "s3"):
        desk.open(stream)
        for first in (1, 3, 5):
            desk.write(stream, first, size=3000)
    desk.sync()
    _use_up(desk, "s1")
    acknowledged = len(desk.puts) - 1
    assert desk.engine.status().reserved_bytes == MANIFEST_PART
    assert desk.engine.stuck
    engine = Engine.open(ROOT, OPTIONS, RecordingFiles(ROOT, files.now()), boot=BOOT)
    assert list(faults(engine, desk.puts[:-1], acknowledged)) == []

    full = Desk(_disk_of(files), OPTIONS)
    full.puts = desk.puts[:-1]
    for stream in ("s1", "s2", "s3"):
        full.seal(stream)
    full.end("s1", 4)
    full.trim("s2", 3)
    full.drop("s3")
    full.sync()
    assert not full.engine.stuck
    assert judged(full.files, full) == []


def _use_up(desk: Desk, stream: str) -> None:
    """Fill all of the reserve that frames may have. The last frame waits."""
    desk.files.free = 0
    first = 101
    while not desk.engine.stuck:
        desk.write(stream, first, size=3000)
        first += 2
    desk.sync()


def _disk_of(files: RecordingFiles) -> RecordingFiles:
    """The same disk after a restart of the process; it has as much space."""
    again = RecordingFiles(ROOT, files.now())
    again.free = files.free
    return again


def test_p2_what_finds_no_space_waits_and_nothing_of_it_is_acknowledged_before_it_is_written() -> None:
    files = small_disk(70 * KIB)
    desk = Desk(files, StorageOptions(extent_bytes=4 * KIB, reserve_bytes=0, margin_bytes=0))
    desk.open("s1")
    desk.sync()
    files.free = 100
    first = desk.write("s1", 1, size=2000)
    second = desk.write("s1", 3)
    desk.seal("s1")
    batch = desk.engine.begin_sync()
    assert batch.ticket == 1
    batch.run()
    desk.engine.end_sync(batch)
    assert (desk.engine.stuck, desk.engine.written, desk.engine.status().waiting) == (True, 1, 3)
    assert desk.engine.space() is Space.EXHAUSTED
    desk.engine.retry()
    assert desk.engine.stuck
    files.free = 70 * KIB
    desk.engine.retry()
    assert not desk.engine.stuck
    desk.sync()
    bodies = desk.engine.read(key_of("s1"), [first, second], 1 << 20, may_block=True)
    assert bodies == [put.body for put in desk.puts[1:3]]
    assert judged(files, desk) == []


@pytest.mark.parametrize("policy", SyncPolicy)
@pytest.mark.parametrize("room", range(0, 1200, 40))
def test_p2_wherever_space_ends_a_restart_finds_what_was_acknowledged_and_work_continues_with_space(
    policy: SyncPolicy, room: int
) -> None:
    files = small_disk(70 * KIB)
    desk = Desk(files, StorageOptions(policy, extent_bytes=4 * KIB, reserve_bytes=0, margin_bytes=0))
    desk.open("s1")
    desk.write("s1", 1, size=2500)
    desk.sync()
    files.free = room
    desk.open("s2")
    desk.write("s2", 1, size=200)
    desk.write("s1", 3, size=300)
    desk.write("s1", 5, size=1500)  # in an extent of its own
    desk.end("s2", 2)
    desk.engine.give_up()  # a group commit does not wait in this test
    found = Engine.open(ROOT, SMALL, RecordingFiles(ROOT, files.now()), boot=BOOT)
    assert list(faults(found, desk.puts, 2)) == []
    files.free = 70 * KIB
    desk.engine.retry()
    desk.trim("s1", 2)
    desk.drop("s2")
    desk.sync()
    assert judged(files, desk) == []


def test_a_group_commit_that_waits_for_space_can_be_given_up() -> None:
    files = small_disk(70 * KIB)
    desk = Desk(files, StorageOptions(extent_bytes=4 * KIB, reserve_bytes=0, margin_bytes=0))
    desk.open("s1")
    desk.sync()
    desk.seal("s1")
    files.free = 0
    desk.engine.give_up()
    with pytest.raises(StorageError, match="free space"):
        desk.sync()
    desk.engine.close()


def test_the_reserve_is_taken_in_steps_and_filled_again_when_there_is_space() -> None:
    now = 100.0
    files = small_disk(200 * KIB)
    space = DiskSpace(files, ROOT, OPTIONS, clock=lambda: now)
    fd = files.open(ROOT / "lock")
    files.free = 0
    space.write(fd, [b"x" * 100], 0)
    assert (space.level(), space.reserved_bytes) == (Space.FULL, 60 * KIB)
    files.free = 10 * KIB  # not enough for reserve and margin
    now += CHECK_S
    assert (space.level(), space.reserved_bytes) == (Space.FULL, 60 * KIB)
    files.free = 100 * KIB
    now += CHECK_S
    assert (space.level(), space.reserved_bytes) == (Space.ROOMY, 64 * KIB)


def test_a_write_that_was_cut_short_is_made_whole() -> None:
    files = small_disk(200 * KIB)
    desk = Desk(files, OPTIONS)
    desk.open("s1")
    desk.sync()
    files.free = 500
    frame = desk.write("s1", 1, size=3000)
    assert desk.engine.read(("orders/2024", "s1"), [frame], 1, may_block=True) == [desk.puts[-1].body]


def test_a_disk_too_small_for_the_reserve_is_full_from_the_start() -> None:
    desk = Desk(small_disk(50 * KIB), OPTIONS)
    assert desk.engine.space() is Space.FULL


# ---------------------------------------------------------------------------------------------------------- restarting


def _worked(options: StorageOptions) -> Desk:
    desk = Desk(small_disk(200 * KIB), options)
    for stream in ("s1", "s2"):
        desk.open(stream)
        desk.write(stream, 1)
        desk.sync()
    desk.end("s2", 3)
    desk.sync()
    return desk


@pytest.mark.parametrize("reserve", [0, 64 * KIB], ids=["no reserve", "a reserve"])
def test_a_node_starts_on_a_disk_without_any_free_space(reserve: int) -> None:
    options = StorageOptions(extent_bytes=4 * KIB, reserve_bytes=reserve, margin_bytes=0)
    desk = _worked(options)
    for boot in (BOOT, NEXT_BOOT):
        files = RecordingFiles(ROOT, desk.files.now())
        files.free = 0
        engine = Engine.open(ROOT, options, files, boot=boot)
        assert list(faults(engine, desk.puts, len(desk.puts))) == []
        assert not any(name.endswith(".new") for name in files.names(ROOT))
        desk.files = files


def test_m4_a_power_cut_while_a_copy_of_the_manifest_is_overwritten_loses_nothing() -> None:
    options = StorageOptions(extent_bytes=4 * KIB, reserve_bytes=0, margin_bytes=0)
    desk = _worked(options)
    files = RecordingFiles(ROOT, desk.files.now())
    files.free = 0
    Engine.open(ROOT, options, files, boot=BOOT)
    images = 0
    for count in range(len(files.operations) + 1):
        for label, image in files.after_power_cut(count):
            images += 1
            engine = Engine.open(ROOT, options, RecordingFiles(ROOT, image), boot=NEXT_BOOT)
            assert list(faults(engine, desk.puts, len(desk.puts))) == [], label
    assert images > 10


def test_m4_a_copy_is_not_overwritten_if_the_other_one_is_bad() -> None:
    options = StorageOptions(extent_bytes=4 * KIB, reserve_bytes=0, margin_bytes=0)
    desk = _worked(options)
    files = RecordingFiles(ROOT, desk.files.now())
    fd = files.open(ROOT / "manifest.b")
    files.write(fd, [b"\xff"], 30)
    files.close(fd)
    files.free = 0
    with pytest.raises(StorageError, match="free some"):
        Engine.open(ROOT, options, files, boot=BOOT)
    files.free = 70 * KIB
    again = RecordingFiles(ROOT, files.now())
    assert list(faults(Engine.open(ROOT, options, again, boot=BOOT), desk.puts, len(desk.puts))) == []


def test_a_sync_that_fails_for_lack_of_space_stops_the_engine_like_any_other() -> None:
    files = small_disk(200 * KIB)
    desk = Desk(files, OPTIONS)
    desk.open("s1")
    files.fail_sync = errno.ENOSPC
    with pytest.raises(StorageError, match="check its disk"):
        desk.sync()
