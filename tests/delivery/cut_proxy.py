"""A proxy before a PostgreSQL server that cuts a connection after a COMMIT was done and before its answer arrives."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Final

CHUNK: Final = 65536
LOOK_S: Final = 0.1  # between two looks at whether the proxy ended


class CutProxy:
    """Listens on ``port``. While ``armed``, the answer to the next COMMIT is lost, with its connection."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]
        self.armed = False
        self.cuts = 0

    def __enter__(self) -> CutProxy:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            if select.select([self._listener], [], [], LOOK_S)[0]:
                self._start(self._forward, self._listener.accept()[0])

    def _forward(self, client: socket.socket) -> None:
        with ExitStack() as stack, suppress(ConnectionError):
            stack.enter_context(client)
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self._server_port)))
            while not self._ended.is_set():
                for ready in select.select([client, server], [], [], LOOK_S)[0]:
                    if not (data := ready.recv(CHUNK)):
                        return
                    (server if ready is client else client).sendall(data)
                    if ready is client and self.armed and b"COMMIT" in data:
                        self.armed = False
                        server.recv(CHUNK)  # it is done
                        self.cuts += 1
                        return
