"""The server of the dashboard: files of the page, a stream of changes, pages of logs, and desired states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

from trunkline.config import ConnectionConfig
from trunkline.dashboard.collector import ClusterCollector
from trunkline.dashboard.connection import NEVER_MS, ClusterConnection
from trunkline.dashboard.counterexamples import KINDS, file_of
from trunkline.dashboard.guard import SANDBOX_POLICY, add_headers, guard, must_be_allowed
from trunkline.dashboard.history import EventHistory
from trunkline.dashboard.log_pages import PageReader, page_range
from trunkline.dashboard.payloads import ChangesText, no_changes
from trunkline.dashboard.sessions import Sessions, WrongToken
from trunkline.dashboard.stores import StoreWatch, check_address
from trunkline.dashboard.watch import ClusterWatch
from trunkline.errors import ConfigError, NoSuchLog, TrunklineError, Unreachable
from trunkline.net.addresses import parse_address
from trunkline.net.http_requests import abort, decode_body, json_response, read_body, write_within
from trunkline.net.http_site import http_logger, start_site

T = TypeVar("T")

SESSION, LOGIN = "/api/session", "/api/login"
OPEN_PATHS: Final = ("/", SESSION, LOGIN)
FILES: Final = Path(__file__).with_name("page")
TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
REQUEST_BYTES_MAX: Final = 16 * 1024
READS_AT_ONCE: Final = 4  # pages of logs; each may hold some megabytes
READING_SUSPECT_MS: Final = 2_000  # twice as long as other readers wait for a silent node; shorter than PAGE_S
KEEP_ALIVE_S: Final = 15.0  # between comments on a quiet stream; too big: gateways close it
RETRY_MS: Final = 1_000  # before a page reconnects
SHUTDOWN_S: Final = 1.0
CONNECTIONS_MAX: Final = 256  # a browser opens six for a page; 32 pages may be open
IDLE_S: Final = 20.0  # a connection without a whole request for so long is closed
BODY_S: Final = 10.0  # to send a request's body
STALLED_S: Final = 30.0  # a page that reads nothing for so long is disconnected


class DashboardConfig(Struct, frozen=True):
    connection: ConnectionConfig
    listen: str = "127.0.0.1:7480"
    stores: tuple[str, ...] = ()  # sqlite:PATH, postgres:DSN
    check_out: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    read_only: bool = False
    open: bool = False  # no login, although the cluster has a token
    changes_text: ChangesText = no_changes


class LoginRequest(Struct, frozen=True, forbid_unknown_fields=True):
    token: str


class DesiredStateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    store: int
    pipeline: str
    destination: str
    desired_state: Literal["active", "paused"]


class Dashboard:
    """Calls ``on_failure`` with the reason if it cannot continue."""

    def __init__(self, config: DashboardConfig, on_failure: Callable[[str], None]) -> None:
        for address in config.stores:
            check_address(address)
        self._host, self._port = parse_address(config.listen)
        self._config = config
        self._watching = ClusterConnection(config.connection, NEVER_MS)
        self._reading = ClusterConnection(config.connection, READING_SUSPECT_MS)
        self._stores = tuple(StoreWatch(number, address) for number, address in enumerate(config.stores))
        self._history = EventHistory(config.connection)
        self.sessions = Sessions("" if config.open else config.connection.token)
        self.watch = ClusterWatch(
            ClusterCollector(self._watching),
            self._history,
            self._stores,
            config.check_out,
            may_operate=not config.read_only,
            on_failure=on_failure,
        )
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen; returns the address of the page. Raises ``ConfigError`` if the port is taken."""
        guarded = guard(self._host, self._config.allow_hosts)
        middlewares = [guarded, self._only_in_a_session, errors_as_json]
        app = web.Application(middlewares=middlewares, client_max_size=REQUEST_BYTES_MAX)
        app.on_response_prepare.append(add_headers)
        app.on_shutdown.append(self._end_pages)
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/page/{name}", self._file),
                web.get(SESSION, self._session),
                web.post(LOGIN, self._login),
                web.get("/api/events", self._events),
                web.get("/api/logs/{log}/entries", self._entries),
                web.post("/api/desired-state", self._set_desired_state),
                web.get("/check-out/{name}", self._counterexample),
            ]
        )
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=http_logger("trunkline.dashboard.http"),
            shutdown_timeout=SHUTDOWN_S,
            keepalive_timeout=IDLE_S,
        )
        address = await start_site(self._runner, self._host, self._port, CONNECTIONS_MAX, "--listen")
        self.sessions.cookie = (
            f"trunkline-{parse_address(address)[1]}"  # browsers send a cookie to every port of a host
        )
        return f"http://{address}/"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self.watch.close()
        await self._watching.close()
        await self._reading.close()
        await self._history.close()
        for store in self._stores:
            await store.close()

    async def _end_pages(self, _: web.Application) -> None:
        await self.watch.close()

    # --------------------------------------------------------------------------------------------------------- sessions

    @web.middleware
    async def _only_in_a_session(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Files of the page reveal nothing; everything else needs a session if the cluster has a token (S1)."""
        is_open = request.path in OPEN_PATHS or request.path.startswith("/page/")
        if is_open or self.sessions.has(request):
            return await handler(request)
        answer = {"error": "LoginNeeded", "message": "this cluster has a token; log in with it"}
        return json_response(answer, web.HTTPUnauthorized.status_code)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        return json_response({"open": self.sessions.has(request)})

    async def _login(self, request: web.Request) -> web.StreamResponse:
        wanted = await _body(request, LoginRequest)
        response = json_response({"open": True})
        if self.sessions.needed:
            await self.sessions.begin(wanted.token, response)
        return response

    # ------------------------------------------------------------------------------------------------------------ files

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return _page_file("index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return _page_file(request.match_info["name"])

    async def _counterexample(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        path = await asyncio.to_thread(file_of, self._config.check_out, name)
        if path is None:
            raise web.HTTPNotFound(text="this counterexample does not exist")
        headers = {"Content-Security-Policy": SANDBOX_POLICY, "Content-Type": f"{KINDS[path.suffix]}; charset=utf-8"}
        return web.FileResponse(path, headers=headers)

    # -------------------------------------------------------------------------------------------------------------- api

    async def _events(self, request: web.Request) -> web.StreamResponse:
        page = self.watch.open_page()
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
            await response.prepare(request)
            await write_within(response, b"retry: %d\n\n" % RETRY_MS, STALLED_S)
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        patch = await page.waiting.get()
                except TimeoutError:
                    await write_within(response, b": still here\n\n", STALLED_S)
                    continue
                if patch is None:
                    return response
                await write_within(response, b"data: %b\n\n" % patch, STALLED_S)
        except ConnectionError:
            return response  # the page closed
        except TimeoutError:
            abort(request)
            return response
        finally:
            self.watch.close_page(page)

    async def _entries(self, request: web.Request) -> web.StreamResponse:
        start, count = page_range(request.query.get("start", "1"), request.query.get("count", "50"))
        async with self._reads:
            name = request.match_info["log"]
            trimmed = (await (await self._reading.cluster()).describe(name)).trim
            log = await self._reading.log(name)
            page = await PageReader(log, start, count, trimmed, self._config.changes_text).read()
        return json_response(page)

    async def _set_desired_state(self, request: web.Request) -> web.StreamResponse:
        must_be_allowed(may_operate=not self._config.read_only)
        wanted = await _body(request, DesiredStateRequest)
        if not 0 <= wanted.store < len(self._stores):
            raise ConfigError(f"there is no control store {wanted.store}; reload the page")
        await self._stores[wanted.store].set_desired_state(wanted.pipeline, wanted.destination, wanted.desired_state)
        return json_response({"desired_state": wanted.desired_state})


async def _body(request: web.Request, kind: type[T]) -> T:
    """Raises ``ConfigError``."""
    return decode_body(await read_body(request, REQUEST_BYTES_MAX, BODY_S), kind)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except TrunklineError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
        return json_response(answer, _status_of(error))


def _status_of(error: TrunklineError) -> int:
    match error:
        case NoSuchLog():
            return 404
        case ConfigError():
            return 400
        case WrongToken():
            return 401
        case Unreachable():
            return 503
    return 409


def _page_file(name: str) -> web.StreamResponse:
    """A file of the page, by its plain name: no other file is served."""
    path = FILES / name
    if path.suffix not in TYPES or path.parent != FILES or not path.is_file():
        raise web.HTTPNotFound(text="this file does not exist")
    headers = {"Cache-Control": "no-cache", "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8"}
    return web.FileResponse(path, headers=headers)
