"""The supervisor of a local cluster: one coordinator and some nodes, as processes of this machine.

Rules
 L1  One supervisor per directory: it holds the lock while it runs.
 L2  Every process that it starts ends with it, however it ends: they request this from the kernel at their start.
 L3  A process that ends is restarted, with a back-off if it ended quickly, unless restarts are disabled.
 L4  Until the cluster has been up once, the end of any process is a failure of the cluster.
 L5  ``cluster.json`` and ``observe.json`` are up to date, or a moment old.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from io import BufferedWriter
from pathlib import Path

import msgspec

from trunkline.errors import ConfigError, Refused
from trunkline.net.addresses import PORT_MAX
from trunkline.observing.targets import write_targets
from trunkline.runtime.local_files import ClusterRecord, LocalFiles, ProcessRecord, process_started, running_already
from trunkline.storage import PRIVATE_FILE

HOST = "127.0.0.1"
NODES = 3
NODES_MAX = 100
RESTART_S_FIRST = 0.2
RESTART_S_MAX = 5.0
STEADY_S = 10.0  # a process that ran for so long is restarted without back-off
STOP_S = 5.0  # after which a process is killed
LOG_BYTES_MAX = 16 * 1024 * 1024  # a larger log is rotated at the next start
LOG_TAIL_BYTES = 2000
ANY_PORT = range(20_000, 32_000)  # below the kernel's ephemeral ports
ANY_PORT_TRIES = 200


class LocalClusterConfig(msgspec.Struct, frozen=True):
    directory: Path
    program: tuple[str, ...]  # runs a server; accepts ``coordinator`` or ``node`` and their options
    nodes: int | None = None  # None: the existing ones, or three
    port: int = 7400  # of the coordinator; nodes use the next ones. 0: any
    restart: bool = True
    node_options: tuple[str, ...] = ()
    coordinator_options: tuple[str, ...] = ()
    observe: bool = False  # each process serves metrics and health on its own port
    environment: Mapping[str, str] | None = None  # of the servers; None: that of this process


class Child:
    """One process that the supervisor keeps running."""

    def __init__(self, name: str, kind: str, address: str, options: list[str]) -> None:
        self.name = name
        self.kind = kind
        self.address = address
        self.observe = ""  # address of its metrics
        self.options = options
        self.process: asyncio.subprocess.Process | None = None
        self.started = 0
        self.restarts = 0
        self.keeper: asyncio.Task[None] | None = None

    def record(self) -> ProcessRecord:
        pid = self.process.pid if self.process is not None and self.process.returncode is None else 0
        return ProcessRecord(self.name, self.kind, self.address, pid, self.started if pid else 0, self.restarts)


class LocalCluster:
    """``start`` it, report with ``mark_up`` that it is ready, and ``stop`` it."""

    def __init__(self, config: LocalClusterConfig) -> None:
        self.config = config
        self.files = LocalFiles(config.directory)
        self.children: dict[str, Child] = {}
        self._up = False
        self._dashboard = ""
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def connect(self) -> str:
        return self.children["coordinator"].address

    async def start(self) -> None:
        """Raises ``Refused`` if one is already running here, ``ConfigError`` if a port is taken. Nothing runs then."""
        if not self.files.lock():
            raise Refused(running_already(self.files, self.files.record()))
        try:
            self._plan()
            for child in self.children.values():
                await self._launch(child)
        except BaseException:
            await self.stop()
            raise

    def mark_up(self, dashboard: str = "") -> None:
        """``dashboard``: its address, if there is one."""
        self._up = True
        self._dashboard = dashboard
        self._write_record()

    async def failed(self) -> str:
        """Wait until a process ends before the cluster was up; returns the message for the user."""
        return await asyncio.shield(self._failed)

    async def reload(self) -> None:
        """Start added nodes, stop removed ones."""
        wanted = self.files.node_names()
        for name in wanted:
            if name not in self.children:
                await self._launch(self._add_node(name))
        for child in list(self.children.values()):
            if child.kind == "node" and child.name not in wanted:
                del self.children[child.name]
                await self._end([child])
        self._write_record()

    async def stop(self) -> None:
        """End all processes, by force if need be, and unlock the directory."""
        children = list(self.children.values())
        await self._end(children)
        if children:
            self._write_record(pid=0)
        self.files.unlock()

    # ----------------------------------------------------------------------------------------------------------- plan

    def _plan(self) -> None:
        config, files = self.config, self.files
        present = len(files.node_names())
        wanted = config.nodes if config.nodes is not None else present or NODES
        if not 1 <= wanted <= NODES_MAX:
            raise ConfigError(f"a local cluster has 1 to {NODES_MAX} nodes, not {wanted}")
        if config.port + wanted > PORT_MAX:
            needed = f"ports {config.port} to {config.port + wanted} are needed"
            raise ConfigError(f"{needed}, and the last is {PORT_MAX}; choose a lower --port")
        if wanted < present:
            raise Refused(f"{files.root} has {present} nodes with data; use --nodes {present}, or omit --nodes")
        ports = list(itertools.islice(self._ports(), wanted + 1))  # all are checked before anything is created
        for _ in range(wanted - present):
            files.add_node(None)
        address = f"{HOST}:{self._port_of('coordinator', ports[0])}"
        options = ["coordinator", "--dir", str(files.coordinator), "--listen", address, *config.coordinator_options]
        self.children["coordinator"] = Child("coordinator", "coordinator", address, options)
        for name in files.node_names():
            self._add_node(name)

    def _add_node(self, name: str) -> Child:
        address = f"{HOST}:{self._port_of(name, None)}"
        options = ["node", "--dir", str(self.files.nodes / name), "--name", name, "--listen", address]
        options += ["--coordinators", self.connect, *self.config.node_options]
        child = self.children[name] = Child(name, "node", address, options)
        return child

    def _port_of(self, name: str, otherwise: int | None) -> int:
        """Its previous port, else the first free one."""
        taken = {child.record().port for child in self.children.values()}
        record = self.files.record()
        before = record.process(name) if record is not None and record.port == self.config.port else None
        if before is not None and before.port not in taken and _is_free(before.port):
            return before.port
        return otherwise or next(port for port in self._ports() if port not in taken)

    def _ports(self) -> Iterator[int]:
        if self.config.port == 0:
            yield from _any_ports()
        for port in range(self.config.port, min(self.config.port + NODES_MAX, PORT_MAX) + 1):
            if not _is_free(port) and port not in {child.record().port for child in self.children.values()}:
                raise ConfigError(f"port {port} is taken by another program; choose another range with --port")
            yield port

    # ------------------------------------------------------------------------------------------------------ processes

    async def _launch(self, child: Child) -> None:
        await self._spawn(child)
        child.keeper = asyncio.create_task(self._keep(child))

    async def _spawn(self, child: Child) -> None:
        observe = self._observe_options(child) if self.config.observe else []
        command = [*self.config.program, *child.options, *observe, "--parent", str(os.getpid())]  # L2
        with _open_log(self.files.logs / f"{child.name}.log") as log:
            child.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the terminal reaches the supervisor only
                env=self.config.environment,
            )
        child.started = process_started(child.process.pid)
        self._write_record()  # L5

    def _observe_options(self, child: Child) -> list[str]:
        """Its previous port, or another one if that is taken."""
        children = self.children.values()
        taken = {child.record().port for child in children} | {_port(each.observe) for each in children if each.observe}
        if not child.observe or not _is_free(_port(child.observe)):
            child.observe = f"{HOST}:{next(port for port in _any_ports() if port not in taken)}"
        return ["--observe", child.observe]

    async def _keep(self, child: Child) -> None:
        """L3"""
        wait_s = RESTART_S_FIRST
        while True:
            assert child.process is not None
            began = time.monotonic()
            code = await child.process.wait()
            self._write_record()
            if not self._up and not self._failed.done():
                self._failed.set_result(self._failure_text(child, code))  # L4
            if not self.config.restart:
                return
            if time.monotonic() - began >= STEADY_S:
                wait_s = RESTART_S_FIRST
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RESTART_S_MAX)
            child.restarts += 1
            await self._spawn(child)

    async def _end(self, children: list[Child]) -> None:
        keepers = [child.keeper for child in children if child.keeper is not None]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        processes = [child.process for child in children if child.process is not None]
        for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process receives SIGTERM only after SIGCONT
            for process in processes:
                _signal(process, number)
        waits = [asyncio.create_task(process.wait()) for process in processes]
        if waits:
            await asyncio.wait(waits, timeout=STOP_S)
            for process in processes:
                _signal(process, signal.SIGKILL)
            await asyncio.gather(*waits)

    def _failure_text(self, child: Child, code: int) -> str:
        path = self.files.logs / f"{child.name}.log"
        last = path.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip().splitlines()[-1:]
        message = f": {_message(last[0])}" if last else ""
        return f"{child.name} ended with exit code {code} before the cluster was up{message} (see {path})"

    def _write_record(self, pid: int | None = None) -> None:
        pid = os.getpid() if pid is None else pid
        processes = tuple(child.record() for child in self.children.values())
        is_up, page = self._up and pid > 0, self._dashboard if pid > 0 else ""
        self.files.write_record(
            ClusterRecord(pid, process_started(pid), self.config.port, self.connect, is_up, processes, page)
        )
        observed = {child.name: child.observe for child in self.children.values() if child.observe and pid > 0}
        write_targets(self.files.root, observed)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            process.send_signal(number)


def _any_ports() -> Iterator[int]:
    for _ in range(ANY_PORT_TRIES):
        port = random.choice(ANY_PORT)
        if _is_free(port):
            yield port
    raise ConfigError(f"found no free port from {ANY_PORT.start} to {ANY_PORT.stop - 1}; choose one with --port")


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _message(line: str) -> str:
    """The message of a log line, text or JSON."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line.removeprefix("trunkline: ")
    return str(found["message"]) if isinstance(found, dict) and "message" in found else line


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _open_log(path: Path) -> BufferedWriter:
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".log.1"))
    path.touch(PRIVATE_FILE)
    return path.open("ab")
