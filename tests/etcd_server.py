"""Real etcd servers for tests: one member or several, on free loopback ports or on given addresses.

    with Etcd(tmp_path, members=3) as etcd:
        store = EtcdStore(EtcdOptions(etcd.endpoints))
        etcd.kill(0); etcd.restart(0)

Each member runs in its own process. ``prefixes`` puts a command before each of them, such as
``["ip", "netns", "exec", "blue"]``, and ``hosts`` the address that it listens on there.
"""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from outside import program
from stopping import stop_and_wait

START_S_MAX = 20.0  # a loaded machine; usually it takes less than one second
LOOK_AGAIN_S = 0.02
CLIENT_PORT, PEER_PORT = 2379, 2380  # on a host of its own; on loopback free ports are taken
UNVERIFIED = ssl._create_unverified_context()  # only to see whether a server is up


ASK_FROM_THERE = """
import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/v3/kv/range", data=b'{"key": "AA=="}', timeout=1).read()
"""


class Etcd:
    """A cluster of etcd members. A member is named by its index."""

    def __init__(
        self,
        directory: Path,
        *,
        members: int = 1,
        hosts: Sequence[str] | None = None,
        prefixes: Sequence[Sequence[str]] | None = None,
        options: Sequence[str] = (),
        tls: bool = False,
    ) -> None:
        """``tls``: clients connect by HTTPS; the certificate and key are named in ``options``."""
        self._program = program("etcd")
        self._directory = directory
        self._hosts = list(hosts) if hosts is not None else ["127.0.0.1"] * members
        self._prefixes = [list(prefix) for prefix in prefixes] if prefixes is not None else [[] for _ in self._hosts]
        self._options = list(options)
        ports = [(CLIENT_PORT, PEER_PORT)] * len(self._hosts) if hosts is not None else _free_ports(members)
        scheme = "https" if tls else "http"
        self._clients = [f"{scheme}://{host}:{port}" for host, (port, _) in zip(self._hosts, ports, strict=True)]
        self._peers = [f"http://{host}:{port}" for host, (_, port) in zip(self._hosts, ports, strict=True)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(self._clients)

    def __enter__(self) -> Etcd:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start every member and wait until each of them answers with a majority behind it."""
        for member in range(len(self._hosts)):
            self.launch(member)
        for member in range(len(self._hosts)):
            self.wait_healthy(member)

    def launch(self, member: int) -> None:
        """Start a member, with what its disk holds, and do not wait for it."""
        name = f"m{member}"
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [
            *self._prefixes[member],
            self._program,
            f"--name={name}",
            f"--data-dir={self._directory / name}",
            f"--listen-client-urls={self._clients[member]}",
            f"--advertise-client-urls={self._clients[member]}",
            f"--listen-peer-urls={self._peers[member]}",
            f"--initial-advertise-peer-urls={self._peers[member]}",
            "--initial-cluster=" + ",".join(f"m{index}={peer}" for index, peer in enumerate(self._peers)),
            "--initial-cluster-state=new",
            *self._options,
        ]
        with (self._directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._processes[member] = process

    def restart(self, member: int) -> None:
        self.launch(member)
        self.wait_healthy(member)

    def kill(self, member: int) -> None:
        """As a power cut would: no farewell."""
        self._end(member, signal.SIGKILL)

    def stop(self, member: int) -> None:
        self._end(member, signal.SIGTERM)

    def pause(self, member: int) -> None:
        """The member keeps its connections and says nothing any more, until ``resume``."""
        stop_and_wait(self._processes[member].pid)

    def resume(self, member: int) -> None:
        self._processes[member].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for member in list(self._processes):
            self.kill(member)

    def wait_healthy(self, member: int) -> None:
        """Return when the member can answer linearizable reads."""
        deadline = time.monotonic() + START_S_MAX
        while not self._is_healthy(member):
            if self._processes[member].poll() is not None or time.monotonic() > deadline:
                log = (self._directory / f"m{member}.log").read_text(errors="replace")
                pytest.fail(f"etcd member {member} does not serve:\n{log[-2000:]}")
            time.sleep(LOOK_AGAIN_S)

    def leader(self) -> int:
        """The index of the member that leads. (Members behind a prefix cannot be asked from here.)"""
        for member in self._processes:
            status = self._ask(member, "/v3/maintenance/status")
            if status is not None and status.get("leader") and status["header"]["member_id"] == status["leader"]:
                return member
        pytest.fail("no etcd member says that it leads")

    def _is_healthy(self, member: int) -> bool:
        if self._prefixes[member]:  # it can be asked from where it runs only
            command = [*self._prefixes[member], sys.executable, "-c", ASK_FROM_THERE, self._clients[member]]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        answer = self._ask(member, "/v3/kv/range", b'{"key": "AA=="}')
        return answer is not None and "header" in answer

    def _ask(self, member: int, path: str, body: bytes = b"{}") -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(
                self._clients[member] + path, data=body, timeout=1, context=UNVERIFIED
            ) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def _end(self, member: int, how: signal.Signals) -> None:
        process = self._processes.pop(member)
        process.send_signal(how)
        process.wait()


def _free_ports(members: int) -> list[tuple[int, int]]:
    """Pairs of ports that were free just now."""
    sockets = [socket.socket() for _ in range(2 * members)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return list(zip(ports[::2], ports[1::2], strict=True))
