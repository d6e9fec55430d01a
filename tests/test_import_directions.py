"""The directions of imports, and the things that only one place may do.

``core`` is pure: it may be run by a real process and by the checker only because it has no clock, socket, file,
random or log of its own. Each rule is also shown to catch a planted offence.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PURE_MODULES = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "msgspec",
    "typing",
}
IMPURE_BUILTINS = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}
MAY_PRINT = ("cli/", "demo/__main__.py")


def impurities(source: str) -> Iterator[str]:
    """Why a module may not be part of ``core``."""
    for node in ast.walk(ast.parse(source)):
        for name in imported(node):
            if not (name == "trunkline.core" or name.startswith("trunkline.core.") or root(name) in PURE_MODULES):
                yield f"line {line(node)}: imports {name}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            yield f"line {line(node)}: calls {node.func.id}"
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"line {line(node)}: is asynchronous"


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [f"{module}.{alias.name}" for alias in node.names] if module == "trunkline" else [module]
    return []


def prints(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"line {node.lineno}: prints"
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"):
            yield f"line {node.lineno}: uses {ast.unparse(node)}"


def root(module: str) -> str:
    return module.split(".", 1)[0]


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def modules(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, f"no modules under {folder}"
    return found


def test_core_imports_only_itself_and_pure_modules(repository: Path) -> None:
    core = repository / "src" / "trunkline" / "core"
    found = [f"{path.name} {why}" for path in modules(core) for why in impurities(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "offence",
    [
        "import time",
        "import os.path",
        "from socket import socket",
        "import random",
        "import logging",
        "import asyncio",
        "from pathlib import Path",
        "from datetime import datetime",
        "import trunkline.check.scenario",
        "from trunkline import check",
        "from trunkline.corelike import x",
        "from ..check import scenario",
        "def f():\n    import time",
        "x = open('file')",
        "print('hello')",
        "time = __import__('time')",
        "async def f(): ...",
    ],
)
def test_a_clock_a_file_or_any_other_impurity_in_core_is_caught(offence: str) -> None:
    assert list(impurities(offence))


@pytest.mark.parametrize(
    "innocent",
    [
        "from __future__ import annotations",
        "from collections.abc import Sequence",
        "from msgspec import Struct",
        "from trunkline.core.effects import Send",
        "from trunkline.core import effects",
        "import enum, bisect",
    ],
)
def test_what_core_needs_is_allowed(innocent: str) -> None:
    assert list(impurities(innocent)) == []


def test_only_the_command_line_and_the_demo_print(repository: Path) -> None:
    package = repository / "src" / "trunkline"
    paths = [path for path in modules(package) if not path.relative_to(package).as_posix().startswith(MAY_PRINT)]
    found = [f"{path.name} {why}" for path in paths for why in prints(path.read_text())]
    assert found == []


@pytest.mark.parametrize("offence", ["print('x')", "import sys\nsys.stderr.write('x')"])
def test_a_print_is_caught(offence: str) -> None:
    assert list(prints(offence))


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    command = [str(program), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_packages_import_each_other_only_in_the_agreed_directions(repository: Path) -> None:
    done = lint_imports(repository)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("importer", "imported_module"),
    [
        ("core", "trunkline.check"),
        ("core", "trunkline.runtime"),
        ("check", "trunkline.cli"),
        ("check", "trunkline.runtime"),
        ("check", "trunkline.storage"),
        ("runtime", "trunkline.check"),
        ("storage", "trunkline.cli"),
    ],
)
def test_an_import_in_a_wrong_direction_is_caught(
    repository: Path, tmp_path: Path, importer: str, imported_module: str
) -> None:
    shutil.copy(repository / "pyproject.toml", tmp_path)
    for name in ("", "core", "check", "cli", "runtime", "storage"):
        folder = tmp_path / "trunkline" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    assert lint_imports(tmp_path).returncode == 0
    (tmp_path / "trunkline" / importer / "planted.py").write_text(f"import {imported_module}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"trunkline.{importer}.planted -> {imported_module}" in done.stdout
