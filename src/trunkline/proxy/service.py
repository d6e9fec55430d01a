"""What all handlers of the proxy share."""

from __future__ import annotations

import msgspec

from trunkline.client.cluster import Cluster
from trunkline.proxy.counters import ProxyCounters
from trunkline.proxy.limits import KEY_WINDOW
from trunkline.proxy.open_logs import OpenLogs
from trunkline.proxy.shutdown import ShutdownSignal

DEFAULT_LISTEN = "127.0.0.1:8480"


class ProxyConfig(msgspec.Struct, frozen=True):
    listen: str = DEFAULT_LISTEN  # for other than loopback, set a token
    token: str = ""  # the bearer token of requests; empty: none is needed
    allow_hosts: tuple[str, ...] = ()  # names that it answers to, besides its address
    allow_origins: tuple[str, ...] = ()  # of pages in a browser, such as https://shop.example
    key_window: int = KEY_WINDOW  # the same for all proxies of a log; else they forget keys at different times


class ProxyService:
    def __init__(self, config: ProxyConfig, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self.counters = ProxyCounters()
        self.shutdown = ShutdownSignal()
        self.logs = OpenLogs(cluster, config.key_window, self.counters)

    @property
    def timeout_s(self) -> float | None:
        return self.cluster.options.timeout
