"""Metrics and health of a process whose main thread is busy: the same server, on an event loop in a thread of its own.

What it tells is made in that thread, from values that any thread may read.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Final

from trunkline.errors import ConfigError
from trunkline.runtime.observing import Observed, ObservingServer
from trunkline.threads import Threads

START_S: Final = 10.0
STOP_S: Final = 5.0


class ObservingThread:
    """Serves inside a ``with``; ``address`` is where. Entering raises ``ConfigError`` if it cannot listen."""

    def __init__(self, listen: str, observed: Observed, threads: Threads | None = None) -> None:
        self.address = ""
        self._listen = listen
        self._observed = observed
        self._begun: Future[str] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._threads = threads or Threads()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ObservingThread:
        self._thread = self._threads.start("observing", self._run)
        self.address = self._begun.result(START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._thread is not None
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it broke off, and is closed
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._begun.done():
                self._begun.set_exception(ConfigError(f"metrics and health cannot be served: {error!r}"))
            raise

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await ObservingServer.start(self._listen, self._observed)
        except ConfigError as error:
            self._begun.set_exception(error)
            return
        self._begun.set_result(server.address)
        try:
            await self._stop.wait()
        finally:
            await server.close()
