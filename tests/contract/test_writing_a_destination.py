"""docs/writing-a-destination.md, and the example that it explains: as an author outside of this repository has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline import destinations
from trunkline.delivery.config import load_pipeline
from trunkline.delivery.config.kinds import _elsewhere, _loaded
from trunkline.destination_suite import PARTS, contract_tests

LINES_MAX = 200
PATIENCE_S = 240.0
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ONE_TEST = "test_t1_a_process_killed_at_any_statement_of_the_first_seed_leaves_nothing_or_all"


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "writing-a-destination.md").read_text()


@pytest.fixture
def example(repository: Path) -> Path:
    return repository / "examples" / "sqlite_destination"


def test_the_example_has_less_than_200_lines(example: Path) -> None:
    assert len((example / "sqlite_destination.py").read_text().splitlines()) < LINES_MAX


def test_the_example_imports_only_what_is_public(example: Path) -> None:
    source = (example / "sqlite_destination.py").read_text()
    found = set(re.findall(r"^from (trunkline[\w.]*) import (\w+)", source, re.MULTILINE))
    assert {module for module, _ in found} == {"trunkline", "trunkline.errors"}
    assert ("trunkline", "destinations") in found
    assert set(re.findall(r"\bd\.(\w+)", source)) <= set(destinations.__all__)


def test_every_block_of_code_is_part_of_the_example(page: str, example: Path) -> None:
    files = [path.read_text() for path in example.iterdir() if path.suffix in (".py", ".toml")]
    blocks = [(language, body) for language, body in FENCE.findall(page) if language != "yaml"]
    assert len(blocks) > 5
    assert [body for _, body in blocks if not any(body in text for text in files)] == []


def test_the_pipeline_of_the_page_is_valid_where_the_example_is_installed(
    page: str, example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "trunkline_sqlite_destination-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: trunkline-sqlite-destination\nVersion: 0.1.0\n")
    [entry] = re.findall(r'^sqlite = "(.*)"$', (example / "pyproject.toml").read_text(), re.MULTILINE)
    (metadata / "entry_points.txt").write_text(f"[trunkline.destinations]\nsqlite = {entry}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for cached in (_elsewhere, _loaded):
        cached.cache_clear()
    [text] = [body for language, body in FENCE.findall(page) if language == "yaml"]
    (tmp_path / "orders.yaml").write_text(text)
    try:
        found = load_pipeline(tmp_path / "orders.yaml").destinations
    finally:
        for cached in (_elsewhere, _loaded):
            cached.cache_clear()
    assert [str(each.address) for each in found] == [
        f"SqliteAddress(path='{tmp_path}/tenants.db', table='orders_{name}')" for name in ("acme", "bolt")
    ]


def test_the_suite_runs_in_a_project_of_its_own(example: Path, tmp_path: Path) -> None:
    """Nothing of this repository but the installed package is on its path."""
    project = shutil.copytree(example, tmp_path / "project")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-o", "pythonpath=.", "-k", ONE_TEST]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_no_test_of_the_suite_is_lost(repository: Path) -> None:
    """Each is in a part, and a kind that lacks nothing runs them all."""

    class Whole:
        name = "whole"
        lacks: frozenset[str] = frozenset()

    written = [
        name
        for path in (repository / "src" / "trunkline" / "destination_suite").glob("*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    ]
    assert len(set(written)) == len(written), "a name is used twice"
    assert {name for name in contract_tests(Whole()) if name.startswith("test_")} == set(written)  # type: ignore[arg-type]
    assert contract_tests().keys() == {"pytest_generate_tests", "site", "table"}
    assert len(PARTS) == len(set(PARTS))
