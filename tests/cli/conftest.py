"""One cluster for all tests of commands; each test uses its own logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import Command, Outcome, RunningCluster, local_cluster
from trunkline.cli.main import main


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("commands") / "cluster") as running:
        yield running


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs a command in this process, in an empty directory, with ``stdin`` from a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [each for each in os.environ if each.startswith("TRUNKLINE_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        (tmp_path / "stdin").write_bytes(stdin)
        with (tmp_path / "stdin").open() as file:
            monkeypatch.setattr("sys.stdin", file)
            code = main(arguments)
        out, err = capsysbinary.readouterr()
        return Outcome(code, out, err.decode())

    return run


@pytest.fixture
def on_cluster(command: Command, cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command with the address of the cluster."""
    monkeypatch.setenv("TRUNKLINE_CONNECT", cluster.connect)
    return command
