"""Settings of the storage engine."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

KIB = 1 << 10
MIB = 1 << 20


class SyncPolicy(enum.Enum):
    """When a written frame is synced. Everything else is synced before it is acknowledged, always."""

    ALWAYS = "always"  # before it is acknowledged
    INTERVAL = "interval"  # soon afterwards; a power cut loses unsealed streams
    NEVER = "never"  # when the kernel writes it back; a power cut loses unsealed streams


class StorageOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """``TRADE_OFFS`` has the effects of each number."""

    sync: SyncPolicy = SyncPolicy.ALWAYS
    interval_ms: int = 50  # of the policy ``interval``
    extent_bytes: int = 64 * MIB
    reserve_bytes: int = 64 * MIB  # kept free for fills, seals and manifests
    margin_bytes: int = 16 * MIB  # appends are refused when less than this is free besides the reserve
    manifest_bytes: int = 256 * KIB  # the manifest is rewritten when it grew by this much
    scrub_bytes_per_s: int = 8 * MIB

    def __post_init__(self) -> None:
        if not 4 * KIB <= self.extent_bytes <= 1024 * MIB:
            raise ValueError(f"extent_bytes is {self.extent_bytes}: choose 4 KiB to 1 GiB")
        for name in ("manifest_bytes", "interval_ms", "scrub_bytes_per_s"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: choose 1 or more")
        for name in ("reserve_bytes", "margin_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: choose 0 or more")


REMOVED: Final = frozenset({"read_bytes_max"})  # keys of earlier versions: accepted, without effect

TRADE_OFFS: Final = {  # too small, too big
    "interval_ms": ("as slow as `always`", "a power cut loses more"),
    "extent_bytes": (
        "many files, and a sync of directories for each new one",
        "a restart reads more (the last extent of each open stream), and trim frees space late",
    ),
    "reserve_bytes": (
        "a full disk stops fills, seals and repairs, and readers wait; the last eighth is for the manifest",
        "wasted space",
    ),
    "margin_bytes": (
        "a large batch meets a full disk and takes the reserve, and replicas fill the disk",
        "space that is never used: a node accepts no replicas with less than four margins besides the reserve",
    ),
    "manifest_bytes": ("more writes", "a restart reads more"),
    "scrub_bytes_per_s": ("damage is found late", "appends and reads wait for the scrubber"),
}


def reference() -> str:
    """The table of docs/operations.md."""
    lines = ["| key | default | too small | too big |", "|---|---|---|---|"]
    defaults = StorageOptions()
    for key, (too_small, too_big) in TRADE_OFFS.items():
        lines.append(f"| `{key}` | {_shown(getattr(defaults, key))} | {too_small} | {too_big} |")
    return "\n".join(lines) + "\n"


def _shown(value: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if value >= unit:
            return f"{value // unit} {name}"
    return str(value)
