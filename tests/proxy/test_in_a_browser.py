"""The proxy and pages of other sites in a real browser (Debian's chromium)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from dashboard.running_dashboard import FLAGS
from local_cluster import RunningCluster
from outside import program
from proxy.proxy_process import Proxy, running

EVIL: Final = "evil.example"  # the browser resolves this name to this machine, as its owner could arrange
FETCH: Final = """async ([url, body]) => {
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body };
  try {
    const answer = await fetch(url, sent ?? {});
    return [answer.status, await answer.json()];
  } catch (error) { return ["blocked", null]; }
}"""
SUBSCRIBE: Final = """([url, kind]) => new Promise((resolve) => {
  const source = new EventSource(url);
  const heard = (event) => { source.close(); resolve(JSON.parse(event.data).text ?? "problem"); };
  if (kind === "message") source.onmessage = heard; else source.addEventListener(kind, heard);
})"""


class _Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!doctype html><title>a site</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """The port of another site's server on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Empty)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield int(server.server_address[1])
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        rules = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=[*FLAGS, rules])
        yield browser
        browser.close()


@pytest.fixture
def log(cluster: RunningCluster, name: str) -> str:
    """A log of its own; a loop for the library cannot run beside the browser's."""
    cluster.ok("log", "create", name)
    return name


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


def test_a_site_that_points_its_name_at_the_proxy_reads_and_appends_nothing(page: Page, proxy: Proxy, log: str) -> None:
    proxy.append(log, "mine")
    port = proxy.address.rpartition(":")[2]
    page.goto(f"http://{EVIL}:{port}/healthz")  # to the browser, the page and the proxy are one origin now
    for path, body in ((f"/v1/logs/{log}/entries?start=1", None), (f"/v1/logs/{log}/entries", '{"text":"theirs"}')):
        status, problem = page.evaluate(FETCH, [path, body])
        assert (status, problem["type"]) == (403, "urn:trunkline:problem:not-our-name")
    assert proxy.texts(log) == ["mine"]


def test_only_pages_of_a_listed_origin_read_append_and_subscribe(
    page: Page, cluster: RunningCluster, directory: Path, site: int, log: str
) -> None:
    listed, other = f"http://127.0.0.1:{site}", f"http://{EVIL}:{site}"
    with running(cluster.connect, directory, "--allow-origin", listed) as proxy:
        entries = f"{proxy.url}/v1/logs/{log}/entries"
        page.goto(listed)
        assert page.evaluate(FETCH, [entries, '{"text":"from the page"}']) == [201, {"glsn": 1}]
        assert page.evaluate(FETCH, [f"{entries}/1", None])[1]["text"] == "from the page"
        stream = f"{proxy.url}/v1/logs/{log}/subscribe?start=1"
        assert page.evaluate(SUBSCRIBE, [stream, "entry"]) == "from the page"
        assert page.evaluate(SUBSCRIBE, [f"{stream}&event=message", "message"]) == "from the page"
        page.goto(other)
        assert page.evaluate(FETCH, [entries, '{"text":"theirs"}']) == ["blocked", None]
        assert page.evaluate(FETCH, [f"{entries}/1", None]) == ["blocked", None]
        assert proxy.texts(log) == ["from the page"]
