"""A coordinator that stands for election and prints all the time whether it is active.

Run as a program, by tests that kill or stop it: ``campaigning_process.py ENDPOINTS PREFIX NAME``. Each line is the
machine's monotonic clock and 1 or 0; the clock is read before the question is asked.
"""

from __future__ import annotations

import asyncio
import sys
import time

from trunkline.metadata.etcd_gateway import EtcdOptions
from trunkline.metadata.etcd_store import EtcdStore

LOOK_AGAIN_S = 0.01


async def say_for_ever(store: EtcdStore, name: str) -> None:
    await store.start()
    campaign = asyncio.create_task(store.campaign(name))
    while True:
        now = time.monotonic()
        print(now, int(store.active()), flush=True)
        if campaign.done() and not store.active():
            campaign = asyncio.create_task(store.campaign(name))
        await asyncio.sleep(LOOK_AGAIN_S)


if __name__ == "__main__":
    endpoints, prefix, me = sys.argv[1:]
    asyncio.run(say_for_ever(EtcdStore(EtcdOptions(tuple(endpoints.split(",")), prefix=prefix)), me))
