"""Messages of the planner of a delivery pipeline: from its host, and to its worker and its control store.

The planner knows a destination by its name and never sees a row. It requests *jobs*, each with a number that is unique
in one life of the planner; an answer repeats the number. The host answers every job completely: a job that broke off is
answered with ``rest=UNKNOWN``.

Versions begin at 1. A window is half open, ``(after, through]``. A *mark* is a fingerprint of one version of one source
(``core/fence.py``); an empty mark is unknown.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.effects import Message


class Life(enum.Enum):
    """The desired state of a destination."""

    ACTIVE = "active"
    PAUSED = "paused"  # keeps its lease and its position, and is not written
    DRAINING = "draining"  # is brought to the present version, and then left alone
    RETIRED = "retired"  # is left alone at once, permanently


class SeedMode(enum.Enum):
    """The first contents of a destination without a position."""

    SCAN = "scan"  # the source at the present version
    START = "start"  # the source at the oldest available version; windows follow
    NOW = "now"  # nothing; only later changes follow


class Outcome(enum.Enum):
    """The outcome of a job for one destination."""

    STANDS = "stands"  # read: it is at ``position``, last written under ``token``
    STRAYED = "strayed"  # read: the history of the source lacks its version; a flush: or that of the window
    APPLIED = "applied"  # written; it is at ``position`` now
    ALREADY = "already"  # it was already at ``position``; nothing was written
    EMPTY = "empty"  # the whole window was read and changes nothing; nothing was written
    MOVED = "moved"  # it is not at the expected position; nothing was written
    FENCED = "fenced"  # it was written under the higher ``token``; nothing was written
    EXPIRED = "expired"  # the source no longer has this window: only a seed helps; nothing was written
    TRANSIENT = "transient"  # nothing was written; a retry may succeed
    PERMANENT = "permanent"  # nothing was written; an operator has to resolve it
    UNKNOWN = "unknown"  # it may have been written


class Span(Struct, frozen=True, array_like=True):
    """The versions ``(after, through]``."""

    after: int
    through: int


NO_SPAN = Span(0, 0)


# ------------------------------------------------------------------------------------------------ from the host


class Planned(Struct, frozen=True, array_like=True):
    """One destination of the pipeline, as configured."""

    destination: str
    life: Life = Life.ACTIVE
    seed: SeedMode = SeedMode.SCAN
    digest: str = ""  # of everything that selects its rows; when it changes, the next grant must request a seed
    reseeds: bool = True  # False: it halts when its position has expired, because a seed would replace what it holds
    place: str = ""  # destinations of one place cannot be written at the same time; empty: none


class Configured(Message, frozen=True):
    """All destinations of the pipeline. Those that are no longer named are left alone.

    The ``life`` of an existing destination counts only if it differs from the configured one before.
    """

    destinations: tuple[Planned, ...]


class LifeChanged(Message, frozen=True):
    """An operator pauses, resumes, drains or retires a destination. ACTIVE also ends a halt."""

    destination: str
    life: Life


class ReseedAsked(Message, frozen=True):
    """An operator requests a new seed of a destination. ``request`` numbers such requests, from 1."""

    destination: str
    request: int
    insists: bool = True  # as in a grant; so is the next
    discards: bool = False


class SourceAt(Message, frozen=True):
    """The version of the source. It may come late or twice: versions only grow within one history.

    ``stops`` adds to earlier ones. ``rows`` and ``size_bytes`` estimate what came since the last message.
    """

    version: int
    oldest: int = 1  # the oldest version that can still be an `after`
    stops: tuple[int, ...] = ()  # versions that a window may end at, but not cross
    rows: int = 0
    size_bytes: int = 0
    first: int = 0  # the first version with a table to seed from: ``oldest`` may be before it
    history: int = 0  # grows when the source was replaced or restored: earlier messages no longer count


class Grant(Struct, frozen=True, array_like=True):
    """A destination that this deliverer owns."""

    destination: str
    token: int  # from 1 on; grows with each change of owner
    empty: Span = NO_SPAN  # a noted window without rows
    reseed: int = 0  # number of an open request for a seed
    settled: bool = False  # its last owner released it as settled: no write in flight can succeed
    empty_mark: str = ""  # of the version at which ``empty`` ends
    insists: bool = False  # an operator requested the seed: it replaces whatever the destination holds
    discards: bool = False  # histories, too


class LeasesGranted(Message, frozen=True):
    grants: tuple[Grant, ...]


class Lost(Struct, frozen=True, array_like=True):
    destination: str
    token: int


class LeasesLost(Message, frozen=True):
    """These grants no longer hold, or may not. They may be granted again, even under the same token."""

    lost: tuple[Lost, ...]


class Shutdown(Message, frozen=True):
    """Start nothing more (``drain``: bring everything to the present version first), then complete with Stopped.

    A second one without ``drain`` ends the draining of the first.
    """

    operation: int
    drain: bool = False


class Result(Struct, frozen=True, array_like=True):
    """The result of a job for one destination."""

    destination: str
    outcome: Outcome
    position: int = 0  # 0: it has no record of a position
    token: int = 0
    error: str = ""  # says what to do next
    mark: str = ""  # of ``position``: as stored in the destination, if it was read; of a seed, if not that of the job
    note_holds: bool = True  # read: the requested note is of the history of the source
    removed: int = 0  # rows; this and the following are statistics, which the planner does not use
    written: int = 0
    duplicates: int = 0  # rows that shared a key with another row
    missing: int = 0  # keys to remove or replace that were not there
    reshaped: str = ""  # what was done to the columns, and what it cost
    ahead: int = 0  # read: some of its tables are at this later version, and it must end there next; 0: none


class JobDone(Message, frozen=True):
    """Results of a job, perhaps for a part of its destinations.

    ``rest`` ends the job and holds for destinations without a result: EMPTY if the whole window was read and has
    nothing for them, UNKNOWN if the job broke off. ``None``: more results follow.
    """

    job: int
    results: tuple[Result, ...]
    rest: Outcome | None = Outcome.UNKNOWN
    error: str = ""  # of the rest
    mark: str = ""  # of the last version that the job read


# ------------------------------------------------------------------------------------------------ jobs for the worker


class Note(Struct, frozen=True, array_like=True):
    """The empty window of a destination ends at this version."""

    destination: str
    through: int
    mark: str


class ReadStandings(Message, frozen=True):
    """Read position, token and mark of each destination, then compare them and the notes with the source.

    Answered with STANDS, STRAYED, TRANSIENT, PERMANENT or UNKNOWN.
    """

    job: int
    destinations: tuple[str, ...]
    notes: tuple[Note, ...] = ()


class JobMember(Struct, frozen=True, array_like=True):
    """One destination of a job."""

    destination: str
    expected: int  # the position that it must have when it is written
    token: int
    mark: str = ""  # of ``expected``
    ahead: int = 0  # some of its tables are at this later version; a flush ends there (P16)
    discards: bool = False  # a seed replaces histories, too; else it adds to them


class FlushGroup(Message, frozen=True):
    """Read ``(after, through]`` once, and bring each member from its expected position to ``through``.

    ``stamp``: the position is written even without rows, so EMPTY is not a valid answer. The window may then be empty
    itself, ``after == through``. If the source has another mark for ``after``, the answer is STRAYED.
    """

    job: int
    after: int
    through: int
    members: tuple[JobMember, ...]
    stamp: bool = False
    mark: str = ""  # of `after`


class SeedGroup(Message, frozen=True):
    """Replace each member by its part of the source at ``through``; NOW: by nothing. EMPTY is not a valid answer.

    A seed may be of another version, as that of another destination which it copies: the answer says of which, and its
    mark.
    """

    job: int
    through: int
    mode: SeedMode
    members: tuple[JobMember, ...]


# ------------------------------------------------------------------------------------------ notes for the control store


class Emptied(Struct, frozen=True, array_like=True):
    destination: str
    token: int
    position: int  # stored; its part of the source is the same here and at ``through``


class RecordEmpty(Message, frozen=True):
    through: int
    emptied: tuple[Emptied, ...]
    mark: str = ""  # of `through`


class Reseeded(Message, frozen=True):
    """The request for a seed with this number is done."""

    destination: str
    token: int
    request: int


class Released(Struct, frozen=True, array_like=True):
    destination: str
    token: int
    settled: bool  # for the next grant: its owner may then begin without a write. Clear it with each grant


class ReleaseLeases(Message, frozen=True):
    """Nothing is in flight to these from here, and nothing will be until the next grant."""

    released: tuple[Released, ...]


class FencedOff(Message, frozen=True):
    """The destination was written under ``seen``, above the ``token`` of this deliverer, which leaves it alone.

    If the control store never granted so high a token, it must grant a higher one next time.
    """

    destination: str
    token: int
    seen: int
