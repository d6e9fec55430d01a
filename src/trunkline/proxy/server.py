"""The proxy's server: which operation has which address, and how it begins and ends.

When it stops, it takes no new connections, streams end between two events, waiting reads are answered, and what else
is under way is given some seconds to end.
"""

from __future__ import annotations

import logging

from aiohttp import web

from trunkline.client.cluster import Cluster
from trunkline.net.addresses import parse_address
from trunkline.net.http_names import is_loopback
from trunkline.net.http_site import http_logger, start_site
from trunkline.proxy.append_handlers import Appending
from trunkline.proxy.counters import Counters
from trunkline.proxy.event_stream import Streaming
from trunkline.proxy.guard import Guard, Handler, Operation, as_problems
from trunkline.proxy.limits import BODY_BYTES_MAX, CONNECTIONS_MAX, IDLE_CONNECTION_S, STOP_S_MAX
from trunkline.proxy.origins import Origins
from trunkline.proxy.read_handlers import Reading
from trunkline.proxy.service import ProxyConfig, Service
from trunkline.proxy.status_handlers import StatusHandlers

log = logging.getLogger("trunkline.proxy")

DEFAULT_PORT = 8480
LOG = "/v1/logs/{log}"


def operations(service: Service) -> list[Operation]:
    """Everything that the proxy does; the OpenAPI document describes the same."""
    reading, appending, streaming = Reading(service), Appending(service), Streaming(service)
    status = StatusHandlers(service)
    page = ("start", "limit", "wait_ms", "encoding")
    return [
        Operation("listLogs", "GET", "/v1/logs", reading.logs),
        Operation("describeLog", "GET", LOG, reading.log),
        Operation("appendEntry", "POST", f"{LOG}/entries", appending.one),
        Operation("readEntries", "GET", f"{LOG}/entries", reading.page, page),
        Operation("appendBatch", "POST", f"{LOG}/batches", appending.batch),
        Operation("readEntry", "GET", f"{LOG}/entries/{{glsn}}", reading.entry, ("encoding",)),
        Operation("findTail", "GET", f"{LOG}/tail", reading.tail),
        Operation(
            "subscribe", "GET", f"{LOG}/subscribe", streaming.subscribe, ("start", "idle_ms", "encoding", "event")
        ),
        Operation("openapi", "GET", "/v1/openapi.json", status.openapi),
        Operation("healthz", "GET", "/healthz", status.page, open=True, nameless=True),
        Operation("readyz", "GET", "/readyz", status.page, open=True),
        Operation("metrics", "GET", "/metrics", status.page),
    ]


class ProxyServer:
    """``address`` is where it listens, once it was started."""

    def __init__(self, config: ProxyConfig, cluster: Cluster) -> None:
        self.address = ""
        self._config = config
        self._origins = Origins(config.allow_origins)
        self._service = Service(config, cluster)
        self._runner: web.AppRunner | None = None

    @property
    def counters(self) -> Counters:
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
            log.warning("listening on %s without a token: whoever reaches it may append", self.address)
        log.info("listening on %s", self.address)

    async def stop(self) -> None:
        self._service.stopping.begin()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._for_browsers, as_problems])
        application.on_response_prepare.append(self._origins.tell)
        guard = Guard(self._service)
        for each in operations(self._service):
            application.router.add_route(each.method, each.path, guard.guarded(each))
        return application

    @web.middleware
    async def _for_browsers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return self._origins.preflight(request) or await handler(request)
