"""Names and their limits: one rule for every place that accepts a name.

Rules
 B1  A new log has a name of 1 to 128 ASCII letters, digits, ``.``, ``_``, ``-``, beginning with a letter or digit: as
     many bytes as characters, and valid in a path, a URL and a metric.
 B2  An existing name is only bounded: 1 to 255 bytes of text. A log may have 512: an older version allowed 128 letters
     of any script, and its logs stay usable.
"""

from __future__ import annotations

from typing import Final

LOG_NAME_BYTES_MAX: Final = 128
NAME_BYTES_MAX: Final = 255  # of a node, a process or a writer
OLD_LOG_NAME_BYTES_MAX: Final = 512
LOG_NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9._-]*"  # B1 as a regular expression

_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_OTHERS = _FIRST | frozenset("._-")


def log_name_fault(name: str) -> str:
    """Why a new log cannot have this name; empty if it can (B1)."""
    if 0 < len(name) <= LOG_NAME_BYTES_MAX and name[0] in _FIRST and _OTHERS.issuperset(name):
        return ""
    return (
        f"{shown(name)} is not a valid name of a log: use up to {LOG_NAME_BYTES_MAX} ASCII letters, digits, '.', '_', "
        "'-', beginning with a letter or digit"
    )


def may_be_log(name: str) -> bool:
    """Whether a log of this name may exist (B2)."""
    return is_bounded(name, OLD_LOG_NAME_BYTES_MAX)


def is_bounded(name: str, bytes_max: int = NAME_BYTES_MAX) -> bool:
    """Whether the name is within the bounds (B2)."""
    if not 0 < len(name) <= bytes_max:  # before the encoding: it may be megabytes
        return False
    try:
        return len(name.encode()) <= bytes_max
    except UnicodeEncodeError:  # a lone surrogate
        return False


def shown(name: str) -> str:
    """The name for a message, shortened if it is long."""
    return repr(name) if len(name) <= LOG_NAME_BYTES_MAX else f"{name[:40]!r}... ({len(name)} characters)"
