"""A process that raises the trim point of a log again and again, and prints each epoch when it was answered.

Run as a program, by tests that kill it: ``swapping_process.py sqlite FILE`` or ``... etcd URLS PREFIX``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from metadata.projections import creation, first_of, trim, trimmed
from trunkline.core.messages import Swapped
from trunkline.metadata.etcd_gateway import EtcdOptions
from trunkline.metadata.etcd_store import EtcdStore
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.metadata.store import MetadataStore


def store_of(arguments: list[str]) -> MetadataStore:
    if arguments[0] == "sqlite":
        return SqliteStore(Path(arguments[1]))
    return EtcdStore(EtcdOptions(tuple(arguments[1].split(",")), prefix=arguments[2]))


async def swap_for_ever(store: MetadataStore) -> None:
    await store.start()
    await store.handle(creation())
    projection = first_of()
    while True:
        answer = await store.handle(trim(projection))
        assert answer == Swapped(projection.log, projection.epoch + 1), answer
        projection = trimmed(projection)
        print(projection.epoch, flush=True)


if __name__ == "__main__":
    asyncio.run(swap_for_ever(store_of(sys.argv[1:])))
