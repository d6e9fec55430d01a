"""A cluster of real processes for tests: ``trunkline up`` in a directory of its own, on any free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from outside import program
from stopping import stop_and_wait
from trunkline.runtime.local_files import ClusterRecord, LocalFiles, ProcessRecord

PROGRAM = (sys.executable, "-m", "trunkline.cli.main")
COMMAND_S = 60.0
WAIT_S = 20.0


class RunningCluster:
    """``connect`` is where its coordinator listens."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = LocalFiles(directory)

    @property
    def record(self) -> ClusterRecord:
        record = self.files.record()
        assert record is not None
        return record

    @property
    def connect(self) -> str:
        return self.record.connect

    def process(self, name: str) -> ProcessRecord:
        process = self.record.process(name)
        assert process is not None, f"there is no process {name}"
        return process

    def signal(self, name: str, number: signal.Signals) -> int:
        """To a node or ``coordinator``; answers its process id."""
        pid = self.process(name).pid
        os.kill(pid, number)
        return pid

    def pause(self, name: str) -> None:
        """It keeps its connections and says nothing any more, until ``resume``."""
        stop_and_wait(self.process(name).pid)

    def resume(self, name: str) -> None:
        self.signal(name, signal.SIGCONT)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "TRUNKLINE_CONNECT": self.connect}

    def trunkline(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command as a user does."""
        return subprocess.run(
            [*PROGRAM, *arguments],
            input=stdin,
            capture_output=True,
            env=self.environment(),
            timeout=COMMAND_S,
            check=False,
        )

    def ok(self, *arguments: str, stdin: bytes = b"") -> bytes:
        done = self.trunkline(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.returncode, done.stderr.decode(), self.logs())
        return done.stdout

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command and leave it running."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*PROGRAM, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment(), start_new_session=True
        )

    def logs(self) -> str:
        """The ends of what its processes wrote, for the report of a failure."""
        paths = sorted(self.files.logs.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1000:]}" for path in paths)


class Outcome(NamedTuple):
    """How a command ended that was run in the test's own process."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return self.out.decode()


Command = Callable[..., Outcome]


@contextmanager
def local_cluster(
    directory: Path, *options: str, nodes: int = 3, open_files: int | None = None
) -> Iterator[RunningCluster]:
    """Up, until the block is left or this process dies. ``open_files``: how many each of its processes may have."""
    placed = ["--dir", str(directory), "--port", "0", "--nodes", str(nodes), "--parent", str(os.getpid())]
    limited = [] if open_files is None else [program("sh"), "-c", f'ulimit -n {open_files}; exec "$@"', "sh"]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "up.log").open("wb") as log:
        supervisor = subprocess.Popen(
            [*limited, *PROGRAM, "up", *placed, *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    cluster = RunningCluster(directory)

    def is_up() -> bool:
        assert supervisor.poll() is None, ((directory / "up.log").read_text(), cluster.logs())
        record = cluster.files.record()
        return record is not None and record.up and record.pid == supervisor.pid

    try:
        wait_until(is_up, COMMAND_S)
        yield cluster
    finally:
        supervisor.terminate()
        supervisor.wait(COMMAND_S)


def wait_until(condition: Callable[[], object], seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
