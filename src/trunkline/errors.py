"""Everything that can go wrong, one tree. Each branch says whether the thing happened.

TrunklineError
├── Refused                 it did not happen, and nothing was changed
│   ├── Unreachable         nobody who could do it answered in time
│   ├── NoSuchLog           there is no log of this name (or it was deleted)
│   ├── LogSealed           the log is read-only until it is reopened
│   ├── OwnedByAnother      a broadcast log has one writer, and it is somebody else: ``owner``
│   ├── ConditionFailed     the append was to take one exact position, and could not; ``tail`` is the next one
│   ├── NotWritten          the position is at or past the tail
│   ├── Hole                the position was filled as a hole: it holds no entry and never will
│   ├── Trimmed             the position was trimmed away; ``point`` is the last one that was
│   ├── EntriesLost         an operator declared the range ``[first, end)`` lost
│   ├── SourceExpired       the source no longer has the changes after this position
│   ├── Fenced              another deliverer has taken this destination over
│   ├── PositionMoved       the destination is not at the position that the flush was planned from
│   └── DestinationHalted   the destination cannot go on until somebody mends it
│       ├── DuplicateKey    two rows of the source share a key
│       └── SchemaMismatch  its columns cannot follow the source's
├── OutcomeUnknown          it may have happened: a time-out, a lost process, or the position is gone
├── ConfigError             wrong flags, environment, configuration file or argument: the caller's to mend
├── ProtocolError           a peer sent what this version does not understand
│   └── CorruptEntry        what lies at ``[first, end)`` is not what it should be
└── StorageError            a disk failed, is in use by another process, or does not hold what it should
"""

from __future__ import annotations


class TrunklineError(Exception):
    """Any error of Trunkline. The text says what to do next."""


class Refused(TrunklineError):
    """It did not happen, and nothing was changed."""


class Unreachable(Refused):
    """Nobody who could do it answered in time."""


class NoSuchLog(Refused):
    """There is no log of this name, or it was deleted."""


class LogSealed(Refused):
    """The log is read-only until it is reopened."""


class OwnedByAnother(Refused):
    """A broadcast log has one writer, and it is somebody else: ``owner``, by its name."""

    def __init__(self, text: str, owner: str = "") -> None:
        super().__init__(text)
        self.owner = owner


class ConditionFailed(Refused):
    """A conditional append did not get its position.

    ``tail`` is the position that it would have got instead. None: it was given the position and lost it again, and
    nobody has said which comes next; ask ``Log.tail``.
    """

    def __init__(self, text: str, tail: int | None = None) -> None:
        super().__init__(text)
        self.tail = tail


class NotWritten(Refused):
    """The position is at or past the tail."""


class Hole(Refused):
    """The position was filled as a hole: it holds no entry and never will."""


class Trimmed(Refused):
    """The position was trimmed away."""

    def __init__(self, point: int) -> None:
        super().__init__(f"positions up to {point} were trimmed away; read from {point + 1} on")
        self.point = point


class EntriesLost(Refused):
    """An operator declared a range of positions lost."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__(f"positions {first} to {end - 1} were declared lost; read from {end} on")
        self.first = first
        self.end = end


class SourceExpired(Refused):
    """The source no longer has the changes after this position; a destination there must be seeded again."""


class Fenced(Refused):
    """Another deliverer has taken this destination over."""

    def __init__(self, token: int, mine: int) -> None:
        super().__init__(
            f"the destination belongs to a deliverer with token {token}, mine is {mine}; nothing to do here"
        )
        self.token = token


class PositionMoved(Refused):
    """The destination is not at the position that the flush was planned from."""

    def __init__(self, position: int, expected: int) -> None:
        found = f"at {position}, not at {expected}" if position != expected else f"at another version {position}"
        super().__init__(f"the destination is {found}; the flush is planned again from there")
        self.position = position


class DestinationHalted(Refused):
    """The destination cannot go on until somebody mends it."""


class DuplicateKey(DestinationHalted):
    """Two rows of the source share a key."""


class SchemaMismatch(DestinationHalted):
    """A destination's columns cannot follow the source's."""


class OutcomeUnknown(TrunklineError):
    """It may have happened."""


class ConfigError(TrunklineError):
    """Wrong flags, environment, configuration file or argument."""


class ProtocolError(TrunklineError):
    """A peer sent what this version does not understand."""


class CorruptEntry(ProtocolError):
    """What lies at ``[first, end)`` is not what it should be: its writer is broken, or lies. 0: where is not known."""

    def __init__(self, text: str, first: int = 0, end: int = 0) -> None:
        super().__init__(text)
        self.first = first
        self.end = end


class StorageError(TrunklineError):
    """A disk failed, is in use by another process, or does not hold what it should."""
