"""A real proxy for tests, in a process of its own, and a client that speaks plain HTTP to it."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = (sys.executable, "-m", "trunkline.cli.main", "proxy")
WAIT_S = 30.0
PROBLEM = "application/problem+json"
URN = "urn:trunkline:problem:"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The kind of a problem, which is whole."""
        assert self.headers["Content-Type"] == PROBLEM, self
        found = self.json
        assert found["status"] == self.status
        assert found["title"]
        assert found["detail"]
        return str(found["type"].removeprefix(URN))


class Proxy:
    def __init__(self, process: subprocess.Popen[bytes], address: str, errors: Path) -> None:
        self.process = process
        self.address = address
        self.errors = errors

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.address, timeout=WAIT_S)

    def ask(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = self.connection()
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, value: object, headers: Mapping[str, str] | None = None) -> Answer:
        given = {"Content-Type": "application/json", **(headers or {})}
        return self.ask("POST", path, body=json.dumps(value).encode(), headers=given)

    def append(self, log: str, text: str, *, key: str | None = None) -> Answer:
        return self.post(f"/v1/logs/{log}/entries", {"text": text}, {"Idempotency-Key": key} if key else None)

    def texts(self, log: str) -> list[str]:
        """Every entry of a log, which are fewer than a page holds."""
        page = self.get(f"/v1/logs/{log}/entries?limit=1000")
        assert page.status == 200, page
        return [entry["text"] for entry in page.json["entries"]]

    def count(self, name: str) -> int:
        """One of the counters that have no labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        return int(float(next(line.split()[1] for line in lines if line.startswith(f"trunkline_proxy_{name} "))))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """As a supervisor does; answers the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


def begin(connect: str, directory: Path, *options: str, environment: Mapping[str, str] | None = None) -> Proxy:
    """Up: it listens."""
    directory.mkdir(parents=True, exist_ok=True)
    errors = directory / f"proxy-{len(list(directory.iterdir()))}.err"
    command = [*PROGRAM, "--connect", connect, "--listen", "127.0.0.1:0", "--parent", str(os.getpid()), *options]
    with errors.open("wb") as err:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err, env={**os.environ, **(environment or {})}
        )
    assert process.stdout is not None
    select.select([process.stdout], [], [], WAIT_S)
    line = process.stdout.readline().decode()
    process.stdout.close()
    assert "http://" in line, (line, errors.read_text())
    return Proxy(process, line.partition("http://")[2].strip(), errors)


@contextmanager
def running(connect: str, directory: Path, *options: str, **more: Any) -> Iterator[Proxy]:
    """Until the block is left; nothing went wrong that the proxy did not expect."""
    proxy = begin(connect, directory, *options, **more)
    try:
        yield proxy
    finally:
        if proxy.process.poll() is None:
            code = proxy.stop()
            assert code == 0, (code, proxy.errors.read_text())
        assert "Traceback" not in proxy.errors.read_text(), proxy.errors.read_text()
