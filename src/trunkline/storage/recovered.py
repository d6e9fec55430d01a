"""Opens a node's directory: judges every stream, makes the verdicts durable, and leaves the files as they stand.

Streams that the manifest does not know are removed: they were never acknowledged, or are dropped.
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
    facts = manifest_found.facts
    power_lost = not facts.clean and facts.boot != boot and facts.policy is not SyncPolicy.ALWAYS
    judged = [
        judge(files, stream, _path_of(directory, stream), power_lost=power_lost) for stream in facts.streams.values()
    ]
    if not facts.clean:
        _sync_found(files, directory, judged)
    facts.streams = {found.facts.key: found.facts for found in judged}
    facts.policy, facts.boot, facts.clean = options.sync, boot, False
    space = DiskSpace(files, directory, options)
    manifest = Manifest(files, directory, space, manifest_found, growth_bytes=options.manifest_bytes)
    for found in judged:
        carry_out(files, found)
    _remove_what_is_not_needed(files, directory, facts)
    image = NodeImage(tuple(_image_of(found) for found in judged), tuple(facts.tombstones))
    return RecoveredDirectory(
        directory, files, space, manifest, {found.facts.key: found.stream for found in judged}, image
    )


def _path_of(directory: Path, facts: StreamState) -> Path:
    return directory / STREAMS / stream_name(facts.key)


def _sync_found(files: Files, directory: Path, judged: list[Judged]) -> None:
    """After the process alone has died, frames may be here that no sync has covered. From now on they count."""
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


def _remove_what_is_not_needed(files: Files, directory: Path, facts: ManifestState) -> None:
    needed = {stream_name(key): stream.first_extent for key, stream in facts.streams.items()}
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
    facts = found.facts
    return StreamImage(
        facts.descriptor,
        found.frames,
        facts.sealed,
        facts.end,
        facts.trim,
        facts.data_loss,
        facts.uncertain,
    )
