"""The shape of the source: modules are short, the file of a role starts with its numbered rules, and comments cite only
rules that exist.

Each check also catches a planted offence.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

LINES_MAX = 500  # a longer module has more than one purpose
# Their rules may be cited by other files of the same role.
SHARED_RULES = ("streams.py", "recovery.py", "planner.py", "capture.py")

RULE = re.compile(r"^ ([A-Z])(\d+) {1,2}\S", re.MULTILINE)
CITATION = re.compile(r"\b[A-Z]\d+\b")


@pytest.fixture(scope="module")
def package(repository: Path) -> Path:
    return repository / "src" / "trunkline"


def modules(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, f"no modules under {folder}"
    return found


# ------------------------------------------------------------------------------------------------------------- sizes


def is_too_long(source: str) -> bool:
    return len(source.splitlines()) > LINES_MAX


def test_a_module_has_at_most_500_lines(package: Path) -> None:
    found = [path.relative_to(package).as_posix() for path in modules(package) if is_too_long(path.read_text())]
    assert found == []


def test_a_module_that_is_too_long_is_caught() -> None:
    assert not is_too_long("x = 1\n" * LINES_MAX)
    assert is_too_long("x = 1\n" * (LINES_MAX + 1))


# ------------------------------------------------------------------------------------------------------ rules of a role


def header(source: str) -> str:
    """The docstring that opens a module, as it is written: rules are indented by one column."""
    return ast.get_docstring(ast.parse(source), clean=False) or ""


def rules(source: str) -> list[str]:
    """The numbers of the rules in a module's header, in their order."""
    _, _, ruled = header(source).partition("\nRules\n")
    return [letter + number for letter, number in RULE.findall(ruled)]


def roles(source: str) -> list[str]:
    """The classes that receive messages. A Protocol only describes a role."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and not any(ast.unparse(base).split(".")[-1] == "Protocol" for base in node.bases)
        and any(isinstance(part, ast.FunctionDef) and part.name == "on_message" for part in node.body)
    ]


def without_rules(source: str) -> Iterator[str]:
    """What is wrong with the header of a role's file."""
    numbered = rules(source)
    for role in roles(source):
        if not numbered:
            yield f"{role}: the file does not start with numbered rules"
        elif numbered != [f"{numbered[0][0]}{number}" for number in range(1, len(numbered) + 1)]:
            yield f"{role}: the rules are not numbered from 1 under one letter: {', '.join(numbered)}"


def test_the_file_of_a_role_starts_with_its_numbered_rules(package: Path) -> None:
    sources = {path.name: path.read_text() for path in modules(package / "core")}
    assert any(roles(source) for source in sources.values())
    assert [f"{name} {why}" for name, source in sources.items() for why in without_rules(source)] == []


ROLE = "class Echo:\n    def on_message(self): ...\n"


@pytest.mark.parametrize(
    "opening",
    [
        "",
        '"""An echo."""\n',
        '"""An echo.\n\nRules\n It answers.\n"""\n',
        '"""An echo.\n\n X1  It answers.\n"""\n',
        '"""An echo.\n\nRules\n X1  It answers.\n X3  Once.\n"""\n',
        '"""An echo.\n\nRules\n X1  It answers.\n Y2  Once.\n"""\n',
        'import enum\n"""An echo.\n\nRules\n X1  It answers.\n"""\n',
    ],
    ids=["nothing", "no rules", "no numbers", "no heading", "a number left out", "two letters", "not at the top"],
)
def test_a_role_without_numbered_rules_is_caught(opening: str) -> None:
    assert list(without_rules(opening + ROLE))


@pytest.mark.parametrize(
    "innocent",
    [
        '"""An echo.\n\nRules\n X1  It answers,\n     and X2 is not a rule here.\n X2  Once.\n"""\n' + ROLE,
        "class Role(Protocol):\n    def on_message(self): ...\n",
        "class Values:\n    def first(self): ...\n",
    ],
    ids=["rules", "protocol", "no role"],
)
def test_a_role_with_rules_and_other_classes_pass(innocent: str) -> None:
    assert list(without_rules(innocent)) == []


# ---------------------------------------------------------------------------------------------------------- citations


def citations(source: str) -> Iterator[tuple[int, str]]:
    """The rules that comments cite, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for rule in CITATION.findall(token.string):
                yield token.start[0], rule


def unknown_rules(source: str, shared: list[str]) -> list[str]:
    known = [*rules(source), *shared]
    return [f"line {line}: there is no rule {rule}" for line, rule in citations(source) if rule not in known]


def test_a_comment_cites_only_rules_that_exist(package: Path) -> None:
    core = package / "core"
    shared = [rule for name in SHARED_RULES for rule in rules((core / name).read_text())]
    sources = {path.name: path.read_text() for path in modules(core)}
    assert any(True for source in sources.values() for _ in citations(source))
    assert [f"{name} {why}" for name, source in sources.items() for why in unknown_rules(source, shared)] == []


HEADER = '"""An echo.\n\nRules\n X1  It answers.\n"""\n'


@pytest.mark.parametrize("comment", ["# X2", "# X1, X2", "# frozen (X2), or late", "# Y1: why", "# X11"])
def test_a_citation_of_a_rule_that_does_not_exist_is_caught(comment: str) -> None:
    assert unknown_rules(f"{HEADER}x = 1  {comment}\n", ["S1"])


@pytest.mark.parametrize("line", ["x = 1  # X1", "x = 1  # X1, S1: why", "x = 1  # UTF8", "x = '# X2'", "X2 = 1"])
def test_a_citation_of_a_known_rule_and_other_text_pass(line: str) -> None:
    assert unknown_rules(f"{HEADER}{line}\n", ["S1"]) == []
