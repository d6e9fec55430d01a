"""The coordinator's server: duties of many logs in parallel, requests of operators, and what may stop it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metadata.projections import creation, first_of, node, trim
from trunkline.client.cluster import connect
from trunkline.core.effects import Effects, Event
from trunkline.core.events import DutiesOver
from trunkline.core.messages import NodeState, Register, Swap
from trunkline.core.projection import DeleteLog, EndSegment, Opening, Owner, Projection, Seat, apply
from trunkline.core.status import ClusterStatus
from trunkline.errors import ConfigError
from trunkline.metadata.store import StoreUnavailable
from trunkline.runtime.coordinator import (
    CoordinatorServer,
    CoordinatorServerConfig,
)
from trunkline.runtime.duties import TURNS_MAX, LogDuties
from trunkline.runtime.duty_runner import RETRY_S, DutyRunner
from trunkline.runtime.node import NodeConfig, check_advertised, run_node
from trunkline.runtime.process import Step

PATIENCE_S = 20.0
TICK_MS = 10


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def coordinating(directory: Path, **options: Any) -> AsyncIterator[CoordinatorServer]:
    config = CoordinatorServerConfig(listen="127.0.0.1:0", directory=directory, tick_ms=TICK_MS, **options)
    server = CoordinatorServer(config)
    try:
        await server.start()
        yield server
    finally:
        await server.close()


def closed(log: str = "orders") -> Projection:
    first = first_of(log)
    return apply(first, EndSegment(0, 1, first.last.groups, None))


async def make(server: CoordinatorServer, *logs: str) -> None:
    for log in logs:
        await server._store.handle(creation(log))
    await until(lambda: set(logs) <= set(server._duties.logs))


async def delete(server: CoordinatorServer, log: str) -> None:
    steps = (first_of(log), closed(log), apply(closed(log), DeleteLog()))
    for before, view in enumerate(steps):
        await server._store.handle(Swap(log, before, view))


def stopped(server: CoordinatorServer) -> bool:
    return server.lifetime._ended.done()


def test_l4_a_role_that_fails_stops_the_duties_of_its_log_and_of_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(key: str) -> Effects:
        raise ZeroDivisionError("a bug")

    async def scenario() -> None:
        async with coordinating(tmp_path) as server:
            await make(server, "bad", "good")
            bad, good = server._duties.logs["bad"], server._duties.logs["good"]
            bad._coordinator.on_timer = fail  # type: ignore[method-assign]
            await until(lambda: bad.failed)
            await server._store.handle(trim(first_of("good")))
            await until(lambda: good.view is not None and good.view.epoch == 2)
            assert not stopped(server)
            status = await server._status()
            assert {log.name: log.duty == "broken" for log in status.logs} == {"bad": True, "good": False}
        assert "the role coordinator of log bad failed" in caplog.text
        assert "ZeroDivisionError: a bug" in caplog.text

    asyncio.run(scenario())


def test_l1_many_logs_take_turns(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path) as server:
            begun: dict[str, int] = {}
            look = LogDuties._check

            def counted(self: LogDuties) -> None:
                begun[self.log] = len(server._duties._turns._running)
                look(self)

            names = [f"log{n:03}" for n in range(3 * TURNS_MAX)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LogDuties, "_check", counted)
                await make(server, *names)
                await until(lambda: set(begun) == set(names))
            assert max(begun.values()) <= TURNS_MAX

    asyncio.run(scenario())


def counted_looks(duties: LogDuties) -> list[None]:
    """Grows with each check of a log from now on."""
    looks: list[None] = []
    look = duties._coordinator._check

    def counted() -> Effects:
        looks.append(None)
        return look()

    duties._coordinator._check = counted  # type: ignore[method-assign]
    return looks


def test_l2_a_log_with_nothing_due_rests_until_its_projection_or_a_node_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path) as server:
            await server._store.handle(Swap("orders", 0, first_of()))
            await server._store.handle(Swap("orders", 1, view := closed()))
            await until(lambda: "orders" in server._duties.logs)
            duties = server._duties.logs["orders"]
            await until(lambda: duties.view == view and duties.duty == "idle")
            server._duties.logs["orders"]._coordinator.config = replace(duties._coordinator.config, rest_ms=3_600_000)
            await server._store.handle(Swap("orders", 2, view := replace(view, epoch=3)))
            await until(lambda: duties.view == view and duties.duty == "idle")
            looks = counted_looks(duties)
            await server._store.handle(Register(replace(node("w"), state=NodeState.CLIENT)))  # irrelevant for duties
            await server._store.handle(Register(node("a")))
            await until(lambda: bool(looks))
            await until(lambda: [info.node for info in duties._coordinator.nodes] == ["a", "w"])

    asyncio.run(scenario())


def test_l2_a_client_that_registers_or_leaves_wakes_no_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path) as server:
            await make(server, "orders")
            woken: list[str] = []
            server._duties.logs["orders"].wake = lambda: woken.append("orders")  # type: ignore[method-assign]
            await server._store.handle(Register(replace(node("w"), state=NodeState.CLIENT)))
            await server._store.leave("w", 1)
            await make(server, "other")  # the watch has reported everything before it
            assert woken == []
            await server._store.handle(Register(node("a")))
            await until(lambda: bool(woken))

    asyncio.run(scenario())


def test_l5_a_log_is_blocked_as_long_as_checks_find_it_blocked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path, lease_ms=60_000) as server:
            for name in ("a", "b"):
                await server._store.handle(Register(node(name, start=2)))
                await server._store.leave(name, 2)
            await make(server, "orders")  # its sequencer is an earlier start of a, and there is no node at all
            duties = server._duties.logs["orders"]
            await until(lambda: duties.blocked)
            for name in ("a", "b"):
                await server._store.handle(Register(node(name, start=1 + 2)))
            opening = Opening(((Seat("a", 1), Seat("b", 1)),), Owner("a", 3))
            back = apply(first_of(), EndSegment(0, 1, first_of().last.groups, opening))
            await server._store.handle(Swap("orders", 1, back))  # no reconfiguration is due any more
            await until(lambda: not duties.blocked)
            assert [log.blocked for log in (await server._status()).logs] == [False]

    asyncio.run(scenario())


def test_l3_duties_that_are_woken_in_their_last_step_end_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = LogDuties.announced

    def woken(self: LogDuties, role: str, event: Event, step: Step) -> None:
        announced(self, role, event, step)
        if isinstance(event, DutiesOver):
            self.wake()

    ended: list[str] = []
    finished = DutyRunner._finished

    def counted(self: DutyRunner, name: str) -> None:
        ended.append(name)
        finished(self, name)

    async def scenario() -> None:
        async with coordinating(tmp_path) as server:
            await make(server, "old")
            await delete(server, "old")
            await until(lambda: "old" not in server._duties.logs)
            assert ended == ["old"]

    monkeypatch.setattr(LogDuties, "announced", woken)
    monkeypatch.setattr(DutyRunner, "_finished", counted)
    asyncio.run(scenario())


def test_l3_the_duties_of_a_deleted_log_end_and_it_is_left_out_of_the_status(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path) as server:
            await make(server, "kept", "old")
            await delete(server, "old")
            await until(lambda: "old" not in server._duties.logs)
            assert [log.name for log in (await server._status()).logs] == ["kept"]
            server._duties.wake("old")  # the watch reports it again
            await until(lambda: "old" not in server._duties.logs)

    asyncio.run(scenario())


def test_l3_a_deleted_log_has_duties_while_a_node_may_come_back_with_a_stream_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path) as server:
            await server._store.handle(Register(node("a")))
            await server._store.leave("a", 1)
            await make(server, "old")
            await delete(server, "old")
            duties = server._duties.logs["old"]
            await until(lambda: duties.view is not None and duties.view.deleted and duties.duty == "idle")
            assert server._duties.logs["old"] is duties
            await server._store.set_node_state("a", NodeState.GONE)
            await until(lambda: "old" not in server._duties.logs)

    asyncio.run(scenario())


def test_a_store_that_fails_or_ends_its_watch_is_retried_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        pauses: list[float] = []
        campaigns = 0

        async def sleep(delay_s: float) -> None:
            pauses.append(delay_s)
            await pause(0)

        pause = asyncio.sleep
        async with coordinating(tmp_path) as server:
            store = server._store
            campaign, logs = store.campaign, store.logs

            async def counted(me: str) -> None:
                nonlocal campaigns
                campaigns += 1
                await campaign(me)

            async def unavailable() -> tuple[str, ...]:
                if campaigns < 3:
                    raise StoreUnavailable("not now")
                return await logs()

            monkeypatch.setattr(store, "campaign", counted)
            monkeypatch.setattr(store, "logs", unavailable)
            monkeypatch.setattr(asyncio, "sleep", sleep)
            store._changes.close()  # type: ignore[attr-defined]
            async with asyncio.timeout(PATIENCE_S):
                while campaigns < 6:
                    await pause(0)
            monkeypatch.undo()
            assert not stopped(server)
        assert pauses.count(RETRY_S) >= campaigns - 1

    asyncio.run(scenario())


def test_a_coordinator_stops_if_duties_fail_for_another_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        recordings = tmp_path / "recordings"
        recordings.write_text("no directory")
        server = CoordinatorServer(CoordinatorServerConfig(listen="127.0.0.1:0", directory=tmp_path, tick_ms=TICK_MS))
        await server.start()
        server.config = replace(server.config, record=recordings)
        await server._store.handle(creation())
        await until(lambda: stopped(server))
        assert "a task of the coordinator failed" in server.lifetime._ended.result()
        await server.close()

    asyncio.run(scenario())


def test_a_client_learns_the_cluster_without_a_status(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(tmp_path) as server:

            async def too_much(*, logs: bool = True) -> ClusterStatus:
                raise AssertionError("no client requested the status")

            server._status = too_much  # type: ignore[method-assign]
            async with connect(server.address) as cluster:
                assert cluster.id == server.cluster

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["a..b:7401", "host", "host:port", ":7401", "x" * 64 + ":7401"])
def test_a_node_does_not_start_with_an_address_that_cannot_be_dialled(tmp_path: Path, address: str) -> None:
    config = NodeConfig(tmp_path / "n", "n", listen="127.0.0.1:0", advertise=address)
    with pytest.raises(ConfigError):
        asyncio.run(run_node(config))
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("address", ["host:7401", "10.0.0.1:1", "[::1]:7401", "b\u00fccher.example:7401"])
def test_addresses_that_can_be_dialled_may_be_advertised(address: str) -> None:
    check_advertised(address)
