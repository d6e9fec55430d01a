"""Settings of the storage engine."""

from __future__ import annotations

import enum

from msgspec import Struct

KIB = 1 << 10
MIB = 1 << 20


class SyncPolicy(enum.Enum):
    """When a written frame is synced. Everything that is no frame is synced before it is answered, always."""

    ALWAYS = "always"  # before it is answered
    INTERVAL = "interval"  # some time after; a power cut loses unsealed streams
    NEVER = "never"  # when the kernel likes; a power cut loses unsealed streams


class StorageOptions(Struct, frozen=True, forbid_unknown_fields=True):
    sync: SyncPolicy = SyncPolicy.ALWAYS
    # Of ``interval``. Too big: a power cut takes more with it. Too small: as slow as ``always``.
    interval_ms: int = 50
    # Too big: a restart reads more (the last extent of each open stream) and trim frees space late. Too small: many
    # files, and a sync of directories at each new one.
    extent_bytes: int = 64 * MIB
    # Kept free for fills, seals and manifests. Too big: wasted. Too small: a full disk stops them, and readers wait.
    reserve_bytes: int = 64 * MIB
    # Appends are refused when less than this is free besides the reserve. Too big: space that is never used. Too
    # small: a large batch meets a full disk and takes the reserve.
    margin_bytes: int = 16 * MIB
    # The manifest is written anew when it grew by this much. Too big: a restart reads more. Too small: more writes.
    manifest_bytes: int = 256 * KIB
    # Of one call of ``read``. Too big: other requests wait for it. Too small: many calls for small batches.
    read_bytes_max: int = MIB
    # Too big: appends and reads wait for the scrubber. Too small: rot is found late.
    scrub_bytes_per_s: int = 8 * MIB

    def __post_init__(self) -> None:
        if not 4 * KIB <= self.extent_bytes <= 1024 * MIB:
            raise ValueError(f"extent_bytes is {self.extent_bytes}: choose 4 KiB to 1 GiB")
        for name in ("manifest_bytes", "interval_ms", "read_bytes_max", "scrub_bytes_per_s"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: choose 1 or more")
        for name in ("reserve_bytes", "margin_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: choose 0 or more")
