"""Every numbered rule of every role has a mutant that breaks it, or a sentence that says why no monitor can tell."""

from __future__ import annotations

import pytest

from trunkline.check.mutant import Mutant
from trunkline.check.mutants import MUTANTS
from trunkline.check.mutants.patches import patch
from trunkline.check.rules import Rule, RulesError, closing_line, rules_of, shipped_table, table

HEADER = """A role.

States
    a --b--> c

Rules
 D1  The first,
     on two lines.
 D10 The tenth: what
     D3 says holds here too.
Not a rule any more.
"""
TEXTS = {"role D1": "The first, on two lines.", "role D10": "The tenth: what D3 says holds here too."}
SENTENCE = "It changes how much is sent, and monitors do not count that."


def mutant(*breaks: str) -> Mutant:
    return Mutant("bug", "a bug", "chain", patch(), "TotalOrder", "breadth", 1, breaks)


def test_every_rule_has_a_mutant_or_a_sentence() -> None:
    missing = [rule.name for rule in shipped_table() if rule.missing]
    assert missing == [], "write a mutant that breaks it, or say in UNSEEN why no monitor can see it broken"


def test_every_mutant_names_the_rules_that_it_breaks() -> None:
    assert [each.name for each in MUTANTS if not each.breaks] == []


def test_rules_are_read_from_the_header_of_a_role() -> None:
    assert rules_of("role", HEADER) == TEXTS
    assert rules_of("role", "A module without rules. D1 is not one.") == {}


def test_a_row_names_the_mutants_or_the_sentence_of_a_rule() -> None:
    rows = table(TEXTS, (mutant("role D1"),), {"role D10": SENTENCE})
    assert rows == (
        Rule("role D1", TEXTS["role D1"], ("bug",)),
        Rule("role D10", TEXTS["role D10"], (), SENTENCE),
    )
    assert not any(row.missing for row in rows)
    assert closing_line(rows) == "rules: 1 covered by mutants, 1 explained"


def test_a_rule_with_neither_mutant_nor_sentence_is_missing() -> None:
    rows = table(TEXTS, (mutant("role D1"),), {})
    assert [row.name for row in rows if row.missing] == ["role D10"]
    assert closing_line(rows) == "rules: 1 covered by mutants, 0 explained, 1 MISSING"


@pytest.mark.parametrize(
    ("breaks", "unseen", "problem"),
    [
        (("role D2",), {}, "bug breaks role D2, which is not a rule"),
        ((), {"role D2": SENTENCE}, "UNSEEN names role D2, which is not a rule"),
        (("role D1",), {"role D1": SENTENCE}, "UNSEEN names role D1, but bug breaks it"),
        ((), {"role D1": "It cannot be seen."}, "the sentence of role D1 is too short"),
    ],
)
def test_mutants_and_sentences_that_do_not_match_the_rules_are_refused(
    breaks: tuple[str, ...], unseen: dict[str, str], problem: str
) -> None:
    with pytest.raises(RulesError, match=problem):
        table(TEXTS, (mutant(*breaks),), unseen)
