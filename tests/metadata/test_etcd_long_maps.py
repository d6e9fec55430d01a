"""Long maps in etcd: packed, read when they have changed, and refused with a clear message when they are too long."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from etcd_server import Etcd
from metadata.long_maps import long_map
from metadata.places import PATIENCE_S
from metadata.projections import creation, first_of, rolled
from trunkline.core.effects import Message
from trunkline.core.messages import Get, Got, Swap, Swapped
from trunkline.core.projection import RaiseTrim, apply
from trunkline.metadata import etcd_store, etcd_view, stored_json
from trunkline.metadata.etcd_gateway import EtcdOptions, Gateway, put
from trunkline.metadata.etcd_store import EtcdStore
from trunkline.metadata.service import RegisterService
from trunkline.metadata.store import MapTooLarge
from trunkline.metadata.stored_json import PACKED, encode, pack, unpack

REQUEST_BYTES_MAX = 100_000  # less than usual, so that short maps are long ones here


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd"), options=[f"--max-request-bytes={REQUEST_BYTES_MAX}"]) as running:
        yield running


@pytest.fixture
def options(etcd: Etcd) -> EtcdOptions:
    return EtcdOptions(etcd.endpoints, prefix=f"/{uuid.uuid4()}/", request_ms=10_000, retry_ms=50)


@asynccontextmanager
async def started(options: EtcdOptions) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(options)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


class Decoded:
    """Counts the values that are decoded, by their kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: list[str] = []
        decode = stored_json.decode

        def counted(kind: Any, data: Any) -> Any:
            self.kinds.append(kind.__name__)
            return decode(kind, data)

        monkeypatch.setattr(etcd_view, "decode", counted)


def test_a_long_text_is_packed_and_a_short_one_stays_readable() -> None:
    short, long = encode(first_of()), encode(long_map("orders", 1000))
    assert pack(short) == short
    assert pack(long).startswith(PACKED)
    assert len(pack(long)) < len(long) / 5
    assert unpack(pack(long)) == long
    assert unpack(long) == long  # written before values were packed
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack(PACKED + b"nonsense")


def test_a_long_value_that_was_stored_before_values_were_packed_is_read(options: EtcdOptions) -> None:
    view = long_map("orders", 200)
    assert pack(encode(view)).startswith(PACKED)

    async def scenario() -> None:
        gateway = Gateway(options)
        await gateway.once("/v3/kv/txn", {"success": [put(f"{options.prefix}logs/orders", encode(view))]})
        await gateway.close()
        async with started(options) as store:
            assert await store.handle(Get("orders")) == Got("orders", 0, view, ())
            assert await store.handle(Swap("orders", 1, rolled(view))) == Swapped("orders", 2)
        async with started(options) as store:
            assert await store.projections() == (rolled(view),)

    asyncio.run(scenario())


def test_a_map_is_decoded_once_for_each_change_and_not_at_all_by_its_writer(
    options: EtcdOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with started(options) as one, started(options) as two:
            decoded = Decoded(monkeypatch)
            view = first_of()
            await one.handle(creation())
            for _ in range(3):
                await one.handle(Get("orders"))
                await one.projections()
            view = rolled(view)
            await one.handle(Swap("orders", 1, view))
            assert await one.handle(Get("orders")) == Got("orders", 0, view, ())
            assert decoded.kinds == []
            for _ in range(3):
                assert await two.handle(Get("orders")) == Got("orders", 0, view, ())
                assert await two.projections() == (view,)
            assert decoded.kinds == ["Projection"]

    asyncio.run(scenario())


def test_a_map_that_is_too_long_is_refused_while_there_is_room_to_trim_it(
    options: EtcdOptions, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = long_map("orders", 1000)
    monkeypatch.setattr(etcd_store, "GROWN_BYTES_MAX", len(pack(encode(view))))

    async def scenario() -> None:
        async with started(options) as store:
            service = RegisterService(store)
            assert await store.handle(Swap("orders", 0, view)) == Swapped("orders", 1)
            with pytest.raises(MapTooLarge, match="log orders has 1001 segments, more than etcd accepts; trim the log"):
                await store.handle(Swap("orders", 1, rolled(view)))
            answered: list[Message] = []
            with caplog.at_level(logging.ERROR):
                for _ in range(3):
                    service.submit(Swap("orders", 1, rolled(view)), answered.append)
                await until(lambda: service.counts.unanswered == 3)
            assert answered == []
            assert [each.message for each in caplog.records] == [service.refused["orders"]]
            service.submit(Swap("orders", 1, apply(view, RaiseTrim(1))), answered.append)
            await until(lambda: answered == [Swapped("orders", 2)])
            assert service.refused == {}
            await service.close()

    asyncio.run(scenario())


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_request_that_is_too_large_for_etcd_is_not_an_outage(options: EtcdOptions) -> None:
    view = long_map("orders", 8000, replace(first_of().last, epoch=0))  # it adds no segment: etcd itself refuses

    async def scenario() -> None:
        async with started(options) as store:
            endpoint = store._gateway._at
            with pytest.raises(MapTooLarge, match="log orders has 8000 segments, more than etcd accepts; trim the log"):
                await store.handle(Swap("orders", 0, view))
            assert store._gateway._at == endpoint
            assert await store.handle(Get("orders")) == Got("orders", 0, None, ())

    asyncio.run(scenario())
