"""The rows of a checked delivery: what the source holds at each version, and the part of each destination.

A source is a fixed script; the search explores only how far it has come. So a worker reads a window from the script,
and a monitor judges a table by the same script. A row has a key, and its value is the version that wrote it.
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
    """The change of one row in a version."""

    key: str
    tenant: int = 0  # 0: deleted


class Edit(NamedTuple):
    """What a flush does to one key: remove it (no row), replace its row, or insert one."""

    key: str
    row: Row | None
    replaces: bool = False

    def brief(self) -> str:
        return f"-{self.key}" if self.row is None else f"{'~' if self.replaces else '+'}{self.row.brief()}"


class SourceScript(NamedTuple):
    """``versions[v]``: all rows at version v, from 1. ``stops``: versions that no window may cross.

    ``another``: the versions of the source's second incarnation, which differ after version ``shared``.
    """

    versions: tuple[Rows, ...]
    stops: tuple[int, ...] = ()
    another: tuple[Rows, ...] = ()
    shared: int = 0

    def mark(self, incarnation: int, version: int) -> str:
        """With one incarnation there are no marks: destinations use positions alone, as old releases do."""
        if not self.another or not version:
            return ""
        return f"{version}'" if incarnation and version > self.shared else f"{version}"

    def in_incarnation(self, incarnation: int) -> SourceScript:
        """The script of one incarnation."""
        return SourceScript(self.another, self.stops) if incarnation else self

    def of(self, mark: str) -> SourceScript:
        """The script that has the version of this mark."""
        return self.in_incarnation(1 if mark.endswith("'") else 0)

    def part(self, tenants: tuple[int, ...], version: int) -> Rows:
        """The rows of some tenants at a version."""
        return tuple(row for row in self.versions[version] if row.tenant in tenants)

    def edits(self, tenants: tuple[int, ...], window: Span) -> tuple[Edit, ...]:
        """The net changes of these tenants in a window. A window that crosses a stop misses removals."""
        before = {row.key: row for row in self.part(tenants, window.after)}
        after = {row.key: row for row in self.part(tenants, window.through)}
        crossed = any(window.after < stop < window.through for stop in self.stops)
        removed = [Edit(key, None) for key in sorted(before) if key not in after and not crossed]
        arrived = [Edit(key, row, key in before) for key, row in sorted(after.items()) if before.get(key) != row]
        return (*removed, *arrived)


def source_script(first: tuple[Change, ...], *steps: tuple[Change, ...], stops: tuple[int, ...] = ()) -> SourceScript:
    """Version 1 is ``first``, and each step adds one."""
    versions: list[Rows] = [()]
    for version, changes in enumerate((first, *steps), start=1):
        rows = {row.key: row for row in versions[-1]}
        for change in changes:
            rows.pop(change.key, None)
            if change.tenant:
                rows[change.key] = Row(change.key, change.tenant, version)
        versions.append(tuple(sorted(rows.values())))
    return SourceScript(tuple(versions), stops)
