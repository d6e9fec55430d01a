"""Whether a process is alive and ready, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Health(Struct, frozen=True):
    """A process that is not alive needs a restart. ``facts`` are shown beside it."""

    alive: bool = True
    facts: Mapping[str, object] = {}


class Readiness(Struct, frozen=True):
    """``why`` is empty if the process is ready. ``facts`` are shown beside it."""

    why: tuple[str, ...] = ()
    facts: Mapping[str, object] = {}

    @property
    def ready(self) -> bool:
        return not self.why
