"""Sessions: a cluster with a token needs a login with this token.

Rules
 S1  If the cluster has a token, the server reveals nothing without a session, unless the operator starts it with
     ``--open``. A session begins with the cluster's token, and ends after some hours or with the server.
 S2  The token stays in the server: the browser keeps a random number, in a cookie that scripts cannot read and other
     sites cannot send.
 S3  A wrong token costs time, few are checked at once, and the number of sessions is limited: the oldest one ends.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Final

from aiohttp import web

from trunkline.errors import Refused
from trunkline.net.http_guard import is_token

SESSION_S: Final = 12 * 3600
SESSIONS_MAX: Final = 1_000
TRIES_AT_ONCE: Final = 4
WRONG_S: Final = 1.0  # S3


class WrongToken(Refused):
    """Not the token of the cluster."""


class Sessions:
    """``token``: of the cluster; empty: no login is needed."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._ends_at: dict[str, float] = {}  # by the number in the cookie
        self._tries = 0
        self.cookie = "trunkline"

    @property
    def needed(self) -> bool:
        return bool(self._token)

    def has(self, request: web.Request) -> bool:
        if not self.needed:
            return True
        return self._ends_at.get(request.cookies.get(self.cookie, ""), 0.0) > time.monotonic()

    async def begin(self, token: str, response: web.StreamResponse) -> None:
        """Raises ``WrongToken``, or ``Refused`` if too many logins are in progress."""
        if self._tries >= TRIES_AT_ONCE:
            raise Refused("too many logins at once; try again in a moment")
        self._tries += 1
        try:
            if not is_token(token.strip(), self._token):
                await asyncio.sleep(WRONG_S)
                raise WrongToken("this is not the token of the cluster")
        finally:
            self._tries -= 1
        number = secrets.token_urlsafe(32)
        self._keep(number)
        response.set_cookie(self.cookie, number, max_age=SESSION_S, path="/", httponly=True, samesite="Strict")  # S2

    def _keep(self, number: str) -> None:
        now = time.monotonic()
        self._ends_at = {each: at for each, at in self._ends_at.items() if at > now}
        if len(self._ends_at) >= SESSIONS_MAX:
            del self._ends_at[next(iter(self._ends_at))]
        self._ends_at[number] = now + SESSION_S
