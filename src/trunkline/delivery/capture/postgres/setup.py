"""What a capture makes on a PostgreSQL server, and how it is removed again if the start fails later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import psycopg

from trunkline.delivery.capture.postgres.table_obstacles import name_of

OURS: Final = "made by trunkline capture"  # the comment on a publication that a capture made
PUBLICATION: Final = "SELECT 1 FROM pg_publication WHERE pubname = %s"
DROP_SLOT: Final = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}' AND NOT active"
)


class Made:
    """What a start has made so far. If it fails later, ``undo`` removes it; else nothing has to be done."""

    def __init__(self) -> None:
        self._undo: list[str] = []

    def identities(self, connection: psycopg.Connection[Any], statements: Iterable[tuple[str, str]]) -> None:
        """Each with the statement that takes it back."""
        for statement, back in statements:
            connection.execute(statement.encode())
            self._undo.append(back)

    def publication(self, connection: psycopg.Connection[Any], name: str) -> None:
        """Empty: tables are added by name. One that exists stays as it is."""
        if connection.execute(PUBLICATION, (name,)).fetchall():
            return
        with connection.transaction():
            publish = "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
            connection.execute(f"CREATE PUBLICATION {name_of(name)} WITH ({publish})".encode())
            connection.execute(f"COMMENT ON PUBLICATION {name_of(name)} IS '{OURS}'".encode())
        self._undo.append(f"DROP PUBLICATION IF EXISTS {name_of(name)}")

    def slot(self, name: str) -> None:
        """It is about to be made: the answer of the server may be lost. Its name needs no quotes."""
        self._undo.append(DROP_SLOT.format(name))

    def undo(self, connection: psycopg.Connection[Any]) -> None:
        """Newest first. Streams of the slot must be closed before."""
        while self._undo:
            connection.execute(self._undo.pop().encode())

    @property
    def something(self) -> bool:
        return bool(self._undo)
