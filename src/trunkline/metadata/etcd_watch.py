"""Follows every change below a prefix of etcd, through cut connections and lost history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from msgspec import Struct

from trunkline.errors import StorageError
from trunkline.metadata.etcd_gateway import EtcdOptions, Gateway, Json, from64, range_below
from trunkline.metadata.store import StoreUnavailable


class KeyChanged(Struct, frozen=True):
    key: str
    deleted: bool
    revision: int
    lease: int  # of the key; 0: none


class Follower:
    """Calls ``changed`` for each change, in order. Where changes may have been missed it calls ``survey`` first, which
    reads everything and returns the revision; changes continue after it.
    """

    def __init__(
        self,
        gateway: Gateway,
        options: EtcdOptions,
        survey: Callable[[], Awaitable[int]],
        changed: Callable[[KeyChanged], None],
    ) -> None:
        self._gateway = gateway
        self._options = options
        self._survey = survey
        self._changed = changed
        self._seen = 0  # everything up to this revision is known; 0: survey first

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self._seen:
                    self._seen = await self._survey()
                await self._follow()
            except (StoreUnavailable, StorageError):
                await asyncio.sleep(self._options.retry_ms / 1000)

    async def _follow(self) -> None:
        below = range_below(self._options.prefix)
        wanted = {"key": below["key"], "range_end": below["range_end"], "start_revision": str(self._seen + 1)}
        async with aclosing(self._gateway.stream("/v3/watch", {"create_request": wanted})) as results:
            async for result in results:
                if result.get("canceled"):  # the history since then was compacted
                    self._seen = 0
                    return
                for change in map(_change, result.get("events", [])):
                    self._seen = max(self._seen, change.revision)
                    self._changed(change)


def _change(event: Json) -> KeyChanged:
    kv = event["kv"]
    deleted = event.get("type") == "DELETE"  # a put is the default, which JSON leaves out
    return KeyChanged(from64(kv["key"]).decode(), deleted, int(kv["mod_revision"]), int(kv.get("lease", 0)))
