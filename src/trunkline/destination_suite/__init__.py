"""The contract suite of destinations, for every kind: rules T1 to T12 of ``trunkline.delivery.destinations.contract``.

A package that adds a kind runs it from a file of its tests, with pytest:

    from trunkline.destination_suite import contract_tests

    globals().update(contract_tests(MyKind()))

``MyKind`` is a ``Kind``: it makes ``Site`` objects, which open a place, read its tables without it, and harm them. Both
must be importable by their module's name, because some tests kill other processes that use the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

PARTS: Final = (
    *("one_table", "rows", "unstated", "columns", "members", "groups", "history", "repairs", "older_records"),
    "crashes",
)
MODULES: Final = tuple(f"{__name__}.{part}" for part in ("place", "processes", "steps", *PARTS))
pytest.register_assert_rewrite(*MODULES)

from trunkline.destination_suite.place import Kind, Part, Site, Table, Watch  # noqa: E402

__all__ = ["Kind", "Part", "Site", "Table", "Watch", "contract_tests"]


def contract_tests(*kinds: Kind) -> dict[str, Any]:
    """Every test of the suite that one of these kinds can pass, and the fixtures they need, by name."""
    tests = {name: test for name, test in _tests() if _able(test, kinds)}

    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        if "kind" in metafunc.fixturenames:
            able = _able(metafunc.function, kinds)
            metafunc.parametrize("kind", able, ids=[kind.name for kind in able])

    return {"pytest_generate_tests": pytest_generate_tests, "site": site, "table": table, **tests}


@pytest.fixture
def site(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    """A place of its own for each test."""
    return kind.make(tmp_path, lambda: request.getfixturevalue(kind.server_fixture))


@pytest.fixture
def table(site: Site) -> Table:
    """A table of a place of its own, which one member has."""
    return Table(site)


def _tests() -> Iterator[tuple[str, Callable[..., None]]]:
    seen: set[str] = set()
    for part in PARTS:
        for name, test in vars(import_module(f"{__name__}.{part}")).items():
            if name.startswith("test_"):
                assert name not in seen, f"two tests are called {name}"
                seen.add(name)
                yield name, test


def _able(test: Callable[..., None], kinds: tuple[Kind, ...]) -> list[Kind]:
    needed: frozenset[Part] = getattr(test, "needs", frozenset())
    return [kind for kind in kinds if needed.isdisjoint(kind.lacks)]
