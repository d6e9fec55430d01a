"""Which requests the server accepts. The threat is a page of another site in the same browser.

Rules
 H1  The ``Host`` of a request must be a name of this server (rule E1 of ``net.http_names``). A site that points its own
     name here (DNS rebinding) is refused.
 H2  A change needs a header that other sites cannot send without a preflight, which the server never allows; and if the
     browser sends an origin, it must be this server.
 H3  A request to the API that a browser marks as from another site is refused, not only changes.
 H4  Every answer restricts what a page may load: files of this server, and no inline scripts. Counterexamples have
     inline scripts; they run in a sandbox, without an origin, and may load nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from trunkline.errors import Refused
from trunkline.net.http_guard import is_foreign_origin, is_own_name
from trunkline.net.http_names import NOT_OUR_NAME, OwnNames
from trunkline.net.http_requests import json_response

OPERATING_HEADER: Final = "X-Trunkline-Dashboard"
PAGE_POLICY: Final = (
    "default-src 'self'; script-src 'self'; style-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SANDBOX_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
HEADERS: Final = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def guard(listen_host: str, allowed: Iterable[str]) -> Middleware:
    """The middleware for H1 to H3. Raises ``ConfigError`` for an invalid name."""
    names = OwnNames(listen_host, allowed)

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        why = refusal(request, names)
        if why is not None:
            return json_response({"error": "Refused", "message": why}, web.HTTPForbidden.status_code)
        return await handler(request)

    return guarded


def refusal(request: web.Request, names: OwnNames) -> str | None:
    """Why a request is refused; None: it is not."""
    if not is_own_name(request, names):  # H1
        return NOT_OUR_NAME
    changes = request.method not in ("GET", "HEAD")
    if changes and request.headers.get(OPERATING_HEADER) != "1":  # H2
        return f"a change needs the header {OPERATING_HEADER}: 1; the page sends it"
    if changes and is_foreign_origin(request):
        return "a change must come from the page of this server"
    site = request.headers.get("Sec-Fetch-Site", "none")
    if request.path.startswith("/api/") and site not in ("same-origin", "none"):  # H3
        return "the request comes from another site; open the page of the dashboard"
    return None


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """H4."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def must_be_allowed(*, may_operate: bool) -> None:
    if not may_operate:
        raise Refused("this dashboard is read-only (--read-only); use `trunkline deliver`")
