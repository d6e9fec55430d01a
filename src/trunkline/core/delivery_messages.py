"""What the planner of a delivery pipeline is told by its host, and what it asks of its worker and its control store.

The planner knows a destination by its name and never sees a row. It asks for *jobs*, each with a number that is never
used again in one life of the planner; an answer repeats the number. The host answers every job to its end: a job that
broke off is answered with ``rest=UNKNOWN``.

Versions begin at 1. A window is half open, ``(after, through]``. A *mark* is a short text that only one version of one
source has (``core/fence.py``); an empty one is not known.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.effects import Message


class Life(enum.Enum):
    """What an operator wants of a destination."""

    ACTIVE = "active"
    PAUSED = "paused"  # keeps its lease and its place, and is not written
    DRAINING = "draining"  # is brought to the version of this moment, and then left alone
    RETIRED = "retired"  # is left alone at once, and for good


class SeedMode(enum.Enum):
    """What a destination without a position begins with."""

    SCAN = "scan"  # the source as it is
    START = "start"  # the source as it was at the first version that it can still tell; its history follows in windows
    NOW = "now"  # nothing; only later changes follow


class Outcome(enum.Enum):
    """How a job went for one destination."""

    STANDS = "stands"  # a reading: it is at ``position``, last written under ``token``
    STRAYED = "strayed"  # a reading: so it is, but the source's history has no such version; a flush: nor the window's
    APPLIED = "applied"  # written; it is at ``position`` now
    ALREADY = "already"  # it was there already, at ``position``; nothing was written
    EMPTY = "empty"  # the window was read to its end: it is the same at both ends; nothing was written
    MOVED = "moved"  # it is not where the flush was planned from; nothing was written
    FENCED = "fenced"  # it was written under the higher ``token``; nothing was written
    EXPIRED = "expired"  # the source cannot tell this window any more, so only a new seed helps; nothing was written
    TRANSIENT = "transient"  # nothing was written, and time may mend it
    PERMANENT = "permanent"  # nothing was written, and somebody has to mend it
    UNKNOWN = "unknown"  # it may have been written


class Span(Struct, frozen=True, array_like=True):
    """The versions ``(after, through]``."""

    after: int
    through: int


NO_SPAN = Span(0, 0)


# ------------------------------------------------------------------------------------------------ the host's news


class Planned(Struct, frozen=True, array_like=True):
    """One destination of the pipeline, as configured."""

    destination: str
    life: Life = Life.ACTIVE
    seed: SeedMode = SeedMode.SCAN
    digest: str = ""  # of all that decides which rows are its own; when it changes, a new grant must ask for a new seed
    reseeds: bool = True  # False: it halts when its position has expired, as a seed would replace what it holds
    place: str = ""  # destinations of one place cannot be written at the same time; empty: it has none in common


class Configured(Message, frozen=True):
    """All destinations of the pipeline. Those that are not named any more are left alone from now on.

    The ``life`` of one that was there before counts only if it differs from what was configured before.
    """

    destinations: tuple[Planned, ...]


class LifeChanged(Message, frozen=True):
    """An operator pauses, resumes, drains or retires a destination. ACTIVE also ends a halt."""

    destination: str
    life: Life


class ReseedAsked(Message, frozen=True):
    """An operator wants a destination replaced by a new seed. ``request`` numbers such wishes, from 1 on."""

    destination: str
    request: int
    insists: bool = True  # as in a grant


class SourceAt(Message, frozen=True):
    """How far the source is. It may be told again and late: versions only grow, within one history.

    ``stops`` adds to those told before. ``rows`` and ``size_bytes`` estimate what came since the last telling.
    """

    version: int
    oldest: int = 1  # the oldest version that can still be an `after`
    stops: tuple[int, ...] = ()  # versions that a window may end at, but not cross
    rows: int = 0
    size_bytes: int = 0
    first: int = 0  # the first version at which there is something to seed from: ``oldest`` may be before the table
    history: int = 0  # grows when the source was replaced or taken back: what was told before does not count any more


class Grant(Struct, frozen=True, array_like=True):
    """A destination that this deliverer owns."""

    destination: str
    token: int  # from 1 on; grows with each change of owner
    empty: Span = NO_SPAN  # its part of the source is the same at both ends, as the control store knows
    reseed: int = 0  # number of a wish for a new seed that nobody has fulfilled
    settled: bool = False  # its last owner released it and said so: nothing that is still on its way can be written
    empty_mark: str = ""  # of the version at which ``empty`` ends
    insists: bool = False  # an operator himself wants the seed: whatever the destination holds is replaced


class LeasesGranted(Message, frozen=True):
    grants: tuple[Grant, ...]


class Lost(Struct, frozen=True, array_like=True):
    destination: str
    token: int


class LeasesLost(Message, frozen=True):
    """These grants do not hold any more, or may not. They may be granted again, under the same token too."""

    lost: tuple[Lost, ...]


class Shutdown(Message, frozen=True):
    """Start nothing more (``drain``: bring everything to the version of this moment first), then complete with Stopped.

    A second one without ``drain`` ends the draining of the first.
    """

    operation: int
    drain: bool = False


class Result(Struct, frozen=True, array_like=True):
    """How a job went for one destination."""

    destination: str
    outcome: Outcome
    position: int = 0  # 0: it has no record of a position
    token: int = 0
    error: str = ""  # says what to do next
    mark: str = ""  # a reading: of ``position``, as the destination has it
    note_holds: bool = True  # a reading: the note that was asked about is of the source's history


class JobDone(Message, frozen=True):
    """Results of a job, perhaps of a part of its destinations.

    ``rest`` ends the job and holds for those destinations that had no result: EMPTY if the window was read to its end
    and has nothing for them, UNKNOWN if the job broke off. ``None``: there is more to come.
    """

    job: int
    results: tuple[Result, ...]
    rest: Outcome | None = Outcome.UNKNOWN
    error: str = ""  # of the rest
    mark: str = ""  # of the version that the job read up to


# ------------------------------------------------------------------------------------------------ jobs for the worker


class Note(Struct, frozen=True, array_like=True):
    """A destination's empty stretch ends at this version."""

    destination: str
    through: int
    mark: str


