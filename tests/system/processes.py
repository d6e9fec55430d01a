"""A cluster of real processes for tests: coordinators, nodes and clients that can be killed, stopped and restarted.

    with Processes(tmp_path) as processes:
        processes.start_cluster(nodes=3)
        processes.kill("n2")
        processes.start("n2")

Every process has a name and writes to ``<directory>/<name>.err``; the ends of these files are printed when a test
fails. Only processes that were started here are ended, and they end with the test, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import msgspec

import trunkline
from stopping import stop_and_wait
from trunkline.client.cluster import ClientOptions
from trunkline.core.status import ClusterStatus, LogStatus
from trunkline.errors import TrunklineError

T = TypeVar("T")

TESTS = Path(__file__).resolve().parent.parent
WAIT_S_MAX = 30.0  # a loaded machine; most conditions hold within a second
LOOK_AGAIN_S = 0.05
STOP_S_MAX = 20.0
PORTS = range(15_000, 30_000)  # below the ephemeral ports, so that a restarted server gets its own again
TAIL_CHARACTERS = 4_000  # of the log of a process, when a test fails


class Place(NamedTuple):
    """Where a process runs: an address of its own, and a command that leads there (``ip netns exec ...``)."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


LOOPBACK = Place()


class Failed(AssertionError):
    """A condition did not hold in time."""


class Program(NamedTuple):
    """How a process is started, each time."""

    module: str
    spec: dict[str, Any]
    place: Place


