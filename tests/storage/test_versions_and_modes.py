"""Data of another version is not taken for damage, and files of a node are readable by its user only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from storage.workloads import SMALL, descriptor, formatted, frame_of, key_of
from trunkline.core.streams import FrameWritten, StreamOpened
from trunkline.storage import AnotherVersion, CorruptDirectory, Engine, make_private, read_identity
from trunkline.storage.files import RealFiles
from trunkline.storage.layout import EXTENT_HEADER, EXTENT_MAGIC, checksum
from trunkline.storage.manifest import pack_block, read_manifest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A node with one stream of several extents, all but the last closed."""
    formatted(root=tmp_path / "node")
    engine = Engine.open(tmp_path / "node", SMALL)
    engine.put(StreamOpened(descriptor("s1")))
    for first in range(1, 60):
        frame, body = frame_of(first, 1, 300)
        engine.put(FrameWritten(key_of("s1"), frame), body)
        batch = engine.begin_sync()
        batch.run()
        engine.end_sync(batch)
    engine.close()
    return tmp_path / "node"


def extents(directory: Path) -> list[Path]:
    return sorted(directory.glob("streams/*/*.extent"))


def with_version(directory: Path, path: Path, version: int) -> None:
    """As another version would have written it, with the right checksum."""
    state, *_ = read_manifest(RealFiles(), directory)
    [stream] = state.streams.values()
    content = bytearray(path.read_bytes())
    content[8:12] = version.to_bytes(4, "little")
    rest = bytes(content[8 : EXTENT_HEADER.size])
    content[: EXTENT_HEADER.size] = EXTENT_MAGIC + checksum(rest, stream.salt).to_bytes(4, "little") + rest
    path.write_bytes(content)


@pytest.mark.parametrize("which", [0, -1], ids=["a closed one", "the one that grows"])
def test_r5_an_extent_of_a_newer_version_is_refused_and_left_as_it_is(directory: Path, which: int) -> None:
    assert len(extents(directory)) > 2
    path = extents(directory)[which]
    with_version(directory, path, 2)
    before = path.read_bytes()
    with pytest.raises(AnotherVersion, match=r"\.extent has version 2.*newer version of Trunkline; upgrade"):
        Engine.open(directory, SMALL)
    assert path.read_bytes() == before
    with_version(directory, path, 1)
    Engine.open(directory, SMALL).close()


def test_a_directory_whose_manifest_is_newer_and_of_another_shape_is_not_called_corrupt(directory: Path) -> None:
    for name in ("manifest.a", "manifest.b"):
        (directory / name).write_bytes(pack_block(msgspec.msgpack.encode([2, {"streams": {}}]), 1))
    with pytest.raises(AnotherVersion, match=r"the manifest has version 2.*upgrade this program\. The data is intact"):
        Engine.open(directory, SMALL)


def test_an_identity_of_a_newer_version_in_another_shape_asks_for_an_upgrade(directory: Path) -> None:
    content = msgspec.json.encode({"version": 2, "who": ["cluster", "n1"]})
    (directory / "identity").write_bytes(b"%s\n%08x\n" % (content, checksum(content)))
    with pytest.raises(AnotherVersion, match="identity has version 2"):
        read_identity(directory)
    (directory / "identity").write_bytes(b"%s\n%08x\n" % (content, checksum(content) ^ 1))
    with pytest.raises(CorruptDirectory, match="replace the node"):
        read_identity(directory)


def modes(root: Path) -> set[tuple[bool, int]]:
    """Of everything below a directory, and of itself: whether it is a directory, and who may do what."""
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (root, *root.rglob("*"))}


def test_files_of_a_node_are_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        formatted(root=tmp_path / "node")
        engine = Engine.open(tmp_path / "node", SMALL)
        engine.put(StreamOpened(descriptor("s1")))
        frame, body = frame_of(1, 1, 300)
        engine.put(FrameWritten(key_of("s1"), frame), body)
        engine.close()
    finally:
        os.umask(before)
    assert len(extents(tmp_path / "node")) == 1
    assert modes(tmp_path / "node") == {(True, 0o700), (False, 0o600)}


def test_a_directory_that_an_older_version_left_open_is_made_private(directory: Path) -> None:
    directory.chmod(0o755)
    (directory / "manifest.a").chmod(0o644)
    make_private(directory)
    make_private(directory / "no such directory")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "manifest.a").stat().st_mode) == 0o600
