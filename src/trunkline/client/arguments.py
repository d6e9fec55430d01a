"""Checks of arguments, before anything is done with them.

Every check raises ``ConfigError`` with the name of the argument, what it must be, and what it is.
"""

from __future__ import annotations

import enum
import operator
from typing import Final, Literal, SupportsIndex

from trunkline.errors import ConfigError

POSITION_MAX: Final = 2**63 - 1  # a node stores positions in 8 bytes
SHOWN_CHARACTERS: Final = 40

PolicyName = Literal["chain", "broadcast"]


class Default(enum.Enum):
    """The value of an argument that was left out."""

    TIMEOUT = "the timeout of the cluster handle"

    def __repr__(self) -> str:
        return f"<{self.value}>"


Timeout = float | None | Default
DEFAULT: Final = Default.TIMEOUT


def position(name: str, value: object) -> int:
    """A GLSN as a plain ``int``; integers of Arrow and NumPy are accepted, too."""
    number = _whole(value)
    if number is None:
        raise ConfigError(f"{name} must be a position, an integer from 1 on, not {_shown(value)}")
    if not 1 <= number <= POSITION_MAX:
        raise ConfigError(f"{name} must be a position from 1 to {POSITION_MAX}, not {_shown(value)}")
    return number


def position_or_none(name: str, value: object) -> int | None:
    return None if value is None else position(name, value)


def check_count(name: str, value: object, least: int = 1) -> None:
    number = _whole(value)
    if number is None or number < least:
        raise ConfigError(f"{name} must be an integer from {least} on, not {_shown(value)}")


def check_milliseconds(name: str, value: object) -> None:
    if not _is_duration(value):
        raise ConfigError(f"{name} must be a number of milliseconds from 0 on, not {_shown(value)}")


def check_patience(name: str, value: object) -> None:
    """Whole milliseconds. None: the value of the cluster handle."""
    number = 0 if value is None else _whole(value)
    if number is None or number < 0:
        raise ConfigError(f"{name} must be a whole number of milliseconds, or None, not {_shown(value)}")


def check_timeout(timeout: object, name: str = "timeout") -> None:
    if timeout is not None and timeout is not DEFAULT and not _is_duration(timeout):
        raise ConfigError(f"{name} must be a number of seconds, or None to wait forever, not {_shown(timeout)}")


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0  # NaN is not


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a str, not {_shown(value)}")


def check_kind(name: str, value: object, kind: type, expected: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be {expected}, not {_shown(value)}")


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    return operator.index(value)


def _shown(value: object) -> str:
    """Short, and with its type if that is what is wrong."""
    if value is None or isinstance(value, bool | int | float):
        return f"{value!r:.{SHOWN_CHARACTERS}}"
    if isinstance(value, str | bytes):
        return f"the {type(value).__name__} {value[:SHOWN_CHARACTERS]!r}"
    return f"{type(value).__name__}"
