"""Opens a node's directory: judges every stream, makes the verdicts durable, and applies them to the files.

Streams that are not in the manifest are removed: they were never acknowledged, or were dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trunkline.core.storage import NodeImage
from trunkline.core.streams import Key, StreamImage
from trunkline.storage.directory import STREAMS, extent_number, stream_name
from trunkline.storage.extents import StreamFiles
from trunkline.storage.files import Files
from trunkline.storage.manifest import Manifest, ManifestState, StreamState, read_manifest
from trunkline.storage.options import StorageOptions, SyncPolicy
from trunkline.storage.recovery import Judged, carry_out, judge
from trunkline.storage.space import DiskSpace
from trunkline.storage.sync import remove_stream_directory


class RecoveredDirectory(NamedTuple):
    directory: Path
    files: Files
    space: DiskSpace
    manifest: Manifest
    streams: dict[Key, StreamFiles]
    image: NodeImage


def recover_directory(files: Files, directory: Path, options: StorageOptions, boot: str) -> RecoveredDirectory:
    manifest_found = read_manifest(files, directory)
    state = manifest_found.state
    power_lost = not state.clean and state.boot != boot and state.policy is not SyncPolicy.ALWAYS
    judged = [
        judge(files, stream, _path_of(directory, stream), power_lost=power_lost) for stream in state.streams.values()
    ]
    if not state.clean:
        _sync_found(files, directory, judged)
    state.streams = {found.state.key: found.state for found in judged}
    state.policy, state.boot, state.clean = options.sync, boot, False
    space = DiskSpace(files, directory, options)
    manifest = Manifest(files, directory, space, manifest_found, growth_bytes=options.manifest_bytes)
    for found in judged:
        carry_out(files, found)
    _remove_unneeded(files, directory, state)
    image = NodeImage(tuple(_image_of(found) for found in judged), tuple(state.tombstones))
    return RecoveredDirectory(
        directory, files, space, manifest, {found.state.key: found.stream for found in judged}, image
    )


def _path_of(directory: Path, state: StreamState) -> Path:
    return directory / STREAMS / stream_name(state.key)


def _sync_found(files: Files, directory: Path, judged: list[Judged]) -> None:
    """After a crash of the process alone, found frames may be unsynced. From now on they count as durable."""
    for found in judged:
        for extent in found.scanned:
            fd = files.open(extent.path)
            try:
                files.sync(fd)
            finally:
                files.close(fd)
        if found.scanned:
            files.sync_directory(found.stream.path)
    files.sync_directory(directory / STREAMS)


def _remove_unneeded(files: Files, directory: Path, state: ManifestState) -> None:
    needed = {stream_name(key): stream.first_extent for key, stream in state.streams.items()}
    for name in files.names(directory / STREAMS):
        path = directory / STREAMS / name
        if name not in needed:
            remove_stream_directory(files, path)
            continue
        for extent in files.names(path):
            number = extent_number(extent)
            if number is not None and number < needed[name]:
                files.unlink(path / extent)


def _image_of(found: Judged) -> StreamImage:
    state = found.state
    return StreamImage(
        state.descriptor,
        found.frames,
        state.sealed,
        state.end,
        state.trim,
        state.data_loss,
        state.uncertain,
    )
