"""The table of rules: what the roles promise by number, and which known bug shows that the checker would notice.

A role's header lists its rules (`` D1  ...`` below a line ``Rules``). Each of them has one of two things: mutants that
break it and are found (``Mutant.breaks``), or a sentence that says why no monitor can see it broken, in a dictionary
``UNSEEN`` of one of the modules of ``check.mutants``. A rule is named by its module and its number: ``reader D1``.
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
    sentence: str = ""  # why it cannot be seen

    @property
    def missing(self) -> bool:
        return not self.mutants and not self.sentence


class RulesError(ValueError):
    """Mutants or sentences do not fit the rules; the text says which."""


def rules_of(module: str, header: str) -> dict[str, str]:
    """The numbered rules in a module's docstring, each with its text on one line."""
    _, found, listed = header.partition("\nRules\n")
    return (
        {f"{module} {number}": " ".join(text.split()) for number, text in _RULE.findall("\n" + listed)} if found else {}
    )


def table(texts: Mapping[str, str], mutants: Iterable[Mutant], unseen: Mapping[str, str]) -> tuple[Rule, ...]:
    """A row for each rule. Raises ``RulesError`` for all that does not fit, but not for rules that have neither."""
    broken_by: dict[str, list[str]] = {}
    for mutant in mutants:
        for name in mutant.breaks:
            broken_by.setdefault(name, []).append(mutant.name)
    problems = [
        f"{name}, which {names[0]} breaks, is no rule" for name, names in broken_by.items() if name not in texts
    ]
    problems += [f"{name}, which is called unseen, is no rule" for name in unseen if name not in texts]
    problems += [f"{name} is called unseen, and {broken_by[name][0]} breaks it" for name in unseen if name in broken_by]
    problems += [
        f"the sentence of {name} says nothing: {sentence!r}"
        for name, sentence in unseen.items()
        if len(sentence.split()) < SENTENCE_WORDS_MIN
    ]
    if problems:
        raise RulesError("; ".join(problems))
    return tuple(Rule(name, text, tuple(broken_by.get(name, ())), unseen.get(name, "")) for name, text in texts.items())


def shipped_table() -> tuple[Rule, ...]:
    """The rules of every module of ``core``, with every mutant and every sentence that ships."""
    texts: dict[str, str] = {}
    for module in _modules(core):
        texts |= rules_of(module.__name__.rpartition(".")[2], module.__doc__ or "")
    unseen: dict[str, str] = {}
    for module in _modules(bugs):
        sentences: Mapping[str, str] = getattr(module, "UNSEEN", {})
        twice = sorted(set(sentences) & set(unseen))
        if twice:
            raise RulesError(f"two modules say why these cannot be seen: {', '.join(twice)}")
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
