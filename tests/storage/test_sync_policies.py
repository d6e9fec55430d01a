"""What each policy promises after a power cut and after a process was killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.recording_files import RecordingFiles
from storage.workloads import BOOT, NEXT_BOOT, ROOT, SMALL, Desk, faults, formatted, lazy
from trunkline.core.streams import StreamImage
from trunkline.storage import Engine, StorageOptions, SyncPolicy

LAZY = [SyncPolicy.INTERVAL, SyncPolicy.NEVER]


def worked(options: StorageOptions) -> Desk:
    """s1 is open, s2 sealed, s3 sealed with a repair behind it."""
    files = RecordingFiles(ROOT)
    formatted(files)
    desk = Desk(files, options)
    for name in ("s1", "s2", "s3"):
        desk.open(name)
        desk.write(name, 1)
    desk.seal("s2")
    desk.end("s3", 10)
    desk.sync()
    desk.write("s3", 5)
    return desk


def left(desk: Desk, boot: str, options: StorageOptions = SMALL) -> dict[str, StreamImage]:
    """What the next start finds; nothing is lost of what was written."""
    engine = Engine.open(ROOT, options, RecordingFiles(ROOT, desk.files.now()), boot=boot)
    return {image.descriptor.target.stream: image for image in engine.image.streams}


@pytest.mark.parametrize("policy", LAZY)
def test_after_a_power_cut_streams_that_did_not_wait_for_the_disk_have_lost_data(policy: SyncPolicy) -> None:
    found = left(worked(lazy(policy)), NEXT_BOOT)
    assert {name: image.data_loss for name, image in found.items()} == {"s1": True, "s2": False, "s3": True}


@pytest.mark.parametrize("policy", LAZY)
def test_the_verdict_stays(policy: SyncPolicy) -> None:
    desk = worked(lazy(policy))
    files = RecordingFiles(ROOT, desk.files.now())
    Engine.open(ROOT, SMALL, files, boot=NEXT_BOOT)
    again = Engine.open(ROOT, SMALL, RecordingFiles(ROOT, files.now()), boot=NEXT_BOOT)
    assert [image.data_loss for image in again.image.streams] == [True, False, True]


@pytest.mark.parametrize("policy", [SyncPolicy.ALWAYS, *LAZY])
def test_a_killed_process_loses_nothing(policy: SyncPolicy) -> None:
    options = SMALL if policy is SyncPolicy.ALWAYS else lazy(policy)
    found = left(worked(options), BOOT, options)
    assert not any(image.data_loss or image.uncertain for image in found.values())
    assert [frame.first for frame in found["s3"].frames] == [1, 5]


@pytest.mark.parametrize("policy", LAZY)
def test_a_clean_close_loses_nothing(policy: SyncPolicy) -> None:
    desk = worked(lazy(policy))
    desk.engine.close()
    assert not any(image.data_loss or image.uncertain for image in left(desk, NEXT_BOOT).values())


def test_a_power_cut_under_always_loses_nothing_that_was_synced() -> None:
    desk = worked(SMALL)
    desk.sync()
    assert not any(image.data_loss or image.uncertain for image in left(desk, NEXT_BOOT).values())


@pytest.mark.parametrize("policy", LAZY)
def test_the_policy_that_counts_is_that_of_the_run_that_wrote(policy: SyncPolicy) -> None:
    assert left(worked(lazy(policy)), NEXT_BOOT, SMALL)["s1"].data_loss
    desk = worked(SMALL)
    desk.sync()
    assert not left(desk, NEXT_BOOT, lazy(policy))["s1"].data_loss


@pytest.mark.parametrize("policy", LAZY)
def test_everything_but_frames_is_durable_when_it_is_put(policy: SyncPolicy) -> None:
    """After any power cut: streams that are known stay known, seals, ends, trims and tombstones hold."""
    files = RecordingFiles(ROOT)
    formatted(files)
    desk = Desk(files, lazy(policy))
    desk.acknowledge()
    steps: list[Callable[[], None]] = [
        lambda: desk.open("s1"),
        lambda: desk.open("s2"),
        lambda: desk.seal("s1"),
        lambda: desk.end("s1", 3),
        lambda: desk.trim("s2", 4),
        lambda: desk.drop("s2"),
        lambda: desk.drop("s3"),
    ]
    for step in steps:
        step()
        desk.acknowledge()
    for count in range(desk.acknowledged[0][0], len(files.operations) + 1):
        for label, image in files.after_power_cut(count):
            engine = Engine.open(ROOT, SMALL, RecordingFiles(ROOT, image), boot=BOOT)
            found = list(faults(engine, desk.put_after(count), desk.acknowledged_after(count)))
            assert not found, f"{label}: {found}"
