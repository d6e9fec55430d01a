"""What only the store in etcd promises: several coordinators, several members, and the loss of some of them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from etcd_server import Etcd
from metadata import campaigning_process
from metadata.places import LOOK_AGAIN_S, PATIENCE_S, eventually
from metadata.projections import creation, first_of, node, trim, trimmed
from outside import program
from stopping import stop_and_wait
from trunkline.core.events import LeaseLost
from trunkline.core.messages import Get, Got, NodeState, Register, Registered, SwapLost, Swapped
from trunkline.core.projection import Member, Projection
from trunkline.errors import ConfigError
from trunkline.metadata.etcd_gateway import EtcdOptions, Gateway, put
from trunkline.metadata.etcd_store import EtcdStore
from trunkline.metadata.etcd_watch import Follower, KeyChanged
from trunkline.metadata.store import NODES_CHANGED, MetadataStore, StoreUnavailable

TAKEOVER_S_MAX = 5.0
FAST = ["--heartbeat-interval=50", "--election-timeout=500"]  # members on one machine need no long timeouts


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd"), options=FAST) as running:
        yield running


@pytest.fixture
def options(etcd: Etcd) -> EtcdOptions:
    return EtcdOptions(etcd.endpoints, prefix=f"/{uuid.uuid4()}/", retry_ms=50)


@contextlib.asynccontextmanager
async def started(store: EtcdStore) -> AsyncIterator[EtcdStore]:
    await store.start()
    try:
        yield store
    finally:
        await store.close()


# ------------------------------------------------------------------------------------------------ several coordinators


def test_m1_swaps_through_several_coordinators_have_one_winner(options: EtcdOptions) -> None:
    async def scenario() -> None:
        async with started(EtcdStore(options)) as one, started(EtcdStore(options)) as two:
            await one.handle(creation())
            swaps = [store.handle(trim(first_of(), by)) for by, store in enumerate([one, two] * 10, start=1)]
            answers = await asyncio.gather(*swaps)
            assert answers.count(Swapped("orders", 2)) == 1
            assert answers.count(SwapLost("orders", 1)) == 19

    asyncio.run(scenario())


def test_k3_a_watcher_receives_changes_by_another_coordinator(options: EtcdOptions) -> None:
    async def scenario() -> None:
        async with started(EtcdStore(options)) as one, started(EtcdStore(options)) as two:
            watcher = two.watch()
            await one.handle(creation())
            await one.handle(Register(node()))
            heard: set[str] = set()
            async with asyncio.timeout(PATIENCE_S):
                while heard != {"orders", NODES_CHANGED}:
                    heard.add(await anext(watcher))

    asyncio.run(scenario())


def test_t3_a_node_that_goes_to_another_coordinator_keeps_its_lease(options: EtcdOptions) -> None:
    async def scenario() -> None:
        lost: list[object] = []
        async with started(EtcdStore(options, lease_ms=2000)) as observer:
            observer.events(lost.append)
            first = EtcdStore(options, lease_ms=2000)
            async with started(first):
                await first.handle(Register(node()))
                await first.handle(Register(node("b")))
            async with started(EtcdStore(options, lease_ms=2000)) as second, asyncio.timeout(PATIENCE_S):
                while LeaseLost("b") not in lost:  # b did not move
                    assert await second.handle(Register(node())) == Registered("a", 1)
                    await asyncio.sleep(0.2)  # as a node does between its renewals
            assert lost == [LeaseLost("b")]
            assert await observer.nodes() == (node(), replace(node("b"), live=False))

    asyncio.run(scenario())


def test_t5_a_node_may_leave_at_another_coordinator_and_come_back_at_the_first(options: EtcdOptions) -> None:
    client = replace(node("writer"), state=NodeState.CLIENT)

    async def scenario() -> None:
        async with started(EtcdStore(options)) as one, started(EtcdStore(options)) as two:
            for info in (node(), client):
                await one.handle(Register(info))
                await two.leave(info.node, info.start)
            assert await two.nodes() == (replace(node(), live=False),)
            watcher = one.watch()
            async with asyncio.timeout(PATIENCE_S):
                while await one.nodes() != (node(), client):  # until the watch has reported that its lease has no key
                    await one.handle(Register(node()))
                    await one.handle(Register(client))
                    await anext(watcher)

    asyncio.run(scenario())


def test_t3_a_renewal_does_not_undo_a_change_by_another_coordinator(options: EtcdOptions) -> None:
    async def scenario() -> None:
        async with started(EtcdStore(options)) as one, started(EtcdStore(options)) as two:
            await one.handle(Register(node()))
            await two.set_node_state("a", NodeState.DRAINING)
            await one.handle(Register(node()))
            assert await two.nodes() == (replace(node(), state=NodeState.DRAINING),)
            watcher = one.watch()
            await two.handle(Register(node(start=2)))
            async with asyncio.timeout(PATIENCE_S):
                while await one.handle(Register(node(start=1))) is not None:  # until the watch has reported it
                    await anext(watcher)
            assert await one.nodes() == (replace(node(start=2), state=NodeState.DRAINING),)

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------------------ election


class Rival:
    """A coordinator in a process of its own."""

    def __init__(self, options: EtcdOptions, name: str) -> None:
        command = [sys.executable, campaigning_process.__file__, ",".join(options.endpoints), options.prefix, name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def wait_active(self) -> None:
        for line in self.output:
            if line.split()[1] == "1":
                return
        pytest.fail("the rival ended")

    def next_state(self, after: float) -> bool:
        """Whether it took itself for active at its first check after this time."""
        for line in self.output:
            at, active = line.split()
            if float(at) > after:
                return active == "1"
        pytest.fail("the rival ended")

    def last_active(self) -> float:
        """When a rival that has ended last took itself for active; 0: never."""
        lines = [line.split() for line in self.output.read().splitlines()]
        return max((float(parts[0]) for parts in lines if parts[1:] == ["1"]), default=0.0)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()


@pytest.fixture
def rival(options: EtcdOptions) -> Iterator[Rival]:
    running = Rival(options, "rival")
    yield running
    running.close()


def test_v2_when_the_active_coordinator_is_killed_another_takes_over_within_seconds(
    options: EtcdOptions, rival: Rival
) -> None:
    async def scenario() -> None:
        async with started(EtcdStore(options)) as store:
            await asyncio.to_thread(rival.wait_active)
            assert await store.active_coordinator() == "rival"
            campaign = asyncio.create_task(store.campaign("heir"))
            rival.process.kill()
            killed = time.monotonic()
            async with asyncio.timeout(PATIENCE_S):
                await campaign
            elected = time.monotonic()
            assert store.active()
            assert await store.active_coordinator() == "heir"
            assert elected - killed < TAKEOVER_S_MAX
            assert rival.last_active() < elected

    asyncio.run(scenario())


def test_v2_a_coordinator_that_was_stopped_is_not_active_when_it_wakes(options: EtcdOptions, rival: Rival) -> None:
    async def scenario() -> None:
        async with started(EtcdStore(options)) as store:
            await asyncio.to_thread(rival.wait_active)
            stop_and_wait(rival.process.pid)
            async with asyncio.timeout(PATIENCE_S):
                await store.campaign("heir")
            elected = time.monotonic()
            rival.process.send_signal(signal.SIGCONT)
            assert not await asyncio.to_thread(rival.next_state, elected)
            assert store.active()

    asyncio.run(scenario())


def test_v2_a_coordinator_that_cannot_renew_deposes_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        with Etcd(tmp_path, options=FAST) as etcd:
            async with started(EtcdStore(EtcdOptions(etcd.endpoints, retry_ms=50))) as store:
                async with asyncio.timeout(PATIENCE_S):
                    await store.campaign("me")
                    etcd.pause(0)
                    await store.deposed()
                    assert not store.active()
                    etcd.resume(0)
                    await store.campaign("me")  # when the lease has expired in etcd, too
                assert store.active()

    asyncio.run(scenario())


def test_a_campaign_ends_when_its_store_closes(options: EtcdOptions) -> None:
    async def scenario() -> None:
        async with started(EtcdStore(options)) as winner, asyncio.timeout(PATIENCE_S):
            await winner.campaign("winner")
            async with started(EtcdStore(options)) as loser:
                campaign = asyncio.create_task(loser.campaign("loser"))
                await asyncio.sleep(0)  # it has begun
            with pytest.raises(StoreUnavailable, match="closed"):
                await campaign

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------- loss of members


async def swapped(store: MetadataStore, projection: Projection) -> Projection:
    """Trim once, as a role does: without an answer, read whether it happened."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                answer = await store.handle(trim(projection))
                if isinstance(answer, Swapped):
                    return trimmed(projection)
                found = await store.handle(Get(projection.log))
                if isinstance(found, Got) and found.projection == trimmed(projection):
                    return trimmed(projection)
                pytest.fail(f"another process swapped: {found}")
            except StoreUnavailable:
                await asyncio.sleep(LOOK_AGAIN_S)


