"""What a control store promises: ownership, desired states, and notes that many deliverers of one pipeline share.

No row of a destination depends on it: positions and tokens are checked in the destination itself. A store that is lost
costs time, never data. Calls block; any thread may call, one call runs at a time. One contract suite holds every kind
of store to this.

Rules
 C1  A destination has at most one owner. Its token grows with each change of owner, for ever: also after it was
     released, retired, or taken out of the configuration.
 C2  One lease per deliverer covers all it holds, by the store's clock. When it has run out, others may take what it
     held; what nobody took is still its own when it renews.
 C3  A deliverer takes at most its share, destinations / live deliverers, rounded up. One that holds more gives the
     surplus back.
 C4  What a deliverer records about a destination (empty windows, status, completed reseeds) counts only with the token
     of the present grant.
 C5  An empty window says: the source has nothing for the destination in ``(after, through]``. It holds while the
     routing that was configured does, and only for a stored position in it: one below ``after`` (a restored backup)
     must not skip to ``through``. It holds in the history of the source that has the mark of ``through``.
 C6  One configuration at a time: the last one given to ``configure``. Whoever works by another gets ``ConfigError``.
 C7  ``revision`` grows with every change of configuration, desired states, owners and deliverers. Renewals, empty
     windows and statuses do not change it.
 C8  Every call may be repeated: after ``OutcomeUnknown`` do the same again. ``Unreachable`` means that nothing changed,
     and time may mend it; ``ConfigError`` that a person has to (address, credential, permission, a file that is not
     ours); ``StorageError`` that the store is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct

from trunkline.delivery.changes.windows import Window

DesiredState = Literal["active", "paused", "draining", "retired"]

UNROUTED_VALUES_MAX: Final = 10_000  # values counted one by one, later ones as others; more: a larger answer to status
ERROR_CHARACTERS_MAX: Final = 4_000  # of a status; the rest is cut off
NOTHING_EMPTY: Final = Window(0, 0)


class Share(Struct, frozen=True):
    """How the destinations of a pipeline lie among its deliverers, seen by one of them."""

    revision: int
    deliverers: int  # whose leases run, this one among them
    most: int  # as many destinations as one of them should hold (C3)
    held: int  # by this one
    free: int  # without an owner whose lease runs


class Grant(Struct, frozen=True):
    """One destination that a deliverer owns."""

    name: str
    token: int
    desired_state: DesiredState
    empty: Window  # (C5); NOTHING_EMPTY: nothing is known
    reseed: int  # number of an operator's request to seed it again, 0 without one
    empty_mark: str = ""  # of the version at which ``empty`` ends; empty: not known
    insists: bool = False  # an operator asked for it, not only a changed configuration: whatever is there is replaced


class Held(Struct, frozen=True):
    """Everything that a deliverer owns, sorted by name."""

    share: Share
    grants: tuple[Grant, ...]


class Emptied(Struct, frozen=True):
    """A destination for which a window held nothing: from its stored position on."""

    name: str
    token: int
    position: int


class Status(Struct, frozen=True, omit_defaults=True):
    """What was last seen of a destination, for people."""

    state: str = ""  # the planner's word: idle, flushing, seeding, backing off, halted, ...
    position: int | None = None
    lag_versions: int | None = None
    lag_ms: int | None = None
    flushed_at_ms: int | None = None  # since 1970, by the deliverer's clock
    rows: int = 0  # removed and written by the last flush
    rows_total: int = 0  # since this deliverer got it
    error: str = ""


class Reported(Struct, frozen=True):
    name: str
    token: int
    status: Status


class DestinationRecord(Struct, frozen=True):
    """All that the store knows of one destination."""

    name: str
    value: str | None  # the routing value for which it was discovered; None: it is in the configuration file
    configured: bool  # False: neither in the present configuration nor discovered by it
    desired_state: DesiredState
    retired: bool  # its retirement is complete: it has no owner and no position
    reseed: int
    owner: str | None  # None: nobody, or a deliverer whose lease ran out
    token: int  # the last one granted
    empty: Window
    status: Status | None  # None: nothing was reported yet


class DelivererRecord(Struct, frozen=True):
    name: str
    live: bool
    renewed_ms_ago: int
    held: int


class PipelineRecord(Struct, frozen=True):
    digest: str  # of the present configuration
    revision: int
    discovered: dict[str, str]  # name of a destination: routing value; retired ones too


class Unrouted(Struct, frozen=True):
    """Rows that no destination takes, by routing value."""

    values: dict[str, int]
    nulls: int = 0
    others: int = 0  # of values beyond UNROUTED_VALUES_MAX

    @property
    def rows(self) -> int:
        return sum(self.values.values()) + self.nulls + self.others


class ControlStore(Protocol):
    """Shared by all deliverers of any number of pipelines.

    Opening it does not connect; every call may raise as C8 says.
    """

    def pipeline(self, pipeline: str) -> PipelineRecord | None:
        """The pipeline's record, ``None`` before the first ``configure``."""
        ...

    def configure(self, pipeline: str, digest: str, destinations: Mapping[str, str]) -> PipelineRecord:
        """Make this the pipeline's configuration (C6): each destination's name, and a digest of what decides its rows.

        Where a destination's digest changed, its empty window is forgotten, it has no owner any more, and a new seed is
        asked for: other rows are its own now. (One that was not configured in between is compared with what it was
        before.) If the pipeline's digest changed, destinations that are not named are no longer configured.
        Destinations discovered meanwhile by another deliverer are in the answer: add them with ``discover``.
        """
        ...

    def discover(self, pipeline: str, digest: str, found: Mapping[str, tuple[str, str]]) -> None:
        """Add destinations: name to (routing value, digest).

        Those that are there stay. Two values for one name: ``ConfigError``.
        """
        ...

    def acquire(self, pipeline: str, deliverer: str, digest: str, lease_ms: int) -> Held:
        """Renew the lease, take free destinations up to the share, and tell all that is held.

        ``deliverer`` names one start of one process and is never used again. A destination that is to be retired is
        granted until it is ``retired``.
        """
        ...

    def renew(self, pipeline: str, deliverer: str, lease_ms: int) -> Share:
        """Renew the lease; call it every ``lease_ms / 3``. One write, however many destinations are held.

        Then: another ``revision`` than before, or ``free > 0`` and ``held < most``: call ``acquire``; ``held > most``:
        release some. Count the lease from before the call, by your own clock: past it, start nothing until a renewal
        has come through.
        """
        ...

    def release(self, pipeline: str, deliverer: str, names: Sequence[str]) -> None:
        """Give destinations back; those that are not held any more are passed over."""
        ...

    def leave(self, pipeline: str, deliverer: str) -> None:
        """Give everything back and end the lease."""
        ...

    def revision(self, pipeline: str) -> int:
        """A cheap read, to be polled (C7); 0 before the first ``configure``."""
        ...

    def record_empty(self, pipeline: str, through: int, emptied: Sequence[Emptied], mark: str = "") -> int:
        """Note an empty window up to ``through``, with its mark, for each; returns for how many it counted (C4)."""
        ...

    def report(self, pipeline: str, reports: Sequence[Reported]) -> None:
        """Note what was last seen (C4). To be called when something changed, not to say that nothing did."""
        ...

    def set_desired_state(
        self,
        pipeline: str,
        names: Sequence[str],
        desired_state: DesiredState,
        *,
        instead_of: DesiredState | None = None,
    ) -> tuple[str, ...]:
        """Set the desired state of destinations; returns those that it changed.

        ``instead_of``: only where that is the present one (so a deliverer pauses a destination that it has drained).
        A retired destination that becomes active starts over. A name that the pipeline does not have: ``ConfigError``,
        and nothing changes.
        """
        ...

    def ask_reseed(self, pipeline: str, names: Sequence[str]) -> None:
        """Ask for a new seed of these. A name that the pipeline does not have: ``ConfigError``, and nothing changes."""
        ...

    def reseeded(self, pipeline: str, name: str, token: int, request: int) -> None:
        """The request was carried out (C4); a later request stays. The empty window is forgotten."""
        ...

    def retired(self, pipeline: str, name: str, token: int) -> None:
        """A retired destination has no position record any more (C4): it has no owner, and gets none until made active.

        If the desired state has changed meanwhile, it only loses its owner, and begins anew with the next.
        """
        ...

    def raise_tokens(self, pipeline: str, floors: Mapping[str, int]) -> None:
        """Make the next grant of each destination higher than this, and take it from its owner.

        For a destination that knows a higher token than this store ever gave: the store was lost, or it is not the only
        one.
        """
        ...

    def count_unrouted(self, pipeline: str, window: Window, unrouted: Unrouted) -> int:
        """Add the rows of a window if the counts end at its ``after``, and move them to its ``through``, all at once.

        Returns how far the counts reach now: other than ``window.through``, and nothing was added.
        """
        ...

    def take_counts_back(self, pipeline: str, version: int) -> None:
        """The source was taken back to this version: rows that come after it are counted again."""
        ...

    def unrouted(self, pipeline: str) -> tuple[int, Unrouted]:
        """How far rows are counted, and the counts."""
        ...

    def destinations(self, pipeline: str) -> tuple[DestinationRecord, ...]:
        """Every destination that the pipeline ever had, sorted by name."""
        ...

    def deliverers(self, pipeline: str) -> tuple[DelivererRecord, ...]:
        """Who delivers, sorted by name; one whose lease ran out is told until another has taken notice."""
        ...

    def close(self) -> None: ...
