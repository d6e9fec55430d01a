"""A flipped bit anywhere in any file is noticed: never a wrong body, never a frame that is lost silently."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.recording_files import RecordingFiles, image_of
from storage.workloads import BOOT, NEXT_BOOT, ROOT, SMALL, Desk, Expected, Put, formatted, key_of
from trunkline.core.entries import Frame
from trunkline.core.streams import Key
from trunkline.storage import CorruptDirectory, Engine, FrameDamaged

Content = dict[str, bytes | None]


def worked(*, rolls: bool, closed: bool) -> tuple[Content, list[Put]]:
    """A small directory: an open stream, a sealed one with a footer, a dropped one; and extents that got full."""
    files = RecordingFiles(ROOT)
    formatted(files)
    desk = Desk(files)
    desk.open("s1")
    desk.open("s2")
    desk.sync()
    desk.write("s1", 1, size=20)
    desk.write("s2", 1, size=9)
    desk.sync()
    desk.write("s1", 3, size=21)
    desk.fill("s1", 5)
    desk.seal("s2")
    desk.open("s3")
    desk.sync()
    desk.drop("s3")
    desk.sync()
    if rolls:
        for first in range(6, 16):
            desk.write("s1", first, count=1, size=1400)
            desk.sync()
    if closed:
        desk.engine.close()
    return files.now().reachable(), desk.puts


def flips(content: Content, step: int) -> Iterator[tuple[str, Content]]:
    for path, held in content.items():
        for at in range(0, len(held or b""), step):
            assert held is not None
            flipped = bytearray(held)
            flipped[at] ^= 1 << at % 8
            yield f"byte {at} of {path}", {**content, path: bytes(flipped)}


def unnoticed(content: Content, puts: list[Put]) -> Iterator[str]:
    try:
        engine = Engine.open(ROOT, SMALL, RecordingFiles(ROOT, image_of(str(ROOT), content)), boot=NEXT_BOOT)
    except CorruptDirectory as refused:
        if "replace the node" not in str(refused):
            yield f"does not say what to do: {refused}"
        return
    expected = Expected(puts)
    assert set(engine.image.tombstones) == expected.dropped
    assert {image.descriptor for image in engine.image.streams} == {
        found for key, found in expected.opened.items() if key not in expected.dropped
    }
    for image in engine.image.streams:
        key = key_of(image.descriptor.target.stream)
        noticed = image.data_loss or image.uncertain
        if key in expected.sealed and not image.sealed:
            yield f"{key} is not sealed any more"
        held = {frame.first: frame for frame in image.frames}
        for first, (frame, body) in expected.frames[key].items():
            if first in held:
                yield from wrong_body(engine, key, held[first], frame, body)
            elif not noticed:
                yield f"{frame} of {key} is missing"


def wrong_body(engine: Engine, key: Key, found: Frame, frame: Frame, body: bytes) -> Iterator[str]:
    if found != frame:
        yield f"{found} is there instead of {frame}"
    try:
        bodies = engine.read(key, [found], 1 << 20, may_block=True)
    except FrameDamaged:
        return
    if bodies is None or bytes(bodies[0]) != body:
        yield f"a wrong body of {frame}"


@pytest.mark.parametrize("closed", [True, False])
def test_a_flipped_bit_in_any_byte_of_a_small_directory_is_noticed(closed: bool) -> None:
    content, puts = worked(rolls=False, closed=closed)
    tried = 0
    for label, flipped in flips(content, step=1):
        assert list(unnoticed(flipped, puts)) == [], label
        tried += 1
    assert tried > 900


@pytest.mark.parametrize("closed", [True, False])
def test_a_flipped_bit_in_a_stream_of_many_extents_is_noticed(closed: bool) -> None:
    content, puts = worked(rolls=True, closed=closed)
    assert sum(path.endswith(".extent") for path in content) > 4
    for label, flipped in flips(content, step=37):
        assert list(unnoticed(flipped, puts)) == [], label


def verdict(content: Content, stream: str) -> tuple[bool, bool]:
    """Whether it lost data, and whether that is uncertain."""
    engine = Engine.open(ROOT, SMALL, RecordingFiles(ROOT, image_of(str(ROOT), content)), boot=BOOT)
    image = next(image for image in engine.image.streams if image.descriptor.target.stream == stream)
    return image.data_loss, image.uncertain


def last_body_flipped(*, idle: bool) -> Content:
    files = RecordingFiles(ROOT)
    formatted(files)
    desk = Desk(files)
    desk.open("s1")
    desk.write("s1", 1, size=64)
    desk.sync()
    if idle:
        desk.idle()
    content = files.now().reachable()
    path = next(path for path in content if path.endswith(".extent"))
    held = bytearray(content[path] or b"")
    held[24 + 56 + 16] ^= 1  # in the body
    return {**content, path: bytes(held)}


def test_damage_in_the_last_frames_of_a_busy_stream_leaves_it_uncertain() -> None:
    assert verdict(last_body_flipped(idle=False), "s1") == (False, True)


def test_damage_in_the_last_frames_of_an_idle_stream_is_certain() -> None:
    assert verdict(last_body_flipped(idle=True), "s1") == (True, False)


@pytest.mark.parametrize("gone", ["manifest.a", "manifest.b"])
def test_one_copy_of_the_manifest_is_enough(gone: str) -> None:
    content, puts = worked(rolls=False, closed=False)
    del content[f"{ROOT}/{gone}"]
    assert list(unnoticed(content, puts)) == []


def test_a_stream_whose_files_are_missing_has_lost_its_data() -> None:
    content, _ = worked(rolls=False, closed=False)
    left = {path: held for path, held in content.items() if "~s1" not in path}
    assert verdict(left, "s1") == (True, False)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_extent_is_noticed(which: int) -> None:
    content, _ = worked(rolls=True, closed=False)
    extents = sorted(path for path in content if "~s1" in path and path.endswith(".extent"))
    del content[extents[which]]
    assert verdict(content, "s1")[0]
