"""What is published: a source distribution that holds everything, and a wheel that works where nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from trunkline.cli.manual import manual

NOT_PUBLISHED = (
    *(".git", ".gitignore", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"),
    *("build", "cluster", "check-out"),
)
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
MINUTES_S = 600  # an index may be slow


def build(what: str, source: Path, target: Path) -> Path:
    """With the setuptools that is here: the lock has it."""
    command = [sys.executable, "-c", BUILD, what, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def copy(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository without what a build or a run left there."""
    target = tmp_path_factory.mktemp("copy") / "trunkline"
    shutil.copytree(repository, target, ignore=shutil.ignore_patterns(*NOT_PUBLISHED))
    return target


@pytest.fixture(scope="module")
def unpacked(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    before = sorted(files(copy))
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("build_sdist", copy, folder)) as archive:
        if hasattr(tarfile, "data_filter"):  # Debian's Python 3.11.2 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    assert sorted(set(before) - set(files(source))) == [], "the source distribution lacks files"
    return source


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the source distribution, as an installer would."""
    return build("build_wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(folder))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_the_package_and_its_manual_page_and_nothing_else(wheel: Path, repository: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    outside = [name for name in names if not name.startswith("trunkline/") and ".dist-info/" not in name]
    assert [name.partition(".data/")[2] for name in outside] == ["data/share/man/man1/trunkline.1"]
    package = {f"trunkline/{name}" for name in files(repository / "src" / "trunkline") if "__pycache__" not in name}
    assert package - set(names) == set()


def test_the_wheel_says_what_it_is_and_offers_no_tools_of_ours(wheel: Path, repository: Path) -> None:
    about = metadata(wheel)
    assert about.get_all("Provides-Extra") == ["delivery"]
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload() == (repository / "README.md").read_text()
    assert about["Keywords"]
    assert about.get_all("Classifier")


def test_only_duckdb_and_its_extensions_are_pinned_for_users(wheel: Path) -> None:
    required = [Requirement(line) for line in metadata(wheel).get_all("Requires-Dist", [])]
    pinned = {each.name for each in required if any(part.operator == "==" for part in each.specifier)}
    assert pinned
    assert all(name.startswith("duckdb") for name in pinned)


def test_the_wheel_works_in_an_empty_environment(wheel: Path, repository: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    python, trunkline = empty / "bin" / "python", empty / "bin" / "trunkline"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    install(python, wheel, pinned=repository / "requirements" / "dev.lock", scratch=tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRUNKLINE"))}

    def run(*arguments: str, stdin: str = "") -> str:
        command = [str(trunkline), *arguments]
        done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    placed = ["--dir", str(tmp_path / "cluster"), "--port", "0", "--parent", str(os.getpid())]
    with subprocess.Popen([trunkline, "up", *placed], env=environment, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            line = next(line for line in up.stdout if "connect to" in line)
            environment["TRUNKLINE_CONNECT"] = line.split()[-1]
            run("log", "create", "orders")
            assert "appended 3 entries" in run("append", "orders", stdin="1\n2\n3\n")
            assert run("read", "orders", "--to", "3") == "1\n2\n3\n"
        finally:
            up.terminate()
    assert (empty / "share" / "man" / "man1" / "trunkline.1").exists()


def install(python: Path, wheel: Path, *, pinned: Path, scratch: Path) -> None:
    """With the versions that are tried here, so that pip has them in its cache. Needs an index."""
    (scratch / "constraints.txt").write_text("\n".join(pins(pinned)))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--constraint", str(scratch / "constraints.txt"), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MINUTES_S, check=False)
    if done.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"pip cannot install what the wheel needs: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


def pins(lock: Path) -> list[str]:
    """Without their hashes."""
    return [line.partition("\\")[0] for line in lock.read_text().splitlines() if line[:1].isalpha()]


# --- files that are made from others ---


def test_the_lock_pins_a_version_of_everything_that_is_asked_for(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    asked = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["delivery"]]
    assert unpinned([*asked, *groups["dev"], *groups["bench"]], repository / "requirements" / "dev.lock") == []
    assert unpinned(groups["java"], repository / "requirements" / "java.lock") == []


def test_a_lock_that_is_behind_is_found(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("one==1.2 \\\n    --hash=sha256:00\ntwo==2.0 ; python_version < '3.12' \\\n    --hash=sha256:00\n")
    assert unpinned(["one>=1.2,<2", "two==2.0"], lock) == []
    assert unpinned(["one>=1.3", "two==2.0", "three"], lock) == ["one>=1.3", "three"]


def unpinned(asked: list[str], lock: Path) -> list[str]:
    """What is asked for and not pinned as asked; `python tools/lock.py` mends it."""
    versions = [(pin.name, next(iter(pin.specifier)).version) for pin in map(Requirement, pins(lock))]
    wanted = {text: Requirement(text) for text in asked}
    return [
        text
        for text, each in wanted.items()
        if not any(name == each.name and each.specifier.contains(version) for name, version in versions)
    ]


def test_the_manual_page_is_not_stale(repository: Path) -> None:
    page = (repository / "docs" / "trunkline.1").read_text(encoding="utf-8")
    assert page == manual(), "generate it again: .venv/bin/python -m trunkline.cli.manual > docs/trunkline.1"
