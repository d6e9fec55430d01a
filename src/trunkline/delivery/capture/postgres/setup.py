"""What a capture makes on a PostgreSQL server, and how it is removed again if the start fails later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg

from trunkline.delivery.capture.postgres.table_obstacles import name_of

OURS: Final = "made by trunkline capture"  # the comment on a publication that a capture made
PUBLICATION: Final = "SELECT 1 FROM pg_publication WHERE pubname = %s"
# The server may not have noticed yet that the stream is closed: the process that had it is ended first.
END_STREAM: Final = (
    "SELECT pg_terminate_backend(active_pid, {}) FROM pg_replication_slots WHERE slot_name = %s AND active_pid = %s"
)
END_STREAM_MS: Final = 10_000
DROP_SLOT: Final = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"


class Made:
    """What a start has made so far. If it fails later, ``undo`` removes it; else nothing has to be done."""

    def __init__(self) -> None:
        self._undo: list[Callable[[psycopg.Connection[Any]], object]] = []

    def identities(self, connection: psycopg.Connection[Any], statements: Iterable[tuple[str, str]]) -> None:
        """Each with the statement that takes it back."""
        for statement, back in statements:
            connection.execute(statement.encode())
            self._undo_by(back)

    def publication(self, connection: psycopg.Connection[Any], name: str) -> None:
        """Empty: tables are added by name. One that exists stays as it is."""
        if connection.execute(PUBLICATION, (name,)).fetchall():
            return
        with connection.transaction():
            publish = "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
            connection.execute(f"CREATE PUBLICATION {name_of(name)} WITH ({publish})".encode())
            connection.execute(f"COMMENT ON PUBLICATION {name_of(name)} IS '{OURS}'".encode())
        self._undo_by(f"DROP PUBLICATION IF EXISTS {name_of(name)}")

    def slot(self, name: str, backend: int) -> None:
        """It is about to be made by that process of the server: the answer may be lost."""

        def drop(connection: psycopg.Connection[Any]) -> None:
            connection.execute(END_STREAM.format(END_STREAM_MS).encode(), (name, backend))
            connection.execute(DROP_SLOT.encode(), (name,))

        self._undo.append(drop)

    def undo(self, connection: psycopg.Connection[Any]) -> None:
        """Newest first. Raises if something stays, such as a slot that another capture reads by now."""
        while self._undo:
            self._undo.pop()(connection)

    def _undo_by(self, statement: str) -> None:
        self._undo.append(lambda connection: connection.execute(statement.encode()))

    @property
    def something(self) -> bool:
        return bool(self._undo)
