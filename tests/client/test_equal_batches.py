"""Batches of equal content, or of equal checksum, in flight at the same time: each is a batch of its own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

import trunkline
from system.processes import Processes
from trunkline.client import batcher
from trunkline.client.arguments import PolicyName
from trunkline.client.batcher import BatchOptions
from trunkline.client.bodies import checksum, encode
from trunkline.client.cluster import ClientOptions
from trunkline.client.log import Log

POLICIES = ("chain", "broadcast")
NOW_MS = 1_700_000_000_000
BATCHES = 500  # of each client
CRC32C_POLYNOMIAL = 0x105EC76F1  # with its bits as the checksum takes them: content that differs by it collides


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "time", SimpleNamespace(time_ns=lambda: NOW_MS * 1_000_000))


def one_entry_to_a_batch() -> ClientOptions:
    return ClientOptions(batch=BatchOptions(batch_entries=1, in_flight=BATCHES))


async def append_all(log: Log, payloads: list[bytes]) -> list[int]:
    return list(await asyncio.gather(*(log.append(payload) for payload in payloads)))


@pytest.mark.usefixtures("stopped_clock")
def test_two_clients_append_a_thousand_equal_batches_in_the_same_millisecond(cluster: Processes, name: str) -> None:
    async def test() -> None:
        options = one_entry_to_a_batch()
        async with (
            trunkline.connect(cluster.coordinators, options=options) as one,
            trunkline.connect(cluster.coordinators, options=options) as other,
        ):
            logs = [await one.log(name, create=True), await other.log(name)]
            found = await asyncio.gather(*(append_all(log, [b"same"] * BATCHES) for log in logs))
            positions = [position for each in found for position in each]
            assert len(set(positions)) == 2 * BATCHES
            entries = [entry async for entry in logs[0].subscribe(1, to_tail=True)]
        assert sorted(positions) == [entry.glsn for entry in entries]
        assert {(entry.payload, entry.time_ms) for entry in entries} == {(b"same", NOW_MS)}
        assert len({(entry.writer, entry.seq) for entry in entries}) == 2 * BATCHES

    asyncio.run(test())


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize("policy", POLICIES)
def test_batches_whose_checksums_collide_keep_their_own_content(
    cluster: Processes, name: str, policy: PolicyName
) -> None:
    pair = [bytes(8), CRC32C_POLYNOMIAL.to_bytes(8, "little")]
    bodies = [encode([payload], None, NOW_MS, NOW_MS) for payload in pair]
    assert bodies[0] != bodies[1]
    assert checksum(bodies[0]) == checksum(bodies[1])

    async def test() -> None:
        async with trunkline.connect(cluster.coordinators, options=one_entry_to_a_batch()) as handle:
            log = await handle.log(name, create=True, policy=policy)
            payloads = pair * 50
            positions = await append_all(log, payloads)
            found = {entry.glsn: (entry.payload, entry.time_ms) async for entry in log.subscribe(1, to_tail=True)}
        assert [found[position] for position in positions] == [(payload, NOW_MS) for payload in payloads]

    asyncio.run(test())
