"""One active coordinator among several: a key in etcd that lives as long as its holder renews a lease.

    absent --create with lease--> held --lease renewed every third of its time--> ...
      ^                             |
      +-- lease expired, revoked ---+

Rules
 V1  The key is created only where it is absent; etcd removes it when its lease expires.
 V2  The holder counts its lease from before the request, and not to its full length: by its own clock it stops being
     active before etcd can give the key to another.
 V3  A candidate waits until the watch reports that the key was removed, and also polls: a watch may be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from trunkline.metadata.etcd_gateway import Gateway, Json, from64, put, range_of, unchanged
from trunkline.metadata.store import StoreUnavailable

TTL_S = 3  # etcd grants at least 2; longer: duties stop for longer after a coordinator fails
USABLE = 0.9  # of the lease, as clocks run at different rates
KEEP_ALIVE_S = TTL_S / 3
REQUEST_MS = 700  # two endpoints can be tried before the lease expires


class Election:
    def __init__(self, gateway: Gateway, key: str) -> None:
        self._gateway = gateway
        self._key = key
        self._lease = 0
        self._until = 0.0  # of time.monotonic(), which continues while the process is stopped
        self._lost = asyncio.Event()
        self._vacant = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    async def campaign(self, me: str) -> None:
        """Return when elected; raises ``StoreUnavailable`` when closed."""
        while not self.active():
            if self._closed:
                raise StoreUnavailable("the store is closed; open it again to stand for election")
            self._vacant.clear()
            with contextlib.suppress(StoreUnavailable):
                if await self._stand(me):
                    return
            with contextlib.suppress(TimeoutError):  # wait_for of Python 3.11 may lose a cancellation
                async with asyncio.timeout(TTL_S):  # V3
                    await self._vacant.wait()

    def active(self) -> bool:
        return time.monotonic() < self._until

    async def deposed(self) -> None:
        """Return when not active. Renewals move the end, hence the loop."""
        while (left_s := self._until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._lost.wait()

    async def holder(self) -> str:
        found = await self._gateway.repeatable("/v3/kv/range", range_of(self._key))
        return from64(found["kvs"][0]["value"]).decode() if found.get("kvs") else ""

    def vacated(self) -> None:
        """The watch reports that the key was removed."""
        self._vacant.set()

    async def close(self) -> None:
        """Resign, so that another coordinator need not wait for the lease to expire."""
        self._closed = True
        self._until = 0.0
        self._lost.set()
        self._vacant.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._revoke()

    async def _stand(self, me: str) -> bool:
        if await self.holder():
            return False
        asked = time.monotonic()
        self._lease = await grant(self._gateway, TTL_S)
        absent: Json = {"compare": [unchanged(self._key, 0)], "success": [put(self._key, me.encode(), self._lease)]}
        answer = await self._gateway.once("/v3/kv/txn", absent)  # unknown outcome: the lease expires
        if not answer.get("succeeded"):
            await self._revoke()
            return False
        self._until = asked + TTL_S * USABLE  # V2
        self._lost.clear()
        self._keeper = asyncio.create_task(self._keep())
        return self.active()

    async def _keep(self) -> None:
        while self.active():
            await asyncio.sleep(KEEP_ALIVE_S)
            asked = time.monotonic()
            try:
                alive = await keep_alive(self._gateway, self._lease, REQUEST_MS)
            except StoreUnavailable:
                continue  # a retry may be in time
            if not alive or not self.active():  # not resumed once lost: the duties have stopped
                break
            self._until = asked + TTL_S * USABLE
        self._until = 0.0
        self._lost.set()

    async def _revoke(self) -> None:
        if self._lease:
            with contextlib.suppress(StoreUnavailable):
                await self._gateway.repeatable("/v3/lease/revoke", {"ID": str(self._lease)}, REQUEST_MS)
            self._lease = 0


async def grant(gateway: Gateway, ttl_s: int) -> int:
    """A new lease. One whose answer was lost expires."""
    return int((await gateway.repeatable("/v3/lease/grant", {"TTL": str(ttl_s)}))["ID"])


async def keep_alive(gateway: Gateway, lease: int, timeout_ms: int = 0) -> bool:
    """False: the lease has expired."""
    answer = await gateway.repeatable("/v3/lease/keepalive", {"ID": str(lease)}, timeout_ms)
    return int(answer.get("result", {}).get("TTL", 0)) > 0