class ReadStandings(Message, frozen=True):
    """Read position, token and mark in each destination, and then compare them, and the notes, with the source.

    Answered with STANDS, STRAYED, TRANSIENT, PERMANENT or UNKNOWN.
    """

    job: int
    destinations: tuple[str, ...]
    notes: tuple[Note, ...] = ()


class JobMember(Struct, frozen=True, array_like=True):
    """One destination of a group."""

    destination: str
    expected: int  # the position that it must still have when it is written
    token: int
    mark: str = ""  # and the mark of that


class FlushGroup(Message, frozen=True):
    """Read ``(after, through]`` once, and bring each member from its expected position to ``through``.

    ``stamp``: the position is written also where the window has no rows, so EMPTY is no answer. The window may then be
    empty itself, ``after == through``. If the source has another mark for ``after``, the answer is STRAYED.
    """

    job: int
    after: int
    through: int
    members: tuple[JobMember, ...]
    stamp: bool = False
    mark: str = ""  # of `after`


class SeedGroup(Message, frozen=True):
    """Replace each member by its part of the source as of ``through``; NOW: by nothing. EMPTY is no answer."""

    job: int
    through: int
    mode: SeedMode
    members: tuple[JobMember, ...]


# ------------------------------------------------------------------------------------------------ notes for the control


class Emptied(Struct, frozen=True, array_like=True):
    destination: str
    token: int
    position: int  # the stored one; its part of the source is the same here and at ``through``


class RecordEmpty(Message, frozen=True):
    through: int
    emptied: tuple[Emptied, ...]
    mark: str = ""  # of `through`


class Reseeded(Message, frozen=True):
    """The wish for a new seed with this number was fulfilled."""

    destination: str
    token: int
    request: int


class Released(Struct, frozen=True, array_like=True):
    destination: str
    token: int
    settled: bool  # to be told to its next owner, who may then begin without a write. Forget it with each grant


class ReleaseLeases(Message, frozen=True):
    """Nothing is in flight to these from here, and nothing will be until they are granted anew."""

    released: tuple[Released, ...]


class FencedOff(Message, frozen=True):
    """The destination was written under ``seen``, above this deliverer's ``token``: it was left alone.

    If the control store never gave so high a token, it has to grant a higher one next time.
    """

    destination: str
    token: int
    seen: int