def test_a_cluster_of_three_works_without_one_and_stops_without_two(tmp_path: Path) -> None:
    async def scenario() -> None:
        with Etcd(tmp_path, members=3, options=FAST) as etcd:
            options = EtcdOptions(etcd.endpoints, request_ms=500, retry_ms=50)
            async with started(EtcdStore(options)) as store:
                await store.handle(creation())
                leader = etcd.leader()
                etcd.kill(leader)
                projection = await swapped(store, first_of())
                [second, third] = {0, 1, 2} - {leader}
                etcd.pause(second)  # its connections stay, and it is silent: as in a partition
                with pytest.raises(StoreUnavailable):
                    await store.handle(Get("orders"))
                with pytest.raises(StoreUnavailable):
                    await store.handle(trim(projection))
                etcd.resume(second)
                projection = await swapped(store, projection)
                watcher = store.watch()
                etcd.restart(leader)
                etcd.kill(third)
                projection = await swapped(store, projection)
                async with asyncio.timeout(PATIENCE_S):
                    while await anext(watcher) != "orders":  # the watch has moved to a member that lives
                        pass
                found = await store.handle(Get("orders"))
                assert isinstance(found, Got)
                assert found.projection == projection

    asyncio.run(scenario())


def test_e2_requests_and_the_watch_leave_a_member_that_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        with Etcd(tmp_path, members=3, options=FAST) as etcd:
            async with started(EtcdStore(EtcdOptions(etcd.endpoints, request_ms=500, retry_ms=50))) as store:
                await store.handle(creation())
                watcher = store.watch()
                await swapped(store, first_of())
                assert await anext(watcher) == "orders"
                etcd.pause(0)  # the first endpoint is the one in use
                await swapped(store, trimmed(first_of()))
                async with asyncio.timeout(PATIENCE_S):  # less than a silent watch is left alone
                    assert await anext(watcher) == "orders"

    asyncio.run(scenario())


