"""``up`` and ``down``: a local cluster, processes that die, and what remains afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from local_cluster import COMMAND_S, PROGRAM, RunningCluster, local_cluster, wait_until
from trunkline.cli.serve import storage_options
from trunkline.runtime.local_files import LocalFiles, is_running, process_started
from trunkline.storage.options import StorageOptions


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=COMMAND_S, check=False)


def pids(cluster: RunningCluster) -> dict[str, tuple[int, int]]:
    return {each.name: (each.pid, each.started) for each in cluster.record.processes}


def ended(processes: dict[str, tuple[int, int]]) -> bool:
    return not any(is_running(*each) for each in processes.values())


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[RunningCluster]:
    directory = tmp_path / "cluster"
    options = ["--port", "0", "--nodes", "2", "--policy-defaults", "broadcast", "--dashboard", "127.0.0.1:0"]
    done = run("up", "--detach", "--dir", str(directory), *options)
    assert done.returncode == 0, done.stderr
    cluster = RunningCluster(directory)
    assert f"up: 2 nodes, connect to {cluster.connect}\n" in done.stdout
    assert f"dashboard: {cluster.record.dashboard}\n" in done.stdout
    yield cluster
    run("down", "--dir", str(directory))


def test_a_detached_cluster_is_up_runs_once_and_goes_down(detached: RunningCluster) -> None:
    directory, processes = str(detached.directory), pids(detached)
    assert sorted(processes) == ["coordinator", "node1", "node2"]
    assert all(node["live"] for node in detached.json("status")["nodes"])
    assert detached.ok("log", "create", "a").startswith(b"log a: broadcast, ")  # --policy-defaults
    with urlopen(detached.record.dashboard) as page:  # port 0: the record has the real one
        assert b"<title>Trunkline</title>" in page.read()

    again = run("up", "--detach", "--dir", directory)
    assert again.returncode == 1
    assert f"is already running in {directory} (connect to {detached.connect})" in again.stderr
    assert run("up", "--dir", directory, "--port", "0").returncode == 1  # in the foreground, too
    assert pids(detached) == processes

    assert run("down", "--dir", directory).stdout == f"down: {directory}\n"
    assert ended(processes)
    assert run("down", "--dir", directory).stdout == f"no cluster runs in {directory}\n"
    assert run("status", "--dir", directory).returncode == 3


def test_entries_survive_down_and_up(detached: RunningCluster) -> None:
    directory = str(detached.directory)
    detached.ok("log", "create", "kept", "--policy", "chain")
    detached.ok("append", "kept", stdin=b"a\nb\n")
    before = {each.name: each.address for each in detached.record.processes}
    run("down", "--dir", directory)
    assert run("up", "--detach", "--dir", directory, "--port", "0").returncode == 0
    assert {each.name: each.address for each in detached.record.processes} == before
    assert detached.ok("read", "kept") == b"a\nb\n"


def test_servers_end_with_a_killed_supervisor(detached: RunningCluster) -> None:
    processes, supervisor = pids(detached), detached.record.pid
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: ended(processes))
    assert run("down", "--dir", str(detached.directory)).returncode == 0


def test_a_process_that_dies_is_restarted(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", nodes=2) as cluster:
        for name in ("node1", "coordinator"):
            killed = cluster.signal(name, signal.SIGKILL)
            wait_until(lambda name=name, killed=killed: cluster.process(name).pid not in (0, killed))  # type: ignore[misc]
            assert cluster.process(name).restarts == 1
        wait_until(lambda: cluster.trunkline("status").returncode == 0)  # a coordinator that starts does not listen yet
        wait_until(lambda: all(node["live"] for node in cluster.json("status")["nodes"]))
        added = cluster.json("node", "add", "--dir", str(cluster.directory))
        assert (added["name"], added["live"]) == ("node3", True)
        assert cluster.process("node3").runs
        again = cluster.trunkline("node", "add", "--dir", str(cluster.directory), "--name", "node3")
        assert again.returncode == 1
        node3 = cluster.process("node3")
        cluster.ok("node", "remove", "node3", "--dir", str(cluster.directory))
        wait_until(lambda: not node3.runs)
        assert [node["state"] for node in cluster.json("node", "list")["nodes"]] == ["rw", "rw", "gone"]


def test_a_cluster_with_a_token_rejects_clients_without_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame\n")
    with local_cluster(tmp_path / "cluster", "--token-file", str(tmp_path / "secret"), nodes=1) as cluster:
        refused = cluster.trunkline("status", "--timeout", "0.5")
        assert (refused.returncode, b"the token is missing or wrong" in refused.stderr) == (3, True)
        assert cluster.ok("status", "--token-file", str(tmp_path / "secret")).startswith(b"cluster ")
        for process in cluster.record.processes:
            assert b"sesame" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


def test_without_restarts_a_dead_process_stays_dead(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", "--no-restart", nodes=2) as cluster:
        cluster.signal("node2", signal.SIGKILL)
        wait_until(lambda: cluster.process("node2").pid == 0)
        assert cluster.process("node1").runs
        assert cluster.record.up


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_stops_a_cluster_in_the_foreground(tmp_path: Path, number: signal.Signals, code: int) -> None:
    files = LocalFiles(tmp_path / "cluster")
    command = [*PROGRAM, "up", "--dir", str(files.root), "--port", "0", "--nodes", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline().startswith(b"up: 1 node, connect to 127.0.0.1:")
        processes = pids(RunningCluster(files.root))
        os.killpg(supervisor.pid, number)
        _, err = supervisor.communicate(timeout=20)
    assert (supervisor.returncode, err) == (code, b"")
    assert ended(processes)
    assert files.running() is None


def test_a_signal_before_the_cluster_is_up_leaves_nothing_behind(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "cluster")
    command = [*PROGRAM, "up", "--detach", "--dir", str(files.root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as starter:
        wait_until(lambda: (record := files.record()) is not None and len(record.processes) == 4)
        processes = pids(RunningCluster(files.root))
        starter.send_signal(signal.SIGINT)
        starter.communicate(timeout=20)
    if starter.returncode == 0:  # it was up before the signal came
        run("down", "--dir", str(files.root))
    else:
        assert starter.returncode == 130
    assert ended(processes)


def test_a_port_in_use_is_reported_and_nothing_is_created(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("up", "--dir", str(tmp_path / "cluster"), "--port", str(port - 1), "--nodes", "2")
    assert done.returncode == 2
    assert "is taken by another program; choose another range with --port" in done.stderr
    assert list((tmp_path / "cluster" / "nodes").iterdir()) == []


def test_a_server_that_cannot_start_ends_the_cluster_with_a_reason(tmp_path: Path) -> None:
    node = tmp_path / "cluster" / "nodes" / "node1"
    node.mkdir(parents=True)
    (node / "noise").touch()
    done = run("up", "--dir", str(tmp_path / "cluster"), "--port", "0", "--detach")
    assert done.returncode == 1
    assert "node1 ended with exit code 1 before the cluster was up: " in done.stderr
    assert "is not empty (it holds noise)" in done.stderr
    assert str(tmp_path / "cluster" / "logs" / "node1.log") in done.stderr
    assert LocalFiles(tmp_path / "cluster").running() is None


def test_fewer_nodes_than_exist_is_rejected(tmp_path: Path) -> None:
    for name in ("node1", "node2"):
        (tmp_path / "cluster" / "nodes" / name).mkdir(parents=True)
    done = run("up", "--dir", str(tmp_path / "cluster"), "--port", "0", "--nodes", "1")
    assert done.returncode == 1
    assert "has 2 nodes with data; use --nodes 2, or omit --nodes" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--storage", "extent=5"], "--storage extent=5: write KEY=VALUE; the keys are interval_ms"),
        (["--storage", "extent_bytes=5"], "extent_bytes is 5: choose "),
        (["--nodes", "101"], "a local cluster has 1 to 100 nodes, not 101"),
        (["--sync", "sometimes"], "invalid choice: 'sometimes'"),
    ],
)
def test_invalid_options_are_reported_and_nothing_starts(tmp_path: Path, options: list[str], words: str) -> None:
    done = run("up", "--dir", str(tmp_path / "cluster"), "--port", "0", *options)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_storage_option_that_was_removed_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert storage_options("always", ["read_bytes_max=5"]) == StorageOptions()
    assert "--storage read_bytes_max=5 has no effect any more; remove it" in caplog.text


def test_a_process_is_identified_by_its_start_time_and_pid() -> None:
    started = process_started(os.getpid())
    assert is_running(os.getpid(), started)
    assert not is_running(os.getpid(), started + 1)
    assert not is_running(0, 0)


def test_a_directory_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("up", "--dir", str(tmp_path / "file" / "cluster"))
    assert done.returncode == 2
    assert "name another directory with --dir" in done.stderr


def test_nodes_are_added_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert files.lock()
    assert [files.add_node(None) for _ in range(11)] == [f"node{number}" for number in range(1, 12)]
    files.add_node("alpha")
    assert files.node_names() == ["alpha", *(f"node{number}" for number in range(1, 12))]
    files.remove_node("node2")
    assert "node2" not in files.node_names()
    assert files.add_node(None) == "node12"
    files.unlock()
