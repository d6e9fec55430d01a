"""Who may look at a cluster that has a token: whoever shows that token once.

Rules
 S1  Where the cluster has a token, nothing of it is told without a session, unless the operator said otherwise
     (``--open``). A session begins with the cluster's token, and ends after some hours or with the server.
 S2  The token itself stays with the server: the browser keeps a random number, in a cookie that no script reads and no
     other site sends.
 S3  Wrong tokens cost time, few are tried at once, and sessions have a limit: the oldest gives way.
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
    """What was shown is not the cluster's token."""


class Sessions:
    """``token``: the cluster's; empty: whoever reaches the page may look."""

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
        """Raises ``WrongToken``, or ``Refused`` where too many try at once."""
        if self._tries >= TRIES_AT_ONCE:
            raise Refused("others try to log in, too; try again in a moment")
        self._tries += 1
        try:
            if not is_token(token.strip(), self._token):
                await asyncio.sleep(WRONG_S)
                raise WrongToken("that is not the cluster's token")
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
