"""The rows of a `COPY ... TO STDOUT (FORMAT binary)`, a bounded number of bytes at a time."""

from __future__ import annotations

import select
from typing import Any, Final

import psycopg
from psycopg import pq, sql
from psycopg.errors import error_from_result

from trunkline.errors import ProtocolError

HEADER: Final = b"PGCOPY\n\xff\r\n\0"
HEADER_BYTES: Final = len(HEADER) + 8  # flags, size of an extension
TRAILER: Final = b"\xff\xff"


class CopiedOutput:
    """Raises ``psycopg.Error``. Until it has ended, the connection can do nothing else but be closed."""

    def __init__(self, connection: psycopg.Connection[Any], query: sql.Composed) -> None:
        self.ended = False
        self._begun = self._trailed = False
        self._server = connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._server.socket, select.POLLIN)
        self._server.send_query(query.as_bytes(connection))
        result = self._result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            raise self._failure(result)

    def take(self, bytes_max: int) -> list[bytes]:
        """The next rows: so many bytes, the last row beyond them; fewer only at the end."""
        rows, size = list[bytes](), 0
        receive, add = self._server.get_copy_data, rows.append
        while size < bytes_max and not self.ended:
            count, message = receive(1)
            if count > 0:
                add(bytes(message))
                size += count
            elif count == 0:
                self._poll.poll()
                self._server.consume_input()
            else:
                self._end()
        return self._unframed(rows)

    def _unframed(self, messages: list[bytes]) -> list[bytes]:
        if not self._begun and messages:
            messages[:1] = _headless(messages[0])
            self._begun = True
        if messages and messages[-1] == TRAILER:
            messages.pop()
            self._trailed = True
        if self.ended and not self._trailed:
            raise ProtocolError("the server sent copied rows without an end; restart the capture")
        return messages

    def _end(self) -> None:
        result = self._result()
        if result is None or result.status != pq.ExecStatus.COMMAND_OK:
            raise self._failure(result)
        while self._result() is not None:
            pass
        self.ended = True

    def _result(self) -> pq.abc.PGresult | None:
        while self._server.flush() == 1 or self._server.is_busy():
            self._poll.poll()
            self._server.consume_input()
        return self._server.get_result()

    def _failure(self, result: pq.abc.PGresult | None) -> psycopg.Error:
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return error_from_result(result)
        return psycopg.OperationalError("the server did not answer a COPY with rows")


def _headless(message: bytes) -> list[bytes]:
    """The first row, which comes with the header; none if the header comes alone."""
    if not message.startswith(HEADER) or any(message[len(HEADER) : HEADER_BYTES]):
        raise ProtocolError("the server did not copy rows in the binary format; restart the capture")
    rest = message[HEADER_BYTES:]
    return [rest] if rest else []
