"""Whether a process is ready, and why it is not."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Readiness(msgspec.Struct, frozen=True):
    """``why`` is empty if it is ready. ``facts`` are told beside it."""

    why: tuple[str, ...] = ()
    facts: Mapping[str, str | float | None] = {}

    @property
    def ready(self) -> bool:
        return not self.why

    def body(self, kind: str, name: str) -> bytes:
        """As JSON, for ``/readyz``."""
        told = {"ready": self.ready, "why": self.why, "process": kind, "name": name, **self.facts}
        return msgspec.json.encode(told)
