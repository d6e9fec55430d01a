"""Processes of a benchmark; all of them end with it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

BENCH = Path(__file__).resolve().parent
STOP_WITHIN_S = 10.0
READY_WITHIN_S = 30.0
LOOK_EVERY_S = 0.02
CLIENT_WITHIN_S = 300.0
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """A process failed."""


def _die_with_parent() -> None:
    """In a started process: the kernel kills it when the benchmark dies, even by kill -9."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """A context manager that ends what was started in it."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, Path] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for name in list(self._running):
            self.wait(name)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running.values()]

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def start(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self._logs[name] = log
        with log.open("ab") as output:
            self._running[name] = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self.wait(name)

    def wait(self, name: str) -> None:
        process = self._running.pop(name)
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def until(self, what: str, ready: Callable[[], bool], within_s: float = READY_WITHIN_S) -> float:
        """Wait for a condition and return the seconds. If a process dies, raise with the end of its log."""
        began = time.monotonic()
        while not ready():
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise Failed(f"{name} ended with {process.returncode}:\n{self._end_of_log(name)}")
            if time.monotonic() - began > within_s:
                ends = "\n".join(f"{name}: {self._end_of_log(name)}" for name in self._running)
                raise Failed(f"{what} took longer than {within_s} s\n{ends}")
            time.sleep(LOOK_EVERY_S)
        return time.monotonic() - began

    def _end_of_log(self, name: str) -> str:
        return self._logs[name].read_text(errors="replace")[-2000:]


def run_client(module: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a separate client process to its end, with JSON as input and output."""
    command = [sys.executable, str(BENCH / f"{module}.py"), json.dumps(arguments)]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            check=False,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            timeout=CLIENT_WITHIN_S,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"the client {module} was not done within {CLIENT_WITHIN_S:.0f} s: {arguments}") from None
    if done.returncode != 0:
        raise Failed(f"the client {module} ended with {done.returncode}; its message is above")
    return dict(json.loads(done.stdout))


def free_ports(count: int) -> list[int]:
    """Free ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory now and at its highest."""
    return parse_memory(Path(f"/proc/{pid}/status").read_text())


def parse_memory(status: str) -> tuple[float, float]:
    """VmRSS and VmHWM of /proc/PID/status, in MiB."""
    values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    now, highest = (int(values[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return now, highest


def own_directory(parent: Path, name: str) -> Path:
    directory = parent / name
    os.makedirs(directory)
    return directory
