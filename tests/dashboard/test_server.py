"""Who is answered and who is refused, over real HTTP, without a browser and without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from aiohttp import ClientConnectionError, ClientSession

from dashboard.running_dashboard import FilledStore
from trunkline.config import ConnectionConfig
from trunkline.dashboard import server
from trunkline.dashboard.guard import OPERATING_HEADER
from trunkline.dashboard.server import Dashboard, DashboardConfig
from trunkline.errors import ConfigError

UNREACHABLE: Final = ConnectionConfig(connect=("127.0.0.1:1",))
OWN: Final = {OPERATING_HEADER: "1"}
REQUEST: Final = {"store": 0, "pipeline": "tenants", "destination": "acme", "desired_state": "paused"}

PATIENCE_S: Final = 20.0

Ask = Callable[[ClientSession, Dashboard], Awaitable[None]]


def served(ask: Ask, **settings: object) -> None:
    """Run a test against a server of its own."""

    async def run() -> None:
        failures: list[str] = []
        config = DashboardConfig(UNREACHABLE, listen="127.0.0.1:0", **settings)  # type: ignore[arg-type]
        dashboard = Dashboard(config, failures.append)
        try:
            async with ClientSession(await dashboard.start()) as client:
                await ask(client, dashboard)
        finally:
            await dashboard.close()
        assert failures == []

    asyncio.run(run())


def status_of(path: str, headers: Mapping[str, str], method: str = "GET", **settings: object) -> int:
    answers: list[int] = []

    async def ask(client: ClientSession, _: Dashboard) -> None:
        async with client.request(method, path, headers=headers, json=REQUEST if method == "POST" else None) as answer:
            answers.append(answer.status)

    served(ask, **settings)
    return answers[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilledStore]:
    filled = FilledStore(tmp_path / "control.db", ("acme",))
    yield filled
    filled.close()


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1:7480", "[::1]:7480", "LOCALHOST"])
def test_h1_the_page_is_found_by_the_names_of_this_machine(host: str) -> None:
    assert status_of("/", {"Host": host}) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7480", "127.0.0.1.evil.example", "localhost.", "::1", ""]
)
def test_h1_another_name_is_refused_wherever_it_points(host: str) -> None:
    assert status_of("/", {"Host": host}) == 403
    assert status_of("/api/events", {"Host": host}) == 403


def test_h1_a_name_that_was_listed_is_answered() -> None:
    assert status_of("/", {"Host": "logs.example:443"}, allow_hosts=("logs.example",)) == 200


# -------------------------------------------------------------------------------------------------------------- changes


def test_h2_a_change_of_the_pages_own_is_made(store: FilledStore) -> None:
    assert status_of("/api/desired-state", OWN, "POST", stores=(store.address,)) == 200
    assert store.desired_state_of("acme") == "paused"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {OPERATING_HEADER: "0"},
        {**OWN, "Origin": "https://evil.example"},
        {**OWN, "Origin": "null"},
        {**OWN, "Sec-Fetch-Site": "cross-site"},
        {**OWN, "Sec-Fetch-Site": "same-site"},
        {**OWN, "Host": "evil.example"},
    ],
    ids=["no header", "another value", "another origin", "no origin", "cross-site", "same-site", "another name"],
)
def test_h2_a_change_that_another_site_could_ask_for_is_refused(store: FilledStore, headers: dict[str, str]) -> None:
    assert status_of("/api/desired-state", headers, "POST", stores=(store.address,)) == 403
    assert store.desired_state_of("acme") == "active"


def test_h2_no_preflight_of_another_site_is_allowed() -> None:
    async def ask(client: ClientSession, _: Dashboard) -> None:
        headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        async with client.options("/api/desired-state", headers=headers) as answer:
            assert answer.status == 403
            assert not [name for name in answer.headers if name.lower().startswith("access-control")]

    served(ask)


def test_h3_another_site_gets_no_answer_of_the_api() -> None:
    assert status_of("/api/events", {"Sec-Fetch-Site": "cross-site"}) == 403


def test_a_dashboard_that_only_watches_changes_nothing(store: FilledStore) -> None:
    assert status_of("/api/desired-state", OWN, "POST", stores=(store.address,), read_only=True) == 409
    assert store.desired_state_of("acme") == "active"


NO_SUCH_STATE: Final = '{"store":0,"pipeline":"p","destination":"d","desired_state":"retired"}'
NO_SUCH_STORE: Final = '{"store":7,"pipeline":"p","destination":"d","desired_state":"paused"}'


@pytest.mark.parametrize("body", ["", "{}", "[", NO_SUCH_STATE, NO_SUCH_STORE])
def test_a_request_that_makes_no_sense_is_refused_with_a_reason(store: FilledStore, body: str) -> None:
    async def ask(client: ClientSession, _: Dashboard) -> None:
        async with client.post("/api/desired-state", data=body, headers=OWN) as answer:
            assert answer.status == 400
            assert (await answer.json())["message"]

    served(ask, stores=(store.address,))


# ---------------------------------------------------------------------------------------------------------------- files


def test_h4_every_answer_says_what_a_page_may_load(tmp_path: Path) -> None:
    (tmp_path / "found.html").write_text("<script>1</script>")

    async def ask(client: ClientSession, _: Dashboard) -> None:
        for path in ("/", "/page/app.js", "/page/nothing.js", "/api/logs/x/entries?start=0"):
            async with client.get(path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'self'; script-src 'self';")
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with client.get("/check-out/found.html") as answer:
            assert answer.headers["Content-Security-Policy"].startswith("sandbox allow-scripts; default-src 'none';")

    served(ask, check_out=tmp_path)


def test_only_files_of_the_page_and_listed_counterexamples_are_given_away(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (folder / "found.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    (folder / "link.json").symlink_to(tmp_path / "secret.json")

    async def ask(client: ClientSession, _: Dashboard) -> None:
        wanted = {
            "/page/index.html": 200,
            "/page/server.py": 404,
            "/page/..%2Fserver.py": 404,
            "/page/%2e%2e%2f%2e%2e%2fconfig.py": 404,
            "/check-out/found.json": 200,
            "/check-out/notes.txt": 404,
            "/check-out/link.json": 404,
            "/check-out/..%2Fsecret.json": 404,
            "/check-out/none.json": 404,
        }
        for path, status in wanted.items():
            async with client.get(path) as answer:
                assert (path, answer.status) == (path, status)

    served(ask, check_out=folder)


def test_positions_are_checked_and_a_silent_cluster_is_an_error() -> None:
    async def ask(client: ClientSession, _: Dashboard) -> None:
        for query, status in (("start=0", 400), ("start=x", 400), ("start=1&count=0", 400), ("start=1&count=999", 400)):
            async with client.get(f"/api/logs/x/entries?{query}") as answer:
                assert (query, answer.status) == (query, status)
        async with client.get("/api/logs/x/entries?start=1") as answer:
            assert answer.status == 503
            assert "no coordinator answered" in (await answer.json())["message"]

    served(ask)


def test_a_taken_port_and_an_invalid_store_are_errors() -> None:
    async def ask(client: ClientSession, _: Dashboard) -> None:
        async with client.get("/") as answer:
            taken = answer.url.authority
        second = Dashboard(DashboardConfig(UNREACHABLE, listen=taken), lambda _: None)
        with pytest.raises(ConfigError, match=r"--listen: cannot listen on .*; choose another address"):
            await second.start()
        await second.close()
        with pytest.raises(ConfigError, match="is not a valid control store"):
            Dashboard(DashboardConfig(UNREACHABLE, stores=("mysql:x",)), lambda _: None)

    served(ask)


# ----------------------------------------------------------------------------------------------------- connections


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What was still said before the server closed."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
def test_a_connection_that_sends_no_whole_request_is_closed(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.2)

    async def ask(client: ClientSession, _: Dashboard) -> None:
        assert client._base_url is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)
        writer.write(begun)
        assert await ended(reader) == b""
        writer.close()
        async with client.get("/") as answer:
            assert answer.status == 200

    served(ask)


def test_a_connection_too_many_is_closed_and_room_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)

    async def ask(client: ClientSession, _: Dashboard) -> None:
        assert client._base_url is not None
        port = client._base_url.port
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ended(reader) == b""
        writer.close()
        for each in [idle_writer for _, idle_writer in idle]:
            each.close()
        async with asyncio.timeout(PATIENCE_S):
            while True:  # until the server has heard of it
                try:
                    async with client.get("/") as answer:
                        assert answer.status == 200
                        return
                except ClientConnectionError:
                    await asyncio.sleep(0.01)

    served(ask)
