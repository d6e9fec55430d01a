"""What a caller gives: checked before anything is done with it, so that a wrong one is named and not met deep inside.

Every check raises ``ConfigError`` with the argument's name, what it must be, and what it is.
"""

from __future__ import annotations

import enum
import operator
from typing import Final, Literal, SupportsIndex

from trunkline.errors import ConfigError

POSITION_MAX: Final = 2**63 - 1  # what a node can store
SHOWN_CHARACTERS: Final = 40

PolicyName = Literal["chain", "broadcast"]


class Default(enum.Enum):
    """An argument that was left out."""

    TIMEOUT = "the timeout of the cluster handle"

    def __repr__(self) -> str:
        return f"<{self.value}>"


Timeout = float | None | Default
DEFAULT: Final = Default.TIMEOUT


def position(name: str, value: object) -> int:
    """A GLSN, as a plain ``int``: numbers of Arrow and NumPy are taken, too."""
    number = _whole(value)
    if number is None:
        raise ConfigError(f"{name} is a position, a whole number from 1 on, not {_shown(value)}")
    if not 1 <= number <= POSITION_MAX:
        raise ConfigError(f"positions begin at 1 and end at {POSITION_MAX}; {name}={_shown(value)} is none")
    return number


def position_or_none(name: str, value: object) -> int | None:
    return None if value is None else position(name, value)


def check_count(name: str, value: object, least: int = 1) -> None:
    number = _whole(value)
    if number is None or number < least:
        raise ConfigError(f"{name} is a whole number from {least} on, not {_shown(value)}")


def check_milliseconds(name: str, value: object) -> None:
    if not _is_duration(value):
        raise ConfigError(f"{name} is a number of milliseconds from 0 on, not {_shown(value)}")


def check_patience(name: str, value: object) -> None:
    """Whole milliseconds. None: what the cluster handle was given."""
    number = 0 if value is None else _whole(value)
    if number is None or number < 0:
        raise ConfigError(f"{name} is a whole number of milliseconds, or None, not {_shown(value)}")


def check_timeout(timeout: object, name: str = "timeout") -> None:
    if timeout is not None and timeout is not DEFAULT and not _is_duration(timeout):
        raise ConfigError(f"{name} is a number of seconds, or None to wait for ever, not {_shown(timeout)}")


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0  # NaN is not


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name} is a str, not {_shown(value)}")


def check_kind(name: str, value: object, kind: type, remedy: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {remedy}, not {_shown(value)}")


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    return operator.index(value)


def _shown(value: object) -> str:
    """Short, and with its type where that is what is wrong."""
    if value is None or isinstance(value, bool | int | float):
        return f"{value!r:.{SHOWN_CHARACTERS}}"
    if isinstance(value, str | bytes):
        return f"the {type(value).__name__} {value[:SHOWN_CHARACTERS]!r}"
    return f"{type(value).__name__}"