class Processes:
    def __init__(self, directory: Path, *, seed: int | None = None) -> None:
        self.directory = directory
        self.recordings = directory / "recordings"
        self.histories = directory / "histories"
        self.coordinators: list[str] = []  # addresses
        self.node_names: list[str] = []
        self._programs: dict[str, Program] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: set[str] = set()
        self._started_ns: dict[str, int] = {}
        self._drawn = random.Random(seed)
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.print_errors()
        self.close()

    # ------------------------------------------------------------------------------------------------------- programs

    def start_cluster(self, *, nodes: int = 3, **node_options: Any) -> None:
        """One coordinator, ``c1``, and nodes ``n1`` and so on; returns when all of them are live."""
        self.add_coordinator("c1")
        for number in range(1, nodes + 1):
            self.add_node(f"n{number}", **node_options)
        self.start(*self._programs)
        self.wait_live(*self.node_names)

    def add_coordinator(self, name: str, *, place: Place = LOOPBACK, etcd: Sequence[str] = (), **options: Any) -> None:
        address = f"{place.host}:{self._port(place)}"
        self.coordinators.append(address)
        directory = None if etcd else str(self._made(name))
        config = {"listen": address, "directory": directory, "etcd": list(etcd), "name": name, **options}
        self._add(name, "coordinator", config, place)

    def add_node(
        self, name: str, *, place: Place = LOOPBACK, directory: Path | None = None, bug: str = "", **options: Any
    ) -> None:
        """All coordinators come first: a node knows their addresses."""
        config = {
            "directory": str(directory or self._made(name)),
            "name": name,
            "listen": f"{place.host}:{self._port(place)}",
            "coordinators": self.coordinators,
            **options,
        }
        self.node_names.append(name)
        self._add(name, "node", config, place, bug)

    def add_client(self, name: str, place: Place = LOOPBACK, **spec: Any) -> None:
        """A client that runs ``system.workload``; its fields are those of ``workload.Spec``."""
        places = {"recordings": str(self.recordings), "histories": str(self.histories)}
        self._programs[name] = Program(
            "system.workload", {"name": name, "connect": self.coordinators, **places, **spec}, place
        )

    def _add(self, name: str, kind: str, config: dict[str, Any], place: Place, bug: str = "") -> None:
        config = {"record": str(self.recordings), **config}
        self._programs[name] = Program("system.launch", {"kind": kind, "config": config, "bug": bug}, place)

    # -------------------------------------------------------------------------------------------------- life and death

    def start(self, *names: str) -> None:
        for name in names:
            assert not self.is_running(name), f"{name} runs already"
            program = self._programs[name]
            path = self.directory / f"{name}.json"
            path.write_bytes(msgspec.json.encode({**program.spec, "parent": os.getpid()}))
            self._started_ns[name] = time.time_ns()
            command = [*program.place.prefix, sys.executable, "-m", program.module, str(path)]
            with (self.directory / f"{name}.err").open("ab") as log:
                self._running[name] = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)]),
                    },
                )

    def is_running(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def is_paused(self, name: str) -> bool:
        return name in self._paused

    def kill(self, *names: str) -> None:
        """``kill -9``, and wait until they have ended."""
        for name in names:
            self._running[name].kill()
        for name in names:
            self._running.pop(name).wait()
            self._paused.discard(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: it keeps its connections and is silent."""
        stop_and_wait(self._running[name].pid)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGCONT)
        self._paused.discard(name)

    def stop(self, *names: str) -> dict[str, int]:
        """SIGTERM; the exit codes. One that does not end is a failure."""
        for name in names:
            self._running[name].terminate()
        codes = {}
        for name in names:
            try:
                codes[name] = self._running[name].wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._running[name].send_signal(signal.SIGUSR1)  # a server prints what it waits for
                time.sleep(LOOK_AGAIN_S)
                raise Failed(f"{name} did not end within {STOP_S_MAX:.0f} s of SIGTERM") from None
            del self._running[name]
        return codes

    def stop_servers(self) -> None:
        """Shut down all servers cleanly: their recordings are complete then. Stop clients before."""
        servers = [name for name in self._running if self._programs[name].module == "system.launch"]
        wrong = {name: code for name, code in self.stop(*servers).items() if code != 0}
        if wrong:
            raise Failed(f"did not stop in order, exit codes: {wrong}")

    def ended(self, name: str) -> int | None:
        """The exit code of a process that has ended."""
        process = self._running.get(name)
        return None if process is None else process.poll()

    def wait_end(self, name: str, within_s: float = WAIT_S_MAX) -> int:
        """The exit code of a process, once it has ended."""
        code = self.wait(lambda: self.ended(name), f"{name} to end", within_s)
        del self._running[name]
        return code

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def pid(self, name: str) -> int:
        return self._running[name].pid

    # --------------------------------------------------------------------------------------------------------- waiting

    def wait_live(self, *names: str, within_s: float = WAIT_S_MAX) -> None:
        """Until the coordinator knows these nodes as live, each in its present start."""

        def live() -> bool:
            dead = [name for name in self._running if self.ended(name) is not None]
            if dead:
                raise Failed(f"{', '.join(dead)} ended by itself")
            status = self.status() or ClusterStatus()
            known = {node.name: node.start for node in status.nodes if node.live}
            return all(known.get(name, -1) >= self._started_ns[name] for name in names)

        self.wait(live, f"{', '.join(names)} to be live", within_s)

    def wait(self, condition: Callable[[], T | None], what: str, within_s: float = WAIT_S_MAX) -> T:
        """The condition's first answer that is neither None nor False."""
        deadline = time.monotonic() + within_s
        while True:
            found = condition()
            if found is not None and found is not False:
                return found
            if time.monotonic() > deadline:
                raise Failed(f"waited {within_s:.0f} s for {what}")
            time.sleep(LOOK_AGAIN_S)

    def status(self) -> ClusterStatus | None:
        """What a coordinator reports now; None if none of them answers."""

        async def asked() -> ClusterStatus:
            options = ClientOptions(connect_timeout=1.0, timeout=2.0)
            async with trunkline.connect(self.coordinators, options=options) as cluster:
                return await cluster.status()

        try:
            return asyncio.run(asked())
        except TrunklineError:
            return None

    def log_status(self, log: str) -> LogStatus | None:
        status = self.status() or ClusterStatus()
        return next((each for each in status.logs if each.name == log), None)

    def print_errors(self, names: Iterable[str] = ()) -> None:
        for name in names or self._programs:
            path = self.directory / f"{name}.err"
            if path.exists() and path.stat().st_size:
                print(f"--- log of {name}:\n{path.read_text(errors='replace')[-TAIL_CHARACTERS:]}")

    def _made(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return path

    def _port(self, place: Place) -> int:
        if place.prefix:  # a host of its own
            return 7400 + sum(program.place == place for program in self._programs.values())
        while True:
            port = self._drawn.choice(PORTS)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if probe.connect_ex((place.host, port)) != 0 and _binds(place.host, port):
                    return port


def _binds(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
