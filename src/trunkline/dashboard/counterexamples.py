"""The files that ``trunkline check`` writes for a violation: a page with a diagram, and the actions."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trunkline.dashboard.views import CounterexampleFile

KINDS: Final = {".html": "text/html", ".json": "application/json", ".actions": "text/plain"}
FILES_MAX: Final = 200  # the newest
NAMES_MAX: Final = 5_000  # in the directory; one with more does not belong to the checker


def found_in(directory: Path | None) -> tuple[CounterexampleFile, ...]:
    """The newest first; empty if the directory does not exist."""
    if directory is None:
        return ()
    found = []
    try:
        for number, path in enumerate(directory.iterdir()):
            if number >= NAMES_MAX:
                break
            if path.suffix in KINDS and path.is_file() and not path.is_symlink():
                facts = path.stat()
                found.append(CounterexampleFile(path.name, facts.st_size, facts.st_mtime_ns // 1_000_000))
    except OSError:
        return ()  # it was removed, or never existed
    return tuple(sorted(found, key=lambda each: (-each.at_ms, each.name))[:FILES_MAX])


def file_of(directory: Path | None, name: str) -> Path | None:
    """The file of this name, if it is listed: no other file of the directory is served."""
    if directory is None or all(name != each.name for each in found_in(directory)):
        return None
    return directory / name
