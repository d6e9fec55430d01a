"""Patterns that select tables of a database: ``public.*``, ``sales.order_*``, ``"Odd Name".orders``.

They are written as in `psql`: ``*`` stands for any letters and ``?`` for one; names are folded to lower case, unless
they stand in double quotes, where nothing but ``""`` (a quote) has a special meaning. A pattern without a schema is for
tables of the schema `public`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trunkline.errors import ConfigError

SEPARATOR: Final = "\0"  # no name in PostgreSQL holds it
_PIECE: Final = re.compile(r'"((?:[^"]|"")*)"|([^".]+)|(\.)')


class TablePatterns:
    """Which tables are wanted: those that match a pattern, and none of ``exclude``."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = ()) -> None:
        self.include, self.exclude = tuple(include), tuple(exclude)
        self._wanted, self._unwanted = _together(include), _together(exclude)

    def matches(self, schema: str, name: str) -> bool:
        whole = f"{schema}{SEPARATOR}{name}"
        return self._wanted.fullmatch(whole) is not None and self._unwanted.fullmatch(whole) is None

    def matches_any(self, names: Sequence[tuple[str, str]]) -> bool:
        """The names of a table and of those that it is a partition of."""
        whole = [f"{schema}{SEPARATOR}{name}" for schema, name in names]
        return any(map(self._wanted.fullmatch, whole)) and not any(map(self._unwanted.fullmatch, whole))


def exact_name(pattern: str) -> tuple[str, str] | None:
    """Schema and name of the one table that a pattern can match; None: it has wildcards."""
    parts = _parts(pattern)
    if any(wild for part in parts for _, wild in part):
        return None
    schema, name = ("".join(text for text, _ in part) for part in parts)
    return schema, name


def _together(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(_regex(each) for each in patterns) or r"(?!)", re.DOTALL)


def _regex(pattern: str) -> str:
    schema, name = ("".join(text if wild else re.escape(text) for text, wild in part) for part in _parts(pattern))
    return f"{schema}{SEPARATOR}{name}"


def _parts(pattern: str) -> list[list[tuple[str, bool]]]:
    """Of the schema and of the name: texts, and whether each is a wildcard's regular expression."""
    parts: list[list[tuple[str, bool]]] = [[]]
    at = 0
    while at < len(pattern):
        found = _PIECE.match(pattern, at)
        if found is None:
            raise ConfigError(f'the pattern {pattern!r} has a quote without its end; write it like "Odd Name".orders')
        at = found.end()
        quoted, plain, dot = found.groups()
        if dot:
            parts.append([])
        elif quoted is not None:
            parts[-1].append((quoted.replace('""', '"'), False))
        else:
            for piece in re.split(r"([*?])", plain.lower()):
                wild = {"*": f"[^{SEPARATOR}]*", "?": f"[^{SEPARATOR}]"}.get(piece)
                parts[-1].append((wild or piece, wild is not None))
    if len(parts) == 1:
        parts.insert(0, [("public", False)])
    if len(parts) != 2 or SEPARATOR in pattern or not all(any(text for text, _ in part) for part in parts):
        raise ConfigError(
            f"the pattern {pattern!r} names no table; write it like schema.table, public.* or shop.order_*"
        )
    return parts