def test_e2_a_watch_does_not_begin_at_a_member_that_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        with Etcd(tmp_path, members=3, options=FAST) as etcd:
            etcd.pause(0)
            async with started(EtcdStore(EtcdOptions(etcd.endpoints, request_ms=500, retry_ms=50))) as store:
                watcher = store.watch()
                async with asyncio.timeout(PATIENCE_S):
                    assert await anext(watcher) == NODES_CHANGED

    asyncio.run(scenario())


def test_e2_unreachable_endpoints_are_skipped(options: EtcdOptions) -> None:
    unreachable = replace(options, endpoints=("http://127.0.0.1:9", *options.endpoints))

    async def scenario() -> None:
        async with started(EtcdStore(unreachable)) as store:
            assert await store.handle(creation()) == Swapped("orders", 1)

    asyncio.run(scenario())


def test_a_store_that_starts_before_etcd_serves_as_soon_as_etcd_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        etcd = Etcd(tmp_path, options=FAST)
        async with started(EtcdStore(EtcdOptions(etcd.endpoints, request_ms=500, retry_ms=50))) as store:
            with pytest.raises(StoreUnavailable, match="check that a majority"):
                await store.cluster()
            watcher = store.watch()
            with etcd:
                async with asyncio.timeout(PATIENCE_S):
                    assert await anext(watcher) == NODES_CHANGED
                assert await store.create_cluster("mine") == "mine"

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------------- the gateway


