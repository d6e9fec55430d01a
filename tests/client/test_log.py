"""The library against a real cluster: what each call promises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import trunkline
from system.processes import Processes
from trunkline.client.arguments import PolicyName
from trunkline.client.cluster import ClientOptions, Cluster, log_settings
from trunkline.client.log import Log
from trunkline.core.effects import Address, Message
from trunkline.core.messages import Get
from trunkline.errors import (
    ConditionFailed,
    ConfigError,
    LogSealed,
    NoSuchLog,
    NotWritten,
    OutcomeUnknown,
    OwnedByAnother,
    Refused,
    Trimmed,
    Unreachable,
)
from trunkline.runtime.questions import Questions

LEASE_LEFT_S = 2.0  # of a writer's lease, at least: it lasts 3 s and is renewed every second
POLICIES = ("chain", "broadcast")


def run(cluster: Processes, test: Callable[[Cluster], Awaitable[None]], **options: object) -> None:
    async def connected() -> None:
        async with trunkline.connect(cluster.coordinators, options=ClientOptions(**options)) as handle:  # type: ignore[arg-type]
            await test(handle)

    asyncio.run(connected())


async def payloads(log: Log, start: int | None = 1) -> list[bytes]:
    return [entry.payload async for entry in log.subscribe(start, to_tail=True)]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_appended_is_read_back_byte_for_byte(cluster: Processes, name: str, policy: PolicyName) -> None:
    contents = [b"", b"x", bytes(range(256)), b"line\nline\n", b"\0" * 1000]

    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True, policy=policy)
        first = await log.append(contents)
        assert first == 1
        assert await payloads(log) == contents
        assert [(await log.read(glsn)).payload for glsn in range(1, 6)] == contents
        assert await log.tail() == 6

    run(cluster, test)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_entry_may_have_sixteen_mebibytes_and_not_more(cluster: Processes, name: str, policy: PolicyName) -> None:
    large = bytes(range(256)) * (16 * 4096)

    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True, policy=policy)
        glsn = await log.append(large)
        assert (await log.read(glsn)).payload == large
        with pytest.raises(ConfigError, match="append it in parts"):
            await log.append(large + b"x")
        assert await log.tail() == glsn + 1

    run(cluster, test)


@pytest.mark.parametrize("policy", POLICIES)
def test_concurrent_appends_get_distinct_positions_without_a_hole(
    cluster: Processes, name: str, policy: PolicyName
) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True, policy=policy)
        given = await asyncio.gather(*(log.append([b"%d.%d" % (n, i) for i in range(n % 4 + 1)]) for n in range(200)))
        found = await payloads(log)
        for number, first in enumerate(given):
            size = number % 4 + 1
            assert found[first - 1 : first - 1 + size] == [b"%d.%d" % (number, i) for i in range(size)]
        assert len(found) == sum(n % 4 + 1 for n in range(200))

    run(cluster, test)


def test_headers_travel_with_their_entries(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append(b"plain")
        await log.append([b"a", b"b"], headers=[{"k": b"v"}, None])
        entries = [entry async for entry in log.subscribe(1, to_tail=True)]
        assert [dict(entry.headers) for entry in entries] == [{}, {"k": b"v"}, {}]
        with pytest.raises(ConfigError, match="headers were given for 1 of 2 entries"):
            await log.append([b"a", b"b"], headers=[{"k": b"v"}])

    run(cluster, test)


def test_batches_are_views_of_what_was_received(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append([b"one", b"two", b"three"])
        batches = [batch async for batch in log.batches(2, 3)]
        assert [(batch.first, batch.last, len(batch)) for batch in batches] == [(2, 3, 2)]
        assert batches[0].payloads() == [b"two", b"three"]
        assert batches[0].offsets.tolist() == [3, 6, 11]
        assert bytes(batches[0].data) == b"onetwothree"

    run(cluster, test)


def test_a_subscription_waits_at_the_tail_for_what_comes(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)

        async def follow() -> list[bytes]:
            return [entry.payload async for entry in log.subscribe(1, until=3)]

        following = asyncio.create_task(follow())
        for content in (b"a", b"b", b"c"):
            await log.append(content)
        assert await asyncio.wait_for(following, 10) == [b"a", b"b", b"c"]

    run(cluster, test)


def test_a_slow_subscriber_holds_a_bounded_number_of_bytes_and_misses_nothing(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        content = bytes(256 * 1024)
        for _ in range(12):
            await log.append([content] * 8)
        subscription = log.batches(1, to_tail=True)
        first = await anext(subscription)
        await asyncio.sleep(1.5)  # longer than a silent node is suspected
        assert subscription._ahead < 20 * 1024 * 1024
        rest = [batch async for batch in subscription]
        assert first.first == 1
        assert sum(len(batch) for batch in rest) + len(first) == 96
        assert (await handle.describe(name)).epoch == 1  # no node was suspected meanwhile

    run(cluster, test)


def test_a_conditional_append_gets_exactly_its_position_or_nothing(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        assert await log.append(b"a", expect=1) == 1
        with pytest.raises(ConditionFailed, match="the next position is 2"):
            await log.append(b"b", expect=1)
        assert await payloads(log) == [b"a"]
        assert await log.peek() == 2

    run(cluster, test)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_sealed_log_is_read_only_until_it_is_reopened(cluster: Processes, name: str, policy: PolicyName) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True, policy=policy)
        await log.append(b"a")
        ended = await log.seal()
        assert ended.end == 2
        with pytest.raises(LogSealed):
            await log.append(b"b")
        await log.reopen()
        assert await log.append(b"c", takeover=policy == "broadcast") == 2
        assert await payloads(log) == [b"a", b"c"]

    run(cluster, test)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trimmed_position_raises_trimmed(cluster: Processes, name: str, policy: PolicyName) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True, policy=policy)
        for content in (b"a", b"b", b"c"):
            await log.append(content)
        assert await log.trim(2) == 2
        with pytest.raises(Trimmed) as trimmed:
            await log.read(1)
        assert trimmed.value.point == 2
        with pytest.raises(Trimmed):
            await payloads(log, 1)
        assert await payloads(log, None) == [b"c"]
        with pytest.raises(Refused, match="not below the tail"):
            await log.trim(100)

    run(cluster, test)


def test_reading_past_the_tail_says_so(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append(b"a")
        with pytest.raises(NotWritten):
            await log.read(2)
        with pytest.raises(NotWritten, match="nothing to fill"):
            await log.fill(2)
        assert await log.fill(1) is False
        with pytest.raises(ConfigError, match="must be a position from 1"):
            await log.read(0)

    run(cluster, test)


def test_a_broadcast_log_has_one_writer_until_another_takes_it(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        first = await handle.log(name, create=True, policy="broadcast")
        await first.append(b"a")
        async with trunkline.connect(cluster.coordinators) as other:
            second = await other.log(name)
            with pytest.raises(OwnedByAnother):
                await second.append(b"b")
            await second.append(b"c", takeover=True)
            with pytest.raises(OwnedByAnother):
                await first.append(b"d")
            assert await payloads(second) == [b"a", b"c"]

    run(cluster, test)


@pytest.mark.parametrize("whole", [True, False], ids=["the cluster handle", "the log"])
def test_a_broadcast_writer_that_closed_is_followed_by_the_next_one_at_once(
    cluster: Processes, name: str, whole: bool
) -> None:
    async def test(handle: Cluster) -> None:
        loop = asyncio.get_running_loop()
        await handle.log(name, create=True, policy="broadcast")
        for number in range(5):
            writing = trunkline.connect(cluster.coordinators) if whole else handle
            if whole:
                await writing.open()
            log = await writing.log(name)
            began = loop.time()
            assert await log.append(b"%d" % number) == number + 1
            assert loop.time() - began < LEASE_LEFT_S  # not by waiting until the lease of the one before ran out
            await (writing if whole else log).close()
        assert await payloads(await handle.log(name)) == [b"%d" % number for number in range(5)]

    run(cluster, test)


def test_a_deleted_log_does_not_exist_and_its_name_cannot_be_reused(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append(b"a")
        await log.delete()
        with pytest.raises(NoSuchLog, match="was deleted"):
            await handle.log(name)
        with pytest.raises(Refused, match="deleted"):
            await handle.log(name, create=True)
        assert name not in await handle.logs()

    run(cluster, test)


def test_a_log_knows_its_settings_when_it_is_opened(
    cluster: Processes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Message] = []
    ask = Questions.ask

    async def counted(questions: Questions, to: Address, message: Message) -> Message:
        requests.append(message)
        return await ask(questions, to, message)

    async def test(handle: Cluster) -> None:
        monkeypatch.setattr(Questions, "ask", counted)
        created = await handle.log(name, create=True, replicas=2, min_replicas=2)
        assert requests == []  # the role that creates it has read it
        opened = await handle.log(name)
        assert requests == [Get(name)]
        assert created.settings == opened.settings == log_settings(replicas=2, min_replicas=2)
        assert requests == [Get(name)]

    run(cluster, test)


def test_creating_again_is_harmless_with_the_same_settings_and_refused_with_others(
    cluster: Processes, name: str
) -> None:
    async def test(handle: Cluster) -> None:
        await handle.log(name, create=True, replicas=2)
        await handle.log(name, create=True, replicas=2)
        with pytest.raises(Refused, match="other settings"):
            await handle.log(name, create=True, replicas=3)
        assert name in await handle.logs()

    run(cluster, test)


def test_wrong_arguments_are_named(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        with pytest.raises(NoSuchLog, match="create it first"):
            await handle.log(name)
        for wrong in ("", "a b", "-a", "a/b", "x" * 129, "日" * 100, "é"):
            with pytest.raises(ConfigError, match="is not a valid name of a log"):
                await handle.log(wrong, create=True)
        with pytest.raises(NoSuchLog, match="is not a valid name of a log"):
            await handle.log("日" * 200)
        with pytest.raises(ConfigError, match="is not a policy"):
            await handle.log(name, create=True, policy="ring")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="min_replicas"):
            await handle.log(name, create=True, replicas=1, min_replicas=2)
        log = await handle.log(name, create=True)
        with pytest.raises(ConfigError, match="at least one entry"):
            await log.append([])

    run(cluster, test)


def test_a_cluster_that_is_not_there_is_said_to_be_unreachable() -> None:
    async def test() -> None:
        options = ClientOptions(connect_timeout=0.5)
        with pytest.raises(Unreachable, match="is the cluster up"):
            async with trunkline.connect("127.0.0.1:1", options=options):
                pass

    asyncio.run(test())


def test_an_append_that_is_not_settled_in_time_may_still_happen(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        with pytest.raises(OutcomeUnknown, match="may still be committed"):
            await log.append(b"a", timeout=0.000001)

    run(cluster, test)


def test_closing_waits_for_appends_that_are_under_way(cluster: Processes, name: str) -> None:
    under_way: list[asyncio.Task[int]] = []

    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        under_way.extend(asyncio.create_task(log.append(b"%d" % number)) for number in range(100))
        await asyncio.sleep(0)

    async def reread(handle: Cluster) -> None:
        log = await handle.log(name)
        assert sorted(await payloads(log)) == sorted(b"%d" % number for number in range(100))

    run(cluster, test)
    assert all(task.done() and task.exception() is None for task in under_way)
    run(cluster, reread)


def test_a_striped_log_keeps_the_order_over_its_groups(cluster: Processes, name: str) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True, replicas=2, groups=3, stripe_unit=4)
        contents = [b"%d" % number for number in range(40)]
        for content in contents:
            await log.append(content)
        assert await payloads(log) == contents
        with pytest.raises(Refused, match="stripe unit"):
            await log.append([b"x"] * 5)

    run(cluster, test)


def test_a_recording_of_a_client_has_its_operations(cluster: Processes, name: str, tmp_path: Path) -> None:
    async def test(handle: Cluster) -> None:
        log = await handle.log(name, create=True)
        await log.append(b"a")

    run(cluster, test, record=tmp_path)
    lines = b"".join(path.read_bytes() for path in tmp_path.glob("*.trace"))
    assert b"Invoked" in lines
    assert b"Committed" in lines
