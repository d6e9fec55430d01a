"""The OpenAPI document and the proxy say the same.

Schemathesis makes requests from the document, right ones and wrong ones, and holds every answer against it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from local_cluster import RunningCluster
from proxy.proxy_process import Proxy, running
from trunkline.client.cluster import Cluster
from trunkline.proxy.openapi import document
from trunkline.proxy.problems import KINDS
from trunkline.proxy.server import operations
from trunkline.proxy.service import ProxyConfig, ProxyService

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
EXAMPLES_MAX = 10  # for each operation, besides those of the document and of its limits
RUN_S_MAX = 120.0
TOKEN = "s3cret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

# Without these a stream has no end, and a page at the tail waits.
SETTINGS = f"""
[generation]
max-examples = {EXAMPLES_MAX}
deterministic = true

[checks]
positive_data_acceptance.expected-statuses = ["2xx", "404", "409", "410", "422"]
not_a_server_error.expected-statuses = ["2xx", "4xx", "503"]

[[operations]]
include-operation-id = "subscribe"
parameters = {{ idle_ms = 5 }}

[[operations]]
include-operation-id = "readEntries"
parameters = {{ wait_ms = 5 }}
"""


def described() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document(with_token=False)["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def test_every_operation_is_described_with_its_parameters() -> None:
    parameters = document(with_token=False)["components"]["parameters"]

    def query(operation: Mapping[str, Any]) -> set[str]:
        named = [parameters[each["$ref"].rpartition("/")[2]] for each in operation.get("parameters", [])]
        return {each["name"] for each in named if each["in"] == "query"}

    service = ProxyService(ProxyConfig(), Cluster())
    there = {(each.name, each.method, each.path, frozenset(each.query)) for each in operations(service)}
    assert there == {
        (operation["operationId"], method, path, frozenset(query(operation))) for path, method, operation in described()
    }


def test_every_problem_is_described_somewhere_but_those_of_no_operation() -> None:
    text = json.dumps([document(with_token=each)["paths"] for each in (True, False)])
    missing = {kind for kind in KINDS if f'"urn:trunkline:problem:{kind}"' not in text}
    assert missing == {"no-such-resource", "method-not-allowed"}


@pytest.fixture
def guarded(cluster: RunningCluster, directory: Path) -> Iterator[Proxy]:
    with running(cluster.connect, directory, "--token-env", "SECRET", environment={"SECRET": TOKEN}) as found:
        yield found


def test_every_answer_to_requests_made_from_the_document_is_as_described(
    guarded: Proxy, tmp_path: Path, log: str
) -> None:
    for text in ("a", "b"):
        assert guarded.post(f"/v1/logs/{log}/entries", {"text": text}, BEARER).status == 201
    found = guarded.ask("GET", "/v1/openapi.json", headers=BEARER).json
    found["components"]["parameters"]["log"]["schema"] = {"type": "string", "enum": [log]}  # others do not exist
    (tmp_path / "openapi.json").write_text(json.dumps(found))
    (tmp_path / "settings.toml").write_text(SETTINGS)
    done = subprocess.run(
        [
            *(SCHEMATHESIS, "--config-file", "settings.toml", "run", "openapi.json", "--url", guarded.url),
            *("--header", f"Authorization: Bearer {TOKEN}", "--checks", "all", "--no-color"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for _, _, operation in described():
        counted = f'operation="{operation["operationId"]}",status="20'
        assert counted in guarded.ask("GET", "/metrics", headers=BEARER).body.decode(), operation["operationId"]
