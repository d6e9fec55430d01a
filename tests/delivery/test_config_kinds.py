"""Kinds of destinations of other packages, in the file of a pipeline: rules K1 and K2 of ``config/kinds.py``.

The packages are real ones, as pip leaves them: a module, and metadata with an entry point, in a directory of the path.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delivery.pipeline_files import HEAD, load, problems
from trunkline.delivery.config import kinds
from trunkline.delivery.config.address_rules import (
    address_of,
    home_of,
    identity,
    kind_of,
    lacks,
    place_of,
    shared_place,
)
from trunkline.delivery.config.addresses import DestinationAddress
from trunkline.delivery.config.digests import digest_of
from trunkline.delivery.destinations.factory import open_place
from trunkline.errors import ConfigError

Install = Callable[..., None]

KIND = """\
from typing import Annotated, Literal
from trunkline.destinations import DestinationAddress, about


class BoxAddress(DestinationAddress, frozen=True, tag="box"):
    file: Annotated[str, about("the box")]
    table: Annotated[str, about("in the box")]
    schema: Annotated[str, about("of the table")] = "main"
    lid: Annotated[Literal["open", "shut"], about("whether it is open")] = "open"
    size: Annotated[int, about("how large it is")] = 1
    password_env: Annotated[str | None, about("the variable of its password")] = None
    paths = ("file",)

    @property
    def place(self):
        return self.file

    @classmethod
    def faults(cls, field, text):
        if field == "table" and " " in text:
            yield "has a space; write it without"

    def open_place(self):
        return "the place of " + self.file