def test_an_etcd_without_endpoints_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        EtcdStore(EtcdOptions(()))


def test_a_survey_replaces_changes_whose_history_was_compacted(options: EtcdOptions) -> None:
    async def scenario() -> None:
        gateway = Gateway(options)
        surveys: list[int] = []
        changes: asyncio.Queue[KeyChanged] = asyncio.Queue()

        async def write(name: str) -> int:
            written = await gateway.once("/v3/kv/txn", {"success": [put(options.prefix + name, b"x")]})
            return int(written["header"]["revision"])

        async def survey() -> int:
            surveys.append(1 if not surveys else revision)  # the first one is of long ago
            return surveys[-1]

        try:
            for name in ("a", "b", "c"):
                revision = await write(name)
            await gateway.once("/v3/kv/compaction", {"revision": str(revision)})
            following = asyncio.create_task(Follower(gateway, options, survey, changes.put_nowait).run())
            written = await write("d")
            async with asyncio.timeout(PATIENCE_S):
                assert await changes.get() == KeyChanged(f"{options.prefix}d", False, written, 0)
            assert surveys == [1, revision]
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        finally:
            await gateway.close()

    asyncio.run(scenario())


def test_a_projection_larger_than_a_line_of_the_http_library_is_stored_and_watched(options: EtcdOptions) -> None:
    large = first_of()
    [segment] = large.segments
    group = tuple(Member(f"{'n' * 200}{number}", 1, f"1.0.{number}") for number in range(200))
    large = replace(large, segments=(replace(segment, groups=(group,)),))

    async def scenario() -> None:
        async with started(EtcdStore(options)) as store:
            watcher = store.watch()
            assert await store.handle(replace(creation(), projection=large)) == Swapped("orders", 1)
            assert await store.handle(Get("orders")) == Got("orders", 0, large, ())
            async with asyncio.timeout(PATIENCE_S):
                while await anext(watcher) != "orders":
                    pass

    asyncio.run(scenario())


def test_a_user_and_password_are_used_and_a_token_that_expired_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        with Etcd(tmp_path, options=FAST) as etcd:
            await require_password(etcd)
            known = EtcdOptions(etcd.endpoints, retry_ms=50, user="root", password="secret")
            async with started(EtcdStore(replace(known, user=""))) as stranger:
                with pytest.raises(StoreUnavailable, match="user name is empty"):
                    await stranger.cluster()
            async with started(EtcdStore(known)) as store:
                assert await store.create_cluster("mine") == "mine"
                etcd.kill(0)  # tokens are not kept over a restart
                etcd.launch(0)
                await eventually(lambda: answers(store))

    asyncio.run(scenario())


async def require_password(etcd: Etcd) -> None:
    gateway = Gateway(EtcdOptions(etcd.endpoints))
    await gateway.once("/v3/auth/user/add", {"name": "root", "password": "secret"})
    await gateway.once("/v3/auth/role/add", {"name": "root"})
    await gateway.once("/v3/auth/user/grant", {"user": "root", "role": "root"})
    await gateway.once("/v3/auth/enable", {})
    await gateway.close()


async def answers(store: MetadataStore) -> bool:
    try:
        return await store.cluster() == "mine"
    except StoreUnavailable:
        return False


def test_etcd_is_reached_through_tls_and_an_unknown_certificate_is_rejected(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    request = [program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    request += [
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(request, check=True, capture_output=True)

    async def scenario() -> None:
        files = [f"--cert-file={certificate}", f"--key-file={key}"]
        with Etcd(tmp_path / "etcd", options=[*files, *FAST], tls=True) as etcd:
            options = EtcdOptions(etcd.endpoints, request_ms=1000)
            trusting = ssl.create_default_context(cafile=str(certificate))
            async with started(EtcdStore(options, tls=trusting)) as store:
                assert await store.create_cluster("mine") == "mine"
            async with started(EtcdStore(options)) as store:
                with pytest.raises(StoreUnavailable, match="certificate verify failed"):
                    await store.cluster()

    asyncio.run(scenario())
