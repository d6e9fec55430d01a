"""All errors, in one tree. The branch says whether the operation took effect.

TrunklineError
├── Refused                 the operation had no effect
│   ├── Unreachable         no process that could perform it answered in time
│   ├── NoSuchLog           the log does not exist, or was deleted
│   ├── LogSealed           the log is read-only until it is reopened
│   ├── OwnedByAnother      a broadcast log has another writer: ``owner``
│   ├── ConditionFailed     a conditional append did not get its position; ``tail`` is the next one
│   ├── NotWritten          the position is at or past the tail
│   ├── Hole                the position is a filled hole: it never holds an entry
│   ├── Trimmed             the position was trimmed; ``point`` is the trim point
│   ├── EntriesLost         an operator declared the range ``[first, end)`` lost
│   ├── SourceExpired       the source no longer has the changes after this position
│   ├── Fenced              another deliverer owns this destination now
│   ├── PositionMoved       the destination is not at the position that the flush was planned from
│   └── DestinationHalted   the destination cannot continue until an operator resolves the problem
│       ├── DuplicateKey    two rows of the source share a key
│       └── SchemaMismatch  its columns cannot follow those of the source
├── OutcomeUnknown          the operation may have taken effect: a time-out, a lost process, or a trimmed position
├── ConfigError             an invalid flag, environment variable, configuration file or argument
├── ProtocolError           a peer sent a message that this version does not understand
│   └── CorruptEntry        the entries at ``[first, end)`` are corrupt
└── StorageError            a disk failed, is in use by another process, or holds damaged data
"""

from __future__ import annotations


class TrunklineError(Exception):
    """Any error of Trunkline. The text says what to do next."""


class Refused(TrunklineError):
    """The operation had no effect."""


class Unreachable(Refused):
    """No process that could perform the operation answered in time."""


class NoSuchLog(Refused):
    """The log does not exist, or was deleted."""


class LogSealed(Refused):
    """The log is read-only until it is reopened."""


class OwnedByAnother(Refused):
    """A broadcast log has another writer: ``owner``, by its name."""

    def __init__(self, text: str, owner: str = "") -> None:
        super().__init__(text)
        self.owner = owner


class ConditionFailed(Refused):
    """A conditional append did not get its position.

    ``tail`` is the position that it would have got instead. None: it got the position and lost it again, so the next
    one is not known; call ``Log.tail``.
    """

    def __init__(self, text: str, tail: int | None = None) -> None:
        super().__init__(text)
        self.tail = tail


class NotWritten(Refused):
    """The position is at or past the tail."""


class Hole(Refused):
    """The position is a filled hole: it never holds an entry."""


class Trimmed(Refused):
    """The position was trimmed."""

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
    """Another deliverer owns this destination now."""

    def __init__(self, token: int, mine: int) -> None:
        super().__init__(
            f"the destination belongs to a deliverer with token {token}, this one has {mine}; nothing to do here"
        )
        self.token = token


class PositionMoved(Refused):
    """The destination is not at the position that the flush was planned from."""

    def __init__(self, position: int, expected: int) -> None:
        found = f"at {position}, not at {expected}" if position != expected else f"at another version {position}"
        super().__init__(f"the destination is {found}; the flush is planned again from there")
        self.position = position


class DestinationHalted(Refused):
    """The destination cannot continue until an operator resolves the problem."""


class DuplicateKey(DestinationHalted):
    """Two rows of the source share a key."""


class SchemaMismatch(DestinationHalted):
    """The columns of a destination cannot follow those of the source."""


class OutcomeUnknown(TrunklineError):
    """The operation may have taken effect."""


class ConfigError(TrunklineError):
    """An invalid flag, environment variable, configuration file or argument."""


class ProtocolError(TrunklineError):
    """A peer sent a message that this version does not understand."""


class CorruptEntry(ProtocolError):
    """The entries at ``[first, end)`` are corrupt: their writer is broken or malicious. 0: the position is unknown."""

    def __init__(self, text: str, first: int = 0, end: int = 0) -> None:
        super().__init__(text)
        self.first = first
        self.end = end


class StorageError(TrunklineError):
    """A disk failed, is in use by another process, or holds damaged data."""
