"""Metrics, health and JSON logs of real processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from delivery.pipe_sources import LakeSource
from etcd_server import Etcd
from local_cluster import COMMAND_S, PROGRAM, Command, RunningCluster, local_cluster, wait_until
from trunkline.observing.targets import read_targets

ASK_S = 20.0


def ask(address: str, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=ASK_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def metrics(address: str) -> dict[str, float]:
    """By name; those with labels under ``name{value,value}``."""
    status, body = ask(address, "/metrics")
    assert status == 200
    samples = [each for family in text_string_to_metric_families(body.decode()) for each in family.samples]
    return {
        each.name + (f"{{{','.join(each.labels.values())}}}" if each.labels else ""): each.value for each in samples
    }


def readiness(address: str) -> tuple[int, Any]:
    status, body = ask(address, "/readyz")
    return status, json.loads(body)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    directory = tmp_path_factory.mktemp("observed") / "cluster"
    with local_cluster(directory, "--observe", "--log-format", "json", "--no-restart", nodes=2) as running:
        yield running


def test_every_process_of_a_local_cluster_is_observed_and_logs_json(observed: RunningCluster) -> None:
    addresses = read_targets(observed.directory)
    assert sorted(addresses) == ["coordinator", "node1", "node2"]
    status = observed.json("status")
    assert status["observe"] == addresses["coordinator"]
    assert {node["name"]: node["self"]["observe"] for node in status["nodes"]} == {
        name: address for name, address in addresses.items() if name != "coordinator"
    }
    for name, address in addresses.items():
        kind = "coordinator" if name == "coordinator" else "node"
        assert ask(address, "/healthz")[0] == 200
        wait_until(lambda address=address: readiness(address)[0] == 200)  # type: ignore[misc]
        assert readiness(address)[1]["process"] == kind
        assert metrics(address)[f"trunkline_{kind}_ready"] == 1
        lines = [json.loads(line) for line in (observed.files.logs / f"{name}.log").read_text().splitlines()]
        assert all({"ts", "level", "logger", "message"} <= set(line) for line in lines)
        assert {(line["process"], line["name"]) for line in lines} == {(kind, name)}
        (listening,) = [line for line in lines if "listens on" in line["message"]]
        assert (listening["address"], listening["observe"]) == (observed.process(name).address, address)


def test_figures_move_with_appends_and_reads_and_trouble_is_what_status_warns_of(observed: RunningCluster) -> None:
    addresses = read_targets(observed.directory)
    nodes = [addresses["node1"], addresses["node2"]]
    before = [metrics(address) for address in nodes]
    observed.ok("log", "create", "orders")  # of three copies, where there are two nodes
    observed.ok("append", "orders", stdin=b"a\nbb\nccc\n")
    assert observed.ok("read", "orders") == b"a\nbb\nccc\n"
    after = [metrics(address) for address in nodes]

    def moved(name: str) -> list[float]:
        return [
            new[f"trunkline_node_{name}"] - old.get(f"trunkline_node_{name}", 0)
            for old, new in zip(before, after, strict=True)
        ]

    assert min(moved("entries_appended_total")) >= 3
    assert all(batches >= 1 for batches in moved("batches_appended_total"))
    assert all(size >= 6 for size in moved("bytes_appended_total"))
    assert all(syncs >= 1 for syncs in moved("sync_seconds_count"))
    assert all(seconds > 0 for seconds in moved("sync_seconds_sum"))
    assert min(moved("streams")) >= 1
    assert sum(moved("entries_read_total")) >= 3
    assert sum(moved("bytes_read_total")) >= 6
    for new in after:
        assert new["trunkline_node_requests_total{Write}"] >= 1
        assert new["trunkline_node_answers_total"] >= 2
        assert new["trunkline_node_disk_free_bytes"] > 0
        assert (new["trunkline_node_disk_full"], new["trunkline_node_damaged_streams"]) == (0, 0)

    coordinator = addresses["coordinator"]
    wait_until(lambda: metrics(coordinator).get("trunkline_coordinator_logs") == 1)
    found = metrics(coordinator)
    assert "fewer copies: orders, segment 0 has 2 of 3" in observed.ok("status").decode()
    assert found["trunkline_coordinator_log_trouble{orders,fewer_copies}"] == 1
    assert found["trunkline_coordinator_logs_in_trouble{fewer_copies}"] == 1
    assert (found["trunkline_coordinator_active"], found["trunkline_coordinator_live_nodes"]) == (1, 2)
    assert found["trunkline_coordinator_open_segments"] == 1
    assert found["trunkline_coordinator_requests_total{Register}"] >= 2
    assert found["trunkline_coordinator_register_total{answered}"] >= 2

    ended = found["trunkline_coordinator_reconfigurations_total"]
    observed.ok("reconfigure", "orders")
    assert metrics(coordinator)["trunkline_coordinator_reconfigurations_total"] >= ended + 1
    assert sum(metrics(address)["trunkline_node_seals_total"] for address in nodes) >= 1


def test_a_capture_is_observed_while_it_works(observed: RunningCluster, tmp_path: Path) -> None:
    table = LakeSource(tmp_path, catalog=f"sqlite:{tmp_path / 'source.sqlite'}", inlining=3)
    table.write(table.insert("acme", 1, 2, 3))
    source = ["--ducklake", f"sqlite:{tmp_path / 'source.sqlite'}", "--table", "orders"]
    with observed.begin("capture", "captured", *source, "--observe", "0", "--log-format", "json") as capture:
        try:
            assert capture.stderr is not None
            started = json.loads(capture.stderr.readline())
            assert (started["process"], started["name"]) == ("capture", "captured")
            address = started["observe"]
            wait_until(lambda: metrics(address)["trunkline_capture_rows_total"] >= 3)
            found = metrics(address)
            assert found["trunkline_capture_transactions_total"] >= 1
            assert found["trunkline_capture_last_error"] == 0
            assert found["trunkline_capture_last_transaction_seconds"] >= 0
            status, body = readiness(address)
            assert (status, body["position"]) == (200, found["trunkline_capture_position"])
        finally:
            capture.send_signal(signal.SIGTERM)
            _, rest = capture.communicate(timeout=COMMAND_S)
    assert capture.returncode == 0
    assert all(json.loads(line)["name"] == "captured" for line in rest.splitlines())


def test_a_node_is_not_ready_without_its_coordinator_but_alive(observed: RunningCluster) -> None:
    """The last one: the cluster has no coordinator after it."""
    address = read_targets(observed.directory)["node1"]
    wait_until(lambda: readiness(address)[0] == 200)
    observed.signal("coordinator", signal.SIGKILL)
    wait_until(lambda: readiness(address)[0] == 503)
    assert "check that a coordinator is up" in readiness(address)[1]["why"][0]
    assert ask(address, "/healthz")[0] == 200
    found = metrics(address)
    assert (found["trunkline_node_registered"], found["trunkline_node_ready"]) == (0, 0)


def test_a_coordinator_without_its_store_is_alive_and_says_what_it_waits_for() -> None:
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        etcd = f"http://127.0.0.1:{closed.getsockname()[1]}"
        address = free_address()
        options = ["--etcd", etcd, "--listen", "127.0.0.1:0", "--observe", address]
        with subprocess.Popen([*PROGRAM, "serve", "coordinator", *options], stderr=subprocess.DEVNULL) as server:
            try:
                wait_until(lambda: answers(address))
                status, body = readiness(address)
                assert (status, body["ready"]) == (503, False)
                assert "waits for its metadata store" in body["why"][0]
                assert metrics(address)["trunkline_coordinator_uptime_seconds"] > 0
            finally:
                server.terminate()
        assert server.returncode == 0


def test_a_coordinator_is_not_ready_while_its_etcd_is_unreachable(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd") as etcd:
        address = free_address()
        options = ["--etcd", ",".join(etcd.endpoints), "--listen", "127.0.0.1:0", "--observe", address]
        with subprocess.Popen([*PROGRAM, "serve", "coordinator", *options], stderr=subprocess.DEVNULL) as server:
            try:
                wait_until(lambda: answers(address) and readiness(address)[0] == 200)
                wait_until(lambda: readiness(address)[1]["state"] == "active")
                etcd.kill(0)
                wait_until(lambda: readiness(address)[0] == 503)
                assert "the metadata store does not answer: " in readiness(address)[1]["why"][0]
                assert metrics(address)["trunkline_coordinator_store_up"] == 0
                etcd.restart(0)
                wait_until(lambda: readiness(address)[0] == 200)
            finally:
                server.terminate()


def test_a_process_that_was_started_again_is_observed_where_it_was(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", "--observe", nodes=1) as cluster:
        addresses = read_targets(cluster.directory)
        cluster.signal("node1", signal.SIGKILL)
        wait_until(lambda: cluster.process("node1").restarts == 1 and answers(addresses["node1"]))
        assert read_targets(cluster.directory) == addresses
    assert read_targets(cluster.directory) == {}


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def answers(address: str) -> bool:
    try:
        return ask(address, "/healthz")[0] == 200
    except urllib.error.URLError:
        return False


@pytest.mark.parametrize(
    "server",
    [
        ("serve", "node", "--name", "n", "--dir", "data"),
        ("serve", "coordinator", "--dir", "data"),
        ("capture", "orders", "--ducklake", "lake", "--table", "orders"),
    ],
)
def test_a_wrong_address_is_one_clear_line_and_makes_nothing(
    command: Command, tmp_path: Path, server: tuple[str, ...]
) -> None:
    done = command(*server, "--observe", "localhost:many")
    assert (done.code, done.out) == (2, b"")
    words = "'many' in 'localhost:many' is not a valid port; write a number up to 65535"
    assert done.err == f"trunkline: --observe: {words}\n"
    assert not (tmp_path / "data").exists()


def test_a_taken_port_is_one_clear_line_of_json_where_lines_are_json(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ["--dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--observe", address]
        done = subprocess.run(
            [*PROGRAM, "serve", "coordinator", *options, "--log-format", "json"],
            capture_output=True,
            timeout=COMMAND_S,
            check=False,
        )
    assert done.returncode == 2
    line = json.loads(done.stderr)
    assert line["level"] == "error"
    assert line["message"].startswith(f"--observe: cannot listen on {address}: ")
