"""The directory of a local cluster: its processes and nodes.

    lock              held by the supervisor while it runs
    cluster.json      process ids with their start times, addresses; kept after a stop for the ports
    coordinator/      the metadata
    nodes/NAME/       a node's data; each directory is a node to run ...
    nodes/NAME.removed    ... unless this file exists
    logs/NAME.log     the output of a process

The supervisor reads ``nodes/`` again on SIGUSR1: to add a node is to make a directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
from pathlib import Path

import msgspec

from trunkline.errors import ConfigError, Refused
from trunkline.storage import PRIVATE_DIRECTORY, PRIVATE_FILE, make_private

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
RELOAD = signal.SIGUSR1


class ProcessRecord(msgspec.Struct, frozen=True):
    name: str
    kind: str  # coordinator or node
    address: str
    pid: int = 0  # 0: it is not running
    started: int = 0  # in ticks since boot: distinguishes it from another process with this id
    restarts: int = 0

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def runs(self) -> bool:
        return is_running(self.pid, self.started)


class ClusterRecord(msgspec.Struct, frozen=True):
    pid: int  # of the supervisor
    started: int
    port: int  # as requested; 0: any free ones
    connect: str
    up: bool = False  # all nodes have been live at the same time
    processes: tuple[ProcessRecord, ...] = ()
    dashboard: str = ""  # its address, if the supervisor serves it

    def process(self, name: str) -> ProcessRecord | None:
        return next((each for each in self.processes if each.name == name), None)


class LocalFiles:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.coordinator = self.root / "coordinator"
        self.logs = self.root / "logs"
        self.nodes = self.root / "nodes"
        self._record = self.root / "cluster.json"
        self._lock_path = self.root / "lock"
        self._lock: int | None = None

    # ---------------------------------------------------------------------------------------------------------- record

    def record(self) -> ClusterRecord | None:
        """The last one written; None if no cluster ever ran here."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=ClusterRecord)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._record} is damaged ({error}); delete it if no cluster runs there") from None

    def write_record(self, record: ClusterRecord) -> None:
        written = self._record.with_suffix(".new")
        written.touch(PRIVATE_FILE)
        written.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        written.replace(self._record)

    # ------------------------------------------------------------------------------------------------------------ lock

    def make(self) -> None:
        """Create missing directories. Raises ``ConfigError``."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for directory in (self.coordinator, self.logs, self.nodes):
                directory.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
                make_private(directory)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> ConfigError:
        """An obstacle belongs to the user: it is named, and left alone."""
        obstacle = next((path for path in (self.root, *self.root.parents) if path.exists() and not path.is_dir()), None)
        why = f"{obstacle} is a file, not a directory" if obstacle else f"cannot use {self.root}: {error.strerror}"
        return ConfigError(f"{why}; name another directory with --dir")

    def lock(self) -> bool:
        """Whether this process got the lock. It holds it until ``unlock`` or its end."""
        self.make()
        try:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def running(self) -> ClusterRecord | None:
        """The record of the cluster if it is running."""
        record = self.record()
        return record if record is not None and is_running(record.pid, record.started) else None

    # ----------------------------------------------------------------------------------------------------------- nodes

    def node_names(self) -> list[str]:
        """The nodes to run, ``node2`` before ``node10``."""
        found = [path.name for path in self.nodes.iterdir() if path.is_dir() and not self._removed(path.name).exists()]
        return sorted(found, key=_number_aware)

    def add_node(self, name: str | None) -> str:
        """Create a node's directory. Without a name it gets the next number. Raises ``Refused``."""
        if name is not None and not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not a valid node name: use letters, digits, '_' and '-', up to 63")
        tried = [name] if name is not None else (f"node{number}" for number in range(1, 10_000))
        for each in tried:
            try:
                (self.nodes / each).mkdir(PRIVATE_DIRECTORY)
            except FileExistsError:
                continue
            return each
        raise Refused(f"{self.root} has, or had, a node {name}; choose another name")

    def remove_node(self, name: str) -> None:
        """It is not started again; its data stays."""
        if not (self.nodes / name).is_dir():
            raise Refused(f"{self.root} has no node {name}")
        self._removed(name).touch()

    def _removed(self, name: str) -> Path:
        return self.nodes / f"{name}.removed"


def running_already(files: LocalFiles, record: ClusterRecord | None) -> str:
    where = f" (connect to {record.connect})" if record is not None else ""
    return f"a cluster is already running in {files.root}{where}; `trunkline down --dir {files.root}` stops it"


def _number_aware(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def process_started(pid: int) -> int:
    """When a process started; 0 if it is not running, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def is_running(pid: int, started: int) -> bool:
    """Whether the recorded process is still running, and not another one with its id."""
    return pid > 0 and started > 0 and process_started(pid) == started


def send_signal(pid: int, started: int, number: signal.Signals) -> None:
    """Only to the recorded process."""
    if is_running(pid, started):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)
