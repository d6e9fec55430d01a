"""Deliverers on a standalone cluster of Spark: real executors, hidden secrets, and a silent end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from delivery.standalone import standalone
from trunkline.cli.main import UNREACHABLE, main

PATIENCE_S = 300.0  # on a loaded machine; usually half a minute
LOOK_AGAIN_S = 0.02
SECRET = "hunter2-that-stays-hidden"
SETTING = "spark.hadoop.fs.test.secret.key"
DRIVER = Path(__file__).with_name("spark_driver.py")
JAVA = ("org.apache.spark.deploy.SparkSubmit", "org.apache.spark.executor.CoarseGrainedExecutorBackend")
LOCAL = "local[2]"
AWAY = "spark://127.0.0.1:1"
NOT_THERE = f"no Spark master answers at {AWAY} (127.0.0.1:1: Connection refused): is it running, is the address right?"


@pytest.fixture(scope="module")
def master(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(java, tmp_path_factory.mktemp("standalone")) as address:
        yield address


class CommandLines:
    """Those that show the secret, and those of Java that were seen at all."""

    def __init__(self) -> None:
        self.telling: set[str] = set()
        self.seen: set[str] = set()

    def look(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has ended
            self.seen.update(name for name in JAVA if name in line)
            if SECRET in line:
                self.telling.add(line)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """All the time."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(LOOK_AGAIN_S):
                self.look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("place", ["one machine", "a cluster"])
def test_a_secret_setting_is_in_effect_and_in_no_command_line(
    place: str, request: pytest.FixtureRequest, java: Path
) -> None:
    master = LOCAL if place == "one machine" else request.getfixturevalue("master")
    lines = CommandLines()
    environment = {**os.environ, "MASTER": master, "SECRETS": json.dumps({SETTING: SECRET})}
    with lines.watched():
        driver = subprocess.Popen(
            [sys.executable, DRIVER, "hold-secrets"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert driver.stdout is not None
            printed = driver.stdout.readline()
            lines.look()
            _, errors = driver.communicate("", timeout=PATIENCE_S)
        finally:
            driver.kill()
            driver.wait()
    assert errors == ""
    assert json.loads(printed) == [{SETTING: SECRET}, {SETTING: SECRET}]
    assert lines.seen >= (set(JAVA) if place == "a cluster" else {JAVA[0]})
    assert lines.telling == set()


def test_an_unreachable_master_is_reported_in_one_line_by_every_command_that_needs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "orders.yaml"
    assert main(["deliver", "init", str(file), "--sample"]) == 0
    file.write_text(file.read_text().replace("master: local[*]", f"master: {AWAY}"))
    capsys.readouterr()
    assert main(["deliver", "validate", str(file)]) == 1
    line = next(number for number, text in enumerate(file.read_text().splitlines(), start=1) if AWAY in text)
    assert capsys.readouterr().out == f"{file}:{line}: spark.master: {NOT_THERE}\n1 problem in {file}\n"
    for action in (["run", str(file), "--once"], ["verify", str(file)]):
        assert main(["deliver", *action]) == UNREACHABLE
        assert capsys.readouterr().err.splitlines()[-1] == f"trunkline: {NOT_THERE}"


def test_a_run_on_a_standalone_cluster_shows_no_secret_and_ends_in_silence(master: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    assert main(["deliver", "init", str(file), "--sample"]) == 0
    ours = f"master: {master}\n  conf_env: {{{SETTING}: THE_SECRET}}\n"
    file.write_text(re.sub(r"master: local\[\*\].*\n", ours, file.read_text()))
    lines = CommandLines()
    with lines.watched():
        done = subprocess.run(
            [sys.executable, "-m", "trunkline.cli.main", "deliver", "run", str(file), "--once"],
            env={**os.environ, "THE_SECRET": SECRET},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("ts=")] == []
    assert lines.seen >= set(JAVA)
    assert lines.telling == set()
