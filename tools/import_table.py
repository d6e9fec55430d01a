"""The tables of packages in ARCHITECTURE.md, enforced: import-linter calls this contract, see pyproject.toml.

A table has a row for each part of one package: the parts of ``trunkline``, or the rooms of ``trunkline.delivery``. A
row lists which other parts it imports and which third-party libraries. The comparison is exact: an import that the row
does not list is an error, and so is an entry that no import needs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

ROOT = "trunkline"
COLUMNS = ("imports", "libraries")
NAME = re.compile(r"\[([\w.]+)\]\(")
ENTRY = re.compile(r"`([\w.]+)`")


@dataclass(frozen=True)
class Row:
    """What one part of a package may import."""

    package: str  # such as trunkline.core or trunkline.delivery.config
    imports: frozenset[str]  # such as trunkline.core, or a module such as trunkline.runtime.links
    libraries: frozenset[str]

    @property
    def scope(self) -> str:
        """The package whose parts the row is about."""
        return self.package.rpartition(".")[0]


@dataclass(frozen=True, order=True)
class Import:
    importer: str
    imported: str
    line: int


def rows(document: str) -> list[Row]:
    """The rows of every table whose columns include ``COLUMNS``."""
    found = []
    at: list[int] | None = None
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if set(COLUMNS) <= set(cells):
            at = [cells.index(name) for name in COLUMNS]
        elif not cells:
            at = None
        elif at is not None and (name := NAME.match(cells[0])):
            package = f"{ROOT}.{name[1]}"
            scope = package.rpartition(".")[0]
            imports, libraries = (ENTRY.findall(cells[column]) for column in at)
            found.append(Row(package, frozenset(f"{scope}.{each}" for each in imports), frozenset(libraries)))
    return found


def offences(table: list[Row], modules: Iterable[str], imports: Iterable[Import]) -> Iterator[str]:
    """Every difference between the table and the code, as a line of text."""
    unused = {row.package: set(row.imports | row.libraries) for row in table}
    for each in sorted(imports):
        for row in table:
            if not within(each.importer, row.package) or within(each.imported, row.package):
                continue
            if within(each.imported, ROOT) and not within(each.imported, row.scope):
                continue  # the row of the scope covers it
            allowed = {entry for entry in row.imports | row.libraries if within(each.imported, entry)}
            unused[row.package] -= allowed
            if not allowed:
                yield f"{each.importer} -> {each.imported} (line {each.line}): {row.package} may not import it"
    for package, entries in unused.items():
        for entry in sorted(entries):
            yield f"{package} may import {entry}, but does not: remove it from the table"
    yield from unlisted(table, modules)


def unlisted(table: list[Row], modules: Iterable[str]) -> Iterator[str]:
    """Parts without a row, and rows without a part."""
    listed = [row.package for row in table]
    there = set(modules)
    for scope in sorted({row.scope for row in table}):
        parts = {".".join(module.split(".")[: scope.count(".") + 2]) for module in there if within(module, scope)}
        for part in sorted(parts - {scope} - set(listed)):
            yield f"{part} has no row in the table"
    for package in listed:
        if package not in there:
            yield f"{package} has a row in the table, but does not exist"


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


class TableContract(Contract):
    """Imports are exactly those that the tables of a document list."""

    document = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        table = rows(Path(str(self.document)).read_text(encoding="utf-8"))
        own = [module for module in graph.modules if within(module, ROOT)]
        found = list(offences(table, map(_name, own), _imports(graph, own)))
        return ContractCheck(kept=bool(table) and not found, metadata={"found": found or ["there is no table"]})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["found"]:
            output.print_error(line, bold=False)


def _imports(graph: ImportGraph, modules: Iterable[str]) -> Iterator[Import]:
    for importer in modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            if imported.split(".")[0] not in sys.stdlib_module_names:
                details = graph.get_import_details(importer=importer, imported=imported)
                yield Import(_name(importer), _name(imported), min(each["line_number"] for each in details))


def _name(module: str) -> str:
    """The package itself is a part of its own, beside those that it contains."""
    return f"{ROOT}.__init__" if module == ROOT else module
