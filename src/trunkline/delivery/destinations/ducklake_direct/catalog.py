"""The database of a lake's catalog in one transaction: what SQLite and PostgreSQL have in common.

Statements have ``?`` for parameters. An identifier of a table comes from the catalog itself, or is made of a number.

Rules
 Q1  ``transaction`` starts one in which all reads see one state, and which commits only if no other process committed a
     snapshot since: the next snapshot's number is a primary key.
 Q2  ``commit`` raises ``CommitConflict`` if nothing was written and it may be tried again; ``OutcomeUnknown`` if the
     database cannot tell. Other errors before it leave ``transaction`` as ``Unreachable`` or ``DestinationHalted``, and
     nothing was written; as ``Unusual``, if tables are not as expected.
 Q3  Every statement passes ``watch`` first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

PARAMETERS_MAX: Final = 30_000  # of one statement; SQLite takes 32,766, PostgreSQL 65,535

Watch = Callable[[str], None]  # called with each statement, and each file, just before it is written


class Catalog(Protocol):
    def transaction(self) -> AbstractContextManager[bool]:
        """Begins one, and rolls it back at the end unless it was committed. False: it cannot be opened directly."""
        ...

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> None: ...

    def commit(self) -> None: ...

    def tables(self, names: Collection[str]) -> set[str]:
        """Which of these tables the database has."""
        ...

    def text(self, stored: Any) -> str:
        """A text of a table of inlined rows."""
        ...

    def stored(self, text: str) -> Any:
        """What ``text`` reads."""
        ...


def insert(catalog: Catalog, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
    """All rows in as few statements as their parameters allow."""
    if not rows:
        return
    width = len(rows[0])
    marks = f"({', '.join('?' * width)})"
    each = PARAMETERS_MAX // width
    for begin in range(0, len(rows), each):
        part = rows[begin : begin + each]
        statement = f"INSERT INTO {table} ({columns}) VALUES {', '.join([marks] * len(part))}"
        catalog.run(statement, [value for row in part for value in row])
