"""The storage engine: keeps a node's log streams in files. The only place that opens log files."""

from trunkline.storage.directory import Identity, format_directory, read_identity
from trunkline.storage.engine import Engine, EngineStatus
from trunkline.storage.errors import (
    CorruptDirectory,
    DirectoryInUse,
    FrameDamaged,
    FrameMissing,
    NotFormatted,
    ReadError,
    StorageError,
)
from trunkline.storage.layout import frame_fits
from trunkline.storage.options import StorageOptions, SyncPolicy
from trunkline.storage.packed import PackedFrames
from trunkline.storage.scrub import ScrubStep
from trunkline.storage.sync import SyncBatch

__all__ = [
    "CorruptDirectory",
    "DirectoryInUse",
    "Engine",
    "EngineStatus",
    "FrameDamaged",
    "FrameMissing",
    "Identity",
    "NotFormatted",
    "PackedFrames",
    "ReadError",
    "ScrubStep",
    "StorageError",
    "StorageOptions",
    "SyncBatch",
    "SyncPolicy",
    "format_directory",
    "frame_fits",
    "read_identity",
]
