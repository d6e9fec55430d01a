"""What etcd holds, read at one revision and turned into the register's values."""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.messages import NodeInfo
from trunkline.core.projection import Projection
from trunkline.core.register import RegisterImage
from trunkline.errors import StorageError
from trunkline.metadata.etcd_gateway import Gateway, Json, from64
from trunkline.metadata.stored_json import decode

DECODED_MAX = 10_000  # values that are kept decoded; beyond it all are forgotten and decoded again

T = TypeVar("T")


class About(enum.Enum):
    LOG = "log"
    NODE = "node"
    LIVE = "live"
    ACTIVE = "active"
    OTHER = "other"


class Subject(NamedTuple):
    """What a key is about; ``name`` is a log or a node."""

    about: About
    name: str = ""


class Keys:
    """The names of keys. Names of logs and nodes are escaped: they may hold a slash."""

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
    revision: int  # of etcd, when all of this was so
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
        reads = [{"request_range": each} for each in ranges]
        answer = await self._gateway.repeatable("/v3/kv/txn", {"success": reads})
        found = [kv for response in answer["responses"] for kv in response["response_range"].get("kvs", [])]
        return self._view(int(answer["header"]["revision"]), found)

    def _view(self, revision: int, found: list[Json]) -> View:
        changed_at, live = {}, set()
        projections, nodes = [], []
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
        told = [replace(info, live=info.node in live) for info in sorted(nodes, key=lambda info: info.node)]
        return View(revision, RegisterImage(tuple(projections), tuple(told)), changed_at)

    def _value(self, kind: type[T], key: str, changed: int, kv: Json) -> T:
        """A value is decoded once per change: logs are read far more often than they change."""
        at, value = self._decoded.get(key, (0, None))
        if at == changed and isinstance(value, kind):
            return value
        try:
            fresh = decode(kind, from64(kv["value"]))
        except ValueError as error:
            raise StorageError(f"{key} in etcd: {error}") from error
        if len(self._decoded) >= DECODED_MAX:
            self._decoded.clear()
        assert isinstance(fresh, Struct)
        self._decoded[key] = (changed, fresh)
        return fresh
