"""Taking a broadcast log: an append that asks for it gets it, whatever its writer did before."""

from __future__ import annotations

import asyncio

import pytest

import trunkline
from system.processes import Processes
from trunkline.errors import OwnedByAnother


def test_a_former_owner_takes_its_log_back_with_its_next_append(cluster: Processes, name: str) -> None:
    async def run() -> None:
        async with trunkline.connect(cluster.coordinators) as one, trunkline.connect(cluster.coordinators) as two:
            first = await one.log(name, create=True, policy="broadcast")
            assert await first.append(b"a") == 1
            second = await two.log(name)
            assert await second.append(b"b", takeover=True) == 2
            assert await first.append(b"c", takeover=True) == 3
            with pytest.raises(OwnedByAnother):
                await second.append(b"d")
            assert await second.append(b"e", takeover=True) == 4

    asyncio.run(run())


def test_a_takeover_is_not_refused_with_the_appends_before_it(cluster: Processes, name: str) -> None:
    async def run() -> None:
        async with trunkline.connect(cluster.coordinators) as one, trunkline.connect(cluster.coordinators) as two:
            first = await one.log(name, create=True, policy="broadcast")
            await first.append(b"a")
            second = await two.log(name)
            plain, taking, behind = await asyncio.gather(
                second.append(b"plain"),
                second.append(b"taking", takeover=True),
                second.append(b"behind"),
                return_exceptions=True,
            )
            assert isinstance(plain, OwnedByAnother)
            assert (taking, behind) == (2, 3)  # what comes behind shares its batch

    asyncio.run(run())
