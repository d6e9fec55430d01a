"""A caller that makes a mistake, or gives up, does not affect others."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from client.test_log import payloads, run
from system.processes import Processes
from trunkline.client.batcher import BatchOptions
from trunkline.client.cluster import Cluster
from trunkline.core.role import Role
from trunkline.core.timing import Timing
from trunkline.errors import ConfigError, NoSuchLog, OutcomeUnknown, Refused, TrunklineError, Unreachable
from trunkline.runtime.process import Process


@pytest.mark.parametrize(
    "wrong",
    ["text", ["text"], [1], [None], memoryview(array("i", [1, 2, 3]))],
    ids=["str", "list of str", "ints", "nones", "view of ints"],
)
def test_a_value_that_is_not_bytes_is_rejected_and_others_are_appended(
    cluster: Processes, name: str, wrong: object
) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        others = asyncio.create_task(log.append(b"innocent"))
        with pytest.raises(ConfigError, match="bytes"):
            await log.append(wrong)  # type: ignore[arg-type]
        await others
        await log.append([memoryview(b"view"), bytearray(b"array")])
        assert await payloads(log) == [b"innocent", b"view", b"array"]

    run(cluster, test)


def test_closing_the_handle_fails_calls_in_progress(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append(b"a")
        subscription = log.batches(2)
        waiting = asyncio.create_task(anext(subscription))
        await asyncio.sleep(0.05)
        await log.close()
        with pytest.raises(TrunklineError):
            await asyncio.wait_for(waiting, 5)
        for call in (log.append(b"b"), log.tail(), log.read(1), log.trim(1)):
            with pytest.raises(Refused, match="closed"):
                await asyncio.wait_for(call, 5)

    run(cluster, test)


def test_a_subscription_that_is_left_keeps_nothing(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append([b"x" * 1000] * 100)
        for _ in range(20):
            async for _entry in log.subscribe(1):
                break
        for _ in range(5):
            with pytest.raises(Unreachable):
                await log.tail(timeout=0)
        await asyncio.sleep(0)
        assert log._session._waiting == {}
        assert not [role for role in log._session.process.roles if role.startswith(("reader:", "tail:"))]

    run(cluster, test)


def test_an_appender_leaves_no_timers_behind(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        for _ in range(50):
            await log.append(b"x")
        assert log._session.process._timers == {}

    run(cluster, test)


def test_an_operation_that_was_given_up_does_not_speak_for_a_later_one(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append([b"x"] * 10)
        given_up = 0
        for _ in range(200):  # a fast machine answers some of them in time
            try:
                await log.trim(1, timeout=0.0005)
            except OutcomeUnknown:
                given_up += 1
            await log.seal()
            await log.reopen()
            if given_up == 5:
                break
        assert given_up == 5
        assert await log.append(b"y") == 11

    run(cluster, test)


def test_a_condition_is_not_for_broadcast_logs(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True, policy="broadcast")
        with pytest.raises(ConfigError, match="chain logs"):
            await log.append(b"a", expect=1)

    run(cluster, test)


def test_a_deleted_log_is_called_that_by_every_call(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append(b"a")
        following = log.batches(2)
        await log.delete()
        for call in (log.tail(), log.peek(), log.read(1), log.append(b"b"), anext(following)):
            with pytest.raises(NoSuchLog, match="deleted"):
                await asyncio.wait_for(call, 10)

    run(cluster, test)


def test_what_waited_too_long_for_its_turn_is_not_sent(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        first = asyncio.create_task(log.append(b"x" * 2000))
        late = [asyncio.create_task(log.append(b"late", timeout=0)) for _ in range(3)]
        with pytest.raises(TrunklineError):
            await late[0]
        await first
        await asyncio.gather(*late, return_exceptions=True)
        found = await payloads(log)
        refused = [task for task in late if isinstance(task.exception(), Unreachable)]
        assert len(found) == 1 + len(late) - len(refused)

    run(cluster, test, batch=BatchOptions(in_flight=1))


def test_settings_of_batches_are_checked() -> None:
    for wrong in ({"batch_bytes": 0}, {"batch_bytes": 1 << 30}, {"in_flight": 0}, {"linger_ms": -1.0}):
        with pytest.raises(ConfigError):
            BatchOptions(**wrong)


def test_every_role_of_a_client_uses_the_time_outs_of_the_client(
    cluster: Processes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings: dict[str, Timing] = {}
    add = Process.add

    def recorded(self: Process, role_name: str, role: Role) -> None:
        config = getattr(role, "config", None)
        if config is not None and hasattr(config, "timing"):
            timings[role_name.partition(":")[0]] = config.timing
        add(self, role_name, role)

    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append([b"a", b"b"])
        await log.peek()
        await log.tail()
        await log.trim(1)

    monkeypatch.setattr(Process, "add", recorded)
    run(cluster, test, suspect_after_ms=7777, fill_after_ms=333)
    assert timings == dict.fromkeys(("appender", "peek", "tail", "reader"), Timing(7777, 333))
