"""A node's directory: its owner, its lock and its layout.

identity          cluster, node and incarnation, with a checksum
lock              held by the process that uses the directory
manifest.a, .b    the state of streams besides their frames
reserve           space for fills, seals and manifests
streams/          a directory for each stream, with its extents
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from trunkline.core.streams import Key
from trunkline.storage.errors import AnotherVersion, CorruptDirectory, DirectoryInUse, NotFormatted, StorageError
from trunkline.storage.files import PRIVATE_DIRECTORY, Files, RealFiles, read_all, write_whole
from trunkline.storage.layout import checksum
from trunkline.storage.manifest import create_manifest

IDENTITY = "identity"
LOCK = "lock"
STREAMS = "streams"
VERSION = 1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOT_OURS = ("lost+found",)  # of an empty file system
NAME_BYTES_MAX = 200  # of a stream's directory; a longer name is cut and gets a digest
EXTENT_SUFFIX = ".extent"


class Identity(Struct, frozen=True):
    cluster: str
    node: str
    incarnation: int  # random, chosen when the directory is formatted: a wiped node is a new node


class _IdentityFile(Struct, frozen=True):
    version: int
    identity: Identity


class _Versioned(Struct, frozen=True):
    """The part that every version of the file has."""

    version: int


def format_directory(directory: Path, cluster: str, node: str, files: Files | None = None) -> Identity:
    """Format an empty directory for a new node."""
    files = files or RealFiles()
    try:
        if not directory.exists() and isinstance(files, RealFiles):
            directory.mkdir(PRIVATE_DIRECTORY, parents=True)
            files.sync_directory(directory.parent)
        present = [name for name in files.names(directory) if name not in NOT_OURS]
        if IDENTITY in present:
            raise StorageError(f"{directory} is already formatted: start the node with it, or choose another directory")
        if present:
            raise StorageError(f"{directory} is not empty (it holds {present[0]}): choose an empty directory")
        identity = Identity(cluster, node, secrets.randbits(63))
        files.make_directory(directory / STREAMS)
        files.close(files.open(directory / LOCK, create=True))
        create_manifest(files, directory)
        # Last: it vouches for everything else.
        _write_checked(files, directory / IDENTITY, msgspec.json.encode(_IdentityFile(VERSION, identity)))
    except OSError as failure:
        raise StorageError(f"cannot format {directory}: {failure}") from failure
    return identity


def read_identity(directory: Path, files: Files | None = None) -> Identity:
    files = files or RealFiles()
    try:
        present = files.names(directory)
    except OSError as failure:
        raise NotFormatted(f"cannot open {directory}: {failure.strerror}; format it first") from failure
    if IDENTITY not in present:
        raise NotFormatted(f"{directory} is not formatted: format it first")
    content = _read_checked(files, directory / IDENTITY)
    try:
        version = msgspec.json.decode(content or b"", type=_Versioned).version
        if version != VERSION:
            raise AnotherVersion(str(directory / IDENTITY), version, VERSION)
        return msgspec.json.decode(content or b"", type=_IdentityFile).identity
    except msgspec.MsgspecError as failure:
        raise CorruptDirectory(
            f"{directory / IDENTITY} is corrupt: replace the node (remove it, format an empty directory, add it)"
        ) from failure


def lock_directory(files: Files, directory: Path) -> int:
    """Returns the lock file; closing it, or the end of the process, releases the lock."""
    exists = LOCK in files.names(directory)
    fd = files.open(directory / LOCK, create=not exists)
    if not files.lock(fd):
        files.close(fd)
        raise DirectoryInUse(f"another process uses {directory}: stop it, or choose another directory")
    return fd


def boot_id() -> str:
    """Changes with every boot of the machine: a power cut changes it."""
    return BOOT_ID.read_text().strip()


def _write_checked(files: Files, path: Path, content: bytes) -> None:
    write_whole(files, path, b"%s\n%08x\n" % (content, checksum(content)))


def _read_checked(files: Files, path: Path) -> bytes | None:
    fd = files.open(path)
    try:
        content, _, rest = read_all(files, fd).partition(b"\n")
    finally:
        files.close(fd)
    return content if rest == b"%08x\n" % checksum(content) else None


# ----------------------------------------------------------------------------------------------------------- the names


def stream_name(key: Key) -> str:
    """The name of a stream's directory: unique for each key."""
    log, stream = (quote(part, safe="").replace(".", "%2E").replace("~", "%7E") for part in key)
    name = f"{log}~{stream}"
    if len(name) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: NAME_BYTES_MAX - 34]}~~{digest}"  # no short name has "~~"


def extent_name(number: int) -> str:
    return f"{number:08d}{EXTENT_SUFFIX}"


def extent_number(name: str) -> int | None:
    digits = name.removesuffix(EXTENT_SUFFIX)
    return int(digits) if name.endswith(EXTENT_SUFFIX) and digits.isascii() and digits.isdigit() else None
