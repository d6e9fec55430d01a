"""Many logs are sealed, opened again and deleted at once: busy nodes answer late, and no request is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import trunkline
from system.processes import Processes
from trunkline.client.cluster import ClientOptions
from trunkline.client.log import Log

LOGS = 100


def test_a_hundred_logs_are_sealed_opened_again_and_deleted_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        patient = ClientOptions(timeout=None)
        async with trunkline.connect(processes.coordinators, options=patient) as cluster:

            async def written(number: int) -> Log:
                log = await cluster.log(f"log-{number}", create=True)
                await log.append(b"one entry")
                return log

            logs = await asyncio.gather(*map(written, range(LOGS)))
            await asyncio.gather(*(log.seal() for log in logs))
            await asyncio.gather(*(log.reopen() for log in logs))
            await asyncio.gather(*(log.delete() for log in logs))
            assert await cluster.logs() == ()

    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=3)
        asyncio.run(run())
