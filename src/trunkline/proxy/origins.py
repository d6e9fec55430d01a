"""Pages of other origins in a browser: what they may do (CORS).

Rules
 X1  Without allowed origins no answer has a header of CORS, and browsers let no page of another origin read anything.
 X2  An origin is allowed exactly as it is given: there is no wildcard, and ``null`` is not an origin.
 X3  No answer allows credentials. A page that needs the token sends it as a header.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from trunkline.errors import ConfigError
from trunkline.proxy.parameters import KEY, LAST_EVENT

METHODS: Final = "GET, POST"
SENT: Final = f"{hdrs.ACCEPT}, {hdrs.AUTHORIZATION}, {hdrs.CONTENT_TYPE}, {KEY}, {LAST_EVENT}"
EXPOSED: Final = f"{hdrs.RETRY_AFTER}, {hdrs.WWW_AUTHENTICATE}"
AGE_S: Final = 600  # how long a browser caches the answer to a preflight


class AllowedOrigins:
    def __init__(self, allowed: tuple[str, ...]) -> None:
        for origin in allowed:
            check_origin(origin)
        self._allowed = frozenset(allowed)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Called before each answer."""
        if not self._allowed:
            return  # X1
        response.headers[hdrs.VARY] = hdrs.ORIGIN
        origin = request.headers.get(hdrs.ORIGIN, "")
        if origin in self._allowed:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin  # X2
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to the preflight of an allowed origin; None for any other request."""
        if request.method != hdrs.METH_OPTIONS or request.headers.get(hdrs.ORIGIN, "") not in self._allowed:
            return None
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: SENT,
            hdrs.ACCESS_CONTROL_MAX_AGE: str(AGE_S),
        }
        return web.Response(status=web.HTTPNoContent.status_code, headers=headers)


def check_origin(origin: str) -> None:
    """Raise ``ConfigError`` for a text that no browser sends as an origin."""
    try:
        parts = urlsplit(origin)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    shown = f"[{host}]" if host and ":" in host else host
    whole = f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "") if host else ""
    default = {"http": 80, "https": 443}.get(parts.scheme) if host else None
    if not host or default is None or origin != whole or port == default or "*" in origin:
        example = "https://shop.example, or http://localhost:3000"
        raise ConfigError(f"--allow-origin {origin}: write one origin as a browser sends it, such as {example}")
