"""Without the packages of the extra ``delivery``, a command that needs them fails with one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.cli.extras import EXTRA
from trunkline.cli.main import MODULES

HIDING = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(each) for each in sys.meta_path]
"""
TRUNKLINE = ("-m", "trunkline.cli.main")
REMEDY = "pip install 'trunkline[delivery]'"


class Fresh:
    """A machine on which some packages are not installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, *arguments: str, without: tuple[str, ...] = EXTRA) -> subprocess.CompletedProcess[str]:
        hiding = self._folder / "hiding"
        hiding.mkdir(exist_ok=True)
        (hiding / "sitecustomize.py").write_text(HIDING.format(hidden=set(without)))
        paths = [str(hiding), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    return Fresh(tmp_path)


CAPTURE_LAKE = (*TRUNKLINE, "capture", "orders", "--ducklake", "shop.ducklake", "--table", "orders")
CAPTURE_POSTGRES = (*TRUNKLINE, "capture", "orders", "--postgres", "host=127.0.0.1", "--table", "orders")


@pytest.mark.parametrize("command", [CAPTURE_LAKE, CAPTURE_POSTGRES, ("-m", "trunkline.demo")])
def test_a_command_that_needs_them_reports_what_to_install(fresh: Fresh, command: tuple[str, ...]) -> None:
    done = fresh.run(*command)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "needs the package" in line
    assert line.endswith(REMEDY)


@pytest.mark.parametrize(
    ("package", "command"), [("pyarrow", CAPTURE_POSTGRES), ("psycopg", CAPTURE_POSTGRES), ("duckdb", CAPTURE_LAKE)]
)
def test_the_missing_package_is_named(fresh: Fresh, package: str, command: tuple[str, ...]) -> None:
    done = fresh.run(*command, "--json", without=(package,))
    assert done.returncode == 2
    error = json.loads(done.stderr)
    assert error["error"] == "ConfigError"
    assert f"`trunkline capture` needs the package {package}, which is not installed" in error["message"]


def test_a_missing_required_package_is_a_bug_and_not_an_extra(fresh: Fresh) -> None:
    done = fresh.run(*TRUNKLINE, "status", without=("msgspec",))
    assert "ModuleNotFoundError" in done.stderr
    assert REMEDY not in done.stderr


def test_every_command_has_help_without_them(fresh: Fresh) -> None:
    program = (
        "import contextlib, io, sys\n"
        "from trunkline.cli.main import main\n"
        f"for name in {list(MODULES)}:\n"
        "    try:\n"
        "        with contextlib.redirect_stdout(io.StringIO()):\n"
        "            main([name, '--help'])\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code, name\n"
        "    print(name)\n"
    )
    done = fresh.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(MODULES)


def test_the_library_and_the_checker_work_without_them(fresh: Fresh) -> None:
    done = fresh.run("-c", "import trunkline, trunkline.sync, trunkline.delivery; print(trunkline.__version__)")
    assert done.returncode == 0, done.stderr
    listed = fresh.run(*TRUNKLINE, "check", "--list")
    assert (listed.returncode, listed.stderr) == (0, "")
