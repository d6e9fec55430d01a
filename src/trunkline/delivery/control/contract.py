"""What a control store promises, and the values that go in and out.

No row of a destination depends on it: positions and tokens are checked in the destination itself. A lost store costs
time, never data. Calls block; any thread may call, one call runs at a time. One contract suite runs on every database.

Rules
 C1  A destination has at most one owner. Its token grows with each change of owner, for ever: also after a release, a
     retirement, or removal from the configuration.
 C2  One lease per deliverer covers all that it owns, by the store's clock. When it has expired, others may take what it
     owned; what no other took is still its own when it renews.
 C3  A deliverer takes at most its share, destinations / live deliverers, rounded up. One that holds more releases the
     surplus.
 C4  What a deliverer records about a destination (empty windows, status, completed reseeds) counts only with the token
     of the present ownership.
 C5  An empty window means: the source has nothing for the destination in ``(after, through]``. It holds for the
     configured routing, and only for a stored position inside it: one below ``after`` (a restored backup) must not skip
     to ``through``. It holds in the history of the source that has the mark of ``through``.
 C6  One configuration at a time: the last one given to ``configure``. A caller with another one gets ``ConfigError``.
 C7  ``revision`` grows with every change of configuration, desired states, owners and deliverers. Renewals, empty
     windows and statuses do not change it.
 C8  Every call may be repeated: after ``OutcomeUnknown`` repeat it. ``Unreachable`` means that nothing changed, and
     that a retry may succeed; ``ConfigError`` that an operator has to act (address, credential, permission, another
     program's file); ``StorageError`` that the store is damaged.
 C9  Destinations of one place have one owner: a place is taken and given up as a whole, though shares count
     destinations (``place_shares.py``). If an older program split one, its owners put it together again.
 C10 A repairer seizes destinations from their owners, with all that shares their places, and holds them by a lease of
     its own until it leaves. It does not count as a deliverer: it takes nothing else, and no share changes.
 C11 The tables of a set that hides something are recorded with their identities and columns before their rows are
     delivered, by any deliverer. A lost store loses them: what was renamed until the next record is not noticed by a
     seed.
 C12 Tables are known by their address, whatever the name of their destination: one that takes over an address is seeded
     again, unless the last one with it was configured with the same digest, and has no open request for a seed. So is a
     new one with an unknown address if some destination was removed, unless that one had the same digest. A lost store
     loses this: what changed in the file until the next start is not noticed.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from trunkline.delivery.changes.versions import Window
from trunkline.errors import Refused

DesiredState = Literal["active", "paused", "draining", "retired"]

UNROUTED_VALUES_MAX: Final = 10_000  # values counted one by one, later ones as others; more: a larger answer to status
ERROR_CHARACTERS_MAX: Final = 4_000  # of a status; the rest is cut off
NOTHING_EMPTY: Final = Window(0, 0)
REPAIRER: Final = "repair:"  # the names of repairers begin with it (C10)


class NoControlStore(Refused):
    """No deliverer has created the store yet."""


class FairShare(Struct, frozen=True):
    """How the destinations of a pipeline are spread over its deliverers, as one of them sees it."""

    revision: int
    deliverers: int  # with a live lease, this one included
    quota: int  # destinations that one of them should hold (C3)
    held: int  # by this one
    free: int  # without an owner with a live lease


class Ownership(Struct, frozen=True):
    """One destination that a deliverer owns."""

    name: str
    token: int
    desired_state: DesiredState
    empty: Window  # (C5); NOTHING_EMPTY: not known
    reseed: int  # number of the open reseed request, 0: none
    empty_mark: str = ""  # of the version at which ``empty`` ends; empty: not known
    insists: bool = False  # an operator requested it, not only a changed configuration: replace whatever is there
    discards: bool = False  # histories, too


class Holdings(Struct, frozen=True):
    """Everything that a deliverer owns, sorted by name."""

    share: FairShare
    ownerships: tuple[Ownership, ...]


class Status(Struct, frozen=True, omit_defaults=True):
    """The last known state of a destination, for operators."""

    state: str = ""  # the planner's stage: ready, flushing, seeding, backing off, halted, ...
    position: int | None = None
    lag_versions: int | None = None
    lag_ms: int | None = None
    flushed_at_ms: int | None = None  # since 1970, by the deliverer's clock
    rows: int = 0  # removed and written by the last flush
    rows_total: int = 0  # since this deliverer acquired it
    error: str = ""


class Reported(Struct, frozen=True):
    name: str
    token: int
    status: Status


class DestinationRecord(Struct, frozen=True):
    """All that the store holds about one destination."""

    name: str
    value: str | None  # the routing value for which it was discovered; None: it is in the configuration file
    configured: bool  # False: neither in the present configuration nor discovered by it
    desired_state: DesiredState
    retired: bool  # its retirement is complete: it has no owner and no position
    reseed: int
    owner: str | None  # None: none, or a deliverer whose lease expired
    token: int  # the last one granted
    empty: Window
    status: Status | None  # None: no report yet

    @property
    def halted(self) -> bool:
        return self.owner is not None and self.status is not None and self.status.state == "halted"


class DelivererRecord(Struct, frozen=True):
    name: str
    live: bool
    renewed_ms_ago: int
    held: int


class PipelineRecord(Struct, frozen=True):
    digest: str  # of the present configuration
    revision: int
    discovered: dict[str, str]  # name of a destination: routing value; retired ones too


class UnroutedCounts(Struct, frozen=True):
    """Unrouted rows, by routing value."""

    values: dict[str, int]
    nulls: int = 0
    others: int = 0  # of values beyond UNROUTED_VALUES_MAX

    @property
    def rows(self) -> int:
        return sum(self.values.values()) + self.nulls + self.others


class UnroutedSummary(Struct, frozen=True):
    """Unrouted rows of a pipeline up to version ``through``. ``values``: the most frequent first; None is NULL."""

    rows: int
    through: int
    values: tuple[tuple[str | None, int], ...]
