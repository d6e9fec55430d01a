"""One active coordinator among several: a key in etcd that lives as long as its holder keeps a lease.

    absent --create with lease--> held by me --lease kept alive every third of its time--> ...
      ^                                |
      +----- lease ran out, revoked ---+

Rules
 V1  The key is only ever created where it is absent; etcd removes it when its lease runs out.
 V2  The holder counts its lease from before it asked for it, and less than the whole: by its own clock it stops being
     active before etcd can have given the key to another.
 V3  Whoever does not hold the key waits to hear that it is gone, and also looks now and then: a watch may be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from trunkline.metadata.etcd_gateway import Gateway, Json, from64, put, range_of, unchanged
from trunkline.metadata.store import StoreUnavailable

TTL_S = 3  # shorter than 2 etcd does not grant; longer: the duties rest longer after a coordinator's death
USABLE = 0.9  # of the lease, for clocks that do not run alike
KEEP_ALIVE_S = TTL_S / 3
REQUEST_MS = 700  # so that two endpoints can be tried before the lease is lost


class Election:
    def __init__(self, gateway: Gateway, key: str) -> None:
        self._gateway = gateway
        self._key = key
        self._lease = 0
        self._until = 0.0  # of time.monotonic(), which goes on while the process is stopped
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
        """Return when not active. Renewals move the end, so it is looked at again."""
        while (left_s := self._until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._lost.wait()

    async def holder(self) -> str:
        found = await self._gateway.repeatable("/v3/kv/range", range_of(self._key))
        return from64(found["kvs"][0]["value"]).decode() if found.get("kvs") else ""

    def vacated(self) -> None:
        """The watch says that nobody holds the key."""
        self._vacant.set()

    async def close(self) -> None:
        """Resign, so that another need not wait for the lease to run out."""
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
        answer = await self._gateway.once("/v3/kv/txn", absent)  # unknown outcome: the lease is left to run out
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
                continue  # it may work out in time
            if not alive or not self.active():  # once given up it is not taken back: the duties have been stopped
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
    """A new lease. One that is granted without our knowing runs out by itself."""
    return int((await gateway.repeatable("/v3/lease/grant", {"TTL": str(ttl_s)}))["ID"])


async def keep_alive(gateway: Gateway, lease: int, timeout_ms: int = 0) -> bool:
    """False: the lease has run out."""
    answer = await gateway.repeatable("/v3/lease/keepalive", {"ID": str(lease)}, timeout_ms)
    return int(answer.get("result", {}).get("TTL", 0)) > 0
