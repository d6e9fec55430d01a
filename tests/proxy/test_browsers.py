"""Pages of other sites that send requests through a user's browser: by a name of their own, or from their origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from local_cluster import RunningCluster
from proxy.proxy_process import Proxy, running

EVIL = "http://evil.example"
SHOP = "https://shop.example"


def cors_of(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("Access-Control")}


@pytest.fixture(scope="module")
def allowed(cluster: RunningCluster, directory: Path) -> Iterator[Proxy]:
    with running(cluster.connect, directory, "--allow-host", "logs.example", "--allow-origin", SHOP) as found:
        yield found


def test_another_name_reads_and_appends_nothing(proxy: Proxy, log: str) -> None:
    proxy.append(log, "mine")
    for path in ("/v1/logs", f"/v1/logs/{log}/entries?start=1", f"/v1/logs/{log}/subscribe", "/metrics", "/readyz"):
        assert (proxy.get(path, Host="evil.example:8480").status, path) == (403, path)
    refused = proxy.post(f"/v1/logs/{log}/entries", {"text": "theirs"}, {"Host": "evil.example"})
    assert (refused.status, refused.problem) == (403, "not-our-name")
    assert "--allow-host" in refused.json["detail"]
    assert proxy.texts(log) == ["mine"]
    assert proxy.get("/healthz", Host="evil.example").status == 200


def test_a_allowed_name_is_answered_and_so_is_localhost(allowed: Proxy, proxy: Proxy) -> None:
    assert allowed.get("/v1/logs", Host="logs.example").status == 200
    assert allowed.get("/v1/logs", Host="other.example").problem == "not-our-name"
    assert proxy.get("/v1/logs", Host="localhost:1").status == 200


def test_who_shows_the_token_may_use_any_name(cluster: RunningCluster, directory: Path) -> None:
    with running(cluster.connect, directory, "--token-env", "SECRET", environment={"SECRET": "s3cret"}) as guarded:
        assert guarded.get("/v1/logs", Host="logs.example", Authorization="Bearer s3cret").status == 200
        assert guarded.get("/v1/logs", Host="logs.example").problem == "unauthorized"


def test_a_page_of_another_origin_appends_nothing(proxy: Proxy, log: str) -> None:
    for origin in (EVIL, "null", f"http://{proxy.address}.evil.example"):
        for path, body in (("entries", {"text": "theirs"}), ("batches", {"entries": [{"text": "theirs"}]})):
            refused = proxy.post(f"/v1/logs/{log}/{path}", body, {"Origin": origin})
            assert (refused.status, refused.problem) == (403, "origin-refused")
    assert proxy.post(f"/v1/logs/{log}/entries", {"text": "own"}, {"Origin": proxy.url}).status == 201
    assert proxy.texts(log) == ["own"]


def test_without_allowed_origins_no_answer_lets_a_page_read_it(proxy: Proxy, log: str) -> None:
    assert cors_of(proxy.get(f"/v1/logs/{log}", Origin=EVIL).headers) == {}
    answer = proxy.ask("OPTIONS", f"/v1/logs/{log}/entries", headers={"Origin": EVIL})
    assert (answer.status, cors_of(answer.headers)) == (405, {})


def test_the_preflight_of_an_allowed_origin_says_what_it_may_do(allowed: Proxy, log: str) -> None:
    answer = allowed.ask(
        "OPTIONS",
        f"/v1/logs/{log}/entries",
        headers={"Origin": SHOP, "Access-Control-Request-Method": "POST"},
    )
    assert (answer.status, answer.headers["Vary"]) == (204, "Origin")
    assert cors_of(answer.headers) == {
        "Access-Control-Allow-Origin": SHOP,
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID",
        "Access-Control-Expose-Headers": "Retry-After, WWW-Authenticate",
        "Access-Control-Max-Age": "600",
    }
    done = allowed.post(f"/v1/logs/{log}/entries", {"text": "a"}, {"Origin": SHOP})
    stream = allowed.get(f"/v1/logs/{log}/subscribe?idle_ms=20", Origin=SHOP)
    missing = allowed.get("/v1/logs/no-such-log", Origin=SHOP)
    for answer, status in ((done, 201), (stream, 200), (missing, 404)):
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, SHOP)


def test_the_preflight_of_another_origin_is_refused(allowed: Proxy, log: str) -> None:
    answer = allowed.ask("OPTIONS", f"/v1/logs/{log}/entries", headers={"Origin": EVIL})
    assert (answer.status, cors_of(answer.headers), answer.headers["Vary"]) == (405, {}, "Origin")
    assert allowed.post(f"/v1/logs/{log}/entries", {"text": "x"}, {"Origin": EVIL}).problem == "origin-refused"
