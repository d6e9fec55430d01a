"""A cluster with a token needs a login: rules S1 to S3, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from aiohttp import ClientSession, CookieJar

from trunkline.config import ConnectionConfig
from trunkline.dashboard import sessions
from trunkline.dashboard.guard import OPERATING_HEADER
from trunkline.dashboard.server import Dashboard, DashboardConfig
from trunkline.dashboard.sessions import SESSIONS_MAX, TRIES_AT_ONCE, Sessions

TOKEN: Final = "the cluster's own"
OWN: Final = {OPERATING_HEADER: "1"}
DATA: Final = ("/api/events", "/api/logs/orders/entries?start=1", "/check-out/found.html")


def served(ask: Callable[[ClientSession], Awaitable[None]], token: str = TOKEN, **settings: Any) -> None:
    async def run() -> None:
        config = DashboardConfig(ConnectionConfig(connect=("127.0.0.1:1",), token=token), "127.0.0.1:0", **settings)
        dashboard = Dashboard(config, lambda _: None)
        try:
            url = await dashboard.start()
            async with ClientSession(url, cookie_jar=CookieJar(unsafe=True)) as client:
                await ask(client)
        finally:
            await dashboard.close()

    asyncio.run(run())


async def status(client: ClientSession, path: str) -> int:
    async with client.get(path) as answer:
        return answer.status


async def login(client: ClientSession, token: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with client.post("/api/login", json={"token": token}, headers=OWN if headers is None else headers) as answer:
        return answer.status, answer.headers.get("Set-Cookie", "")


def test_s1_without_the_token_only_the_empty_page_is_served() -> None:
    async def ask(client: ClientSession) -> None:
        assert [await status(client, path) for path in DATA] == [401, 401, 401]
        async with client.post("/api/desired-state", json={}, headers=OWN) as answer:
            assert answer.status == 401
        assert [await status(client, path) for path in ("/", "/page/app.js")] == [200, 200]
        async with client.get("/api/session") as answer:
            assert await answer.json() == {"open": False}

    served(ask)


def test_s2_a_login_begins_a_session_whose_cookie_no_script_can_read() -> None:
    async def ask(client: ClientSession) -> None:
        found, cookie = await login(client, f" {TOKEN}\n")
        assert found == 200
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {each.strip() for each in cookie.split(";")}
        assert TOKEN not in cookie
        assert await status(client, "/api/events") == 200
        async with client.get("/api/session") as answer:
            assert await answer.json() == {"open": True}

    served(ask)


def test_s3_a_wrong_token_is_refused_and_so_is_one_that_another_site_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "WRONG_S", 0.01)

    async def ask(client: ClientSession) -> None:
        assert await login(client, "wrong") == (401, "")
        assert await login(client, "") == (401, "")
        assert await login(client, TOKEN, {}) == (403, "")
        assert await login(client, TOKEN, {**OWN, "Origin": "http://evil.example"}) == (403, "")
        assert await status(client, "/api/events") == 401

    served(ask)


def test_s3_few_try_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "WRONG_S", 1.0)

    async def ask(client: ClientSession) -> None:
        answers = await asyncio.gather(*(login(client, "wrong") for _ in range(TRIES_AT_ONCE + 1)))
        assert sorted(found for found, _ in answers) == [401] * TRIES_AT_ONCE + [409]

    served(ask)


def test_s3_sessions_have_a_limit_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Sessions(TOKEN)
    for number in range(SESSIONS_MAX + 10):
        kept._keep(str(number))
    assert len(kept._ends_at) == SESSIONS_MAX
    assert "0" not in kept._ends_at
    monkeypatch.setattr(sessions, "SESSION_S", 0)

    async def ask(client: ClientSession) -> None:
        assert (await login(client, TOKEN))[0] == 200
        assert await status(client, "/api/events") == 401

    served(ask)


def test_s1_with_open_or_without_a_token_there_is_no_login() -> None:
    async def ask(client: ClientSession) -> None:
        assert await status(client, "/api/events") == 200

    served(ask, open=True)
    served(ask, token="")
