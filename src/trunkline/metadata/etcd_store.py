"""The store for several coordinators: everything is in etcd, and every coordinator serves every request.

    <prefix>cluster              the cluster's id
    <prefix>logs/<name>          a projection
    <prefix>nodes/<id>           the registration of a node, and its state
    <prefix>nodes/<id>/live      exists as long as the node's lease
    <prefix>coordinator/active   the active coordinator

Rules
 T1  The register role of the core decides a request, from the state in etcd at that moment; one transaction writes its
     records, on condition that this state has not changed since. Otherwise the request starts over.
 T2  A transaction whose outcome is unknown gets no answer (K1).
 T3  The coordinator that a node registers with keeps the lease on its live key. When another coordinator has taken the
     key over, the next renewal takes it back. An unchanged renewal costs one request that changes nothing.
 T4  If a store starts and no node is live, no coordinator was there to renew leases: every node gets a new period.
 T5  When a node leaves, its live key is deleted if it belongs to that start; a client's entry is deleted with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl

from msgspec.structs import replace

from trunkline.core.effects import Address, Announce, Effects, Event, Persist, Record, Send
from trunkline.core.events import LeaseLost, Projected
from trunkline.core.messages import (
    Get,
    Got,
    LeaseExpired,
    NodeInfo,
    NodeState,
    Register,
    Registered,
    Swap,
    SwapLost,
    Swapped,
)
from trunkline.core.projection import Projection
from trunkline.core.register import MetadataRegister, NodeForgotten, NodeRegistered, ProjectionAccepted
from trunkline.core.timing import DEFAULT_TIMING
from trunkline.metadata.changes import Changes, Watcher
from trunkline.metadata.election import Election, grant
from trunkline.metadata.etcd_gateway import (
    EtcdOptions,
    Gateway,
    Json,
    RequestTooLarge,
    delete,
    from64,
    holds,
    put,
    range_below,
    range_of,
    unchanged,
)
from trunkline.metadata.etcd_view import About, EtcdReader, Keys, Subject, View
from trunkline.metadata.etcd_watch import Follower, KeyChanged
from trunkline.metadata.node_leases import NodeLeases
from trunkline.metadata.store import (
    NODES_CHANGED,
    Answer,
    Listener,
    MapTooLarge,
    Request,
    StoreUnavailable,
    is_passing,
    require_sound,
)
from trunkline.metadata.stored_json import encode, pack

ATTEMPTS_MAX = 16  # of one request that loses to others; then its sender retries
LEASE_S_MIN = 2  # the shortest that etcd grants
PUTS_MAX = 64  # in one transaction; etcd accepts 128 by default
LONG_SEGMENTS = 500  # a map with more is encoded in a thread
GROWN_BYTES_MAX = 1_250_000  # of a value with a new segment; etcd accepts 1.5 MiB, the rest is for repair and trim
CALLER = Address("caller", "caller")  # every answer goes back to the caller


class EtcdStore:
    def __init__(
        self, options: EtcdOptions, *, lease_ms: int = DEFAULT_TIMING.lease_ms, tls: ssl.SSLContext | None = None
    ) -> None:
        self._patience_s = options.request_ms / 1000
        self._keys = Keys(options.prefix)
        self._gateway = Gateway(options, tls)
        self._reader = EtcdReader(self._gateway, self._keys)
        self._lease_s = max(LEASE_S_MIN, math.ceil(lease_ms / 1000))
        self._leases = NodeLeases(self._gateway, self._lease_s)
        self._election = Election(self._gateway, self._keys.active)
        self._follower = Follower(self._gateway, options, self._survey, self._on_change)
        self._following: asyncio.Task[None] | None = None
        self._surveyed = asyncio.Event()
        self._changes = Changes()
        self._listener: Listener | None = None
        self._announced: dict[str, int] = {}  # log: epoch; as many as there are logs

    async def start(self) -> None:
        """A coordinator starts even if etcd is down: it serves as soon as etcd does."""
        self._following = asyncio.create_task(self._follower.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await self._surveyed.wait()

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        self._surveyed.set()  # waiters must notice that the store is closed
        await self._election.close()
        self._changes.close()
        await self._gateway.close()

    async def handle(self, message: Request) -> Answer | None:
        if isinstance(message, Swap):
            require_sound(message)
        if isinstance(message, Register) and await self._leases.renew(message.info):
            return Registered(message.info.node, message.info.start)  # T3
        for _ in range(ATTEMPTS_MAX):
            view = await self._view(message)
            effects = MetadataRegister(view.image).on_message(CALLER, message)  # T1
            if await self._store(view, message, effects):
                return self._perform(effects)
        raise StoreUnavailable(f"other writers changed it {ATTEMPTS_MAX} times; try again")

    async def leave(self, node: str, start: int) -> None:
        key, live = self._keys.node(node), self._keys.live(node)
        for _ in range(ATTEMPTS_MAX):
            view = await self._reader.read(range_of(key), range_of(live))
            effects = MetadataRegister(view.image).on_message(CALLER, LeaseExpired(node, start))
            if not effects:
                return
            forgotten = any(isinstance(record, NodeForgotten) for record in _records(effects))
            deletes = [delete(live), delete(key)] if forgotten else [delete(live)]
            mine = [unchanged(key, view.changed(key)), holds(live, str(start).encode())]  # T5
            if await self._write(mine, deletes):
                self._leases.forget(node)  # if it comes back, it gets a new one
                return
        raise StoreUnavailable(f"the entry of {node} changed {ATTEMPTS_MAX} times; its lease will expire")

    async def logs(self) -> tuple[str, ...]:
        answer = await self._gateway.repeatable("/v3/kv/range", range_below(self._keys.logs, keys_only=True))
        return tuple(sorted(self._keys.subject(from64(kv["key"]).decode()).name for kv in answer.get("kvs", [])))

    async def projections(self) -> tuple[Projection, ...]:
        return await self._reader.projections()

    async def nodes(self) -> tuple[NodeInfo, ...]:
        return (await self._reader.read(range_below(self._keys.nodes))).image.nodes

    async def set_node_state(self, node: str, state: NodeState) -> bool:
        key = self._keys.node(node)
        for _ in range(ATTEMPTS_MAX):
            view = await self._reader.read(range_of(key))
            if not view.image.nodes or is_passing(view.image.nodes[0]):
                return False
            [info] = view.image.nodes
            if info.state is state:
                return True
            changed = replace(info, state=state, live=True)
            if await self._write([unchanged(key, view.changed(key))], [put(key, encode(changed))]):
                return True
        raise StoreUnavailable(f"node {node} changed {ATTEMPTS_MAX} times; try again")

    async def forget_node(self, node: str) -> bool:
        key, live = self._keys.node(node), self._keys.live(node)
        answer = await self._gateway.once("/v3/kv/txn", {"success": [delete(live), delete(key)]})
        self._leases.forget(node)
        deleted = answer["responses"][1]["response_delete_range"]
        return int(deleted.get("deleted", 0)) > 0

    async def cluster(self) -> str:
        answer = await self._gateway.repeatable("/v3/kv/range", range_of(self._keys.cluster))
        return from64(answer["kvs"][0]["value"]).decode() if answer.get("kvs") else ""

    async def create_cluster(self, proposed: str) -> str:
        await self._write([unchanged(self._keys.cluster, 0)], [put(self._keys.cluster, proposed.encode())])
        return await self.cluster()

    def watch(self) -> Watcher:
        return self._changes.watch()

    async def campaign(self, me: str) -> None:
        await self._surveyed.wait()  # before that it would miss that the key was removed
        await self._election.campaign(me)

    def active(self) -> bool:
        return self._election.active()

    async def deposed(self) -> None:
        await self._election.deposed()

    async def active_coordinator(self) -> str:
        return await self._election.holder()

    def events(self, listener: Listener) -> None:
        self._listener = listener

    # ----------------------------------------------------------------------------------------------- one request

    async def _view(self, message: Request) -> View:
        """What the register needs to decide."""
        match message:
            case Get(log):
                return await self._reader.read_log(log, range_below(self._keys.nodes))
            case Swap(log):
                return await self._reader.read_log(log)
            case Register(info):
                live = range_of(self._keys.live(info.node))
                return await self._reader.read(range_of(self._keys.node(info.node)), live)

    async def _store(self, view: View, message: Request, effects: Effects) -> bool:
        """Store what the role asked for, and a renewed lease. False: something changed since the view was read."""
        if isinstance(message, Register):
            return not effects or await self._store_node(view, message.info, effects)
        for record in _records(effects):
            assert isinstance(record, ProjectionAccepted)
            return await self._store_projection(view, record.projection)
        return True

    async def _store_projection(self, view: View, projection: Projection) -> bool:
        key = self._keys.log(projection.log)
        is_long = len(projection.segments) > LONG_SEGMENTS
        value = await asyncio.to_thread(_packed, projection) if is_long else _packed(projection)
        grows = projection.last.epoch == projection.epoch
        try:
            if grows and len(value) > GROWN_BYTES_MAX:
                raise RequestTooLarge(f"its value would have {len(value)} bytes")
            revision = await self._write([unchanged(key, view.changed(key))], [put(key, value)])
        except RequestTooLarge as error:
            text = f"the map of log {projection.log} has {len(projection.segments)} segments, more than etcd accepts"
            raise MapTooLarge(f"{text}; trim the log ({error})") from error
        if revision:
            self._reader.keep(projection, revision)
        return revision > 0

    async def _store_node(self, view: View, given: NodeInfo, effects: Effects) -> bool:
        key, live = self._keys.node(given.node), self._keys.live(given.node)
        lease = await self._leases.lease_for(given.node)
        stored = [record.info for record in _records(effects) if isinstance(record, NodeRegistered)]
        decided = stored[0] if stored else replace(view.image.nodes[0], live=True)
        puts = [put(live, str(given.start).encode(), lease)]
        if is_passing(decided):
            puts.append(put(key, encode(decided), lease))  # always, so that both have the same lease
        elif stored:
            puts.append(put(key, encode(decided)))
        revision = await self._write([unchanged(key, view.changed(key))], puts)
        if revision:
            self._leases.hold(given, lease, revision)
        return revision > 0

    async def _write(self, conditions: list[Json], changes: list[Json]) -> int:
        """The revision at which it was written, 0 if a condition did not hold."""
        answer = await self._gateway.once("/v3/kv/txn", {"compare": conditions, "success": changes})
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def _perform(self, effects: Effects) -> Answer | None:
        """Announce, then answer. Some coordinator has announced what an answer contains (K2)."""
        answer: Answer | None = None
        for effect in effects:
            match effect:
                case Announce(Projected(projection)):
                    self._announce_projection(projection)
                case Send(_, (Got() | Swapped() | SwapLost() | Registered()) as message):
                    answer = message
        if isinstance(answer, Got) and answer.projection is not None:
            self._announce_projection(answer.projection)  # the outcome of its swap may have been unknown
        return answer

    # --------------------------------------------------------------------------------------------- changes by others

    async def _survey(self) -> int:
        """Read everything; watchers are notified that all of it may have changed."""
        view = await self._reader.read(range_below(self._keys.nodes))  # first: later changes are followed
        if not self._surveyed.is_set() and not any(info.live for info in view.image.nodes):
            await self._revive(view)  # T4
        for projection in await self._reader.projections():
            self._announce_projection(projection)
            self._changes.notify(projection.log)
        self._changes.notify(NODES_CHANGED)
        self._election.vacated()  # perhaps: it checks
        self._surveyed.set()
        return view.revision

    async def _revive(self, view: View) -> None:
        known = [info for info in view.image.nodes if info.state is not NodeState.GONE]
        for at in range(0, len(known), PUTS_MAX):
            lease = await grant(self._gateway, self._lease_s)
            some = [(self._keys.live(info.node), info) for info in known[at : at + PUTS_MAX]]
            absent = [unchanged(live, 0) for live, _ in some]
            await self._write(absent, [put(live, str(info.start).encode(), lease) for live, info in some])

    def _on_change(self, change: KeyChanged) -> None:
        match self._keys.subject(change.key):
            case Subject(About.LOG, name):
                self._changes.notify(name)
            case Subject(About.NODE, name):
                self._on_node_change(name, change)
            case Subject(About.LIVE, name):
                self._leases.touched(name, change.revision)
                self._changes.notify(NODES_CHANGED)
                if change.deleted:
                    self._announce(LeaseLost(name))
            case Subject(About.ACTIVE):
                if change.deleted:
                    self._election.vacated()

    def _on_node_change(self, node: str, change: KeyChanged) -> None:
        if change.deleted:
            self._leases.forget(node)
        else:
            self._leases.touched(node, change.revision)
        self._changes.notify(NODES_CHANGED)

    def _announce_projection(self, projection: Projection) -> None:
        if projection.epoch > self._announced.get(projection.log, 0):
            self._announced[projection.log] = projection.epoch
            self._announce(Projected(projection))

    def _announce(self, event: Event) -> None:
        if self._listener is not None:
            self._listener(event)


def _packed(projection: Projection) -> bytes:
    return pack(encode(projection))


def _records(effects: Effects) -> list[Record]:
    return [effect.record for effect in effects if isinstance(effect, Persist)]
