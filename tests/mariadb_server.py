"""A throw-away MariaDB server for tests, on a Unix socket and on a free loopback port.

    with MariadbServer() as server:
        dsn = server.create_database("shop")
        server.kill(); server.restart()

``root`` has no password; any other account that a test creates may have one. The server's files lie in a directory of
their own below the system's temporary one, because root starts it as another user. It ends when the thread that
started it ends, however that ends.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pymysql
import pytest

from outside import program
from stopping import stop_and_wait

START_S_MAX = 60.0  # a loaded machine; usually it takes half a second
END_S_MAX = 60.0
LOOK_AGAIN_S = 0.02
ACCOUNT = "mysql"  # of the operating system: MariaDB refuses to run as root
SETTINGS = {
    "log-bin": "binlog",
    "server-id": "1",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "character-set-server": "utf8mb4",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "64M",
    "innodb-flush-log-at-trx-commit": "2",  # commits still reach the system, so that they survive a kill
    "sync-binlog": "0",
    "performance-schema": "OFF",
}


class MariadbServer:
    """One server without databases of its own."""

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        """``settings`` by the names of options; an empty value: the option alone."""
        self._server, self._install = program("mariadbd"), program("mariadb-install-db")
        self.settings = {**SETTINGS, **(settings or {})}
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def directory(self) -> Path:
        """Where the server's files and its socket are."""
        assert self._directory is not None, "the server was not started"
        return self._directory

    def __enter__(self) -> MariadbServer:
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

    def dsn(self, *, user: str = "root", password: str = "") -> str:
        secret = f":{password}" if password else ""
        return f"mariadb://{user}{secret}@127.0.0.1:{self.port}"

    def connect(self, database: str | None = None, *, user: str = "root", password: str = "") -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=user,
            password=password,
            database=database,
            autocommit=True,
            charset="utf8mb4",
        )

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements in one session; the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows

    def create_database(self, name: str) -> str:
        """Make a database, and return the connection string of the server."""
        self.execute(f"CREATE DATABASE `{name}`")
        return self.dsn()

    def start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="mariadb-"))
        if os.geteuid() == 0:
            shutil.chown(self._directory, ACCOUNT)
        install = [self._install, "--no-defaults", f"--datadir={self._data}", "--skip-test-db", "--skip-name-resolve"]
        options = ["--auth-root-authentication-method=normal", f"--tmpdir={self._directory}"]
        done = subprocess.run(_as_account([*install, *options]), cwd="/", capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"mariadb-install-db failed:\n{done.stdout}{done.stderr}")
        self.restart()

    def restart(self) -> None:
        """Start the server, with what its disk holds, and wait until it answers."""
        settings = {
            "datadir": str(self._data),
            "socket": str(self.directory / "socket"),
            "pid-file": str(self.directory / "pid"),
            "tmpdir": str(self.directory),
            "bind-address": "127.0.0.1",
            "port": str(self.port),
            **self.settings,
        }
        command = [self._server, "--no-defaults", "--skip-name-resolve"]
        command += [f"--{name}={value}" if value else f"--{name}" for name, value in settings.items()]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                _as_account(command, dies_with_parent=True), cwd="/", stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._wait_ready()

    def kill(self) -> None:
        """As a power cut would: no farewell to any client."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Connections stay open without answers, until ``resume``."""
        assert self._process is not None, "the server does not run"
        stop_and_wait(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None, "the server does not run"
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None

    def position(self) -> int:
        """The end of the binlog, as a capture counts it."""
        [(file, offset, *_)] = self.execute("SHOW MASTER STATUS")
        return int(file.rpartition(".")[2]) << 40 | int(offset)

    def newest_binlog(self) -> Path:
        return max(self._data.glob("binlog.0*"))

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self.directory / "server.log").read_text(errors="replace")
                pytest.fail(f"MariaDB does not serve:\n{log[-2000:]}")
            time.sleep(LOOK_AGAIN_S)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        process, self._process = self._process, None
        process.send_signal(how)
        process.wait(timeout=END_S_MAX)


def _as_account(command: Sequence[str], *, dies_with_parent: bool = False) -> list[str]:
    """The command as a user who is not root; killed when our process ends."""
    prefix = [program("setpriv")]
    if os.geteuid() == 0:
        account = pwd.getpwnam(ACCOUNT)
        prefix += [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    if dies_with_parent:
        prefix += ["--pdeathsig=KILL"]
    return [*prefix, *command] if len(prefix) > 1 else list(command)


def _free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
