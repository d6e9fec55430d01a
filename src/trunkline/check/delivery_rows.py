"""The rows of a checked delivery: what the source holds at each version, and which part of that is a destination's.

A source is a script, known from the beginning: only how far it has come is explored. So a worker reads a window by
looking into the script, and a monitor judges a table by the same. A row is known by its key and by the version that
wrote it: that is its value.
"""

from __future__ import annotations

from typing import NamedTuple

from trunkline.core.delivery_messages import Span


class Row(NamedTuple):
    key: str
    tenant: int
    value: int  # the version that wrote it

    def brief(self) -> str:
        return f"{self.key}={self.value}@{self.tenant}"


Rows = tuple[Row, ...]  # sorted; a table without keys may hold one twice


class Change(NamedTuple):
    """What one row becomes in a version."""

    key: str
    tenant: int = 0  # 0: it is deleted


class Edit(NamedTuple):
    """What a flush does to one key: REMOVE without a row, REPLACE where the key was there before, else INSERT."""

    key: str
    row: Row | None
    replaces: bool = False

    def brief(self) -> str:
        return f"-{self.key}" if self.row is None else f"{'~' if self.replaces else '+'}{self.row.brief()}"


class SourceScript(NamedTuple):
    """``versions[v]``: all rows at version v, from 1 on. ``stops``: versions that no window may cross.

    ``another``: what they are in the source's second life, which begins after version ``shared``.
    """

    versions: tuple[Rows, ...]
    stops: tuple[int, ...] = ()
    another: tuple[Rows, ...] = ()
    shared: int = 0

    def mark(self, life: int, version: int) -> str:
        """Where there is one life, no mark is known: destinations go by positions alone, as with an old release."""
        if not self.another or not version:
            return ""
        return f"{version}'" if life and version > self.shared else f"{version}"

    def lived(self, life: int) -> SourceScript:
        """The history of one life."""
        return SourceScript(self.another, self.stops) if life else self

    def of(self, mark: str) -> SourceScript:
        """The history that has the version of this mark."""
        return self.lived(1 if mark.endswith("'") else 0)

    def part(self, tenants: tuple[int, ...], version: int) -> Rows:
        """The rows of some tenants at a version."""
        return tuple(row for row in self.versions[version] if row.tenant in tenants)

    def edits(self, tenants: tuple[int, ...], window: Span) -> tuple[Edit, ...]:
        """How a destination of these tenants changes in a window. One that crosses a stop shows no removals."""
        before = {row.key: row for row in self.part(tenants, window.after)}
        after = {row.key: row for row in self.part(tenants, window.through)}
        crossed = any(window.after < stop < window.through for stop in self.stops)
        removed = [Edit(key, None) for key in sorted(before) if key not in after and not crossed]
        arrived = [Edit(key, row, key in before) for key, row in sorted(after.items()) if before.get(key) != row]
        return (*removed, *arrived)


def history(first: tuple[Change, ...], *steps: tuple[Change, ...], stops: tuple[int, ...] = ()) -> SourceScript:
    """Version 1 is ``first``, and each step makes one more."""
    versions: list[Rows] = [()]
    for version, changes in enumerate((first, *steps), start=1):
        rows = {row.key: row for row in versions[-1]}
        for change in changes:
            rows.pop(change.key, None)
            if change.tenant:
                rows[change.key] = Row(change.key, change.tenant, version)
        versions.append(tuple(sorted(rows.values())))
    return SourceScript(tuple(versions), stops)