"""
ONE = "destinations: [{name: acme, type: box, file: a.box, table: t}]\n"
SET = "pipeline: shop\nsource: {type: ducklake, catalog: lake}\ntables: [main.*]\nkey: [id]\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package ``NAME`` with a module of that name, and forgets it after the test."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)

    def installed(package: str, source: str, *entries: str) -> None:
        (folder / f"{package}.py").write_text(source)
        metadata = folder / f"{package}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text("\n".join(["[trunkline.destinations]", *entries, ""]))
        forget()

    def forget() -> None:
        kinds._elsewhere.cache_clear()
        kinds._loaded.cache_clear()

    yield installed
    forget()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def box(install: Install) -> None:
    install("boxes", KIND, "box = boxes:BoxAddress")


@pytest.mark.usefixtures("box")
def test_a_kind_of_another_package_has_keys_with_types_defaults_and_lines(tmp_path: Path) -> None:
    [destination] = load(tmp_path, HEAD + ONE).destinations
    address = destination.address
    assert isinstance(address, DestinationAddress)
    assert kind_of(address) == "box"
    assert [getattr(address, name) for name in ("file", "table", "schema", "lid", "size")] == [
        *(f"{tmp_path}/a.box", "t", "main", "open", 1)
    ]
    text = HEAD + "destinations:\n  - {name: acme, type: box, table: 'a b', lid: ajar, size: x}\n"
    text += "  - {name: b, type: box}\n"
    assert problems(tmp_path, text) == [
        "orders.yaml:6: destinations[0].file: missing; it must be a text",
        "orders.yaml:6: destinations[0].lid: must be open or shut, it is 'ajar'",
        "orders.yaml:6: destinations[0].size: must be a whole number, it is 'x'",
        "orders.yaml:6: destinations[0].table: has a space; write it without",
        "orders.yaml:7: destinations[1].file: missing; it must be a text",
        "orders.yaml:7: destinations[1].table: missing; it must be a text",
    ]


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("file: 's3://b/a', table: t", "file: must be a path in the file system: s3: is not supported"),
        ("file: a, table: _trunkline_x", "table: '_trunkline_x' starts with the reserved prefix _trunkline"),
        ("file: a, table: t, password_env: no-name", "password_env: is not the name of an environment variable"),
        ("file: a, table: t, password_env: UNSET", "password_env: the environment variable UNSET is not set"),
        ("file: '{table}', table: t", "file: {table} cannot be filled in; use {name} or {value}"),
        ("file: a, table: t, fiel: x", "fiel: unknown key; did you mean file?"),
        ("file: a, table: t, mode: history", "mode: type box has no mode history; use mode mirror or append"),
    ],
)
def test_what_is_wrong_with_such_an_address_is_reported(tmp_path: Path, keys: str, problem: str) -> None:
    [found] = problems(tmp_path, HEAD + f"destinations: [{{name: acme, type: box, {keys}}}]\n")
    assert found.startswith(f"orders.yaml:5: destinations[0].{problem}")


@pytest.mark.usefixtures("box")
def test_places_placeholders_and_identities_are_those_of_every_kind(tmp_path: Path) -> None:
    text = SET + "destinations:\n  - {name: a, type: box, file: '{name}.box'}\n"
    [destination] = load(tmp_path, text + "    \n").destinations
    address = destination.address
    found = address_of(address, "main.orders")
    assert (found.file, found.table) == (f"{tmp_path}/a.box", "orders")  # type: ignore[union-attr]
    assert place_of(found) == place_of(address) == f"box {tmp_path}/a.box"
    assert identity(found) == (f"box {tmp_path}/a.box".casefold(), "orders", "main")
    assert (home_of(address), shared_place(address)) == ("", "")
    assert open_place(found) == f"the place of {tmp_path}/a.box"  # type: ignore[comparison-overlap]
    assert all(lacks(address, ability) for ability in ("history", "column_steps", "repairs"))
    both = text + "  - {name: b, type: box, file: a.box}\n"
    assert problems(tmp_path, both) == [
        "orders.yaml:7: destinations[1]: destination b has the same table as destinations[0]; give each its own"
    ]


@pytest.mark.usefixtures("box")
def test_a_default_that_is_not_set_is_not_part_of_a_digest(tmp_path: Path) -> None:
    """So a release of the package may add a key, and nothing is seeded again."""

    def digest(keys: str) -> str:
        pipeline = load(tmp_path, HEAD + f"destinations: [{{name: acme, type: box, file: a, table: t{keys}}}]\n")
        return digest_of(pipeline, pipeline.destinations[0])

    assert digest("") == digest(", size: 1")
    assert digest("") != digest(", size: 2")


@pytest.mark.usefixtures("box")
def test_an_unknown_type_names_the_known_ones(tmp_path: Path) -> None:
    text = HEAD + "destinations: [{name: acme, type: bx, file: a, table: t}]\n"
    known = "must be ducklake, delta, iceberg, postgres or box"
    assert problems(tmp_path, text)[0] == f"orders.yaml:5: destinations[0].type: {known}, it is 'bx'"
    source = "pipeline: a\nsource: {type: box, file: a, table: t}\nkey: [id]\n" + ONE
    assert problems(tmp_path, source)[0] == "orders.yaml:2: source.type: must be ducklake, delta or log, it is 'box'"


BROKEN = {
    "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'": "import nowhere\n",
    "cannot be loaded: ZeroDivisionError: division by zero": "1 / 0\n",
    "not to a class that derives from DestinationAddress": "class BoxAddress: ...\n",
    "has the tag 'crate', not that of its entry point": KIND.replace('tag="box"', 'tag="crate"'),
    "has no field `table` that is a text": KIND.replace("    table:", "    board:"),
    "its key home is an attribute of every address": KIND.replace("    size:", "    home:"),
    "its key mode is one of every destination": KIND.replace("    size:", "    mode:"),
    "`paths` of BoxAddress names crate, which is not a field": KIND.replace('paths = ("file",)', 'paths = ("crate",)'),
    "its key size is not a text, a whole number": KIND.replace("size: Annotated[int", "size: Annotated[list[int]"),
}


@pytest.mark.parametrize("why", BROKEN)
def test_k1_a_broken_package_is_named_and_stops_only_pipelines_that_use_it(
    tmp_path: Path, install: Install, why: str
) -> None:
    install("boxes", BROKEN[why], "box = boxes:BoxAddress")
    assert len(load(tmp_path, HEAD + "destinations: [{name: acme, type: delta, path: acme}]\n").destinations) == 1
    assert "boxes" not in sys.modules, "it was not even imported"
    [problem] = problems(tmp_path, HEAD + ONE)
    assert problem.startswith(
        "orders.yaml:5: destinations[0].type: type box is of boxes 1.2 (boxes:BoxAddress), which cannot be used: "
    )
    assert why in problem
    assert problem.endswith("repair or upgrade that package, or use another type")


def test_k2_two_packages_that_claim_a_name_are_both_named(tmp_path: Path, install: Install) -> None:
    install("boxes", KIND, "box = boxes:BoxAddress")
    install("crates", KIND, "box = crates:BoxAddress")
    [problem] = problems(tmp_path, HEAD + ONE)
    assert "boxes 1.2 (boxes:BoxAddress)" in problem
    assert "crates 1.2 (crates:BoxAddress)" in problem
    assert problem.endswith("uninstall one of them")


def test_k2_a_name_of_a_kind_of_this_package_cannot_be_taken(
    tmp_path: Path, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("boxes", "1 / 0\n", "delta = boxes:BoxAddress")
    with caplog.at_level(logging.WARNING):
        assert len(load(tmp_path, HEAD + "destinations: [{name: acme, type: delta, path: acme}]\n").destinations) == 1
    assert "boxes 1.2 (boxes:BoxAddress) is ignored: type delta is one of Trunkline's own" in caplog.text
    with pytest.raises(ConfigError, match="must be"):
        load(tmp_path, HEAD + ONE)
