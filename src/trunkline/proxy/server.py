"""The proxy's server: which operation has which address, and how it begins and ends.

When it stops, it takes no new connections, streams end between two events, waiting reads are answered, and what else
is under way is given some seconds to end.
"""

from __future__ import annotations

import logging
import socket

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from trunkline.client.cluster import Cluster
from trunkline.errors import ConfigError
from trunkline.net.addresses import format_address, parse_address
from trunkline.net.http_site import BoundedSite
from trunkline.proxy.append_handlers import Appending
from trunkline.proxy.counters import Counters
from trunkline.proxy.event_stream import Streaming
from trunkline.proxy.guard import Guard, Handler, Operation, as_problems
from trunkline.proxy.limits import BODY_BYTES_MAX, CONNECTIONS_MAX, IDLE_CONNECTION_S, STOP_S_MAX
from trunkline.proxy.origins import Origins
from trunkline.proxy.read_handlers import Reading
from trunkline.proxy.service import ProxyConfig, Service
from trunkline.proxy.status_handlers import Watching

log = logging.getLogger("trunkline.proxy")

DEFAULT_PORT = 8480
LOG = "/v1/logs/{log}"


def operations(service: Service) -> list[Operation]:
    """Everything that the proxy does; the OpenAPI document describes the same."""
    reading, appending, streaming = Reading(service), Appending(service), Streaming(service)
    watching = Watching(service)
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
        Operation("openapi", "GET", "/v1/openapi.json", watching.openapi),
        Operation("healthz", "GET", "/healthz", watching.healthz, open=True, nameless=True),
        Operation("readyz", "GET", "/readyz", watching.readyz, open=True),
        Operation("metrics", "GET", "/metrics", watching.metrics),
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
            logger=_http_logger(),
            auto_decompress=False,
            keepalive_timeout=IDLE_CONNECTION_S,
            shutdown_timeout=STOP_S_MAX,
        )
        await self._runner.setup()
        try:
            await BoundedSite(self._runner, host, port, CONNECTIONS_MAX).start()
        except OSError as error:
            await self.stop()
            raise ConfigError(
                f"cannot listen on {self._config.listen}: {error.strerror}; choose another --listen"
            ) from None
        self.address = format_address(*self._runner.addresses[0][:2])
        if not self._config.token and not _is_loopback(host):
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


def _http_logger() -> logging.Logger:
    """What is logged of requests that failed: bugs of the proxy, and not what others send that is no HTTP."""
    logger = logging.getLogger("trunkline.proxy.http")
    logger.addFilter(_is_ours)
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return all(str(address[0]).startswith("127.") or address[0] == "::1" for *_, address in found)
