"""What the handlers of requests share."""

from __future__ import annotations

import msgspec

from trunkline.client.cluster import Cluster
from trunkline.proxy.counters import Counters
from trunkline.proxy.limits import KEY_WINDOW
from trunkline.proxy.open_logs import OpenLogs
from trunkline.proxy.shutdown import Stopping

DEFAULT_LISTEN = "127.0.0.1:8480"


class ProxyConfig(msgspec.Struct, frozen=True):
    listen: str = DEFAULT_LISTEN  # wider than loopback: give a token, too
    token: str = ""  # what requests show as bearer; empty: everybody who reaches the proxy is let in
    allow_hosts: tuple[str, ...] = ()  # names by which it may be asked for, besides its address
    allow_origins: tuple[str, ...] = ()  # of pages that may ask from a browser, such as https://shop.example
    key_window: int = KEY_WINDOW  # the same for all proxies of a log, or they forget keys at different times


class Service:
    def __init__(self, config: ProxyConfig, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self.counters = Counters()
        self.stopping = Stopping()
        self.logs = OpenLogs(cluster, config.key_window, self.counters)

    @property
    def timeout_s(self) -> float | None:
        return self.cluster.options.timeout
