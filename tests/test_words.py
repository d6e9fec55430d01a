"""The project's words: plain English of the field, as docs/glossary.md fixes it. Each ban also catches an offence.

A phrase is banned because a reader has to decode it, or because the glossary has another term for the same thing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

BANNED = {
    # A regular expression, and what replaces it. An underscore counts as a space.
    r"(?<!there )\bis no (?!longer\b)[a-z]+": "is not a, is not valid",
    r"is nothing for": "does not accept",
    r"older of both ends": "the older one",
    r"ends? in order": "shuts down cleanly",
    r"who said it is gone": "removed",
    r"\b(?:is|be|are|was|were) of use\b": "is useful, is ready",
    r"operator's word": "desired state",
    r"\bwish\w*": "desired state",
    r"wound[ -]up": "retired",
    r"(?-i:\bBooks\b)": "a name that says what it stores",
    r"(?-i:\bSightings\b)": "a name that says what it observes",
    r"\bis told\b": "receives",
    r"\bknock(?:s|ed|ing)\b": "dials, redials",
    r"\btold\b": "receives, reports, records, logs",
    r"\banew\b": "again",
    r"(?-i:\bMOST\b)": "MAX",
    r"\bwhoever\b": "the caller, a client, a reader",
    r"\bsomebody\b": "a client, another process",
    r"\bnobody\b": "no process, no client, no reader",
    r"\b(?:is|are) (?:away|gone)\b": "is unreachable, was removed",
    r"\btells\b": "reports, says",
    r"\bbeliev\w*": "accepts, trusts",
    r"\ba look\b": "a check, a poll, a read",
}
PHRASES = [re.compile(pattern, re.IGNORECASE) for pattern in BANNED]
NOUNS = {"logging", "missing", "observing", "packaging", "recording", "string", "timing"}  # not gerunds, or usual terms
GERUND = re.compile(r"[a-z]{3,}ing")

FOLDERS = ("src", "tests", "docs", "tools", "bench", "examples")
SUFFIXES = {".py", ".md", ".yaml", ".toml", ".html", ".js", ".css", ".1"}
EXEMPT = ("docs/glossary.md", "tests/test_words.py")  # they list the banned phrases
COLUMNS = ("src/trunkline/delivery/control/database.py", re.compile(r"\b(?:wish|wound_up)\b"))  # names on disk


def texts(repository: Path) -> list[Path]:
    """Every text that the project's authors wrote, without the history of changes."""
    top = [path for path in repository.glob("*.md") if path.name != "CHANGELOG.md"]
    found = [path for folder in FOLDERS for path in (repository / folder).rglob("*") if path.suffix in SUFFIXES]
    paths = [*top, repository / "run", *found]
    return sorted(path for path in paths if path.relative_to(repository).as_posix() not in EXEMPT)


def offences(text: str, allowed: re.Pattern[str] | None = None) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = allowed.sub("", line) if allowed else line
        for phrase, instead in zip(PHRASES, BANNED.values(), strict=True):
            if found := phrase.search(words.replace("_", " ")):
                yield f"{number}: {found.group()!r}: write {instead}"


def gerunds(name: str) -> list[str]:
    words = Path(name).stem.split("_")
    return [word for word in words if GERUND.fullmatch(word) and word not in NOUNS]


def test_no_text_has_a_banned_phrase(repository: Path) -> None:
    found = [
        f"{name}:{why}"
        for path in texts(repository)
        for name in [path.relative_to(repository).as_posix()]
        for why in offences(path.read_text(encoding="utf-8"), COLUMNS[1] if name == COLUMNS[0] else None)
    ]
    assert not found, f"{len(found)} banned phrases:\n" + "\n".join(found)


def test_modules_are_named_by_nouns(repository: Path) -> None:
    modules = [path for path in (repository / "src").rglob("*.py") if gerunds(path.name) or gerunds(path.parent.name)]
    assert [path.relative_to(repository).as_posix() for path in modules] == []


@pytest.mark.parametrize(
    "offence",
    [
        "'x' is no address",
        "that is nothing for a node",
        "the role is told of it",
        "It was told",
        "begins anew",
        "PROBES_MOST = 3",
        "class Books:",
        "self._wishes",
        "the wound_up destination",
        "Whoever asks",
    ],
)
def test_a_banned_phrase_is_caught(offence: str) -> None:
    assert list(offences(offence))


@pytest.mark.parametrize("innocent", ["'x' is not a valid address", "renewal", "books of a shop", "PROBES_MAX = 3"])
def test_plain_words_pass(innocent: str) -> None:
    assert list(offences(innocent)) == []


def test_a_gerund_is_caught_and_a_noun_passes() -> None:
    assert gerunds("watching.py")
    assert gerunds("log_reading.py")
    assert not any(gerunds(name) for name in ("ring.py", "string.py", "packaging.py", "engine.py"))
