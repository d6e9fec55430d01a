"""Power cuts at every operation, with everything that they may leave.

Each image recovers to a state that holds all that was acknowledged and nothing that was not put; so does each image of
a power cut during that recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from storage.recording_files import Image, RecordingFiles, image_of
from storage.workloads import BOOT, NEXT_BOOT, ROOT, SMALL, Desk, Put, faults, formatted, mixed_workload
from trunkline.core.streams import Key
from trunkline.storage import Engine, SyncBatch


def worked_desk() -> Desk:
    files = RecordingFiles(ROOT)
    formatted(files)
    worked = Desk(files)
    worked.acknowledge()
    mixed_workload(worked)
    worked.engine.close()
    return worked


@pytest.fixture(scope="module")
def desk() -> Desk:
    return worked_desk()


def recovered(image: Image) -> tuple[Engine, RecordingFiles]:
    files = RecordingFiles(ROOT, image)
    return Engine.open(ROOT, SMALL, files, boot=NEXT_BOOT), files


def crash_images(desk: Desk, first: int, step: int = 1) -> Iterator[tuple[str, Image, list[Put], int]]:
    """Different images only, with what was put and how much of it acknowledged."""
    seen = set()
    for count in range(first, len(desk.files.operations) + 1, step):
        acknowledged = desk.acknowledged_after(count)
        for label, image in desk.files.after_power_cut(count):
            content = image.reachable()
            mark = hash((acknowledged, tuple(sorted((path, held or b"") for path, held in content.items()))))
            if mark not in seen:
                seen.add(mark)
                yield label, image_of(str(ROOT), content), desk.put_after(count), acknowledged


def doubts(engine: Engine) -> set[Key]:
    return {
        (image.descriptor.target.log, image.descriptor.target.stream)
        for image in engine.image.streams
        if image.uncertain
    }


def wrong(label: str, image: Image, puts: list[Put], acknowledged: int, doubted: set[Key] | None = None) -> list[str]:
    engine, _ = recovered(image)
    found = [f"{label}: {why}" for why in faults(engine, puts, acknowledged)]
    if doubted is not None and not doubted <= doubts(engine):
        found.append(f"{label}: forgot a doubt")
    return found


def test_every_crash_image_holds_what_was_acknowledged_and_nothing_that_was_not_put(desk: Desk) -> None:
    images = 0
    for label, image, puts, acknowledged in crash_images(desk, desk.acknowledged[0][0]):
        assert wrong(label, image, puts, acknowledged) == []
        images += 1
    assert images > 500, f"only {images} images"


def test_a_power_cut_during_recovery_leads_to_the_same_verdict(desk: Desk) -> None:
    again = 0
    for label, image, puts, acknowledged in crash_images(desk, desk.acknowledged[0][0] + 3, step=11):
        engine, files = recovered(image)
        doubted = doubts(engine)
        for count in range(len(files.operations) + 1):
            for label_again, left in files.after_power_cut(count):
                assert wrong(f"{label}; {label_again}", left, puts, acknowledged, doubted) == []
                again += 1
    assert again > 500, f"only {again} images"


def test_a_killed_process_loses_nothing_that_was_put(desk: Desk) -> None:
    files = RecordingFiles(ROOT)
    formatted(files)
    killed = Desk(files)
    mixed_workload(killed)
    killed.write("s1", 19, count=1)
    engine = Engine.open(ROOT, SMALL, RecordingFiles(ROOT, files.now()), boot=BOOT)
    assert list(faults(engine, killed.puts, len(killed.puts))) == []


def manifest_first(batch: SyncBatch) -> None:
    if batch.work.entries:
        batch._manifest.append(batch.work.entries)
        batch.work.entries = []
    RUN(batch)


def frames_not_synced(batch: SyncBatch) -> None:
    batch.work.dirty = {}
    RUN(batch)


def directories_not_synced(batch: SyncBatch) -> None:
    batch.work.directories = {}
    RUN(batch)


def files_removed_first(batch: SyncBatch) -> None:
    batch._remove_files()
    batch.work.trimmed, batch.work.dropped = [], []
    RUN(batch)


RUN = SyncBatch.run


@pytest.mark.parametrize(
    "offence",
    [manifest_first, frames_not_synced, directories_not_synced, files_removed_first],
    ids=lambda f: f.__name__,
)
def test_a_group_commit_in_a_wrong_order_is_caught(
    offence: Callable[[SyncBatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SyncBatch, "run", offence)
    planted = worked_desk()
    monkeypatch.undo()
    images = crash_images(planted, planted.acknowledged[0][0])
    assert any(wrong(label, image, puts, acknowledged) for label, image, puts, acknowledged in images)
