"""The table of programs outside Python matches the code."""

from __future__ import annotations

import ast
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outside import Undeclared, judge_command, program
from programs import BY_NAME, TABLE, chosen_by, find, needed_by

UNDECLARED = "etcdctl"
# Functions whose first argument, or the first word of it, is a program.
STARTERS = {
    *("subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call", "subprocess.check_output"),
    *("Popen", "asyncio.create_subprocess_exec", "shutil.which"),
    *("os.execv", "os.execve", "os.execvp", "os.execvpe", "os.execl", "os.execlp", "os.posix_spawn", "os.system"),
    *("program", "find", "quietly", "become", "answer", "_run"),
}


def code(repository: Path) -> list[Path]:
    folders = ("src", "tests", "bench", "tools")
    return [repository / "run", *(path for folder in folders for path in (repository / folder).rglob("*.py"))]


def programs_called(text: str) -> Iterator[str]:
    """The programs that a Python file names where it starts them or looks for them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in STARTERS and node.args:
            first = node.args[0]
            while isinstance(first, ast.List | ast.Tuple) and first.elts:
                first = first.elts[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield Path(first.value).name


def test_every_program_that_the_code_names_is_in_the_table(repository: Path) -> None:
    undeclared = {
        f"{path.relative_to(repository)}: {name}"
        for path in code(repository)
        for name in programs_called(path.read_text())
        if name not in BY_NAME
    }
    assert undeclared == set()


@pytest.mark.parametrize(
    "planted",
    [
        'subprocess.run(["etcdctl", "get", "key"])',
        'subprocess.Popen(("/usr/bin/etcdctl", "get"), stdin=None)',
        'await asyncio.create_subprocess_exec("etcdctl", "get")',
        'shutil.which("etcdctl")',
        'os.execv("/usr/bin/etcdctl", [])',
    ],
)
def test_a_program_that_is_not_in_the_table_is_found_in_code(planted: str) -> None:
    assert list(programs_called(f"async def planted():\n    {planted}\n")) == ["etcdctl"]


def test_every_program_of_the_table_is_called_and_its_users_exist(repository: Path) -> None:
    named = {name for path in code(repository) for name in programs_called(path.read_text())}
    named |= {"env", "unshare", "uname"}  # the first line of `run`; what setpriv starts; Python's own library
    assert {each.name for each in TABLE} - named == set()
    assert [user for each in TABLE for user in each.users if not (repository / user).exists()] == []


def test_python_may_ask_what_machine_this_is() -> None:
    assert platform.uname().processor is not None  # it starts a program for that


def test_a_test_that_starts_an_undeclared_program_fails() -> None:
    with pytest.raises(Undeclared, match=r"etcdctl is not in tools/programs\.py"):
        subprocess.run([UNDECLARED, "version"], check=False)
    with pytest.raises(Undeclared, match="etcdctl is not in"):
        program(UNDECLARED)


@pytest.mark.parametrize(
    "wrapped",
    [
        ["ip", "netns", "exec", "blue", "etcdctl"],
        ["setpriv", "--reuid=1", "--clear-groups", "/usr/bin/etcdctl", "--help"],
    ],
)
def test_a_program_that_another_starts_is_judged_too(wrapped: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(Undeclared, match="etcdctl"):
        judge_command(wrapped, None)


def test_a_test_that_is_not_among_the_users_of_a_program_fails() -> None:
    with pytest.raises(Undeclared, match=r"does not say that tests/test_programs\.py calls spin"):
        program("spin")


def test_python_and_what_a_test_wrote_itself_may_be_started(tmp_path: Path) -> None:
    script = tmp_path / "own"
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o755)
    assert subprocess.run([script], check=False).returncode == 7
    assert subprocess.run([f"./{script.name}"], cwd=tmp_path, check=False).returncode == 7
    assert subprocess.run([sys.executable, "-c", "exit(7)"], check=False).returncode == 7
    assert subprocess.run([program("sh"), "-c", "exit 7"], check=False).returncode == 7


# --- what the chosen tests need ---


def needed(repository: Path, *arguments: str) -> set[str]:
    return {each.name for each in needed_by(chosen_by(arguments, repository))}


def test_tests_that_call_nothing_need_nothing(repository: Path) -> None:
    assert needed(repository, "tests/core") == set()
    assert needed(repository, "tests/core/test_streams.py::test_x", "-q", "-k", "streams") == set()


def test_a_file_needs_what_its_folder_needs_and_a_folder_what_its_files_need(repository: Path) -> None:
    assert needed(repository, "tests/metadata/test_sqlite_store.py") == {"etcd", "openssl"}
    assert needed(repository, "tests/check", "-x") == {"spin", "gcc"}
    assert needed(repository, f"{repository}/tests/net", "tests/core") == {"openssl"}


def test_without_a_path_everything_is_needed_that_a_test_calls(repository: Path) -> None:
    everything = needed(repository)
    assert {"chromium", "java", "postgres", "etcd", "spin", "iptables", "mkfs.ext4"} <= everything
    assert "mmdebstrap" not in everything
    assert needed(repository, "-k", "tail") == everything
    assert needed(repository, "tests") == everything


def test_a_program_off_the_path_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (find("mkfs.ext4") is not None) == Path("/usr/sbin/mkfs.ext4").exists()
