"""Names, and how long they may be. One rule, asked by everybody who takes a name from somebody else.

Rules
 B1  A log is made under 1 to 128 letters, digits, ``.``, ``_``, ``-`` of ASCII, the first a letter or digit: as many
     bytes as characters, and fit for a path, a URL and a metric.
 B2  A name that exists is only bounded: 1 to 255 bytes of text. Of a log it may have 512: an older version took 128
     letters of any script, and its logs stay usable.
"""

from __future__ import annotations

from typing import Final

LOG_NAME_BYTES_MAX: Final = 128
NAME_BYTES_MAX: Final = 255  # of a node, a process or a writer
OLD_LOG_NAME_BYTES_MAX: Final = 512
LOG_NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9._-]*"  # the same for those who speak of patterns

_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_OTHERS = _FIRST | frozenset("._-")


def log_name_fault(name: str) -> str:
    """Why no log is made under this name; empty where one may be (B1)."""
    if 0 < len(name) <= LOG_NAME_BYTES_MAX and name[0] in _FIRST and _OTHERS.issuperset(name):
        return ""
    return (
        f"{shown(name)} is no name of a log: up to {LOG_NAME_BYTES_MAX} letters, digits, '.', '_', '-' of ASCII, "
        "beginning with a letter or digit"
    )


def may_be_log(name: str) -> bool:
    """Whether there may be a log of this name (B2)."""
    return is_bounded(name, OLD_LOG_NAME_BYTES_MAX)


def is_bounded(name: str, bytes_max: int = NAME_BYTES_MAX) -> bool:
    """Whether something may have this name (B2)."""
    if not 0 < len(name) <= bytes_max:  # before it is encoded: it may be megabytes
        return False
    try:
        return len(name.encode()) <= bytes_max
    except UnicodeEncodeError:  # half of a character
        return False


def shown(name: str) -> str:
    """A name for a message, however long it is."""
    return repr(name) if len(name) <= LOG_NAME_BYTES_MAX else f"{name[:40]!r}... ({len(name)} characters)"
