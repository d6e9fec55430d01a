"""Notifies watchers of changes: names only, so that many changes of one log become one."""

from __future__ import annotations

import asyncio
import weakref


class Watcher:
    """Iterates over the names of changes since its creation. Repeated changes before a read become one."""

    def __init__(self) -> None:
        self._pending: dict[str, None] = {}  # in order; at most one for each log
        self._woken = asyncio.Event()
        self._ended = False

    def notify(self, name: str) -> None:
        self._pending[name] = None
        self._woken.set()

    def end(self) -> None:
        self._ended = True
        self._woken.set()

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> str:
        while not self._pending:
            if self._ended:
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()
        name = next(iter(self._pending))
        del self._pending[name]
        return name


class Changes:
    """The watchers of one store, weakly referenced."""

    def __init__(self) -> None:
        self._watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self._closed = False

    def watch(self) -> Watcher:
        watcher = Watcher()
        if self._closed:
            watcher.end()
        self._watchers.add(watcher)
        return watcher

    def notify(self, name: str) -> None:
        for watcher in list(self._watchers):
            watcher.notify(name)

    def close(self) -> None:
        self._closed = True
        for watcher in list(self._watchers):
            watcher.end()
