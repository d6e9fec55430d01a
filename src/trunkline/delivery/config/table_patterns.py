"""Patterns that select tables of a database: ``public.*``, ``sales.order_*``, ``"Odd Name".orders``.

They are written as in `psql`: ``*`` stands for any letters and ``?`` for one; names are folded to lower case, unless
they stand in double quotes, where nothing but ``""`` (a quote) has a special meaning. A pattern without a schema is for
tables of the schema `public`, or of the one that the caller names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.errors import ConfigError

SEPARATOR: Final = "\0"  # no name in PostgreSQL holds it
RESERVED_NAME: Final = SEPARATOR + RESERVED_PREFIX  # begins the names of our own tables
LEFT_OUT: Final = "!"  # begins a pattern of tables that are left out
PUBLIC: Final = "public"
_COMPILED_MAX: Final = 1024  # selections that stay compiled in a process; fewer: they are compiled again and again
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


class Selection(Struct, frozen=True):
    """The tables of a source that belong to a pipeline. Our own tables never do.

    Tables that a pattern with ``!`` matches are left out, wherever it stands. For each of the others, the first pattern
    that matches it counts.
    """

    patterns: tuple[str, ...]
    schema: str = PUBLIC  # of patterns without one

    def matches(self, schema: str, name: str) -> bool:
        return self.entry(f"{schema}.{name}") is not None

    def entry(self, table: str) -> int | None:
        """The number of the pattern that counts for a table, SCHEMA.TABLE; ``None``: it is left out."""
        left_out, wanted = _compiled(self.patterns, self.schema)
        whole = table.replace(".", SEPARATOR, 1)
        if left_out.fullmatch(whole) or RESERVED_NAME in whole.lower():
            return None
        return next((number for number, pattern in wanted if pattern.fullmatch(whole)), None)

    def matching(self, number: int, tables: Sequence[str]) -> list[str]:
        """The tables that one pattern matches, whether or not it counts for them."""
        pattern = _together([self.patterns[number].removeprefix(LEFT_OUT)], self.schema)
        return [each for each in tables if pattern.fullmatch(each.replace(".", SEPARATOR, 1))]

    def named(self) -> tuple[tuple[str, str], ...]:
        """Schema and name of tables that are named without wildcards, and not left out: they must exist."""
        names = (exact_name(each, self.schema) for each in self._wanted())
        return tuple(dict.fromkeys(name for name in names if name is not None and self.matches(*name)))

    def reaches(self, schema: str) -> bool:
        """Whether a table of this schema could match."""
        parts = (_parts(each, self.schema)[0] for each in self._wanted())
        return any(re.fullmatch(_part_regex(each), schema, re.DOTALL) for each in parts)

    def _wanted(self) -> list[str]:
        return [each for each in self.patterns if not each.startswith(LEFT_OUT)]


@lru_cache(maxsize=_COMPILED_MAX)
def _compiled(patterns: tuple[str, ...], schema: str) -> tuple[re.Pattern[str], list[tuple[int, re.Pattern[str]]]]:
    """What is left out, and the other patterns with their numbers."""
    left_out = [each.removeprefix(LEFT_OUT) for each in patterns if each.startswith(LEFT_OUT)]
    wanted = [(number, each) for number, each in enumerate(patterns) if not each.startswith(LEFT_OUT)]
    return _together(left_out, schema), [(number, _together([each], schema)) for number, each in wanted]


def exact_name(pattern: str, schema: str = PUBLIC) -> tuple[str, str] | None:
    """Schema and name of the one table that a pattern can match; None: it has wildcards."""
    parts = _parts(pattern, schema)
    if any(wild for part in parts for _, wild in part):
        return None
    own, name = ("".join(text for text, _ in part) for part in parts)
    return own, name


def _together(patterns: Sequence[str], schema: str = PUBLIC) -> re.Pattern[str]:
    return re.compile("|".join(_regex(each, schema) for each in patterns) or r"(?!)", re.DOTALL)


def _regex(pattern: str, schema: str) -> str:
    return SEPARATOR.join(_part_regex(part) for part in _parts(pattern, schema))


def _part_regex(part: Sequence[tuple[str, bool]]) -> str:
    return "".join(text if wild else re.escape(text) for text, wild in part)


def _parts(pattern: str, schema: str) -> list[list[tuple[str, bool]]]:
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
        parts.insert(0, [(schema, False)])
    if len(parts) != 2 or SEPARATOR in pattern or not all(any(text for text, _ in part) for part in parts):
        raise ConfigError(
            f"the pattern {pattern!r} names no table; write it like schema.table, public.* or shop.order_*"
        )
    return parts
