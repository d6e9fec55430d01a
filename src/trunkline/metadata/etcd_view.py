"""Reads the state in etcd at one revision, as values of the register."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.messages import NodeInfo
from trunkline.core.projection import Projection
from trunkline.core.register import RegisterImage
from trunkline.errors import StorageError
from trunkline.metadata.etcd_gateway import Gateway, Json, from64, range_below, range_of, unchanged
from trunkline.metadata.stored_json import decode, unpack

DECODED_MAX = 100_000  # decoded values in the cache; beyond it the cache is cleared

READS_MAX = 64  # in one transaction; etcd accepts 128 by default

T = TypeVar("T")


class About(enum.Enum):
    LOG = "log"
    NODE = "node"
    LIVE = "live"
    ACTIVE = "active"
    OTHER = "other"


class Subject(NamedTuple):
    """The subject of a key; ``name`` is a log or a node."""

    about: About
    name: str = ""


class Keys:
    """The names of keys. Names of logs and nodes are escaped: they may contain a slash."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.cluster = prefix + "cluster"
        self.active = prefix + "coordinator/active"
        self.logs = prefix + "logs/"
        self.nodes = prefix + "nodes/"

    def log(self, name: str) -> str:
        return self.logs + quote(name, safe="")

    def node(self, node: str) -> str:
        return self.nodes + quote(node, safe="")

    def live(self, node: str) -> str:
        return self.node(node) + "/live"

    def subject(self, key: str) -> Subject:
        if key == self.active:
            return Subject(About.ACTIVE)
        if key.startswith(self.logs):
            return Subject(About.LOG, unquote(key[len(self.logs) :]))
        if key.startswith(self.nodes):
            name, slash, _ = key[len(self.nodes) :].partition("/")
            return Subject(About.LIVE if slash else About.NODE, unquote(name))
        return Subject(About.OTHER)


class View(Struct, frozen=True):
    revision: int  # of etcd, at which all of it was read
    image: RegisterImage  # a node is live if its live key exists
    changed_at: dict[str, int]  # the revision at which each key was last changed

    def changed(self, key: str) -> int:
        """The revision at which a key was last changed, 0 if it does not exist. Only for keys that were read."""
        return self.changed_at.get(key, 0)


class EtcdReader:
    def __init__(self, gateway: Gateway, keys: Keys) -> None:
        self._gateway = gateway
        self._keys = keys
        self._decoded: dict[str, tuple[int, Struct]] = {}

    async def read(self, *ranges: Json) -> View:
        """All the ranges at one revision, linearizable: a transaction that only reads."""
        answer = await self._gateway.repeatable("/v3/kv/txn", {"success": _reads(ranges)})
        return self._view(answer, {})

    async def read_log(self, log: str, *others: Json) -> View:
        """The same for a log and other ranges; the log's value is transferred only if it is not in the cache."""
        key = self._keys.log(log)
        at, value = self._decoded.get(key, (0, None))
        if not isinstance(value, Projection):
            return await self.read(range_of(key), *others)
        choice = {
            "compare": [unchanged(key, at)],
            "success": _reads(others),
            "failure": _reads((range_of(key), *others)),
        }
        answer = await self._gateway.repeatable("/v3/kv/txn", choice)
        return self._view(answer, {key: (at, value)} if answer.get("succeeded") else {})

    async def projections(self) -> tuple[Projection, ...]:
        """Of all logs, sorted by name. Only changed ones are transferred."""
        answer = await self._gateway.repeatable("/v3/kv/range", range_below(self._keys.logs, keys_only=True))
        there = {from64(kv["key"]).decode(): int(kv["mod_revision"]) for kv in answer.get("kvs", [])}
        found = {key: self._decoded[key][1] for key, at in there.items() if self._decoded.get(key, (0,))[0] == at}
        missing = [key for key in there if key not in found]
        for first in range(0, len(missing), READS_MAX):
            view = await self.read(*(range_of(key) for key in missing[first : first + READS_MAX]))
            found |= {self._keys.log(projection.log): projection for projection in view.image.projections}
        return tuple(sorted((each for each in found.values() if isinstance(each, Projection)), key=lambda p: p.log))

    def keep(self, projection: Projection, revision: int) -> None:
        """It was written at this revision: the cache has it from now on."""
        self._keep(self._keys.log(projection.log), revision, projection)

    def _view(self, answer: Json, kept: dict[str, tuple[int, Projection]]) -> View:
        found = [kv for response in answer.get("responses", []) for kv in response["response_range"].get("kvs", [])]
        changed_at, live = {key: at for key, (at, _) in kept.items()}, set()
        projections, nodes = [projection for _, projection in kept.values()], []
        for kv in found:
            key, changed = from64(kv["key"]).decode(), int(kv["mod_revision"])
            changed_at[key] = changed
            match self._keys.subject(key):
                case Subject(About.LOG):
                    projections.append(self._value(Projection, key, changed, kv))
                case Subject(About.NODE):
                    nodes.append(self._value(NodeInfo, key, changed, kv))
                case Subject(About.LIVE, name):
                    live.add(name)
        registered = [replace(info, live=info.node in live) for info in sorted(nodes, key=lambda info: info.node)]
        revision = int(answer["header"]["revision"])
        return View(revision, RegisterImage(tuple(projections), tuple(registered)), changed_at)

    def _value(self, kind: type[T], key: str, changed: int, kv: Json) -> T:
        """Decodes a value once per change: logs are read far more often than they change."""
        at, value = self._decoded.get(key, (0, None))
        if at == changed and isinstance(value, kind):
            return value
        try:
            fresh = decode(kind, unpack(from64(kv["value"])))
        except ValueError as error:
            raise StorageError(f"{key} in etcd: {error}") from error
        assert isinstance(fresh, Struct)
        self._keep(key, changed, fresh)
        return fresh

    def _keep(self, key: str, changed: int, value: Struct) -> None:
        if len(self._decoded) >= DECODED_MAX:
            self._decoded.clear()
        self._decoded[key] = (changed, value)


def _reads(ranges: Sequence[Json]) -> list[Json]:
    return [{"request_range": each} for each in ranges]
