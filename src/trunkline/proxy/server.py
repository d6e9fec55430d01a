"""The server of the proxy: its operations and their addresses, start and stop.

When it shuts down, it accepts no new connections, streams end between two events, waiting reads are answered, and other
requests have some seconds to finish.
"""

from __future__ import annotations

import logging

from aiohttp import web

from trunkline.client.cluster import Cluster
from trunkline.net.addresses import parse_address
from trunkline.net.http_names import is_loopback
from trunkline.net.http_site import http_logger, start_site
from trunkline.proxy.append_handlers import AppendHandlers
from trunkline.proxy.counters import ProxyCounters
from trunkline.proxy.event_stream import SubscribeHandler
from trunkline.proxy.guard import ApiOperation, Handler, RequestGuard, as_problems
from trunkline.proxy.limits import BODY_BYTES_MAX, CONNECTIONS_MAX, IDLE_CONNECTION_S, STOP_S_MAX
from trunkline.proxy.origins import AllowedOrigins
from trunkline.proxy.read_handlers import ReadHandlers
from trunkline.proxy.service import ProxyConfig, ProxyService
from trunkline.proxy.status_handlers import StatusHandlers

log = logging.getLogger("trunkline.proxy")

DEFAULT_PORT = 8480
LOG = "/v1/logs/{log}"


def operations(service: ProxyService) -> list[ApiOperation]:
    """All operations; the OpenAPI document describes the same."""
    read, append, stream = ReadHandlers(service), AppendHandlers(service), SubscribeHandler(service)
    status = StatusHandlers(service)
    page = ("start", "limit", "wait_ms", "encoding")
    return [
        ApiOperation("listLogs", "GET", "/v1/logs", read.logs),
        ApiOperation("describeLog", "GET", LOG, read.log),
        ApiOperation("appendEntry", "POST", f"{LOG}/entries", append.one),
        ApiOperation("readEntries", "GET", f"{LOG}/entries", read.page, page),
        ApiOperation("appendBatch", "POST", f"{LOG}/batches", append.batch),
        ApiOperation("readEntry", "GET", f"{LOG}/entries/{{glsn}}", read.entry, ("encoding",)),
        ApiOperation("findTail", "GET", f"{LOG}/tail", read.tail),
        ApiOperation(
            "subscribe", "GET", f"{LOG}/subscribe", stream.subscribe, ("start", "idle_ms", "encoding", "event")
        ),
        ApiOperation("openapi", "GET", "/v1/openapi.json", status.openapi),
        ApiOperation("healthz", "GET", "/healthz", status.page, open=True, nameless=True),
        ApiOperation("readyz", "GET", "/readyz", status.page, open=True),
        ApiOperation("metrics", "GET", "/metrics", status.page),
    ]


class ProxyServer:
    """``address``: where it listens, after ``start``."""

    def __init__(self, config: ProxyConfig, cluster: Cluster) -> None:
        self.address = ""
        self._config = config
        self._origins = AllowedOrigins(config.allow_origins)
        self._service = ProxyService(config, cluster)
        self._runner: web.AppRunner | None = None

    @property
    def counters(self) -> ProxyCounters:
        return self._service.counters

    async def start(self) -> None:
        """Raises ``ConfigError`` if it cannot listen there."""
        host, port = parse_address(self._config.listen, DEFAULT_PORT)
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=http_logger("trunkline.proxy.http"),
            auto_decompress=False,
            keepalive_timeout=IDLE_CONNECTION_S,
            shutdown_timeout=STOP_S_MAX,
        )
        self.address = await start_site(self._runner, host, port, CONNECTIONS_MAX, "--listen")
        if not self._config.token and not is_loopback(host):
            log.warning("listening on %s without a token: every client that reaches it can append", self.address)
        log.info("listening on %s", self.address)

    async def stop(self) -> None:
        self._service.shutdown.begin()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._for_browsers, as_problems])
        application.on_response_prepare.append(self._origins.add_headers)
        guard = RequestGuard(self._service)
        for each in operations(self._service):
            application.router.add_route(each.method, each.path, guard.guarded(each))
        return application

    @web.middleware
    async def _for_browsers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return self._origins.preflight(request) or await handler(request)
