"""The time-outs that several roles and processes share, in milliseconds. No safety depends on them.

A time-out that a single role uses is in the config of that role.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Timing(Struct, frozen=True):
    """Each default suits a local network."""

    suspect_after_ms: int = 1000
    """Silence after which a node counts as failed. Too small: slow nodes end segments; too big: fail-over, reads and
    tail calls stall this long."""

    fill_after_ms: int = 200
    """How long a reader waits for a granted position before it fills it. Too small: slow writers lose their positions;
    too big: a dead writer stalls readers."""

    poll_ms: int = 50
    """Time between two attempts of a call that cannot be answered yet. Too small: load; too big: slow answers."""

    lease_ms: int = 3000
    """How long a node or a writer counts as alive after its last renewal. Too small: a busy process looks dead; too
    big: a dead one is replaced late."""

    @property
    def renew_ms(self) -> int:
        """Time between two renewals of a lease: two may get lost."""
        return self.lease_ms // 3


DEFAULT_TIMING: Final = Timing()
