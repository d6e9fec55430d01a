"""Which line of a pipeline's file a problem is about."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from trunkline.delivery.config.yaml_file import Problems, YamlNode, read_document
from trunkline.delivery.verification.problems import PipelineProblem


class FileLines:
    """The lines of a file that was loaded before."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def of_key(self, problem: PipelineProblem) -> PipelineProblem:
        """A problem whose place is a key, such as ``routing.column`` or ``tables[2]``; else that of a destination."""
        node, [first, *rest] = self._root, problem.where.split(".")
        if found := re.fullmatch(r"tables\[(\d+)\]", first):
            entries = node.at("tables").value
            assert isinstance(entries, list)
            return self._at(problem, entries[int(found[1])].line)
        if first not in node.items():
            return self.of_destination(problem)
        for name in (first, *rest):
            node = node.items().get(name, node)
        return self._at(problem, node.line)

    def of_destination(self, problem: PipelineProblem) -> PipelineProblem:
        line = self._destinations.get(problem.where)
        return problem if line is None else self._at(problem, line)

    def _at(self, problem: PipelineProblem, line: int) -> PipelineProblem:
        return replace(problem, spot=f"{self._file}:{line}")

    @cached_property
    def _root(self) -> YamlNode:
        return read_document(self._file, Problems(self._file))

    @cached_property
    def _destinations(self) -> dict[str, int]:
        nodes = self._root.at("destinations").value
        return {str(each.at("name").value): each.line for each in nodes} if isinstance(nodes, list) else {}
