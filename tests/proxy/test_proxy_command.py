"""The command itself: how it begins, and how it ends."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from local_cluster import RunningCluster
from proxy.proxy_process import PROGRAM, WAIT_S, Proxy


def run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
    return subprocess.run(
        [*PROGRAM, *options], capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment
    )


def test_without_a_cluster_the_proxy_stops_with_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        done = run("--connect", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.5")
    assert done.returncode == 3
    assert "no coordinator answered" in done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--token-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--listen", "127.0.0.1:x"], "is not a valid port"),
        (["--allow-host", "logs.example:443"], "is not a host name"),
        (["--allow-origin", "*"], "--allow-origin *: write one origin as a browser sends it"),
        (["--allow-origin", "https://shop.example/"], "write one origin as a browser sends it"),
        (["--allow-origin", "null"], "write one origin as a browser sends it"),
        (["--allow-origin", "https://shop.example:443"], "write one origin as a browser sends it"),
    ],
)
def test_wrong_options_are_named(cluster: RunningCluster, options: list[str], why: str) -> None:
    done = run("--connect", cluster.connect, *options)
    assert done.returncode == 2
    assert why in done.stderr


def test_an_address_that_is_taken_is_named(cluster: RunningCluster, proxy: Proxy) -> None:
    done = run("--connect", cluster.connect, "--listen", proxy.address)
    assert done.returncode == 2
    assert f"cannot listen on {proxy.address}" in done.stderr
