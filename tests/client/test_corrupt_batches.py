"""Batches of a malicious writer: their checksum is valid, and nothing else need be."""

from __future__ import annotations

import struct

import pytest

from client.test_log import run
from lying_writer import append_body, append_corrupt_batch, body_of, payload_of
from system.processes import Processes
from trunkline.client.arguments import PolicyName
from trunkline.client.bodies import checksum
from trunkline.client.cluster import Cluster
from trunkline.client.entries import Batch
from trunkline.core.entries import Frame, FrameKind
from trunkline.errors import CorruptEntry, ProtocolError

COUNT = 3


def with_offsets(*offsets: int) -> bytes:
    body = body_of(None, COUNT)
    struct.pack_into("<4i", body, 24, *offsets)
    return bytes(body)


def batch_of(body: bytes, count: int = COUNT) -> Batch:
    return Batch(Frame(5, count, FrameKind.DATA, "w#1", 1, checksum(body)), body, 5, None, "orders")


CORRUPT = {
    "offsets go back": with_offsets(0, 14, 7, 21),
    "an offset is negative": with_offsets(0, -7, 14, 21),
    "an offset is beyond the bytes": with_offsets(0, 7, 2**31 - 1, 21),
    "the first is not 0": with_offsets(7, 7, 14, 21),
    "the last is beyond the bytes": with_offsets(0, 7, 14, 2**31 - 1),
    "the last is negative": with_offsets(0, 7, 14, -(2**31)),
    "it is cut": with_offsets(0, 7, 14, 21)[:44],
    "it is empty": b"",
    "it has another count": bytes(body_of(None, COUNT + 1)),
    "headers go back": bytes(body_of([b"\x80"] * COUNT, COUNT)).replace(
        struct.pack("<4i", 0, 1, 2, 3), struct.pack("<4i", 0, 2, 1, 3)
    ),
}


@pytest.mark.parametrize("body", CORRUPT.values(), ids=CORRUPT.keys())
def test_no_entry_is_made_of_a_corrupt_body(body: bytes) -> None:
    with pytest.raises(CorruptEntry, match=r"positions 5 to 7 of orders .* read on from 8") as corrupt:
        list(batch_of(body))
    assert (corrupt.value.first, corrupt.value.end) == (5, 8)


@pytest.mark.parametrize("name", [name for name in CORRUPT if "headers" not in name])
def test_arrow_is_given_no_offsets_that_it_must_not_follow(name: str) -> None:
    with pytest.raises(CorruptEntry):
        batch_of(CORRUPT[name]).to_arrow()
    with pytest.raises(CorruptEntry):
        _ = batch_of(CORRUPT[name]).offsets


def test_a_layout_of_a_later_version_is_not_called_corrupt() -> None:
    for at, value in ((0, 2), (1, 0x80)):
        body = body_of(None, COUNT)
        body[at] = value
        with pytest.raises(ProtocolError, match="upgrade the reader") as refused:
            batch_of(bytes(body))
        assert not isinstance(refused.value, CorruptEntry)


def test_a_body_that_arrived_at_an_odd_address_is_good_for_arrow() -> None:
    body = bytes(body_of(None, COUNT))
    for shift in range(8):
        moved = memoryview(b"\xff" * shift + body)[shift:]
        batch = Batch(Frame(5, COUNT, FrameKind.DATA, "w#1", 1, checksum(moved)), moved, 6)
        array = batch.arrow_payloads()
        assert array.buffers()[1].address % 4 == 0
        assert array.to_pylist() == [payload_of(1), payload_of(2)] == batch.payloads()


@pytest.mark.parametrize("policy", ["chain", "broadcast"])
def test_a_reader_gets_an_error_for_a_corrupt_batch_and_can_read_on_behind_it(
    cluster: Processes, name: str, policy: PolicyName
) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True, policy=policy)
        await log.append([b"before", b"it"])
        assert await append_corrupt_batch(log) == 3
        assert await append_body(log, CORRUPT["it is cut"], COUNT) == 6
        await log.append(b"behind")
        found: dict[int, bytes] = {}
        start, errors = 1, []
        while start < 10:
            try:
                async for entry in log.subscribe(start, 9):
                    found[entry.glsn] = entry.payload
                    start = entry.glsn + 1
            except CorruptEntry as corrupt:
                errors.append((corrupt.first, corrupt.end))
                start = corrupt.end
        assert found == {1: b"before", 2: b"it", 9: b"behind"}
        assert errors == [(3, 6), (6, 9)]
        for glsn in (3, 5, 7):
            with pytest.raises(CorruptEntry):
                await log.read(glsn)
        assert (await log.read(9)).payload == b"behind"

    run(cluster, test)
