"""Which requests an HTTP server lets in: by its own names, from its own pages, with its token."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from aiohttp import hdrs, web

from trunkline.net.http_names import OwnNames, is_own_origin


def is_own_name(request: web.BaseRequest, names: OwnNames) -> bool:
    """Rule E1 of ``http_names``."""
    return names.has(request.headers.get(hdrs.HOST), _reached_address(request))


def is_foreign_origin(request: web.BaseRequest, allowed: Collection[str] = ()) -> bool:
    """Whether a browser sends this for a page of another origin, which is not allowed (E3)."""
    origin = request.headers.get(hdrs.ORIGIN)
    return not (origin is None or origin in allowed or is_own_origin(origin, request.headers.get(hdrs.HOST)))


def bearer_token(request: web.BaseRequest) -> str:
    """Of the ``Authorization`` header; empty without one."""
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_token(given: str, token: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _reached_address(request: web.BaseRequest) -> str | None:
    """The address of this machine that the client connected to; None if the connection is closed already."""
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return str(name[0]) if name else None
