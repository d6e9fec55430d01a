"""The files that ``trunkline check`` writes for a violation: a page with a diagram, and the actions that lead there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trunkline.dashboard.views import Counterexample

KINDS: Final = {".html": "text/html", ".json": "application/json", ".actions": "text/plain"}
FILES_MAX: Final = 200  # the newest
LOOKED_AT_MAX: Final = 5_000  # names in the folder; a folder with more is not one of ours


def found_in(folder: Path | None) -> tuple[Counterexample, ...]:
    """The newest first; nothing where there is no such folder."""
    if folder is None:
        return ()
    found = []
    try:
        for number, path in enumerate(folder.iterdir()):
            if number >= LOOKED_AT_MAX:
                break
            if path.suffix in KINDS and path.is_file() and not path.is_symlink():
                facts = path.stat()
                found.append(Counterexample(path.name, facts.st_size, facts.st_mtime_ns // 1_000_000))
    except OSError:
        return ()  # it went away, or was never there
    return tuple(sorted(found, key=lambda each: (-each.at_ms, each.name))[:FILES_MAX])


def file_of(folder: Path | None, name: str) -> Path | None:
    """The file of this name, if it is one of those that are listed: nothing else in the folder is given away."""
    if folder is None or all(name != each.name for each in found_in(folder)):
        return None
    return folder / name
