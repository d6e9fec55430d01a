"""Holes of writers that died, and of writers that are slow: how readers get past them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client.test_log import run
from system.processes import Processes
from trunkline.client.cluster import Cluster
from trunkline.client.log import Log
from trunkline.core.effects import Address, Message
from trunkline.core.messages import Granted, Next, Write
from trunkline.runtime.questions import Questions

PATIENCE_S = 30.0  # one wait after the other, 32,000 holes took over an hour
UPLOAD_S = 0.6  # of a slow writer, three times what readers wait at first


async def die_with_grants(log: Log, batches: int, count: int) -> None:
    """Ask for positions as a writer does that is killed before it has written any of them."""
    segment = log._newest().last
    questions = Questions("dying", log._session.links)
    sequencer = Address(segment.owner.process, "sequencer")
    for seq in range(1, batches + 1):
        granted = await questions.ask(sequencer, Next(log.name, segment, "dying#1", seq, count))
        assert isinstance(granted, Granted)


@pytest.mark.parametrize(("groups", "count"), [(1, 1000), (1, 2000), (2, 1000)])
def test_a_reader_waits_once_for_all_that_a_dead_writer_left(
    cluster: Processes, name: str, groups: int, count: int
) -> None:
    async def test(connection: Cluster) -> None:
        async with asyncio.timeout(PATIENCE_S):
            log = await connection.log(name, create=True, groups=groups)
            await log.append(b"before")
            await die_with_grants(log, 16, count)
            after = await log.append(b"after")
            assert after > 16 * count
            for found in await asyncio.gather(*(take(log, 2) for _ in range(3))):
                assert found == [b"before", b"after"]

    run(cluster, test)


def test_the_holes_that_a_dead_writer_left_in_an_ended_segment_are_passed_as_fast(
    cluster: Processes, name: str
) -> None:
    async def test(connection: Cluster) -> None:
        async with asyncio.timeout(PATIENCE_S):
            log = await connection.log(name, create=True)
            await die_with_grants(log, 16, 1000)
            after = await log.append(b"after")
            await log.reopen()
            again = await log.append(b"again")
            found = [entry.payload async for entry in log.subscribe(1, until=again)]
            assert (after, found) == (16_001, [b"after", b"again"])

    run(cluster, test)


def test_a_writer_on_a_slow_link_gets_through_beside_a_reader_that_waits_at_the_tail(
    cluster: Processes, name: str
) -> None:
    async def test(connection: Cluster) -> None:
        async with asyncio.timeout(PATIENCE_S):
            log = await connection.log(name, create=True)
            following = asyncio.create_task(take(await connection.log(name), 200))
            slow_down(log)
            for first in range(0, 200, 100):
                await log.append([b"%d" % number for number in range(first, first + 100)])
            assert await following == [b"%d" % number for number in range(200)]
            beaten = (await log.tail() - 1 - 200) // 100
            assert 1 <= beaten <= 6  # twice, three times in all; and remembered for the second append

    run(cluster, test)


async def take(log: Log, count: int) -> list[bytes]:
    found: list[bytes] = []
    async for entry in log.subscribe(1):
        found.append(bytes(entry.payload))
        if len(found) == count:
            return found
    raise AssertionError("a subscription without an end has ended")


def slow_down(log: Log) -> None:
    """Let what this client writes arrive late."""
    session = log._session
    send = session.send

    def later(role: str, to: Address, message: Message, step: Any) -> None:
        if role == "appender" and isinstance(message, Write):
            asyncio.get_running_loop().call_later(UPLOAD_S, send, role, to, message, step)
        else:
            send(role, to, message, step)

    session.send = later  # type: ignore[method-assign]
