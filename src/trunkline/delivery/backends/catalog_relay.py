"""Requests of DuckDB to an Iceberg catalog pass through here, so that DuckDB learns of no commit without an answer.

When a commit fails, DuckDB's extension removes the files that it wrote, whatever went wrong. If only the answer was
lost, and the catalog committed, the table would name files that do not exist: rows would be lost, and no reader could
open the table any more. The same if its HTTP client sends a commit again, and the second one is refused.

Rules
 Y1  A commit is forwarded once. Its name is a table property.
 Y2  If the catalog certainly refused it (4xx, or nothing was sent), DuckDB gets that answer, and removes its files.
 Y3  If the outcome is unknown (no answer, 5xx, 408), DuckDB receives a success, and removes nothing. The caller
     looks here for the truth: ``take_unknown``. Files of a commit that did not happen stay; no table
     names them.
 Y4  It listens on a loopback port, and adds no credentials: a request has those that its client gave it.
 Y5  An instance of DuckDB that did not find a namespace will never find it: such an answer is noted (``take_missing``).
"""

from __future__ import annotations

import http.client
import http.server
import re
import ssl
import threading
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, urlsplit

NAME: Final = "trunkline.commit"  # the property
_NAME: Final = re.compile(rb'"trunkline\.commit"\s*:\s*"([0-9a-f]+)"')
COMMITS: Final = re.compile(r"/(?:transactions/commit|tables/[^/]+)/?(?:\?.*)?", re.ASCII)
NAMESPACE: Final = re.compile(r"/namespaces/[^/]+/?(?:\?.*)?$", re.ASCII)
UNKNOWN: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY)
# Of the connection and each answer. Shorter: slow commits are unknown; longer: a catalog that hangs delays its worker.
ANSWER_S: Final = 30.0
OF_A_CONNECTION: Final = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
)


class CatalogRelay:
    """Serves at ``url``, in threads of its own, until ``close``."""

    def __init__(self, catalog: str) -> None:
        parts = urlsplit(catalog)
        self._unknown: set[str] = set()
        self._missing = False
        self._lock = threading.Lock()
        self._server = _Server(parts, self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{parts.path.rstrip('/')}"
        threading.Thread(target=self._server.serve_forever, name="catalog-relay", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take_unknown(self, name: str) -> bool:
        """Whether the outcome of a commit is unknown; it is forgotten then."""
        with self._lock:
            known = name not in self._unknown
            self._unknown.discard(name)
        return not known

    def take_missing(self) -> bool:
        """Whether DuckDB looked for a namespace since the last call, and it does not exist (Y5)."""
        with self._lock:
            found, self._missing = self._missing, False
        return found

    def note_missing(self) -> None:
        with self._lock:
            self._missing = True

    def is_unknown(self, name: str) -> bool:
        with self._lock:
            return name in self._unknown

    def note_unknown(self, name: str) -> None:
        with self._lock:
            self._unknown.add(name)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: SplitResult, relay: CatalogRelay) -> None:
        self.upstream = upstream
        self.relay = relay
        super().__init__(("127.0.0.1", 0), _Handler)

    def connection(self) -> http.client.HTTPConnection:
        host, port = self.upstream.hostname or "", self.upstream.port
        if self.upstream.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=ANSWER_S)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10 * ANSWER_S  # of an idle connection
    server: _Server

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = self._commit_name(body)
        if name and self.server.relay.is_unknown(name):
            self._succeed()  # Y1
            return
        connection = self.server.connection()
        try:
            connection.connect()
        except OSError as error:
            self._answer(HTTPStatus.FAILED_DEPENDENCY, [], f"the catalog cannot be reached: {error}".encode())
            return
        try:
            connection.request(self.command, self.path, body or None, self._passed(self.headers.items()))
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._lost(name, f"the catalog did not answer: {type(error).__name__}")
            return
        finally:
            connection.close()
        if name and (answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status in UNKNOWN):
            self._lost(name, "")
            return
        if answer.status == HTTPStatus.NOT_FOUND and NAMESPACE.search(self.path) is not None:
            self.server.relay.note_missing()
        self._answer(answer.status, list(self._passed(answer.getheaders()).items()), data)

    do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = _forward  # noqa: N815

    def _commit_name(self, body: bytes) -> str:
        """Empty for other requests."""
        if self.command != "POST" or COMMITS.search(self.path) is None:
            return ""
        found = _NAME.search(body)
        return found[1].decode() if found else ""

    def _lost(self, name: str, why: str) -> None:
        if name:
            self.server.relay.note_unknown(name)
            self._succeed()  # Y3
        else:
            self._answer(HTTPStatus.BAD_GATEWAY, [], why.encode())

    def _succeed(self) -> None:
        status = HTTPStatus.NO_CONTENT if "/transactions/" in self.path else HTTPStatus.OK
        self._answer(status, [("Content-Type", "application/json")], b"" if status == HTTPStatus.NO_CONTENT else b"{}")

    def _passed(self, headers: object) -> dict[str, str]:
        assert isinstance(headers, list)
        return {name: value for name, value in headers if name.lower() not in OF_A_CONNECTION}

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("date", "server"):
                self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD" and status != HTTPStatus.NO_CONTENT:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""
