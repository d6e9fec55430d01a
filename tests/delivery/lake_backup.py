"""A copy of a lake that can be put back."""

from __future__ import annotations

import shutil
from pathlib import Path


class Backup:
    """The lake ``source`` of a folder, with all that its catalog is made of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = folder / "backup"
        self._copy(folder, self._kept)

    def restore(self) -> None:
        self.remove()
        self._copy(self._kept, self._folder)

    def remove(self) -> None:
        for file in self._folder.glob("source.sqlite*"):
            file.unlink()
        shutil.rmtree(self._folder / "source")

    @staticmethod
    def _copy(origin: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        for file in origin.glob("source.sqlite*"):
            shutil.copy2(file, target / file.name)
        shutil.copytree(origin / "source", target / "source")
