"""Links, commands, names, counts and examples of the documents are correct."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from trunkline.check.catalogue import Catalogue, shipped
from trunkline.check.monitors import CopiesMade, EndsKept, KeepsRoom, Progress, safety
from trunkline.check.monitors.upkeep import BlockedWithdrawn, DutiesEnd, LastCopy, PatienceKept, RepairedAlike, Upkeep
from trunkline.cli import WrongInput
from trunkline.cli.main import _parser

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md"])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:\./run [a-z-]|trunkline (?:check|version)\b)[^`\n]*")
ELSEWHERE = re.compile(r"(?<![\w.~-])/(?:home|root|tmp|work|Users)/|\.\./shared")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(params=DOCUMENTS, ids=named)
def document(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def prose(text: str) -> str:
    """The text without code blocks."""
    return FENCE.sub("", text)


def anchors(text: str) -> set[str]:
    """The anchors of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path, text: str) -> Iterator[str]:
    for link in LINK.findall(prose(text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.is_relative_to(ROOT) or not target.exists():
            yield f"{link}: no such file in the repository"
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield f"{link}: no such heading"


def commands(text: str) -> list[list[str]]:
    """Every ``./run ...`` and ``trunkline ...`` in code, split like in a shell, without comments."""
    code = [body for _, body in FENCE.findall(text)] + re.findall(r"`([^`\n]+)`", prose(text))
    lines = [found.group().split("  ")[0] for each in code for found in COMMAND.finditer(each)]
    return [shlex.split(line, comments=True) for line in lines]


def commands_of_run() -> set[str]:
    done = subprocess.run([sys.executable, ROOT / "run", "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"^ +\./run (\S+)", done.stdout, re.MULTILINE))


def wrong_command(words: list[str], known: set[str], catalogue: Catalogue) -> str | None:
    """What is wrong with a command. ``...`` stands for any arguments."""
    if words[0] == "./run":
        if words[1] not in known:
            return f"./run knows no {words[1]!r}"
        if words[1] not in ("check", "trunkline"):
            return None
        words = words[2:] if words[1] == "trunkline" else words[1:]
    else:
        words = words[1:]
    if "..." in words:
        words = words[: words.index("...")]
    if not words:
        return None
    try:
        options = _parser().parse_args(words)
    except WrongInput as error:
        return str(error)
    if words[0] == "check":
        scenarios = [name for name in options.scenarios if name not in catalogue.scenarios]
        mutants = [name for name in options.mutants or () if name not in {each.name for each in catalogue.mutants}]
        if scenarios or mutants:
            return f"there is no {', '.join(scenarios + mutants)}"
    return None


def columns(text: str, heading: str) -> Iterator[str]:
    """The names in backticks under a heading of any table."""
    at: int | None = None
    for line in prose(text).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            at = None
        elif heading in cells:
            at = cells.index(heading)
        elif at is not None:
            yield from re.findall(r"`([^`]+)`", cells[at])


def test_every_link_has_a_target(document: Path) -> None:
    assert list(broken_links(document, document.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("link", ["docs/nowhere.md", "docs/log.md#no-such-heading", "../elsewhere.md"])
def test_a_broken_link_is_caught(link: str) -> None:
    assert list(broken_links(ROOT / "README.md", f"see [there]({link})"))


def test_every_command_exists(document: Path) -> None:
    known, catalogue = commands_of_run(), shipped()
    found = [
        (words, wrong_command(words, known, catalogue)) for words in commands(document.read_text(encoding="utf-8"))
    ]
    assert [each for each in found if each[1] is not None] == []


@pytest.mark.parametrize(
    "command",
    [
        "./run fly",
        "./run check no-such-scenario",
        "./run check append --no-such-option",
        "./run check --mutants no-such-mutant",
        "trunkline check append --seed 1 --exhaustive",
    ],
)
def test_a_command_that_does_not_exist_is_caught(command: str) -> None:
    (words,) = commands(f"Try `{command}`.")
    assert wrong_command(words, commands_of_run(), shipped()) is not None


def test_commands_are_found_in_prose_and_in_blocks() -> None:
    text = "Try `./run lint`:\n\n```\n./run check append --exhaustive   # all of it\n```\n"
    assert sorted(commands(text)) == [["./run", "check", "append", "--exhaustive"], ["./run", "lint"]]


def test_documents_name_no_path_outside_of_the_repository(document: Path) -> None:
    assert ELSEWHERE.findall(document.read_text(encoding="utf-8")) == []


def test_scenarios_mutants_and_monitors_in_tables_exist() -> None:
    text, known = (ROOT / "docs" / "log.md").read_text(encoding="utf-8"), shipped()
    upkeep = (LastCopy(), RepairedAlike(), PatienceKept(), Upkeep())
    monitors = {monitor.name for monitor in (*safety(), *upkeep, Progress())}
    monitors |= {each.name for each in (BlockedWithdrawn, CopiesMade, DutiesEnd, EndsKept, KeepsRoom)}
    mutants = {mutant.name for mutant in known.mutants}
    assert set(columns(text, "scenarios")) - set(known.scenarios) == set()
    assert set(columns(text, "mutants")) - mutants == set()
    assert set(columns(text, "monitor")) == monitors


def unnamed(text: str, names: Iterable[str]) -> list[str]:
    """The names that are nowhere in backticks outside of code blocks."""
    found = set(re.findall(r"`([^`\n]+)`", prose(text)))
    return [name for name in names if name not in found]


def test_the_pages_name_every_scenario() -> None:
    text = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("log.md", "checking.md"))
    assert unnamed(text, shipped().scenarios) == []


def test_a_scenario_that_is_not_named_is_caught() -> None:
    text = "`append-order` and read are not enough:\n\n```\n`append`\n```\n"
    assert unnamed(text, ["append", "append-order", "read"]) == ["append", "read"]


def test_the_example_of_the_readme_runs_and_finds_no_violation() -> None:
    (example,) = (
        body for kind, body in FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8")) if kind == "python"
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    assert printed.getvalue().endswith("no violation\n")


def test_the_readme_counts_scenarios_and_mutants() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    known = shipped()
    assert f"{len(known.scenarios)} scenarios" in text
    assert f"{len(known.mutants)} known bugs" in text
