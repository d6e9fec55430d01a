"""How those who wait for entries learn that the proxy stops."""

from __future__ import annotations

import asyncio
from typing import Any


class Stopping:
    """Begins once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._event.is_set()

    def begin(self) -> None:
        self._event.set()

    async def wait_for(self, future: asyncio.Future[Any], timeout_s: float | None) -> bool:
        """Wait until the future is done; False if the time was up, or the proxy stops. The future goes on."""
        told = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait((future, told), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        return future.done()
