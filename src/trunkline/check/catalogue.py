"""The scenarios and mutants by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from trunkline.check.mutant import Mutant
from trunkline.check.scenario import Scenario


class UnknownName(ValueError):
    """No scenario or mutant has this name; the text suggests similar ones."""


@dataclass(frozen=True)
class Catalogue:
    scenarios: Mapping[str, Callable[[], Scenario]]
    mutants: tuple[Mutant, ...] = ()

    def scenario(self, name: str) -> Scenario:
        if name not in self.scenarios:
            raise UnknownName(_unknown("scenario", name, self.scenarios))
        return self.scenarios[name]()

    def mutant(self, name: str) -> Mutant:
        for mutant in self.mutants:
            if mutant.name == name:
                return mutant
        raise UnknownName(_unknown("mutant", name, [mutant.name for mutant in self.mutants]))


def shipped() -> Catalogue:
    """All scenarios and mutants of the package."""
    from trunkline.check.mutants import MUTANTS
    from trunkline.check.scenarios import SCENARIOS

    return Catalogue(SCENARIOS, MUTANTS)


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    similar = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "`trunkline check --list` lists them"
    return f"unknown {kind} {name!r}: {hint}"
