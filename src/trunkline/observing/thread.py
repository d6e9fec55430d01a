"""The same server for a process whose main thread is busy: on an event loop in a thread of its own.

Values are made in that thread, from what any thread may read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final

from trunkline.errors import ConfigError
from trunkline.observing.pages import ObservedProcess
from trunkline.observing.server import ObservingServer
from trunkline.threads import Threads

Start = Callable[[], Coroutine[None, None, ObservingServer]]

START_S: Final = 10.0
STOP_S: Final = 5.0


class ObservingThread:
    """Serves inside a ``with``, at ``address``. Entering raises ``ConfigError`` if it cannot listen."""

    def __init__(
        self,
        listen: str,
        process: ObservedProcess,
        allow_hosts: Iterable[str] = (),
        *,
        setting: str = "--observe",
        threads: Threads | None = None,
    ) -> None:
        self.address = ""
        self._start: Start = partial(ObservingServer.start, listen, process, allow_hosts, setting=setting)
        self._started: Future[str] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._threads = threads or Threads()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ObservingThread:
        self._thread = self._threads.start("observing", self._run)
        self.address = self._started.result(START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._thread is not None
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it failed, and its loop is closed
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(ConfigError(f"metrics and health cannot be served: {error!r}"))
            raise

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await self._start()
        except ConfigError as error:
            self._started.set_exception(error)
            return
        self._started.set_result(server.address)
        try:
            await self._stop.wait()
        finally:
            await server.close()
