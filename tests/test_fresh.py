"""``./run fresh``: what it takes along, and that it leaves nothing behind. The whole of it is a release check."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outside  # noqa: F401  (puts tools on the path)
from fresh import inner_environment, package_directories, parsed
from local_cluster import wait_until
from system.volumes import need_root

ENDS_S = 60.0
BUILDER = """#!/bin/sh
for root; do
    case "$root" in /var/tmp/*/root) echo "$root" > {recorded} ;; esac
done
read forever < {never}
"""


def test_settings_for_packages_and_certificates_are_taken_along_and_nothing_else() -> None:
    taken = {
        "PIP_INDEX_URL": "1",
        "SSL_CERT_FILE": "2",
        "https_proxy": "3",
        "NO_PROXY": "4",
        "npm_config_registry": "5",
    }
    taken |= {"REQUESTS_CA_BUNDLE": "6", "GIT_SSL_CAINFO": "7"}
    left = {"PYTHONPATH": "a", "JAVA_HOME": "b", "TRUNKLINE_CONNECT": "c", "VIRTUAL_ENV": "d", "MYPIP_X": "e"}
    environment = inner_environment({**taken, **left, "PATH": "/mine", "HOME": "/mine"})
    assert taken.items() <= environment.items()
    assert not left.keys() & environment.keys()
    assert "/mine" not in environment.values()
    assert environment["CI"]  # what is missing fails


def test_directories_that_pip_takes_packages_from_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("index/simple", "wheels", ".config/pip", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(f"[global]\nextra-index-url = file://{tmp_path}/index/simple\n")
    (tmp_path / ".npmrc").write_text(f"prefix={tmp_path}/elsewhere\n")
    found = package_directories({"PIP_FIND_LINKS": f"https://host/links {tmp_path}/wheels", "OTHER": f"{tmp_path}"})
    assert {path for path in found if path.is_relative_to(tmp_path)} == {tmp_path / "index", tmp_path / "wheels"}


def test_arguments_choose_a_part() -> None:
    assert parsed(["--demo", "--", "tests/core", "-q", "--keep"]).tests == ["tests/core", "-q", "--keep"]
    assert (parsed(["--demo"]).demo, parsed(["--demo"]).tests, parsed(["--keep"]).keep) == (True, [], True)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_however_it_ends_nothing_runs_on_or_stays_mounted(
    repository: Path, tmp_path: Path, how: signal.Signals
) -> None:
    need_root("mounts")
    command, recorded = begin_fresh(repository, tmp_path)
    with command:
        wait_until(lambda: recorded.exists() and recorded.read_text().endswith("\n"), ENDS_S)
        root = str(Path(recorded.read_text().strip()).parent)
        assert processes_with(root)
        os.kill(command.pid, how)
        assert command.wait(ENDS_S) != 0
    wait_until(lambda: not processes_with(root), ENDS_S)
    assert root not in Path("/proc/mounts").read_text()
    if how is signal.SIGKILL:
        shutil.rmtree(root)  # the killed process could not do it
    assert not Path(root).exists()


def begin_fresh(repository: Path, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """With a builder of roots that says where it builds, and never ends."""
    recorded, never = folder / "recorded", folder / "never"
    os.mkfifo(never)
    for name in ("mmdebstrap", "git"):
        (folder / name).write_text(BUILDER.format(recorded=recorded, never=never))
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.Popen([sys.executable, repository / "run", "fresh"], env=environment), recorded


def processes_with(word: str) -> list[str]:
    """Those that have it among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found += [path.parent.name] if word.encode() in path.read_bytes() else []
    return found
