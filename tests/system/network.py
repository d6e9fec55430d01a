"""Hosts of a small network, as network namespaces on one bridge; packets between them can be dropped.

    with Network("a", "b", "c") as network:
        Place(network.address("a"), network.prefix("a"))
        network.cut("a", "b")        # what a sends does not reach b; b still reaches a
        network.heal()

This process is on the bridge, too, and is never cut off. Names carry the process id and whose process ids those are (a
container's are its own), so that runs beside each other do not meet. It needs root.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from outside import program
from system.processes import Place
from system.volumes import need_root

HOSTS_MAX = 200


class Network:
    def __init__(self, *hosts: str) -> None:
        need_root("network namespaces")
        assert len(hosts) <= HOSTS_MAX
        self._ip, self._iptables = program("ip"), program("iptables")
        self._hosts = list(hosts)
        self._number = os.getpid()
        self._bridge = f"{_family()}{self._number}"  # interfaces have at most 15 characters
        self._subnet = f"10.{(self._number >> 8) % 100 + 100}.{self._number % 256}"

    def __enter__(self) -> Network:
        _sweep()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def address(self, host: str) -> str:
        return f"{self._subnet}.{self._hosts.index(host) + 1}"

    def prefix(self, host: str) -> tuple[str, ...]:
        return (self._ip, "netns", "exec", self._namespace(host))

    def place(self, host: str) -> Place:
        return Place(self.address(host), self.prefix(host))

    def cut(self, source: str, target: str) -> None:
        """Drop silently what ``source`` sends to ``target``."""
        _run(*self.prefix(target), self._iptables, "-A", "INPUT", "-s", self.address(source), "-j", "DROP")

    def cut_both(self, some: Iterable[str], others: Iterable[str]) -> None:
        others = list(others)
        for one in some:
            for other in others:
                self.cut(one, other)
                self.cut(other, one)

    def heal(self) -> None:
        for host in self._hosts:
            _run(*self.prefix(host), self._iptables, "-F", "INPUT")

    def close(self) -> None:
        for number, host in enumerate(self._hosts, start=1):
            for gone in (["link", "del", self._link(number)], ["netns", "del", self._namespace(host)]):
                subprocess.run([self._ip, *gone], check=False, capture_output=True)
        subprocess.run([self._ip, "link", "del", self._bridge], check=False, capture_output=True)

    def _build(self) -> None:
        _run(self._ip, "link", "add", self._bridge, "type", "bridge")
        _run(self._ip, "address", "add", f"{self._subnet}.254/24", "dev", self._bridge)
        _run(self._ip, "link", "set", self._bridge, "up")
        for number, host in enumerate(self._hosts, start=1):
            namespace, link = self._namespace(host), self._link(number)
            _run(self._ip, "netns", "add", namespace)
            _run(self._ip, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _run(self._ip, "link", "set", link, "master", self._bridge, "up")
            _run(self._ip, "-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _run(self._ip, "-n", namespace, "link", "set", "eth0", "up")
            _run(self._ip, "-n", namespace, "link", "set", "lo", "up")

    def _link(self, number: int) -> str:
        return f"v{self._number}.{number}"  # removed by name: with its namespace it would go a little later

    def _namespace(self, host: str) -> str:
        return f"{_family()}{self._number}-{host}"


def _family() -> str:
    """How names begin whose numbers are the ids of processes that can be seen from here."""
    return f"tl{Path('/proc/self/ns/pid').stat().st_ino % 1000:03}."


def _sweep() -> None:
    """Remove what a killed run left: its name has the id of a process that has ended."""
    ours = re.escape(_family())
    for kind in ("netns", "link"):
        listed = subprocess.run([program("ip"), "-o", kind, "show"], capture_output=True, text=True, check=True).stdout
        for name, number in re.findall(rf"^(?:\d+: )?({ours}(\d+)(?:-\w+)?)\b", listed, re.MULTILINE):
            if not Path(f"/proc/{number}").exists():
                subprocess.run([program("ip"), kind, "del", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
