"""The table of rules: the numbered rules of the roles, each with the mutants that break it.

A role's header lists its rules (`` D1  ...`` below a line ``Rules``). Each rule has either mutants that break it
(``Mutant.breaks``), or a sentence that says why no monitor can detect a breach, in the dictionary ``UNSEEN`` of a
module of ``check.mutants``. The name of a rule is its module and its number: ``reader D1``.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType

from trunkline import core
from trunkline.check import mutants as bugs
from trunkline.check.mutant import Mutant

SENTENCE_WORDS_MIN = 6
_RULE = re.compile(r"^ ([A-Z]\d+) +(\S.*(?:\n {5}\S.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Rule:
    name: str  # module and number
    text: str
    mutants: tuple[str, ...] = ()
    sentence: str = ""  # why no monitor can detect a breach

    @property
    def missing(self) -> bool:
        return not self.mutants and not self.sentence


class RulesError(ValueError):
    """Mutants or sentences do not match the rules; the text names them."""


def rules_of(module: str, header: str) -> dict[str, str]:
    """The numbered rules in a module's docstring, each with its text on one line."""
    _, found, listed = header.partition("\nRules\n")
    return (
        {f"{module} {number}": " ".join(text.split()) for number, text in _RULE.findall("\n" + listed)} if found else {}
    )


def table(texts: Mapping[str, str], mutants: Iterable[Mutant], unseen: Mapping[str, str]) -> tuple[Rule, ...]:
    """A row for each rule. Raises ``RulesError`` for mismatches, but not for rules with neither mutant nor sentence."""
    broken_by: dict[str, list[str]] = {}
    for mutant in mutants:
        for name in mutant.breaks:
            broken_by.setdefault(name, []).append(mutant.name)
    problems = [
        f"{names[0]} breaks {name}, which is not a rule" for name, names in broken_by.items() if name not in texts
    ]
    problems += [f"UNSEEN names {name}, which is not a rule" for name in unseen if name not in texts]
    problems += [f"UNSEEN names {name}, but {broken_by[name][0]} breaks it" for name in unseen if name in broken_by]
    problems += [
        f"the sentence of {name} is too short: {sentence!r}"
        for name, sentence in unseen.items()
        if len(sentence.split()) < SENTENCE_WORDS_MIN
    ]
    if problems:
        raise RulesError("; ".join(problems))
    return tuple(Rule(name, text, tuple(broken_by.get(name, ())), unseen.get(name, "")) for name, text in texts.items())


def shipped_table() -> tuple[Rule, ...]:
    """The rules of all modules of ``core``, with all mutants and sentences."""
    texts: dict[str, str] = {}
    for module in _modules(core):
        texts |= rules_of(module.__name__.rpartition(".")[2], module.__doc__ or "")
    unseen: dict[str, str] = {}
    for module in _modules(bugs):
        sentences: Mapping[str, str] = getattr(module, "UNSEEN", {})
        twice = sorted(set(sentences) & set(unseen))
        if twice:
            raise RulesError(f"two modules have a sentence for {', '.join(twice)}")
        unseen |= sentences
    return table(texts, bugs.MUTANTS, unseen)


def closing_line(rules: Iterable[Rule]) -> str:
    rows = list(rules)
    covered = sum(bool(rule.mutants) for rule in rows)
    explained = sum(bool(rule.sentence) for rule in rows)
    missing = len(rows) - covered - explained
    return f"rules: {covered} covered by mutants, {explained} explained" + (f", {missing} MISSING" if missing else "")


def _modules(package: ModuleType) -> list[ModuleType]:
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]
