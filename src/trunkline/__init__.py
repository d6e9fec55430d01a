"""Trunkline: one totally ordered, replicated log of changes, and its delivery to many tables.

    async with trunkline.connect("127.0.0.1:7400") as cluster:
        log = await cluster.log("orders")
        glsn = await log.append(b"hello")

``trunkline.sync`` offers the same without ``await``. Names are loaded at their first use, so that the checker's
workers, which need the protocol only, do not load the network.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trunkline import errors, sync
    from trunkline.client.batcher import BatchOptions
    from trunkline.client.cluster import ClientOptions, Cluster, connect
    from trunkline.client.entries import Batch, Entry
    from trunkline.client.log import Log
    from trunkline.errors import (
        ConditionFailed,
        ConfigError,
        CorruptEntry,
        DestinationHalted,
        DuplicateKey,
        EntriesLost,
        Fenced,
        Hole,
        LogSealed,
        NoSuchLog,
        NotWritten,
        OutcomeUnknown,
        OwnedByAnother,
        PositionMoved,
        ProtocolError,
        Refused,
        SchemaMismatch,
        SourceExpired,
        StorageError,
        Trimmed,
        TrunklineError,
        Unreachable,
    )

    __version__: str

__all__ = [
    "Batch",
    "BatchOptions",
    "ClientOptions",
    "Cluster",
    "ConditionFailed",
    "ConfigError",
    "CorruptEntry",
    "DestinationHalted",
    "DuplicateKey",
    "EntriesLost",
    "Entry",
    "Fenced",
    "Hole",
    "Log",
    "LogSealed",
    "NoSuchLog",
    "NotWritten",
    "OutcomeUnknown",
    "OwnedByAnother",
    "PositionMoved",
    "ProtocolError",
    "Refused",
    "SchemaMismatch",
    "SourceExpired",
    "StorageError",
    "Trimmed",
    "TrunklineError",
    "Unreachable",
    "__version__",
    "connect",
    "errors",
    "sync",
]

_MODULES = ("errors", "sync")
_ELSEWHERE = {
    "Batch": "trunkline.client.entries",
    "BatchOptions": "trunkline.client.batcher",
    "ClientOptions": "trunkline.client.cluster",
    "Cluster": "trunkline.client.cluster",
    "Entry": "trunkline.client.entries",
    "Log": "trunkline.client.log",
    "connect": "trunkline.client.cluster",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'trunkline' has no attribute {name!r}")
    value: object
    if name == "__version__":
        value = importlib.import_module("trunkline.version").version()
    elif name in _MODULES:
        value = importlib.import_module(f"trunkline.{name}")
    else:
        value = getattr(importlib.import_module(_ELSEWHERE.get(name, "trunkline.errors")), name)
    globals()[name] = value  # later uses do not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
