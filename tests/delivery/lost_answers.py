"""A proxy before an Iceberg catalog that loses answers to commits, after they were done or before they are."""

from __future__ import annotations

import http.client
import http.server
import threading
from types import TracebackType
from typing import Final, Literal
from urllib.parse import urlsplit

HOP_BY_HOP: Final = ("transfer-encoding", "content-length", "connection")
Fault = Literal["none", "after", "before"]


class LosingProxy:
    """Listens at ``url``. ``fault``: what happens to commits; ``lost`` counts them."""

    def __init__(self, catalog: str) -> None:
        self.fault: Fault = "none"
        self.lost = 0
        self.commits: list[bytes] = []
        upstream = urlsplit(catalog).netloc
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                commits = self.command == "POST" and ("/tables/" in self.path or "/transactions/" in self.path)
                if commits:
                    proxy.commits.append(body)
                if commits and proxy.fault == "before":
                    self._lose()
                    return
                connection = http.client.HTTPConnection(upstream, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
                if commits and proxy.fault == "after":
                    self._lose()
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def _lose(self) -> None:
                proxy.lost += 1
                self.close_connection = True

            do_GET = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> LosingProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
