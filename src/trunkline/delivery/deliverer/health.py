"""A small HTTP server beside the deliverer: metrics, health and status.

    /metrics    for Prometheus
    /healthz    200 while the deliverer's loop turns; 503: restart it
    /readyz     200 while it delivers, or would if it were given something; halted destinations are only named
    /status     everything that is known, as JSON

It reads values that were made for it, and never touches the loop. But for ``/healthz`` it answers under its own names
only (rule E1 of ``net.http_names``).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Final

import msgspec

from trunkline.core.planner_tracks import TrackStage
from trunkline.delivery.deliverer.metrics import Metrics
from trunkline.delivery.deliverer.progress import DelivererView
from trunkline.errors import ConfigError
from trunkline.net.addresses import format_address, parse_address
from trunkline.net.http_names import OwnNames
from trunkline.threads import Threads

logger = logging.getLogger(__name__)

STALLED_MS: Final = 10_000  # the loop comes round once a second; too small: a busy machine is restarted
STARTING_MS: Final = 180_000  # until the loop turns for the first time: Spark has to start
REQUESTS_MAX: Final = 16  # at once; more are not answered
POLL_S: Final = 0.2  # how long closing takes at most
REQUEST_S: Final = 10.0  # a peer that is slower is left
HALTED_MAX: Final = 100  # destinations named by /readyz; /status names all

Answer = tuple[HTTPStatus, bytes, str]
JSON: Final = "application/json"
NOT_OUR_NAME: Final = b"this server does not go by that name; use its address, or list the name under listen_names\n"


class Readiness(msgspec.Struct, frozen=True):
    """Whether a deliverer does its work, or would; ``why`` it does not."""

    ready: bool
    why: tuple[str, ...]
    state: str
    held: int
    halted: int
    errors: dict[str, str]  # of halted destinations, at most HALTED_MAX


def alive(view: DelivererView) -> bool:
    return view.turned_ms_ago < (STARTING_MS if view.state == "starting" else STALLED_MS)


def readiness(view: DelivererView) -> Readiness:
    why = []
    if view.state != "running":
        why.append(f"the deliverer is {view.state}")
    if not alive(view):
        why.append(f"the loop has not turned for {view.turned_ms_ago} ms; look at the log, and restart the deliverer")
    if view.source_error:
        why.append(f"the source cannot be reached: {view.source_error}")
    if view.store_error and not view.held:
        why.append(f"nothing is owned, and the control store cannot be reached: {view.store_error}")
    why += [f"{died}; the deliverer ends, start it again" for died in view.died]
    halted = [each for each in view.destinations if each.stage == TrackStage.HALTED.value]
    errors = {each.name: each.error for each in halted[:HALTED_MAX]}
    return Readiness(not why, tuple(why), view.state, view.held, len(halted), errors)


class HealthServer:
    """Listens from the moment it is made, answers from ``begin`` on. Raises ``ConfigError`` if it cannot listen."""

    def __init__(
        self,
        listen: str,
        view: Callable[[], DelivererView],
        metrics: Metrics,
        threads: Threads | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        """``names``: by which it may be asked for, besides its address."""
        self._view = view
        self._metrics = metrics
        host, port = parse_address(listen)
        try:
            self._server = _Server(host, port, self._answer, OwnNames(host, names))
        except OSError as error:
            raise ConfigError(
                f"listen: {listen} cannot be used ({error.strerror or error}); choose another host or port, "
                "port 0 for any free one, or none"
            ) from error
        self._threads = threads or Threads()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where it listens, with the real port."""
        host, port = self._server.server_address[:2]
        return format_address(str(host), int(port))

    def begin(self) -> None:
        self._thread = self._threads.start("health", lambda: self._server.serve_forever(POLL_S))
        logger.info("health and metrics: http://%s/status", self.address)

    def close(self) -> None:
        """Stop listening; requests that are being answered end by themselves."""
        if self._thread is not None and self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _answer(self, path: str, accept: str) -> Answer:
        match path.partition("?")[0]:
            case "/metrics":
                body, kind = self._metrics.text(accept)
                return HTTPStatus.OK, body, kind
            case "/healthz":
                view = self._view()
                found = {"alive": alive(view), "state": view.state, "turned_ms_ago": view.turned_ms_ago}
                return _status(alive(view)), msgspec.json.encode(found), JSON
            case "/readyz":
                ready = readiness(self._view())
                return _status(ready.ready), msgspec.json.encode(ready), JSON
            case "/status":
                return HTTPStatus.OK, msgspec.json.encode(self._view()), JSON
        text = b"there are /metrics, /healthz, /readyz and /status\n"
        return HTTPStatus.NOT_FOUND, text, "text/plain"


def _status(good: bool) -> HTTPStatus:
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE


class _Server(ThreadingHTTPServer):
    """A thread for each request, REQUESTS_MAX at most; they end with the process."""

    request_queue_size = 2 * REQUESTS_MAX  # too small: askers at the same moment wait for seconds
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, answer: Callable[[str, str], Answer], names: OwnNames) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answer = answer
        self.names = names
        self.slots = threading.Semaphore(REQUESTS_MAX)
        super().__init__((host, port), _Request)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own asks the name service who we are, which may take long
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(POLL_S)  # without descriptors it would be asked for again at once, and so on
            raise

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.slots.release()  # no thread was to be had
            raise

    def verify_request(self, request: object, client_address: object) -> bool:
        return self.slots.acquire(blocking=False)  # without a slot it is closed, unanswered

    def process_request_thread(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        logger.info("a request of %s broke off", client_address, exc_info=True)


class _Request(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Server

    def do_GET(self) -> None:
        if self._is_for_us():
            status, body, kind = self.server.answer(self.path, self.headers.get("Accept", ""))
        else:
            status, body, kind = HTTPStatus.FORBIDDEN, NOT_OUR_NAME, "text/plain"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def _is_for_us(self) -> bool:
        reached = str(self.connection.getsockname()[0])
        return self.path == "/healthz" or self.server.names.has(self.headers.get("Host"), reached)

    def log_message(self, form: str, *values: object) -> None:
        logger.debug(form, *values)
