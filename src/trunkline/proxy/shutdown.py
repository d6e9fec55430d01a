"""Ends the requests that wait for entries when the proxy shuts down."""

from __future__ import annotations

import asyncio
from typing import Any


class ShutdownSignal:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._event.is_set()

    def begin(self) -> None:
        self._event.set()

    async def wait_for(self, future: asyncio.Future[Any], timeout_s: float | None) -> bool:
        """Wait until the future is done, without cancelling it. False: the time is up, or the proxy shuts down."""
        shutdown = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait((future, shutdown), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            shutdown.cancel()
        return future.done()
