"""The storage engine: a node's log streams in files. Nothing else opens log files."""

from trunkline.storage.directory import Identity, format_directory, read_identity
from trunkline.storage.engine import Engine, EngineStatus
from trunkline.storage.errors import (
    AnotherVersion,
    CorruptDirectory,
    DirectoryInUse,
    FrameDamaged,
    FrameMissing,
    NotFormatted,
    ReadError,
    StorageError,
)
from trunkline.storage.files import PRIVATE_DIRECTORY, PRIVATE_FILE, make_private
from trunkline.storage.layout import frame_fits
from trunkline.storage.options import StorageOptions, SyncPolicy
from trunkline.storage.packed import PackedFrames
from trunkline.storage.scrub import ScrubStep
from trunkline.storage.sync import SyncBatch

__all__ = [
    "PRIVATE_DIRECTORY",
    "PRIVATE_FILE",
    "AnotherVersion",
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
    "make_private",
    "read_identity",
]
