"""A throw-away PostgreSQL server for tests, on a Unix socket and on a free loopback port.

    with PostgresServer() as server:
        dsn = server.create_database("orders")
        server.kill(); server.restart()

The superuser ``postgres`` is trusted; any other role that a test creates must give its password. The server's files lie
in a directory of their own below the system's temporary one, because root starts it as another user, who may not look
into pytest's directories. It ends when the thread that started it ends, however that ends.
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
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outside import program
from stopping import stop_and_wait

START_S_MAX = 30.0  # a loaded machine; usually it takes a tenth of a second
END_S_MAX = 30.0
LOOK_AGAIN_S = 0.02
SUPERUSER = "postgres"
ACCOUNT = "postgres"  # of the operating system: PostgreSQL refuses to run as root
ACCESS = f"""
local all all                      trust
host  all {SUPERUSER} 127.0.0.1/32 trust
host  all all         127.0.0.1/32 scram-sha-256
"""
NOT_SYNCED = {"fsync": "off", "full_page_writes": "off"}  # commits still reach the system, so that they survive a kill


class PostgresServer:
    """One server with a new, empty cluster of databases."""

    def __init__(self, *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        """``fsync``: what is committed survives a power cut, not only ``kill``. ``settings`` of postgresql.conf."""
        self._postgres, self._initdb = program("postgres"), program("initdb")
        self._settings = {**({} if fsync else NOT_SYNCED), **(settings or {})}
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def directory(self) -> Path:
        """Where the server's files and its socket are."""
        assert self._directory is not None, "the server was not started"
        return self._directory

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def __enter__(self) -> PostgresServer:
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

    def dsn(self, database: str = "postgres", *, user: str = SUPERUSER, unix_socket: bool = False) -> str:
        """A libpq connection string without a password."""
        host = str(self.directory) if unix_socket else "127.0.0.1"
        return make_conninfo(host=host, port=self.port, dbname=database, user=user)

    def create_database(self, name: str) -> str:
        """Make a database, and return its connection string."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="postgres-"))
        if os.geteuid() == 0:
            shutil.chown(self._directory, ACCOUNT)
        initdb = [self._initdb, "--pgdata", str(self._data), "--username", SUPERUSER]
        options = ["--no-sync", "--auth=trust", "--no-locale", "--encoding=UTF8"]
        done = subprocess.run(_as_account([*initdb, *options]), cwd="/", capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"initdb failed:\n{done.stdout}{done.stderr}")
        (self._data / "pg_hba.conf").write_text(ACCESS)
        self.restart()

    def restart(self) -> None:
        """Start the server, with what its disk holds, and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            **self._settings,
        }
        command = [self._postgres, "-D", str(self._data)]
        command += [f"--{name}={value}" for name, value in settings.items()]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                _as_account(command, dies_with_parent=True), cwd="/", stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._wait_ready()

    def kill(self) -> None:
        """As a power cut would: no farewell to any client, from the server or from the processes that it started."""
        assert self._process is not None, "the server does not run"
        stop_and_wait(self._process.pid)  # so that it cannot say that it lost a child, or start another
        started = _children(self._process.pid)
        for process in started:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in started:
            _wait_dead(process)  # a new server refuses to start beside the backends of an old one
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In order, but without waiting for clients."""
        self._end(signal.SIGINT)

    def promote(self) -> None:
        """Start, after it was stopped, as a standby that becomes a primary: on the next timeline."""
        signal_file = self._data / "standby.signal"
        signal_file.touch()
        if os.geteuid() == 0:
            shutil.chown(signal_file, ACCOUNT)
        self.restart()
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def pause(self) -> None:
        """Connections stay open without answers, until ``resume``."""
        assert self._process is not None, "the server does not run"
        for process in (self._process.pid, *_children(self._process.pid)):
            stop_and_wait(process)

    def resume(self) -> None:
        assert self._process is not None, "the server does not run"
        for process in (*_children(self._process.pid), self._process.pid):
            with suppress(ProcessLookupError):  # one that had its orders ends as soon as it goes on
                os.kill(process, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self.resume()
            self._end(signal.SIGQUIT)  # at once, and it still takes its shared memory away
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self.directory / "server.log").read_text(errors="replace")
                pytest.fail(f"PostgreSQL does not serve:\n{log[-2000:]}")
            time.sleep(LOOK_AGAIN_S)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        process, self._process = self._process, None
        process.send_signal(how)
        process.wait(timeout=END_S_MAX)


def _as_account(command: Sequence[str], *, dies_with_parent: bool = False) -> list[str]:
    """The command as a user who is not root; with a signal for immediate shutdown when our process ends."""
    prefix = [program("setpriv")]
    if os.geteuid() == 0:
        account = pwd.getpwnam(ACCOUNT)
        prefix += [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    if dies_with_parent:
        prefix += ["--pdeathsig=QUIT"]
    return [*prefix, *command] if len(prefix) > 1 else list(command)


def _children(process: int) -> list[int]:
    """The processes that this one started and that still run."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _wait_dead(process: int) -> None:
    """Return when a process runs no more; its parent may not have noticed yet."""
    deadline = time.monotonic() + END_S_MAX
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > deadline:
            pytest.fail(f"the PostgreSQL process {process} cannot be killed")
        time.sleep(LOOK_AGAIN_S)


def _free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
