"""A request that fails gets a problem that says what to do, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import trunkline
from local_cluster import RunningCluster, wait_until
from proxy.conftest import Library
from proxy.proxy_process import Answer, Proxy, running
from trunkline import errors
from trunkline.client.cluster import log_settings
from trunkline.client.headers import ENTRY_HEADERS_BYTES_MAX
from trunkline.proxy.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX, HEADERS_MAX
from trunkline.proxy.problems import KINDS, refusal_of

JSON = {"Content-Type": "application/json"}
ONE = {"text": "a"}


def refused(answer: Answer, status: int, kind: str) -> bool:
    assert (answer.status, answer.problem) == (status, kind), answer
    return True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"text": 1}',
        b'{"text": "a", "payload": "YQ=="}',
        b'{"text": "a", "key": "b"}',
        b'{"text": "\\ud800"}',
        b'{"text": "\xff"}',
        b'{"payload": "YQ"}',
        b'{"payload": "Y Q="}',
        b'{"payload": "\xc3\xa4\xc3\xa4=="}',
        b'{"text": "a", "expect": 0}',
        b'{"text": "a", "expect": 1.5}',
        b'{"text": "a", "expect": 1e300}',
        b'{"text": "a", "expect": 9007199254740992}',
        b'{"text": "a", "expect": null}',
        b'{"text": "a", "headers": {"": "b"}}',
        b'{"text": "a", "headers": {"n": 1}}',
        b'{"text": "a", "headers": {"n": {"base64": "?"}}}',
        b'{"text": "a", "headers": {"idempotency-key": "b"}}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_not_as_described_is_refused(proxy: Proxy, log: str, body: bytes) -> None:
    assert refused(proxy.ask("POST", f"/v1/logs/{log}/entries", body=body, headers=JSON), 400, "invalid-request")
    assert proxy.texts(log) == []


def test_batches_and_headers_have_limits(proxy: Proxy, log: str) -> None:
    path = f"/v1/logs/{log}/batches"
    for entries in ([], [ONE] * (BATCH_ENTRIES_MAX + 1), [{**ONE, "expect": 1}]):
        assert refused(proxy.post(path, {"entries": entries}), 400, "invalid-request")
    headers = {f"n{number}": "x" for number in range(HEADERS_MAX + 1)}
    assert refused(proxy.post(f"/v1/logs/{log}/entries", {**ONE, "headers": headers}), 400, "invalid-request")
    for key in ({}, {"Idempotency-Key": "large"}):
        large = {**ONE, "headers": {"large": "x" * ENTRY_HEADERS_BYTES_MAX}}
        assert refused(proxy.post(f"/v1/logs/{log}/entries", large, key), 400, "invalid-request")
    assert proxy.post(path, {"entries": [ONE] * BATCH_ENTRIES_MAX}).json == {"first": 1, "count": BATCH_ENTRIES_MAX}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/logs?all=1",
        "/v1/logs/{log}/entries?start=0",
        "/v1/logs/{log}/entries?start=-1",
        "/v1/logs/{log}/entries?start=1&start=2",
        "/v1/logs/{log}/entries?limit=1001",
        "/v1/logs/{log}/entries?limit=",
        "/v1/logs/{log}/entries?wait_ms=30001",
        "/v1/logs/{log}/entries?form=1",
        "/v1/logs/{log}/entries/0",
        "/v1/logs/{log}/entries/%D9%A1",
        "/v1/logs/{log}/entries/x",
        "/v1/logs/{log}/entries/99999999999999999999",
        "/v1/logs/{log}/entries/1?encoding=hex",
        "/v1/logs/{log}/subscribe?idle_ms=0",
    ],
)
def test_parameters_that_are_unknown_or_out_of_range_are_refused(proxy: Proxy, log: str, path: str) -> None:
    assert refused(proxy.get(path.format(log=log)), 400, "invalid-request")


@pytest.mark.parametrize("key", ["", "a b", "x" * 129, "\xe9"])
def test_a_key_is_visible_ascii_and_not_too_long(proxy: Proxy, log: str, key: str) -> None:
    answer = proxy.post(f"/v1/logs/{log}/entries", ONE, {"Idempotency-Key": key})
    assert refused(answer, 400, "invalid-request")


@pytest.mark.parametrize("path", ["", "/tail", "/entries", "/entries/1", "/subscribe"])
@pytest.mark.parametrize("name", ["no-such-log", "_", "%2e%2e", "x" * 200])
def test_a_log_that_does_not_exist_is_not_found(proxy: Proxy, name: str, path: str) -> None:
    assert refused(proxy.get(f"/v1/logs/{name}{path}"), 404, "no-such-log")


def test_no_log_is_ever_created(proxy: Proxy, name: str) -> None:
    for answer in (
        proxy.append(name, "a"),
        proxy.append(name, "a", key="k"),
        proxy.post(f"/v1/logs/{name}/batches", {"entries": [ONE]}),
    ):
        assert refused(answer, 404, "no-such-log")
    assert name not in proxy.get("/v1/logs").json["logs"]


def test_a_log_that_was_deleted_is_not_found_any_more(proxy: Proxy, log: str, library: Library[None]) -> None:
    proxy.append(log, "a")

    async def delete(handle: trunkline.Cluster) -> None:
        await (await handle.log(log)).delete()

    library(delete)
    for answer in (proxy.append(log, "b"), proxy.append(log, "b"), proxy.get(f"/v1/logs/{log}/tail")):
        assert refused(answer, 404, "no-such-log")


def test_positions_without_an_entry_say_whether_one_may_come(proxy: Proxy, log: str) -> None:
    assert refused(proxy.get(f"/v1/logs/{log}/entries/1"), 404, "not-written")
    assert refused(proxy.get(f"/v1/logs/{log}/entries/9007199254740991"), 404, "not-written")


def test_a_hole_is_not_found_and_pages_pass_over_it(proxy: Proxy, name: str, library: Library[int]) -> None:
    library(lambda handle: handle.create_log(name, log_settings(replicas=1, groups=2, stripe_unit=4)))
    path = f"/v1/logs/{name}/batches"
    assert proxy.post(path, {"entries": [ONE] * 3}).json["first"] == 1
    assert proxy.post(path, {"entries": [ONE] * 2}).json["first"] == 5  # it would not fit into the stripe unit
    assert refused(proxy.get(f"/v1/logs/{name}/entries/4"), 404, "hole")
    page = proxy.get(f"/v1/logs/{name}/entries").json
    assert ([entry["glsn"] for entry in page["entries"]], page["next"]) == ([1, 2, 3, 5, 6], 7)
    assert proxy.get(f"/v1/logs/{name}/entries?start=4&limit=1").json == {"entries": [], "next": 5}
    assert proxy.append(name, "a", key="k").json == proxy.append(name, "a", key="k").json == {"glsn": 7}


def test_other_addresses_and_methods_are_refused(proxy: Proxy, log: str) -> None:
    assert refused(proxy.get("/v2/logs"), 404, "no-such-resource")
    assert refused(proxy.get(f"/v1/logs/{log}/"), 404, "no-such-resource")
    wrong = proxy.ask("DELETE", f"/v1/logs/{log}/entries")
    assert refused(wrong, 405, "method-not-allowed")
    assert wrong.headers["Allow"] == "GET, POST"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Content-Type": "text/plain"}, {**JSON, "Content-Encoding": "gzip"}],
)
def test_a_body_of_another_kind_is_refused(proxy: Proxy, log: str, headers: Mapping[str, str]) -> None:
    answer = proxy.ask("POST", f"/v1/logs/{log}/entries", body=b"{}", headers=headers)
    assert refused(answer, 415, "unsupported-media-type")


def test_a_body_that_is_too_large_is_refused_with_and_without_its_length(proxy: Proxy, log: str) -> None:
    path, headers = f"/v1/logs/{log}/entries", {"Content-Type": "application/octet-stream"}
    connection = proxy.connection()
    connection.request("POST", path, iter([b"x" * BODY_BYTES_MAX, b"x"]), headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    connection = proxy.connection()
    connection.putrequest("POST", path)
    for each in ({**headers, "Content-Length": str(BODY_BYTES_MAX + 1)}).items():
        connection.putheader(*each)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert proxy.ask("POST", path, body=b"x" * BODY_BYTES_MAX, headers=headers).status == 201


def test_an_incomplete_body_harms_no_other_request(cluster: RunningCluster, directory: Path, log: str) -> None:
    with running(cluster.connect, directory) as proxy:  # its log is checked
        for declared in ({"Content-Length": "100"}, {"Transfer-Encoding": "chunked"}):
            connection = proxy.connection()
            connection.putrequest("POST", f"/v1/logs/{log}/entries")
            for each in {**JSON, **declared}.items():
                connection.putheader(*each)
            connection.endheaders(b'{"text"' if "Content-Length" in declared else b'7\r\n{"text"\r\n')
            wait_until(lambda: proxy.count("requests_in_progress") == 2)  # that one, and this request
            connection.close()
            wait_until(lambda: proxy.count("requests_in_progress") == 1)
        assert proxy.texts(log) == []


def test_a_sealed_log_says_so(proxy: Proxy, log: str, library: Library[None]) -> None:
    async def seal(handle: trunkline.Cluster) -> None:
        await (await handle.log(log)).seal()

    library(seal)
    assert refused(proxy.append(log, "a"), 409, "log-sealed")
    assert refused(proxy.append(log, "a", key="k"), 409, "log-sealed")


def test_a_broadcast_log_takes_appends_without_conditions_of_one_proxy(
    proxy: Proxy, cluster: RunningCluster, directory: Path, name: str, library: Library[int]
) -> None:
    library(lambda handle: handle.create_log(name, log_settings("broadcast")))
    assert proxy.append(name, "a").json == {"glsn": 1}
    assert refused(proxy.append(name, "b", key="k"), 409, "not-for-this-log")
    assert refused(proxy.post(f"/v1/logs/{name}/entries", {**ONE, "expect": 2}), 409, "not-for-this-log")
    with running(cluster.connect, directory) as another:
        taken = another.append(name, "b")
        assert refused(taken, 409, "owned-by-another")
        assert taken.json["owner"] in taken.json["detail"]
        assert taken.json["owner"].startswith("proxy-")
    assert proxy.texts(name) == ["a"]


def test_a_log_of_several_groups_takes_keys_of_single_entries_only(
    proxy: Proxy, name: str, library: Library[int]
) -> None:
    library(lambda handle: handle.create_log(name, log_settings(replicas=1, groups=2, stripe_unit=4)))
    path = f"/v1/logs/{name}/batches"
    assert refused(proxy.post(path, {"entries": [ONE] * 5}), 413, "too-large")
    assert refused(proxy.post(path, {"entries": [ONE] * 2}, {"Idempotency-Key": "k"}), 409, "not-for-this-log")
    assert [proxy.append(name, "a", key=f"k{number % 6}").json["glsn"] for number in range(12)] == [*range(1, 7)] * 2


def test_without_the_token_nothing_but_health_is_shown(cluster: RunningCluster, directory: Path, log: str) -> None:
    with running(cluster.connect, directory, "--token-env", "SECRET", environment={"SECRET": "s3cret"}) as guarded:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
            for path in ("/v1/logs", "/metrics", "/v1/openapi.json", f"/v1/logs/{log}/subscribe"):
                answer = guarded.ask("GET", path, headers=headers)
                assert refused(answer, 401, "unauthorized")
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert guarded.get("/v1/logs", Authorization="Bearer s3cret").status == 200
        assert guarded.get("/healthz").status == guarded.get("/readyz").status == 200


@pytest.mark.parametrize(
    ("error", "kind", "retry"),
    [
        (errors.Unreachable("u"), "unreachable", True),
        (errors.OutcomeUnknown("o"), "outcome-unknown", False),
        (errors.Hole("h"), "hole", False),
        (errors.EntriesLost(3, 9), "entries-lost", False),
        (errors.CorruptEntry("c", 3, 9), "corrupt-entries", False),
        (errors.Refused("no space on n1; add nodes or trim"), "failed", True),
        (errors.ProtocolError("p"), "failed", True),
        (errors.StorageError("s"), "failed", True),
        (errors.TrunklineError("t"), "failed", True),
    ],
)
def test_an_error_of_the_library_has_its_problem_and_only_what_is_safe_is_to_be_retried(
    error: errors.TrunklineError, kind: str, retry: bool
) -> None:
    found = refusal_of(error)
    assert (found.problem.type, found.problem.status) == (f"urn:trunkline:problem:{kind}", KINDS[kind][0])
    assert ("Retry-After" in found.headers) == retry
