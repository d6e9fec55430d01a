"""The directions of imports, and the things that only one package may do.

``core`` is pure: real processes and the checker can run the same code because it has no clock, socket, file, random or
log of its own. Each rule also catches a planted offence.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from import_table import Import, Row, offences, rows, within

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
ENVIRONMENT_USES = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}


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


# ------------------------------------------------------------------------------------------------------- environment


def environment_uses(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ENVIRONMENT_USES:
            yield f"line {node.lineno}: uses {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            for alias in node.names:
                if f"os.{alias.name}" in ENVIRONMENT_USES:
                    yield f"line {node.lineno}: imports os.{alias.name}"


def test_only_config_reads_or_changes_environment_variables(repository: Path) -> None:
    package = repository / "src" / "trunkline"
    assert list(environment_uses((package / "config.py").read_text()))
    paths = [path for path in modules(package) if path != package / "config.py"]
    assert [f"{path.name} {why}" for path in paths for why in environment_uses(path.read_text())] == []


@pytest.mark.parametrize(
    "offence",
    ["import os\nos.environ['X']", "import os\nos.getenv('X')", "from os import environ", "from os import getenv as g"],
)
def test_a_use_of_the_environment_is_caught(offence: str) -> None:
    assert list(environment_uses(offence))


# -------------------------------------------------------------------------------------- the tables of ARCHITECTURE.md


TABLE = rows((Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8"))
LIBRARIES = {library for row in TABLE for library in row.libraries}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    command = [str(program), "--no-logo", "--no-cache"]
    wide = {**os.environ, "COLUMNS": "500"}  # one line for each offence
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=wide)


def test_imports_are_exactly_those_of_the_tables(repository: Path) -> None:
    done = lint_imports(repository)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_and_room_is_in_a_table(repository: Path) -> None:
    listed = {row.package for row in TABLE}
    for package in ("trunkline", "trunkline.delivery"):
        folder = repository.joinpath("src", *package.split("."))
        parts = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert {f"{package}.{part}" for part in parts if package == "trunkline" or part != "__init__"} <= listed


def forbidden(row: Row) -> list[str]:
    """A sibling and a library that a row does not allow; every row has at least one."""
    siblings = [each.package for each in TABLE if each.scope == row.scope and each.package != row.package]
    allowed = row.imports | row.libraries
    found = [each for each in siblings if not any(within(entry, each) for entry in allowed)]
    return [*found[:1], *sorted(LIBRARIES - row.libraries)[:1]]


def test_an_offence_against_any_row_is_caught_in_a_copy(repository: Path, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "ARCHITECTURE.md", "tools/import_table.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(repository / name, tmp_path / name)
    planted = {}
    for row in TABLE:
        folder = tmp_path.joinpath(*row.package.split("."))
        if row.package == "trunkline.__init__":
            module, folder = folder, folder.parent
        else:
            module = folder / "planted"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
        planted[row.package] = forbidden(row)
        assert planted[row.package], f"{row.package} may import everything"
        with module.with_suffix(".py").open("a") as file:
            file.writelines(f"import {name}\n" for name in planted[row.package])
    reported = lint_imports(tmp_path).stdout
    missed = [
        f"{package} -> {name}"
        for package, names in planted.items()
        for name in names
        if f"-> {name}" not in "".join(line for line in reported.splitlines() if f"{package} may not" in line)
    ]
    assert missed == [], reported
    assert "trunkline.storage may import trunkline.core, but does not" in reported


def test_packages_import_each_other_in_one_direction() -> None:
    for scope in {row.scope for row in TABLE}:
        edges = {row.package: {part(entry, scope) for entry in row.imports} for row in TABLE if row.scope == scope}
        TopologicalSorter(edges).prepare()  # raises CycleError


def part(entry: str, scope: str) -> str:
    return ".".join(entry.split(".")[: scope.count(".") + 2])


def test_a_package_without_a_row_and_a_row_without_a_package_are_caught() -> None:
    table = [Row("trunkline.core", frozenset(), frozenset({"msgspec"}))]
    imports = [Import("trunkline.core.a", "msgspec", 1)]
    assert list(offences(table, ["trunkline.core", "trunkline.core.a"], imports)) == []
    assert list(offences(table, ["trunkline.core", "trunkline.net.b"], imports)) == [
        "trunkline.net has no row in the table"
    ]
    assert list(offences(table, [], imports)) == ["trunkline.core has a row in the table, but does not exist"]
