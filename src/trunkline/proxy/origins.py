"""Pages of other origins, open in a browser: what they are told they may do (CORS).

Rules
 X1  Without listed origins no answer says a word of this, and a browser lets no page of another origin read anything.
 X2  An origin is listed exactly, and told exactly: there is no wildcard, and ``null`` is none.
 X3  No answer allows credentials. A page that needs the token sends it itself, as a header.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from trunkline.errors import ConfigError
from trunkline.proxy.parameters import KEY, LAST_EVENT

METHODS: Final = "GET, POST"
SENT: Final = f"{hdrs.ACCEPT}, {hdrs.AUTHORIZATION}, {hdrs.CONTENT_TYPE}, {KEY}, {LAST_EVENT}"
TOLD: Final = f"{hdrs.RETRY_AFTER}, {hdrs.WWW_AUTHENTICATE}"
AGE_S: Final = 600  # for which a browser need not ask again


class Origins:
    def __init__(self, listed: tuple[str, ...]) -> None:
        for origin in listed:
            check_origin(origin)
        self._listed = frozenset(listed)

    async def tell(self, request: web.Request, response: web.StreamResponse) -> None:
        """Called before any answer leaves."""
        if not self._listed:
            return  # X1
        response.headers[hdrs.VARY] = hdrs.ORIGIN
        origin = request.headers.get(hdrs.ORIGIN, "")
        if origin in self._listed:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin  # X2
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = TOLD

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks before it asks; None where this is no such question of a listed origin."""
        if request.method != hdrs.METH_OPTIONS or request.headers.get(hdrs.ORIGIN, "") not in self._listed:
            return None
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: SENT,
            hdrs.ACCESS_CONTROL_MAX_AGE: str(AGE_S),
        }
        return web.Response(status=web.HTTPNoContent.status_code, headers=headers)


def check_origin(origin: str) -> None:
    """Raise ``ConfigError`` for what no browser sends as an origin."""
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
