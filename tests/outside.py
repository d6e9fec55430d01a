"""Programs outside Python: a test gets them from the table in ``tools/programs.py`` and nowhere else.

    subprocess.run([program("openssl"), "version"])

A test that starts any other program fails with ``Undeclared``: a fresh machine does not have that program.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parent.parent
sys.path.append(str(REPOSITORY / "tools"))  # not pytest alone imports this: benchmarks and soaks do

from programs import BY_NAME, calls, find  # noqa: E402

# What pip installed, and what tests write themselves. Python's own prefix may be /usr: it does not count as ours.
OUR_OWN: Final = tuple(Path(path).resolve() for path in (sys.prefix, REPOSITORY, tempfile.gettempdir()))
PYTHON: Final = (Path(sys.executable), Path(sys.executable).resolve())


class Undeclared(Exception):
    """A test calls a program that a fresh machine would not have."""


def program(name: str) -> str:
    """Where a program of the table is. Skips the test where it is missing, but fails it in continuous integration."""
    judge(name)
    found = find(name)
    if found is None:
        reason = f"{name} is not installed: apt-get install {BY_NAME[name].package}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return str(found)


def judge(name: str) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    if name not in BY_NAME:
        raise Undeclared(f"{name} is not in tools/programs.py: add it there, with its Debian package and who calls it")
    if test and not calls(test, BY_NAME[name]):
        raise Undeclared(f"tools/programs.py does not say that {test} calls {name}: `./run test {test}` lacks it")


def watch_programs() -> None:
    """From now on, look at each program that this process starts. It cannot be undone."""
    sys.addaudithook(_look)


def _look(event: str, details: tuple[object, ...]) -> None:
    if "PYTEST_CURRENT_TEST" not in os.environ:
        return  # pytest itself, and what helps it
    if event == "subprocess.Popen":
        executable, command, folder, _ = details
        judge_command([executable, *_words(command)[1:]], folder)
    elif event in ("os.exec", "os.posix_spawn"):
        judge_command(_words(details[1]), None)
    elif event == "os.system":
        raise Undeclared("os.system starts whatever a shell finds: use subprocess")


def judge_command(command: Sequence[object], folder: object) -> None:
    """``folder``: where it runs, if not here."""
    words = [os.fsdecode(word) for word in command if isinstance(word, str | bytes | os.PathLike)]
    path = Path(words[0])
    if "/" in words[0]:
        here = Path(os.fsdecode(folder)) if isinstance(folder, str | bytes | os.PathLike) else Path()
        places = ((here / path).absolute(), (here / path).resolve())
        if any(place in PYTHON or place.is_relative_to(ours) for place in places for ours in OUR_OWN):
            return
    judge(path.name)
    if inner := _inner(words):
        judge_command(inner, folder)


def _inner(words: Sequence[str]) -> Sequence[str]:
    """The command that one starts for another."""
    name = Path(words[0]).name
    if name == "ip" and words[1:3] == ["netns", "exec"]:
        return words[4:]
    if name == "setpriv":
        return list(itertools.dropwhile(lambda word: word.startswith("--"), words[1:]))
    return ()


def _words(command: object) -> list[object]:
    return list(command) if isinstance(command, Sequence) and not isinstance(command, str | bytes) else [command]
